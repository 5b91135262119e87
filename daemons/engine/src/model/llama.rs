use super::{Hyperparameters, Model, ModelError, weights::TensorSource};
use crate::forward::{Activations, Batch};
use vitriol_kernels_cpu::{Cpu, KvStore, PanelMatrix};

/// Weights of one `llama` block.
///
/// Shapes: matrices are (outputs, inputs); q heads n_heads · head_dim, kv heads n_kv_heads · head_dim.
#[derive(Debug)]
pub struct LlamaLayer {
    attn_norm: Vec<f32>,
    wq: PanelMatrix,
    wk: PanelMatrix,
    wv: PanelMatrix,
    wo: PanelMatrix,
    ffn_norm: Vec<f32>,
    gate: PanelMatrix,
    up: PanelMatrix,
    down: PanelMatrix,
}

impl LlamaLayer {
    pub(super) fn load(
        source: &mut TensorSource<'_>,
        hyper: &Hyperparameters,
        index: usize,
    ) -> Result<Self, ModelError> {
        let (d, ff) = (hyper.d_model, hyper.d_ff);
        let (q, kv) = (
            hyper.n_heads * hyper.head_dim,
            hyper.n_kv_heads * hyper.head_dim,
        );
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        Ok(Self {
            attn_norm: source.vector(&name("attn_norm"), d)?,
            wq: source.matrix(&name("attn_q"), q, d)?,
            wk: source.matrix(&name("attn_k"), kv, d)?,
            wv: source.matrix(&name("attn_v"), kv, d)?,
            wo: source.matrix(&name("attn_output"), d, q)?,
            ffn_norm: source.vector(&name("ffn_norm"), d)?,
            gate: source.matrix(&name("ffn_gate"), ff, d)?,
            up: source.matrix(&name("ffn_up"), ff, d)?,
            down: source.matrix(&name("ffn_down"), d, ff)?,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        let matrices = [
            &self.wq, &self.wk, &self.wv, &self.wo, &self.gate, &self.up, &self.down,
        ];
        let norms = (self.attn_norm.len() + self.ffn_norm.len()) * 4;
        matrices.iter().map(|m| m.bytes()).sum::<usize>() + norms
    }

    /// `act.x += attention(norm(act.x)); act.x += ffn(norm(act.x))` for every row of the batch;
    /// writes the rows' K and V into layer `layer` of `kv` first.
    pub fn forward(
        &self,
        model: &Model,
        layer: usize,
        batch: &Batch<'_>,
        kv: &mut KvStore,
        act: &mut Activations,
    ) {
        let device: &Cpu = &model.device;
        let hyper = &model.hyper;
        let n = batch.len();
        let (d, eps) = (hyper.d_model, hyper.rms_eps);
        let Activations {
            x,
            normed,
            q,
            k,
            v,
            attended,
            gate,
            up,
            hidden,
            delta,
            angles,
            ..
        } = act;

        device.rms_norm(x, &self.attn_norm, eps, n, d, normed);
        device.matmul_many(
            &mut [(&self.wq, q), (&self.wk, k), (&self.wv, v)],
            normed,
            n,
        );
        device.rope(angles, q, hyper.head_dim);
        device.rope(angles, k, hyper.head_dim);
        device.kv_write(kv, layer, k, v, &batch.places);
        let scale = hyper.attention_scale;
        device.attention(kv, layer, q, hyper.n_heads, &batch.runs, scale, attended);
        device.matmul(&self.wo, attended, n, delta);
        device.add_assign(x, delta);

        device.rms_norm(x, &self.ffn_norm, eps, n, d, normed);
        device.matmul_many(&mut [(&self.gate, gate), (&self.up, up)], normed, n);
        device.silu_mul(gate, up, hidden);
        device.matmul(&self.down, hidden, n, delta);
        device.add_assign(x, delta);
    }
}
