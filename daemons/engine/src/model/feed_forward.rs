use super::{
    Hyperparameters, LayerShape, Model, ModelError, Tap,
    experts::Experts,
    hyperparameters::ExpertShape,
    weights::{Linear, TensorSource},
};
use crate::forward::Activations;
use vitriol_kernels_cpu::{Cpu, TokenRows};

/// What a block does to each token by itself.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one for each layer")]
pub enum FeedForward {
    Dense(Dense),
    Experts(Experts, ExpertShape),
    Parallel(Parallel, ExpertShape),
}

impl FeedForward {
    pub fn load(
        source: &mut TensorSource<'_>,
        hyper: &Hyperparameters,
        shape: &LayerShape,
        index: usize,
    ) -> Result<Self, ModelError> {
        let name = format!("blk.{index}.ffn");
        match hyper.experts {
            Some(experts) if source.has(&format!("{name}_gate_inp.scale")) => {
                let loaded = Parallel::load(source, hyper, shape, &experts, index)?;
                Ok(Self::Parallel(loaded, experts))
            }
            Some(experts) if source.has(&format!("{name}_gate_inp.weight")) => {
                let loaded = Experts::load(source, hyper, &experts, index)?;
                Ok(Self::Experts(loaded, experts))
            }
            _ => Dense::load(source, hyper.d_model, shape.d_ff, &name, "").map(Self::Dense),
        }
    }

    /// Inner width of what every token computes; 0 where there is no such part.
    pub fn dense_width(&self) -> usize {
        match self {
            Self::Dense(dense) => dense.width(),
            Self::Experts(experts, _) => experts.shared_width(),
            Self::Parallel(parallel, _) => parallel.dense.width(),
        }
    }

    /// (bytes, weights) of experts that do not compute a given token.
    pub fn idle_experts(&self) -> (u64, u64) {
        match self {
            Self::Dense(_) => (0, 0),
            Self::Experts(experts, shape) => experts.idle(shape),
            Self::Parallel(parallel, shape) => parallel.experts.idle(shape),
        }
    }

    /// `act.delta = ffn(norm(act.x))` for `n` rows.
    pub fn forward(
        &self,
        model: &Model,
        layer: usize,
        norm: &[f32],
        n: usize,
        act: &mut Activations,
        tap: &mut dyn Tap,
    ) {
        if !matches!(self, Self::Dense(_)) {
            let (d, eps) = (model.hyper.d_model, model.hyper.rms_eps);
            let device = &model.device;
            device.rms_norm(&act.x, norm, eps, n, d, &mut act.normed);
        }
        match self {
            Self::Dense(dense) => dense.forward(model, Some(norm), n, act),
            Self::Experts(experts, shape) => {
                experts.route(model, shape, layer, n, act, tap);
                experts.compute(model, shape, n, act);
            }
            Self::Parallel(parallel, shape) => parallel.forward(model, shape, layer, n, act, tap),
        }
    }
}

/// A gated network: down(activation(gate·x, up·x)).
///
/// Shapes: gate and up (width, d_model), down (d_model, width)
#[derive(Debug)]
pub struct Dense {
    gate: Linear,
    up: Linear,
    down: Linear,
    width: usize,
}

impl Dense {
    /// The tensors `PREFIX_gate`, `PREFIX_up` and `PREFIX_down` with `suffix`; a file without the first
    /// has its rows above those of the second.
    pub fn load(
        source: &mut TensorSource<'_>,
        d_model: usize,
        width: usize,
        prefix: &str,
        suffix: &str,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{prefix}_{part}{suffix}");
        let has_gate = source.has(&format!("{}.weight", name("gate")));
        let [gate, up] = match has_gate {
            true => [
                source.linear(&name("gate"), width, d_model)?,
                source.linear(&name("up"), width, d_model)?,
            ],
            false => {
                let both = format!("{}.weight", name("up"));
                let stacked = source.stacked(&both, [width, width], d_model)?;
                stacked.map(|w| Linear::new(w, None))
            }
        };
        Ok(Self {
            gate,
            up,
            down: source.linear(&name("down"), d_model, width)?,
            width,
        })
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// `act.delta = ffn(norm(act.x))` for `n` rows; without a norm of `act.normed`.
    pub fn forward(&self, model: &Model, norm: Option<&[f32]>, n: usize, act: &mut Activations) {
        let device: &Cpu = &model.device;
        let len = n * self.width;
        let gate = &mut act.gate[..len];
        let up = &mut act.up[..len];
        let x = match norm {
            Some(w) => TokenRows::Normed {
                x: &act.x,
                w,
                eps: model.hyper.rms_eps,
            },
            None => TokenRows::Stored(&act.normed),
        };
        let mut products = [(&self.gate.w, &mut *gate), (&self.up.w, &mut *up)];
        device.matmul_many(&mut products, &x, n);
        self.gate.add_bias(device, gate);
        self.up.add_bias(device, up);
        let by = model.hyper.architecture.traits().activation;
        let hidden = TokenRows::Gated { gate, up, by };
        self.down.forward_of(device, &hidden, n, &mut act.delta);
    }
}

/// Experts beside a dense network, each with norms of its own; the experts read the residual stream
/// itself.
#[derive(Debug)]
pub struct Parallel {
    dense: Dense,
    /// (d_model), as the norms that follow.
    dense_output_norm: Vec<f32>,
    /// Of what the router reads, 1/√d_model within.
    router_norm: Vec<f32>,
    experts_norm: Vec<f32>,
    experts: Experts,
    experts_output_norm: Vec<f32>,
}

impl Parallel {
    fn load(
        source: &mut TensorSource<'_>,
        hyper: &Hyperparameters,
        shape: &LayerShape,
        experts: &ExpertShape,
        index: usize,
    ) -> Result<Self, ModelError> {
        let d = hyper.d_model;
        let name = |part: &str| format!("blk.{index}.{part}");
        let mut router_norm = source.vector(&name("ffn_gate_inp.scale"), d)?;
        for scale in &mut router_norm {
            *scale /= (d as f32).sqrt();
        }
        Ok(Self {
            dense: Dense::load(source, d, shape.d_ff, &name("ffn"), "")?,
            dense_output_norm: source.vector(&name("post_ffw_norm_1.weight"), d)?,
            router_norm,
            experts_norm: source.vector(&name("pre_ffw_norm_2.weight"), d)?,
            experts: Experts::load(source, hyper, experts, index)?,
            experts_output_norm: source.vector(&name("post_ffw_norm_2.weight"), d)?,
        })
    }

    /// `act.delta = norm(dense(act.normed)) + norm(experts(norm(act.x)))` for `n` rows.
    fn forward(
        &self,
        model: &Model,
        shape: &ExpertShape,
        layer: usize,
        n: usize,
        act: &mut Activations,
        tap: &mut dyn Tap,
    ) {
        let (device, eps, d) = (&model.device, model.hyper.rms_eps, model.hyper.d_model);
        self.dense.forward(model, None, n, act);
        device.rms_norm_in_place(&mut act.delta, &self.dense_output_norm, eps);
        std::mem::swap(&mut act.delta, &mut act.beside);
        act.delta.resize(n * d, 0.0);

        device.rms_norm(&act.x, &self.router_norm, eps, n, d, &mut act.normed);
        self.experts.route(model, shape, layer, n, act, tap);
        device.rms_norm(&act.x, &self.experts_norm, eps, n, d, &mut act.normed);
        self.experts.compute(model, shape, n, act);
        device.rms_norm_in_place(&mut act.delta, &self.experts_output_norm, eps);
        device.add_assign(&mut act.delta, &act.beside);
    }
}
