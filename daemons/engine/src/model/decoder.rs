use super::{
    Hyperparameters, Model, ModelError, Tap, attention::AnyAttention, feed_forward::FeedForward,
    layer_inputs::LayerInput, weights::TensorSource,
};
use crate::forward::{Activations, Batch, KvStores};

/// Weights of one block: attention, then a feed-forward network, each on the normed residual stream and
/// added to it, in some families normed once more.
///
/// Shapes: norms (d_model)
#[derive(Debug)]
pub struct DecoderLayer {
    attn_norm: Vec<f32>,
    attention: AnyAttention,
    post_attention_norm: Option<Vec<f32>>,
    ffn_norm: Vec<f32>,
    ffn: FeedForward,
    post_ffn_norm: Option<Vec<f32>>,
    layer_input: Option<LayerInput>,
    /// What the residual stream is multiplied by in the end.
    output_scale: Option<f32>,
}

impl DecoderLayer {
    pub(super) fn load(
        source: &mut TensorSource<'_>,
        hyper: &Hyperparameters,
        index: usize,
    ) -> Result<Self, ModelError> {
        let d = hyper.d_model;
        let shape = &hyper.layers[index];
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        let mut output_norm = |part| match hyper.architecture.traits().norms_block_outputs {
            true => source.vector(&name(part), d).map(Some),
            false => Ok(None),
        };
        let post_attention_norm = output_norm("post_attention_norm")?;
        let post_ffn_norm = output_norm("post_ffw_norm")?;
        Ok(Self {
            attn_norm: source.vector(&name("attn_norm"), d)?,
            attention: AnyAttention::load(source, hyper, shape, index)?,
            post_attention_norm,
            ffn_norm: source.vector(&name(hyper.architecture.traits().ffn_norm), d)?,
            ffn: FeedForward::load(source, hyper, shape, index)?,
            post_ffn_norm,
            layer_input: match hyper.d_layer_input {
                Some(width) => Some(LayerInput::load(source, d, width, index)?),
                None => None,
            },
            output_scale: source
                .optional_vector(&name("layer_output_scale"), 1)?
                .map(|scale| scale[0]),
        })
    }

    /// Inner width of its dense feed-forward network; 0 without one.
    pub(super) fn ffn_width(&self) -> usize {
        self.ffn.dense_width()
    }

    /// (bytes, weights) of experts that do not compute a given token.
    pub(super) fn idle_experts(&self) -> (u64, u64) {
        self.ffn.idle_experts()
    }

    /// `x += attention(norm(x)); x += ffn(norm(x))` for every row of the batch, `x` the residual stream
    /// of `act`; writes the rows' K and V into their place in `kv` first.
    pub fn forward(
        &self,
        model: &Model,
        layer: usize,
        batch: &Batch<'_>,
        kv: &mut KvStores,
        act: &mut Activations,
        tap: &mut dyn Tap,
    ) {
        let (device, n) = (&model.device, batch.len());
        self.attention
            .forward(model, layer, &self.attn_norm, batch, kv, act);
        add_output(model, self.post_attention_norm.as_deref(), act);

        self.ffn.forward(model, layer, &self.ffn_norm, n, act, tap);
        add_output(model, self.post_ffn_norm.as_deref(), act);
        if let Some(input) = &self.layer_input {
            input.forward(model, layer, n, act);
        }
        if let Some(scale) = self.output_scale {
            device.scale(&mut act.x, scale);
        }
        tap.layer_output(layer, &act.x, n);
    }
}

/// `x += scale · norm(delta)`.
fn add_output(model: &Model, norm: Option<&[f32]>, act: &mut Activations) {
    let (device, hyper) = (&model.device, &model.hyper);
    if let Some(norm) = norm {
        device.rms_norm_in_place(&mut act.delta, norm, hyper.rms_eps);
    }
    if hyper.residual_scale != 1.0 {
        device.scale(&mut act.delta, hyper.residual_scale);
    }
    device.add_assign(&mut act.x, &act.delta);
}
