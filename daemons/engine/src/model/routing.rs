//! Which experts compute which token: pure decisions over the router's logits.

use super::hyperparameters::{ExpertGroups, ExpertShape, Gating};
use std::ops::Range;

/// Least divisor when weights are made to sum to 1: the smallest normal f16, as the reference has it.
const WEIGHT_SUM_MIN: f32 = 6.103_515_6e-5;

/// Experts and weights of a step's rows, and the (row, rank) pairs ordered by expert: a *slot* each.
#[derive(Debug, Default)]
pub struct Routing {
    used: usize,
    /// (rows, used), best first.
    pub chosen: Vec<u32>,
    /// (rows, used)
    pub weights: Vec<f32>,
    /// Row of each slot; slots of one expert follow each other, rows ascending.
    pub row_of_slot: Vec<u32>,
    /// (rows, used): slot of each pair.
    slot_of_pair: Vec<u32>,
    /// Experts with slots, ascending.
    runs: Vec<(usize, Range<usize>)>,
}

impl Routing {
    /// Chooses each row's experts from `logits` (rows, experts).
    pub fn route(&mut self, logits: &[f32], shape: &ExpertShape, selection_bias: Option<&[f32]>) {
        self.used = shape.used;
        self.chosen.clear();
        self.weights.clear();
        let mut order = Vec::with_capacity(shape.count);
        for logits in logits.chunks_exact(shape.count) {
            let scores = scores(logits, shape.gating);
            let biased = match selection_bias {
                Some(bias) => scores.iter().zip(bias).map(|(s, b)| s + b).collect(),
                None => scores.clone(),
            };
            order.clear();
            match shape.groups {
                Some(groups) => order.extend(experts_of_best(&biased, groups)),
                None => order.extend(0..shape.count),
            }
            // Of scores that rounding made equal the larger logit wins, then the lower index.
            order.sort_by(|&a, &b| {
                let by_score = biased[b].total_cmp(&biased[a]);
                by_score.then_with(|| logits[b].total_cmp(&logits[a]))
            });
            order.truncate(shape.used);
            let mut weights: Vec<f32> = order.iter().map(|&expert| scores[expert]).collect();
            weigh(&mut weights, shape);
            self.chosen
                .extend(order.iter().map(|&expert| expert as u32));
            self.weights.extend(weights);
        }
        self.order_by_expert(shape.count);
    }

    /// The experts that have slots, with these.
    pub fn runs(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.runs.iter().cloned()
    }

    /// Weight of each slot, for those who multiply an expert's input by it; [`Self::sum`] no longer does.
    pub fn take_slot_weights(&mut self) -> Vec<f32> {
        let mut of_slots = vec![0.0; self.weights.len()];
        for (&slot, weight) in self.slot_of_pair.iter().zip(&mut self.weights) {
            of_slots[slot as usize] = std::mem::replace(weight, 1.0);
        }
        of_slots
    }

    /// `out[row] = Σ weight · parts[slot]`, each row's experts in the order of their rank: the sum does
    /// not depend on what other rows chose.
    ///
    /// Shapes: parts (slots, d); out (rows, d)
    pub fn sum(&self, parts: &[f32], d: usize, out: &mut [f32]) {
        let pairs = self.weights.chunks_exact(self.used);
        let slots = self.slot_of_pair.chunks_exact(self.used);
        for ((out, weights), slots) in out.chunks_exact_mut(d).zip(pairs).zip(slots) {
            out.fill(0.0);
            for (&weight, &slot) in weights.iter().zip(slots) {
                let part = &parts[slot as usize * d..][..d];
                for (out, part) in out.iter_mut().zip(part) {
                    *out += weight * part;
                }
            }
        }
    }

    fn order_by_expert(&mut self, experts: usize) {
        let mut counts = vec![0usize; experts];
        for &expert in &self.chosen {
            counts[expert as usize] += 1;
        }
        self.runs.clear();
        let mut next = vec![0usize; experts];
        let mut first = 0;
        for (expert, &count) in counts.iter().enumerate() {
            next[expert] = first;
            if count > 0 {
                self.runs.push((expert, first..first + count));
            }
            first += count;
        }
        self.row_of_slot.resize(self.chosen.len(), 0);
        self.slot_of_pair.resize(self.chosen.len(), 0);
        for (pair, &expert) in self.chosen.iter().enumerate() {
            let slot = &mut next[expert as usize];
            self.row_of_slot[*slot] = (pair / self.used) as u32;
            self.slot_of_pair[pair] = *slot as u32;
            *slot += 1;
        }
    }
}

/// The experts of the groups whose two best experts score most together.
fn experts_of_best(scores: &[f32], groups: ExpertGroups) -> impl Iterator<Item = usize> {
    let size = scores.len() / groups.count;
    let top_two = |group: &[f32]| {
        let mut sorted = group.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        sorted[0] + sorted[1]
    };
    let sums: Vec<f32> = scores.chunks_exact(size).map(top_two).collect();
    let mut best: Vec<usize> = (0..groups.count).collect();
    best.sort_by(|&a, &b| sums[b].total_cmp(&sums[a]));
    best.truncate(groups.used);
    best.sort_unstable();
    best.into_iter()
        .flat_map(move |group| group * size..(group + 1) * size)
}

/// The router's logits as scores to choose and to weigh by.
fn scores(logits: &[f32], gating: Gating) -> Vec<f32> {
    match gating {
        Gating::Softmax => softmax(logits),
        Gating::Sigmoid => {
            let sigmoid = |&x: &f32| (1.0 / (1.0 + (-f64::from(x)).exp())) as f32;
            logits.iter().map(sigmoid).collect()
        }
        Gating::SoftmaxOfChosen => logits.to_vec(),
    }
}

/// In f64, rounded once.
fn softmax(logits: &[f32]) -> Vec<f32> {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let exps: Vec<f64> = logits
        .iter()
        .map(|&x| (f64::from(x) - most).exp())
        .collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|e| (e / sum) as f32).collect()
}

/// Scores of the chosen experts into their weights.
fn weigh(weights: &mut [f32], shape: &ExpertShape) {
    if shape.gating == Gating::SoftmaxOfChosen {
        let soft = softmax(weights);
        weights.copy_from_slice(&soft);
    }
    let divisor = match shape.normalised {
        true => weights.iter().sum::<f32>().max(WEIGHT_SUM_MIN),
        false => 1.0,
    };
    for weight in weights {
        *weight = *weight / divisor * shape.scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHAPE: ExpertShape = ExpertShape {
        count: 4,
        used: 2,
        d_ff: 8,
        gating: Gating::Softmax,
        normalised: true,
        scale: 1.0,
        groups: None,
    };

    fn routed(logits: &[f32], shape: &ExpertShape, bias: Option<&[f32]>) -> Routing {
        let mut routing = Routing::default();
        routing.route(logits, shape, bias);
        routing
    }

    #[test]
    fn the_best_are_chosen_best_first_and_weigh_one_together() {
        let routing = routed(&[0.0, 3.0, 1.0, 2.0], &SHAPE, None);
        assert_eq!(routing.chosen, [1, 3]);
        let e = 1f32.exp();
        assert!((routing.weights[0] - e / (e + 1.0)).abs() < 1e-6);
        assert!((routing.weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn of_equal_scores_the_lower_index_wins() {
        assert_eq!(routed(&[1.0; 4], &SHAPE, None).chosen, [0, 1]);
    }

    #[test]
    fn a_selection_bias_chooses_and_does_not_weigh() {
        let shape = ExpertShape {
            gating: Gating::Sigmoid,
            normalised: false,
            scale: 2.5,
            ..SHAPE
        };
        let routing = routed(&[0.0, 0.0, 1.0, 2.0], &shape, Some(&[9.0, 0.0, 0.0, 0.0]));
        assert_eq!(routing.chosen, [0, 3]);
        assert!((routing.weights[0] - 0.5 * 2.5).abs() < 1e-6);
    }

    #[test]
    fn softmax_of_the_chosen_ignores_the_others() {
        let shape = ExpertShape {
            gating: Gating::SoftmaxOfChosen,
            normalised: false,
            ..SHAPE
        };
        let a = routed(&[2.0, 1.0, -5.0, 0.0], &shape, None);
        let b = routed(&[2.0, 1.0, 0.5, 0.9], &shape, None);
        assert_eq!(a.weights, b.weights);
    }

    #[test]
    fn experts_come_from_the_groups_whose_best_two_score_most() {
        let shape = ExpertShape {
            groups: Some(ExpertGroups { count: 2, used: 1 }),
            ..SHAPE
        };
        // The best single expert is in the group that loses.
        assert_eq!(routed(&[3.0, -9.0, 2.0, 1.9], &shape, None).chosen, [0, 1]);
        assert_eq!(routed(&[3.0, -9.0, 2.9, 2.8], &shape, None).chosen, [2, 3]);
    }

    proptest! {
        /// Slots and pairs name each other, and a row's sum is the same bits in any company.
        #[test]
        fn a_row_sums_the_same_in_any_company(
            rows in prop::collection::vec(prop::collection::vec(-4f32..4.0, 4), 1..20),
        ) {
            let parts_of = |routing: &Routing| -> Vec<f32> {
                let mut parts = vec![0.0; routing.chosen.len()];
                for (expert, slots) in routing.runs() {
                    for slot in slots {
                        let row = routing.row_of_slot[slot] as usize;
                        parts[slot] = (expert as f32 + 0.3) * rows[row % rows.len()][0];
                    }
                }
                parts
            };
            let all: Vec<f32> = rows.concat();
            let together = routed(&all, &SHAPE, None);
            let mut sums = vec![0.0; rows.len()];
            together.sum(&parts_of(&together), 1, &mut sums);
            for (row, logits) in rows.iter().enumerate() {
                let alone = routed(logits, &SHAPE, None);
                let parts: Vec<f32> = alone
                    .runs()
                    .map(|(expert, _)| (expert as f32 + 0.3) * logits[0])
                    .collect();
                let mut sum = [0.0];
                alone.sum(&parts, 1, &mut sum);
                prop_assert_eq!(sum[0].to_bits(), sums[row].to_bits());
            }
        }
    }
}
