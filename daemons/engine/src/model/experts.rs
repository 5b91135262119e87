use super::{
    Hyperparameters, Model, ModelError, Tap,
    feed_forward::Dense,
    hyperparameters::ExpertShape,
    routing::Routing,
    weights::{Linear, TensorSource},
};
use crate::forward::Activations;
use std::ops::Range;
use vitriol_kernels_cpu::{ExpertProduct, PanelMatrix, TokenRows};

/// Intermediate results of one layer's experts, reused. Slots: see [`Routing`].
#[derive(Debug, Default)]
pub struct Routed {
    /// (n, experts)
    logits: Vec<f32>,
    routing: Routing,
    /// (slots, d_model): the rows, once for each expert that computes them.
    x: Vec<f32>,
    /// (slots, d_ff), as the two that follow.
    gate: Vec<f32>,
    up: Vec<f32>,
    /// (slots, d_model)
    out: Vec<f32>,
    /// (n, d_model): the experts' sum while the shared network computes.
    sum: Vec<f32>,
}

/// A feed-forward network of which each token computes the few parts its router chooses.
#[derive(Debug)]
pub struct Experts {
    /// (experts, d_model)
    router: Linear,
    /// (experts): added to the scores when experts are chosen, not to their weights.
    selection_bias: Option<Vec<f32>>,
    experts: Vec<Expert>,
    /// (experts): what their outputs are multiplied by, before their weights.
    output_scales: Option<Vec<f32>>,
    /// What every token computes besides.
    shared: Option<Dense>,
}

#[derive(Debug)]
struct Expert {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Experts {
    pub fn load(
        source: &mut TensorSource<'_>,
        hyper: &Hyperparameters,
        shape: &ExpertShape,
        index: usize,
    ) -> Result<Self, ModelError> {
        let (d, ff, count) = (hyper.d_model, shape.d_ff, shape.count);
        let name = |part: &str| format!("blk.{index}.{part}");
        let router = source.linear(&name("ffn_gate_inp"), count, d)?;
        let selection_bias = source.optional_vector(&name("exp_probs_b.bias"), count)?;
        let merged = name("ffn_gate_up_exps.weight");
        let gates_ups: Vec<[PanelMatrix; 2]> = match source.has(&merged) {
            true => source.experts(&merged, count, [ff, ff], d)?,
            false => {
                let gates = source.experts(&name("ffn_gate_exps.weight"), count, [ff], d)?;
                let ups = source.experts(&name("ffn_up_exps.weight"), count, [ff], d)?;
                gates
                    .into_iter()
                    .zip(ups)
                    .map(|([gate], [up])| [gate, up])
                    .collect()
            }
        };
        let downs = source.experts(&name("ffn_down_exps.weight"), count, [d], ff)?;
        let mut gate_biases = source.expert_vectors(&name("ffn_gate_exps.bias"), count, ff)?;
        let mut up_biases = source.expert_vectors(&name("ffn_up_exps.bias"), count, ff)?;
        let mut down_biases = source.expert_vectors(&name("ffn_down_exps.bias"), count, d)?;
        let experts = gates_ups
            .into_iter()
            .zip(downs)
            .map(|([gate, up], [down])| Expert {
                gate: Linear::new(gate, gate_biases.next()),
                up: Linear::new(up, up_biases.next()),
                down: Linear::new(down, down_biases.next()),
            })
            .collect();
        let shared = match source.rows(&name("ffn_up_shexp.weight")) {
            Some(width) => Some(Dense::load(source, d, width, &name("ffn"), "_shexp")?),
            None => None,
        };
        Ok(Self {
            router,
            selection_bias,
            experts,
            output_scales: source.optional_vector(&name("ffn_down_exps.scale"), count)?,
            shared,
        })
    }

    /// Inner width of the network every token computes; 0 without one.
    pub fn shared_width(&self) -> usize {
        self.shared.as_ref().map_or(0, Dense::width)
    }

    /// (bytes, weights) of the matrices of those that do not compute a given token.
    pub fn idle(&self, shape: &ExpertShape) -> (u64, u64) {
        let of_all = |of_matrix: fn(&PanelMatrix) -> usize| -> u64 {
            let matrices = self.experts.iter();
            let matrices = matrices.flat_map(|one| [&one.gate.w, &one.up.w, &one.down.w]);
            matrices.map(|matrix| of_matrix(matrix) as u64).sum()
        };
        let (count, idle) = (shape.count as u64, (shape.count - shape.used) as u64);
        let weights = of_all(|matrix| matrix.rows() * matrix.cols());
        (
            of_all(PanelMatrix::bytes) / count * idle,
            weights / count * idle,
        )
    }

    /// Chooses the experts of the `n` rows of `act.normed`.
    pub fn route(
        &self,
        model: &Model,
        shape: &ExpertShape,
        layer: usize,
        n: usize,
        act: &mut Activations,
        tap: &mut dyn Tap,
    ) {
        let Routed {
            logits, routing, ..
        } = &mut act.routed;
        logits.resize(n * shape.count, 0.0);
        self.router.forward(&model.device, &act.normed, n, logits);
        routing.route(logits, shape, self.selection_bias.as_deref());
        tap.experts(layer, &routing.chosen, n);
    }

    /// `act.delta = Σ weight · expert(act.normed)`, over the experts chosen for each of the `n` rows in the
    /// order of their rank, and the shared network's part.
    pub fn compute(&self, model: &Model, shape: &ExpertShape, n: usize, act: &mut Activations) {
        let (device, d) = (&model.device, model.hyper.d_model);
        let traits = model.hyper.architecture.traits();
        let Routed {
            routing,
            x,
            gate,
            up,
            out,
            sum,
            ..
        } = &mut act.routed;

        let slots = routing.chosen.len();
        x.resize(slots * d, 0.0);
        gate.resize(slots * shape.d_ff, 0.0);
        up.resize(slots * shape.d_ff, 0.0);
        out.resize(slots * d, 0.0);
        for (slot, x) in x.chunks_exact_mut(d).enumerate() {
            let row = routing.row_of_slot[slot] as usize;
            x.copy_from_slice(&act.normed[row * d..][..d]);
        }
        if traits.weighs_expert_inputs {
            device.scale_rows(x, &routing.take_slot_weights());
        }
        let mut products = Vec::new();
        let parts = runs(routing, x, d).zip(runs_mut(routing, gate, shape.d_ff));
        for (((index, x), (_, gate)), (_, up)) in parts.zip(runs_mut(routing, up, shape.d_ff)) {
            let expert = &self.experts[index];
            products.push(product(&expert.gate, TokenRows::Stored(x), gate));
            products.push(product(&expert.up, TokenRows::Stored(x), up));
        }
        device.matmul_each(&mut products);
        for (index, gate) in runs_mut(routing, gate, shape.d_ff) {
            self.experts[index].gate.add_bias(device, gate);
        }
        for (index, up) in runs_mut(routing, up, shape.d_ff) {
            self.experts[index].up.add_bias(device, up);
        }
        let hidden = runs(routing, gate, shape.d_ff).zip(runs(routing, up, shape.d_ff));
        let mut products = Vec::new();
        for (((index, gate), (_, up)), (_, out)) in hidden.zip(runs_mut(routing, out, d)) {
            let by = traits.activation;
            let hidden = TokenRows::Gated { gate, up, by };
            products.push(product(&self.experts[index].down, hidden, out));
        }
        device.matmul_each(&mut products);
        for (index, out) in runs_mut(routing, out, d) {
            self.experts[index].down.add_bias(device, out);
            if let Some(scales) = &self.output_scales {
                device.scale(out, scales[index]);
            }
        }
        let Some(shared) = &self.shared else {
            routing.sum(out, d, &mut act.delta);
            return;
        };
        sum.resize(n * d, 0.0);
        routing.sum(out, d, sum);
        shared.forward(model, None, n, act);
        device.add_assign(&mut act.delta, &act.routed.sum);
    }
}

fn product<'a>(linear: &'a Linear, x: TokenRows<'a>, out: &'a mut [f32]) -> ExpertProduct<'a> {
    ExpertProduct {
        w: &linear.w,
        x,
        out,
    }
}

/// Each expert's part of a matrix (slots, width).
fn runs<'a>(
    routing: &'a Routing,
    of: &'a [f32],
    width: usize,
) -> impl Iterator<Item = (usize, &'a [f32])> {
    let part = move |slots: Range<usize>| &of[slots.start * width..slots.end * width];
    routing
        .runs()
        .map(move |(expert, slots)| (expert, part(slots)))
}

/// As [`runs`], to write.
fn runs_mut<'a>(
    routing: &'a Routing,
    of: &'a mut [f32],
    width: usize,
) -> impl Iterator<Item = (usize, &'a mut [f32])> {
    // The runs follow each other without gaps, from slot 0 on.
    let mut rest = of;
    routing.runs().map(move |(expert, slots)| {
        let (part, later) = std::mem::take(&mut rest).split_at_mut(slots.len() * width);
        rest = later;
        (expert, part)
    })
}
