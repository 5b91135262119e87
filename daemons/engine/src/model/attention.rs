use super::{
    Hyperparameters, LayerShape, Model, ModelError,
    architecture::QkNorm,
    mla::LatentAttention,
    weights::{Linear, TensorSource},
};
use crate::forward::{Activations, Batch, KvStores};
use vitriol_kernels_cpu::{AttentionOptions, Cpu, RopeAngles, TokenRows};

/// Weights of a block's attention, of whichever kind.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one for each layer")]
pub enum AnyAttention {
    Heads(Attention),
    Latent(LatentAttention),
}

impl AnyAttention {
    pub fn load(
        source: &mut TensorSource<'_>,
        hyper: &Hyperparameters,
        shape: &LayerShape,
        index: usize,
    ) -> Result<Self, ModelError> {
        match &hyper.mla {
            Some(mla) => LatentAttention::load(source, hyper, mla, index).map(Self::Latent),
            None => Attention::load(source, hyper, shape, index).map(Self::Heads),
        }
    }

    /// `act.delta = attention(norm(act.x))`; writes the rows' K and V into the layer's place in `kv` first.
    pub fn forward(
        &self,
        model: &Model,
        layer: usize,
        norm: &[f32],
        batch: &Batch<'_>,
        kv: &mut KvStores,
        act: &mut Activations,
    ) {
        match self {
            Self::Heads(attention) => attention.forward(model, layer, norm, batch, kv, act),
            Self::Latent(attention) => attention.forward(model, layer, norm, batch, kv, act),
        }
    }
}

/// Weights of attention with keys and values for each group of heads.
///
/// Shapes: q heads are n_heads · head_dim wide, k and v heads n_kv_heads · head_dim; norms (head_dim), or
/// as wide as what they norm whole.
#[derive(Debug)]
pub struct Attention {
    wq: Linear,
    q_norm: Option<Vec<f32>>,
    /// `None`: it reads another layer's.
    kv: Option<KeyValue>,
    /// (n_heads): logits that take part in each head's softmax and have no value.
    sinks: Option<Vec<f32>>,
    wo: Linear,
}

#[derive(Debug)]
struct KeyValue {
    wk: Linear,
    k_norm: Option<Vec<f32>>,
    /// `None`: values are the keys, as they were before norm and rotation.
    wv: Option<Linear>,
}

impl Attention {
    pub fn load(
        source: &mut TensorSource<'_>,
        hyper: &Hyperparameters,
        shape: &LayerShape,
        index: usize,
    ) -> Result<Self, ModelError> {
        let d = hyper.d_model;
        let q = hyper.n_heads * shape.head_dim;
        let kv = shape.n_kv_heads * shape.head_dim;
        let name = |part: &str| format!("blk.{index}.{part}");
        let traits = hyper.architecture.traits();
        let (wq, wk_wv) = if shape.kv_of.is_none() && source.has(&name("attn_qkv.weight")) {
            let all = source.stacked(&name("attn_qkv.weight"), [q, kv, kv], d)?;
            let [wq, wk, wv] = all.map(|w| Linear::new(w, None));
            (wq, Some((wk, Some(wv))))
        } else {
            let wq = source.linear(&name("attn_q"), q, d)?;
            let has_v = source.has(&name("attn_v.weight")) || !traits.values_may_be_keys;
            let wk_wv = match (shape.kv_of, has_v) {
                (Some(_), _) => None,
                (None, true) => Some((
                    source.linear(&name("attn_k"), kv, d)?,
                    Some(source.linear(&name("attn_v"), kv, d)?),
                )),
                (None, false) => Some((source.linear(&name("attn_k"), kv, d)?, None)),
            };
            (wq, wk_wv)
        };
        let mut norm = |part: &str, whole: usize| {
            let width = match hyper.qk_norm {
                QkNorm::None | QkNorm::AfterRotation => return Ok(None),
                QkNorm::PerHead => shape.head_dim,
                QkNorm::WholeRow => whole,
            };
            source.vector(&name(part), width).map(Some)
        };
        let q_norm = norm("attn_q_norm.weight", q)?;
        let kv = match wk_wv {
            Some((wk, wv)) => Some(KeyValue {
                wk,
                k_norm: norm("attn_k_norm.weight", kv)?,
                wv,
            }),
            None => None,
        };
        let loaded = Self {
            wq,
            q_norm,
            kv,
            sinks: source.optional_vector(&name("attn_sinks.weight"), hyper.n_heads)?,
            wo: source.linear(&name("attn_output"), d, q)?,
        };
        match loaded.without_bias().filter(|_| traits.needs_qkv_bias) {
            Some(part) => Err(source.missing(&name(&format!("{part}.bias")))),
            None => Ok(loaded),
        }
    }

    /// The first of its projections that has no bias.
    fn without_bias(&self) -> Option<&'static str> {
        let kv = self.kv.iter();
        let wk_wv = kv.flat_map(|kv| [(Some(&kv.wk), "attn_k"), (kv.wv.as_ref(), "attn_v")]);
        let all = std::iter::once((Some(&self.wq), "attn_q")).chain(wk_wv);
        let mut bare = all.filter(|(linear, _)| linear.is_some_and(|l| l.bias.is_none()));
        bare.next().map(|(_, part)| part)
    }

    /// `act.delta = attention(norm(act.x))`; writes the rows' K and V into the layer's place in `kv` first.
    pub fn forward(
        &self,
        model: &Model,
        layer: usize,
        norm: &[f32],
        batch: &Batch<'_>,
        kv: &mut KvStores,
        act: &mut Activations,
    ) {
        let device: &Cpu = &model.device;
        let hyper = &model.hyper;
        let shape = &hyper.layers[layer];
        let n = batch.len();
        let (q_len, kv_len) = (
            n * hyper.n_heads * shape.head_dim,
            n * shape.n_kv_heads * shape.head_dim,
        );
        let q = &mut act.q[..q_len];
        let k = &mut act.k[..kv_len];
        let v = &mut act.v[..kv_len];
        let attended = &mut act.attended[..q_len];

        let mut products = vec![(&self.wq.w, &mut *q)];
        if let Some(kv) = &self.kv {
            products.push((&kv.wk.w, &mut *k));
            if let Some(wv) = &kv.wv {
                products.push((&wv.w, &mut *v));
            }
        }
        let normed = TokenRows::Normed {
            x: &act.x,
            w: norm,
            eps: hyper.rms_eps,
        };
        device.matmul_many(&mut products, &normed, n);

        let place = model.kv_layers[layer];
        let group = &batch.groups[place.group];
        let store = kv.store_mut(place);
        self.wq.add_bias(device, q);
        prepare(model, shape, self.q_norm.as_deref(), &act.angles, q);
        if let Some(kv) = &self.kv {
            kv.wk.add_bias(device, k);
            match &kv.wv {
                Some(wv) => wv.add_bias(device, v),
                None => v.copy_from_slice(k),
            }
            if hyper.architecture.traits().normalises_values {
                device.rms_scale_in_place(v, shape.value_dim, hyper.rms_eps);
            }
            prepare(model, shape, kv.k_norm.as_deref(), &act.angles, k);
            device.kv_write(store, place.layer, k, v, &group.places);
        }
        if let Some(scaling) = hyper.query_scaling
            && !(scaling.unrotated_only && shape.rope.is_some())
        {
            let factors: Vec<f32> = batch.positions.iter().map(|&p| scaling.at(p)).collect();
            device.scale_rows(q, &factors);
        }
        let options = AttentionOptions {
            scale: hyper.attention_scale,
            softcap: hyper.score_cap,
            window: shape.window,
            sinks: self.sinks.as_deref(),
        };
        device.attention(
            store,
            place.layer,
            q,
            hyper.n_heads,
            &group.runs,
            options,
            attended,
        );
        self.wo.forward(device, attended, n, &mut act.delta);
    }
}

/// Norms and rotates the heads of q or k.
fn prepare(
    model: &Model,
    shape: &LayerShape,
    norm: Option<&[f32]>,
    angles: &[RopeAngles],
    heads: &mut [f32],
) {
    let (device, eps) = (&model.device, model.hyper.rms_eps);
    if let Some(norm) = norm {
        device.rms_norm_in_place(heads, norm, eps);
    }
    if let Some(rope) = shape.rope {
        device.rope(&angles[rope], heads, shape.head_dim);
        if model.hyper.qk_norm == QkNorm::AfterRotation {
            device.rms_scale_in_place(heads, shape.head_dim, eps);
        }
    }
}
