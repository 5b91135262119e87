//! How close an engine comes to a record of the zoo.

use anyhow::{Result, bail, ensure};
use vitriol_testkit::golden::{Array, ZooRecord};

use crate::{
    Runner, Trace,
    golden::{argmax, max_difference},
};

/// Limit on |Δlogit| for weights multiplied in f32; the reference's own spread is below 2e-5.
const F32_TOLERANCE: f32 = 2e-4;
/// The same for gemma against the float64 reference with the exact tanh-GELU.
const GEMMA_TOLERANCE: f32 = 3e-4;
/// Gemma against llama.cpp, whose GELU is a table of f16 values.
const GEMMA_TABLE_TOLERANCE: f32 = 3e-2;

/// Where a greedy choice may differ for tokens that were rounded to bytes: |Δlogit| of the reference's
/// own rounding reaches 0.3 on these models.
const ROUNDED_TOLERANCE: f32 = 0.15;

/// Arrays that a file is judged by, and the limit on |Δlogit| for each.
#[derive(Clone, Copy, Debug)]
pub struct Yardstick {
    /// Logits of one batch of all tokens.
    pub batch: (&'static str, f32),
    /// Logits token by token, at `positions`; none where the record has only a batch to offer.
    pub step: Option<(&'static str, f32)>,
    /// Ids of the greedy continuation, distances of the first two logits, and what may be off.
    pub greedy: (&'static str, &'static str, f32),
}

/// What `file` (`llama.f32`, `gemma3.q8_0`, …) is judged by.
pub fn yardstick(file: &str) -> Yardstick {
    let gemma = file.starts_with("gemma");
    match (file.ends_with(".f32"), gemma) {
        (true, false) => Yardstick {
            batch: ("logits_batch", F32_TOLERANCE),
            step: Some(("logits_step", F32_TOLERANCE)),
            greedy: ("greedy", "greedy_gap", F32_TOLERANCE),
        },
        (true, true) => Yardstick {
            batch: ("ref_logits_batch", GEMMA_TOLERANCE),
            step: Some(("logits_step", GEMMA_TABLE_TOLERANCE)),
            greedy: ("greedy", "greedy_gap", GEMMA_TABLE_TOLERANCE),
        },
        // Tokens are rounded where weights are quantised: the whole is judged by its NMSE.
        (false, _) => Yardstick {
            batch: ("deq_logits_batch", f32::MAX),
            step: None,
            greedy: ("deq_greedy", "deq_greedy_gap", ROUNDED_TOLERANCE),
        },
    }
}

/// Distance of logits from rows of a reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distance {
    /// Largest |Δlogit|, and the position it is at.
    pub difference: f32,
    pub position: usize,
    /// Mean square of the difference over that of the reference.
    pub nmse: f64,
}

/// Distance of `logits`, (tokens, vocab), from the rows of `expected`, which stand at `positions`.
/// A logit that is not a number is infinitely far.
pub fn distance(logits: &[f32], expected: &Array<f32>, positions: &[usize]) -> Distance {
    let vocab = expected.shape[1];
    let (mut worst, mut error, mut power) = (Distance::default(), 0.0, 0.0);
    for (row, &position) in positions.iter().enumerate() {
        let (ours, theirs) = (&logits[position * vocab..][..vocab], expected.row(row));
        let difference = match ours.iter().all(|logit| logit.is_finite()) {
            true => max_difference(ours, theirs),
            false => f32::INFINITY,
        };
        if difference > worst.difference {
            (worst.difference, worst.position) = (difference, position);
        }
        let square = |x: f32| f64::from(x) * f64::from(x);
        error += ours
            .iter()
            .zip(theirs)
            .map(|(a, b)| square(a - b))
            .sum::<f64>();
        power += theirs.iter().copied().map(square).sum::<f64>();
    }
    worst.nmse = error / power;
    worst
}

/// How a greedy continuation compares with the recorded one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Continuation {
    pub agreed: usize,
    /// Steps that differ where the reference itself cannot tell its first two tokens apart.
    pub ties: Vec<usize>,
    /// Steps that differ though the gap is clear.
    pub wrong: Vec<usize>,
}

/// Feeds the recorded continuation token by token and asks for the same argmax at each step. A
/// mismatch where the recorded gap is below twice the tolerance is a tie.
pub fn continuation(
    runner: &mut Runner,
    record: &ZooRecord,
    (ids, gaps, tolerance): (&str, &str, f32),
) -> Result<Continuation> {
    let (ids, gaps) = (record.i32(ids)?, record.f32(gaps)?);
    ensure!(ids.values.len() == gaps.values.len(), "a gap for each id");
    let ids: Vec<u32> = ids.values.iter().map(|&id| id as u32).collect();
    let (last, continued) = (record.tokens.len() - 1, &ids[..ids.len() - 1]);
    let tokens = [&record.tokens[..], continued].concat();
    let sizes: Vec<usize> = [last + 1]
        .into_iter()
        .chain(continued.iter().map(|_| 1))
        .collect();
    let logits = runner.logits(&tokens, &sizes)?;
    let mut found = Continuation::default();
    let rows = logits.chunks_exact(runner.vocab()).skip(last);
    for (step, (row, (&id, &gap))) in rows.zip(ids.iter().zip(&gaps.values)).enumerate() {
        match argmax(row) == id as usize {
            true => found.agreed += 1,
            false if gap < 2.0 * tolerance => found.ties.push(step),
            false => found.wrong.push(step),
        }
    }
    Ok(found)
}

/// Where the experts that a pass chose are not those recorded: layer and position, whatever the order
/// of the experts. Errors: the pass did not route in the layers, or by the number, that the record says.
pub fn misrouted(trace: &Trace, record: &ZooRecord) -> Result<Vec<(usize, usize)>> {
    let mut recorded = Vec::new();
    for array in record.arrays() {
        if let Some(layer) = array.strip_prefix("moe_topk-") {
            recorded.push((layer.parse::<usize>()?, record.i32(array)?));
        }
    }
    recorded.sort_by_key(|(layer, _)| *layer);
    let (ours, theirs): (Vec<usize>, Vec<usize>) = (
        trace.experts.keys().copied().collect(),
        recorded.iter().map(|(layer, _)| *layer).collect(),
    );
    ensure!(
        ours == theirs,
        "layers {ours:?} route, the record has layers {theirs:?}"
    );
    let mut wrong = Vec::new();
    for (layer, expected) in &recorded {
        let chosen = &trace.experts[layer];
        let (rows, width) = (expected.shape[0], expected.shape[1]);
        ensure!(
            chosen.len() == rows * width,
            "layer {layer} chose {} experts for {rows} tokens, the record has {width} each",
            chosen.len()
        );
        for (position, row) in chosen.chunks_exact(width).enumerate() {
            let mut ours: Vec<i32> = row.iter().map(|&id| id as i32).collect();
            let mut theirs = expected.row(position).to_vec();
            ours.sort_unstable();
            theirs.sort_unstable();
            if ours != theirs {
                wrong.push((*layer, position));
            }
        }
    }
    Ok(wrong)
}

/// Distance of the residual stream from the record after each layer, where the record has it.
pub fn layer_distances(trace: &Trace, record: &ZooRecord, array: &str) -> Result<Vec<Distance>> {
    let expected = record.f32(array)?;
    let [n_layers, rows, d_model] = expected.shape[..] else {
        bail!("{array} has the shape {:?}, not three axes", expected.shape);
    };
    ensure!(
        trace.layer_outputs.len() == n_layers,
        "{} layers ran, {array} has {n_layers}",
        trace.layer_outputs.len()
    );
    // Records of quantised files have the last position only.
    let positions = &record.positions[record.positions.len() - rows..];
    let of_layer = |layer: usize| Array {
        shape: vec![rows, d_model],
        values: expected.row(layer).to_vec(),
    };
    let ours = trace.layer_outputs.iter().enumerate();
    Ok(ours
        .map(|(layer, hidden)| distance(hidden, &of_layer(layer), positions))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_the_worst_of_the_named_positions() {
        let expected = Array {
            shape: vec![2, 2],
            values: vec![1.0, 2.0, 3.0, 4.0],
        };
        let logits = [1.0, 2.0, 9.0, 9.0, 3.0, 4.5];
        let found = distance(&logits, &expected, &[0, 2]);
        assert_eq!((found.difference, found.position), (0.5, 2));
        assert!((found.nmse - 0.25 / 30.0).abs() < 1e-12);
        assert_eq!(distance(&[1.0, 2.0], &expected, &[0]).difference, 0.0);
        assert_eq!(
            distance(&[1.0, f32::NAN], &expected, &[0]).difference,
            f32::INFINITY
        );
    }

    /// What the record says of `qwen3moe.f32`, as if the engine had done it.
    fn recorded_trace() -> (Trace, ZooRecord) {
        let record = ZooRecord::read("qwen3moe.f32").unwrap();
        let mut trace = Trace::default();
        for layer in 0..2 {
            let chosen = record.i32(&format!("moe_topk-{layer}")).unwrap().values;
            let chosen = chosen.into_iter().map(|id| id as u32).collect();
            trace.experts.insert(layer, chosen);
        }
        (trace, record)
    }

    #[test]
    fn experts_are_compared_whatever_their_order() {
        let (mut trace, record) = recorded_trace();
        assert_eq!(misrouted(&trace, &record).unwrap(), []);
        trace.experts.get_mut(&1).unwrap()[10..12].reverse();
        assert_eq!(misrouted(&trace, &record).unwrap(), []);
        let chosen = trace.experts.get_mut(&1).unwrap();
        let others = (0..8).filter(|id| !chosen[10..12].contains(id));
        chosen[11] = others.min().unwrap();
        assert_eq!(misrouted(&trace, &record).unwrap(), [(1, 5)]);
    }

    #[test]
    fn routing_in_other_layers_or_for_other_tokens_is_an_error() {
        let (mut trace, record) = recorded_trace();
        let chosen = trace.experts.remove(&1).unwrap();
        assert!(misrouted(&trace, &record).is_err());
        trace.experts.insert(1, chosen[..190].to_vec());
        assert!(misrouted(&trace, &record).is_err());
    }

    #[test]
    fn the_first_wrong_layer_shows() {
        let (_, record) = recorded_trace();
        let recorded = record.f32("l_out").unwrap();
        let mut trace = Trace {
            layer_outputs: vec![vec![0.0; 96 * 64]; 2],
            ..Trace::default()
        };
        for (layer, outputs) in trace.layer_outputs.iter_mut().enumerate() {
            for (row, &position) in record.positions.iter().enumerate() {
                let values = &recorded.row(layer)[row * 64..][..64];
                outputs[position * 64..][..64].copy_from_slice(values);
            }
        }
        let distances = |trace: &Trace| layer_distances(trace, &record, "l_out").unwrap();
        assert!(
            distances(&trace)
                .iter()
                .all(|found| found.difference == 0.0)
        );
        trace.layer_outputs[1][31 * 64] += 1.0;
        let found = distances(&trace);
        assert_eq!((found[0].difference, found[1].position), (0.0, 31));
    }

    #[test]
    fn gemma_is_measured_by_the_exact_gelu() {
        assert_eq!(yardstick("gemma3.f32").batch, ("ref_logits_batch", 3e-4));
        assert_eq!(yardstick("gemma3.q8_0").batch, ("deq_logits_batch", 3e-2));
        assert_eq!(yardstick("llama.q8_0").batch, ("deq_logits_batch", 2e-4));
        assert_eq!(yardstick("llama_moe.f32").batch, ("logits_batch", 2e-4));
    }
}
