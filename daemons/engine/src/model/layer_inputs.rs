//! Embeddings that every layer gets of its own, beside the one that enters the residual stream.

use super::{
    Hyperparameters, Model, ModelError,
    weights::{Linear, TensorSource},
};
use crate::forward::Activations;
use vitriol_kernels_cpu::{Gate, PanelMatrix, TokenRows};

/// Intermediate results, reused.
#[derive(Debug, Default)]
pub struct LayerInputRows {
    /// (n, layers · width)
    all: Vec<f32>,
    /// (n, width), as what follows: what one layer takes of them, and its gate.
    own: Vec<f32>,
    gate: Vec<f32>,
}

/// What the model holds for all layers.
#[derive(Debug)]
pub struct LayerInputs {
    /// (vocab, layers · width)
    embd: PanelMatrix,
    /// (layers · width, d_model)
    proj: Linear,
    /// (width)
    norm: Vec<f32>,
    width: usize,
}

impl LayerInputs {
    pub fn load(
        source: &mut TensorSource<'_>,
        hyper: &Hyperparameters,
        width: usize,
    ) -> Result<Self, ModelError> {
        let all = hyper.layers.len() * width;
        Ok(Self {
            embd: source.matrix("per_layer_token_embd.weight", hyper.vocab, all)?,
            proj: source.linear("per_layer_model_proj", all, hyper.d_model)?,
            norm: source.vector("per_layer_proj_norm.weight", width)?,
            width,
        })
    }

    /// The embeddings, of which a token reads one row.
    pub fn table(&self) -> &PanelMatrix {
        &self.embd
    }

    /// `act.layer_inputs.all = (norm(proj·x / √d_model) + embedding · √width) / √2` for the batch's tokens,
    /// `x` the residual stream that enters the first layer.
    pub fn prepare(&self, model: &Model, tokens: &[u32], act: &mut Activations) {
        let (device, hyper) = (&model.device, &model.hyper);
        let (n, all) = (tokens.len(), hyper.layers.len() * self.width);
        let inputs = &mut act.layer_inputs.all;
        inputs.resize(n * all, 0.0);
        self.proj.forward(device, &act.x, n, inputs);
        device.scale(inputs, 1.0 / (hyper.d_model as f32).sqrt());
        device.rms_norm_in_place(inputs, &self.norm, hyper.rms_eps);
        let mut embedding = vec![0.0; all];
        let grown = (self.width as f32).sqrt();
        for (inputs, &token) in inputs.chunks_exact_mut(all).zip(tokens) {
            device.embed(&self.embd, &[token], &mut embedding);
            for (input, embedding) in inputs.iter_mut().zip(&embedding) {
                *input = (*input + embedding * grown) * std::f32::consts::FRAC_1_SQRT_2;
            }
        }
    }
}

/// How one layer takes its input in.
#[derive(Debug)]
pub struct LayerInput {
    /// (width, d_model)
    gate: Linear,
    /// (d_model, width)
    proj: Linear,
    /// (d_model)
    norm: Vec<f32>,
    width: usize,
}

impl LayerInput {
    pub fn load(
        source: &mut TensorSource<'_>,
        d_model: usize,
        width: usize,
        index: usize,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("blk.{index}.{part}");
        Ok(Self {
            gate: source.linear(&name("inp_gate"), width, d_model)?,
            proj: source.linear(&name("proj"), d_model, width)?,
            norm: source.vector(&name("post_norm.weight"), d_model)?,
            width,
        })
    }

    /// `x += norm(proj · (GELU(gate·x) · input))`.
    pub fn forward(&self, model: &Model, layer: usize, n: usize, act: &mut Activations) {
        let (device, hyper) = (&model.device, &model.hyper);
        let all = hyper.layers.len() * self.width;
        let LayerInputRows {
            all: inputs,
            own,
            gate,
        } = &mut act.layer_inputs;
        own.clear();
        for row in inputs.chunks_exact(all) {
            own.extend_from_slice(&row[layer * self.width..][..self.width]);
        }
        gate.resize(n * self.width, 0.0);
        self.gate.forward(device, &act.x, n, gate);
        let gated = TokenRows::Gated {
            gate,
            up: own,
            by: Gate::GeluTanh,
        };
        self.proj.forward_of(device, &gated, n, &mut act.delta);
        device.rms_norm_in_place(&mut act.delta, &self.norm, hyper.rms_eps);
        device.add_assign(&mut act.x, &act.delta);
    }
}
