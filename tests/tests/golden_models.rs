//! The real models against llama.cpp's records (tests/golden/README.md).
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and shows its figures, in its functions too"
)]

use std::fs;

use serde::Deserialize;
use vitriol_testkit::{not_run, npy::Npy, places};
use vitriol_tests::{
    Feed, Runner, RunnerOptions, Sequence,
    golden::{argmax, kl_divergence, max_difference},
    models::{REAL_MODELS, RealModel},
};

/// Steps where the reference's first two logits are closer than this may go either way.
const CLEAR_MARGIN: f64 = 0.6;

#[derive(Deserialize)]
struct Greedy {
    prompt: String,
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    top1_top2_logit_margin: Vec<f64>,
}

fn greedy(model: &RealModel) -> Vec<Greedy> {
    let file = format!("tests/golden/greedy_{}_deqf32_f32kv.jsonl", model.key);
    let text = fs::read_to_string(places::checkout().join(file)).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn runner(model: &RealModel) -> Runner {
    let options = RunnerOptions {
        context_tokens: 0,
        ..RunnerOptions::default()
    };
    Runner::load(&(model.path)().unwrap(), &options).unwrap()
}

fn check_argmax(model: &RealModel) {
    let mut runner = runner(model);
    let rows = greedy(model);
    assert_eq!(rows.len(), 20);
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
    assert_eq!(clear, model.clear_steps);
    eprintln!("{}: {clear} clear steps agree; {agreed} in all", model.key);
}

/// Needs the large golden files: `$VITRIOL_GOLDEN`.
fn check_divergence(model: &RealModel) {
    let Some(golden) = places::large_golden() else {
        let what = format!("golden_models: logits of {}", model.key);
        not_run(
            &what,
            "set VITRIOL_GOLDEN to the directory of the golden logits",
        );
        return;
    };
    let mut runner = runner(model);
    let file = format!("logits_{}_deqf32_f32kv.npy", model.key);
    let reference = Npy::read(&golden.join(file)).unwrap();
    assert_eq!(reference.shape, [10, runner.vocab()]);
    let mut divergences = Vec::new();
    for (index, row) in greedy(model).iter().take(10).enumerate() {
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
    let most = model.mean_kl_max;
    assert!(mean <= most, "{}: mean KL {mean}, limit {most}", model.key);
}

#[test]
fn teacher_forced_argmax_agrees_wherever_the_margin_is_clear() {
    REAL_MODELS.iter().for_each(check_argmax);
}

#[test]
fn logits_stay_close_to_the_reference() {
    REAL_MODELS.iter().for_each(check_divergence);
}
