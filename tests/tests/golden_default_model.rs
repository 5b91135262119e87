//! The default model against llama.cpp's records (tests/golden/README.md).
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its functions too"
)]

use std::fs;

use serde::Deserialize;
use vitriol_testkit::{npy::Npy, places};
use vitriol_tests::{
    Feed, Runner, Sequence,
    golden::{argmax, kl_divergence, max_difference},
};

/// Steps where the reference's first two logits are closer than this may go either way.
const CLEAR_MARGIN: f64 = 0.6;
/// What llama.cpp's own quantised run diverges by, in nats.
const MEAN_KL_MAX: f64 = 0.006;

#[derive(Deserialize)]
struct Greedy {
    prompt: String,
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    top1_top2_logit_margin: Vec<f64>,
}

fn greedy() -> Vec<Greedy> {
    let path = places::checkout().join("tests/golden/greedy_smol_deqf32_f32kv.jsonl");
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn runner() -> Runner {
    Runner::load(&places::default_model().unwrap(), 2, None, 64).unwrap()
}

#[test]
fn teacher_forced_argmax_agrees_wherever_the_margin_is_clear() {
    let rows = greedy();
    assert_eq!(rows.len(), 20);
    let mut runner = runner();
    let (mut clear, mut agreed) = (0, 0);
    for row in &rows {
        let tokens = [&row.prompt_ids[..], &row.ids[..row.ids.len() - 1]].concat();
        let first = row.prompt_ids.len() - 1;
        let mut sequence = Sequence::default();
        let feed = Feed {
            sequence: &mut sequence,
            tokens: &tokens,
            wanted: first..tokens.len(),
        };
        let logits = runner.step(&mut [feed]).unwrap();
        runner.release(sequence);
        let steps = logits.chunks_exact(runner.vocab()).zip(&row.ids);
        for (step, ((ours, &id), &margin)) in steps.zip(&row.top1_top2_logit_margin).enumerate() {
            let same = argmax(ours) == id as usize;
            agreed += usize::from(same);
            if margin > CLEAR_MARGIN {
                clear += 1;
                assert!(same, "{:?}: step {step}, margin {margin}", row.prompt);
            }
        }
    }
    assert!(clear > 600, "{clear} steps have a clear margin");
    eprintln!(
        "{clear} clear steps agree; {agreed} of {} in all",
        rows.len() * 64
    );
}

/// Needs the large golden files: `$VITRIOL_GOLDEN`. Without it `ops/test` says that this did not run.
#[test]
fn logits_stay_close_to_the_reference() {
    let Some(golden) = places::large_golden() else {
        eprintln!("VITRIOL_GOLDEN is not set: nothing compared");
        return;
    };
    let reference = Npy::read(&golden.join("logits_smol_deqf32_f32kv.npy")).unwrap();
    let mut runner = runner();
    assert_eq!(reference.shape, [10, runner.vocab()]);
    let mut divergences = Vec::new();
    for (index, row) in greedy().iter().take(10).enumerate() {
        let logits = runner.logits(&row.prompt_ids, &[]).unwrap();
        let last = &logits[logits.len() - runner.vocab()..];
        divergences.push(kl_divergence(reference.row(index), last));
        let difference = max_difference(reference.row(index), last);
        eprintln!(
            "{:?}: KL {:.2e}, |Δlogit| {difference:.2e}",
            row.prompt, divergences[index]
        );
    }
    let mean = divergences.iter().sum::<f64>() / divergences.len() as f64;
    assert!(mean <= MEAN_KL_MAX, "mean KL {mean}");
}
