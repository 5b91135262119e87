use super::{Hyperparameters, Model, ModelError, weights::TensorSource};
use crate::forward::{Activations, Batch};
use vitriol_kernels_cpu::{Cpu, KvStore, PanelMatrix};

/// Weights of one block: attention, then a gated feed-forward network, each on the normed residual
/// stream and added to it.
///
/// Shapes: matrices are (outputs, inputs); q heads n_heads · head_dim, kv heads n_kv_heads · head_dim;
/// biases as their matrix's outputs; q_norm, k_norm (head_dim).
#[derive(Debug)]
pub struct DecoderLayer {
    attn_norm: Vec<f32>,
    wq: PanelMatrix,
    wk: PanelMatrix,
    wv: PanelMatrix,
    qkv_bias: Option<QkvBias>,
    qk_norm: Option<QkNorm>,
    wo: PanelMatrix,
    ffn_norm: Vec<f32>,
    gate: PanelMatrix,
    up: PanelMatrix,
    down: PanelMatrix,
}

#[derive(Debug)]
struct QkvBias {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

#[derive(Debug)]
struct QkNorm {
    q: Vec<f32>,
    k: Vec<f32>,
}

impl DecoderLayer {
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
        let name = |part: &str| format!("blk.{index}.{part}");
        let architecture = hyper.architecture;
        let has_bias = || source.has(&name("attn_q.bias"));
        let qkv_bias = match architecture.qkv_bias().unwrap_or_else(has_bias) {
            true => Some(QkvBias {
                q: source.vector(&name("attn_q.bias"), q)?,
                k: source.vector(&name("attn_k.bias"), kv)?,
                v: source.vector(&name("attn_v.bias"), kv)?,
            }),
            false => None,
        };
        let qk_norm = match architecture.has_qk_norm() {
            true => Some(QkNorm {
                q: source.vector(&name("attn_q_norm.weight"), hyper.head_dim)?,
                k: source.vector(&name("attn_k_norm.weight"), hyper.head_dim)?,
            }),
            false => None,
        };
        Ok(Self {
            attn_norm: source.vector(&name("attn_norm.weight"), d)?,
            wq: source.matrix(&name("attn_q.weight"), q, d)?,
            wk: source.matrix(&name("attn_k.weight"), kv, d)?,
            wv: source.matrix(&name("attn_v.weight"), kv, d)?,
            qkv_bias,
            qk_norm,
            wo: source.matrix(&name("attn_output.weight"), d, q)?,
            ffn_norm: source.vector(&name("ffn_norm.weight"), d)?,
            gate: source.matrix(&name("ffn_gate.weight"), ff, d)?,
            up: source.matrix(&name("ffn_up.weight"), ff, d)?,
            down: source.matrix(&name("ffn_down.weight"), d, ff)?,
        })
    }

    /// Bytes of the layer's weights as they lie in memory.
    pub(super) fn bytes(&self) -> usize {
        let matrices = [
            &self.wq, &self.wk, &self.wv, &self.wo, &self.gate, &self.up, &self.down,
        ];
        let bias = self.qkv_bias.iter().flat_map(|b| [&b.q, &b.k, &b.v]);
        let norms = self.qk_norm.iter().flat_map(|n| [&n.q, &n.k]);
        let vectors = bias.chain(norms).chain([&self.attn_norm, &self.ffn_norm]);
        matrices.iter().map(|m| m.bytes()).sum::<usize>()
            + vectors.map(|v| v.len() * 4).sum::<usize>()
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
        if let Some(bias) = &self.qkv_bias {
            device.add_bias(q, &bias.q);
            device.add_bias(k, &bias.k);
            device.add_bias(v, &bias.v);
        }
        if let Some(norm) = &self.qk_norm {
            device.rms_norm_in_place(q, &norm.q, eps);
            device.rms_norm_in_place(k, &norm.k, eps);
        }
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
