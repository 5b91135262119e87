//! Architectures beside `llama`, against the whole zoo (`$VITRIOL_ZOO`): logits, greedy continuation,
//! and the same bits in any chunking. Without it nothing is compared, and `ops/test` says so.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its functions too"
)]

use std::{
    io::{self, Write},
    path::Path,
};

use vitriol_kernels_cpu::Isa;
use vitriol_testkit::{golden::ZooRecord, places};
use vitriol_tests::{
    Runner,
    golden::{argmax, max_difference, same_bits},
};

const MODELS: [&str; 2] = ["qwen2.f32", "qwen3.f32"];
/// Limit on |Δlogit| for weights multiplied in f32; the reference's own spread is below 2e-5.
const LOGIT_TOLERANCE: f32 = 2e-4;

/// Every type of weights, in a llama model; what the file holds, multiplied in f32.
const STORED: [&str; 25] = [
    "f16",
    "bf16",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "iq1_s",
    "iq1_m",
    "iq2_xxs",
    "iq2_xs",
    "iq2_s",
    "iq3_xxs",
    "iq3_s",
    "iq4_nl",
    "iq4_xs",
    "tq1_0",
    "tq2_0",
    "mxfp4",
    "q4_k_m-mix",
];

/// Calls `check` for every model and its record; a missing file of a zoo that is there is a failure.
fn for_each(names: impl IntoIterator<Item = String>, check: impl Fn(&str, &Path, &ZooRecord)) {
    let Some(zoo) = places::whole_zoo() else {
        // Straight to the terminal: what a passing test prints is captured.
        let line = "NOT RUN: golden_architectures: set VITRIOL_ZOO to the directory of the zoo\n";
        io::stderr().write_all(line.as_bytes()).unwrap();
        return;
    };
    for name in names {
        let record = ZooRecord::read_in(&zoo, &name).unwrap();
        check(&name, &zoo.join(format!("{name}.gguf")), &record);
    }
}

fn for_each_model(check: impl Fn(&str, &Path, &ZooRecord)) {
    for_each(MODELS.map(str::to_owned), check);
}

#[test]
fn every_type_of_weights_matches_its_dequantised_reference() {
    for_each(
        STORED.map(|t| format!("llama.{t}")),
        |name, path, record| {
            let expected = record.f32("deq_logits_batch").unwrap();
            let mut runner = Runner::load(path, 2, None, 8).unwrap();
            let logits = runner.logits(&record.tokens, &[]).unwrap();
            for (row, &position) in record.positions.iter().enumerate() {
                let ours = &logits[position * runner.vocab()..][..runner.vocab()];
                let difference = max_difference(ours, expected.row(row));
                assert!(
                    difference <= LOGIT_TOLERANCE,
                    "{name}: position {position}: |Δlogit| {difference:e}"
                );
            }
        },
    );
}

#[test]
fn logits_match_on_every_instruction_set() {
    for_each_model(|name, path, record| {
        let expected = record.f32("logits_batch").unwrap();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_present()) {
            let mut runner = Runner::load(path, 1, Some(isa), 8).unwrap();
            let logits = runner.logits(&record.tokens, &[]).unwrap();
            for (row, &position) in record.batch_positions.iter().enumerate() {
                let ours = &logits[position * runner.vocab()..][..runner.vocab()];
                let difference = max_difference(ours, expected.row(row));
                assert!(
                    difference <= LOGIT_TOLERANCE,
                    "{name}, {isa}: position {position}: |Δlogit| {difference:e}"
                );
            }
        }
    });
}

#[test]
fn greedy_continuations_match() {
    for_each_model(|name, path, record| {
        let (ids, gaps) = (
            record.i32("greedy").unwrap(),
            record.f32("greedy_gap").unwrap(),
        );
        let mut runner = Runner::load(path, 2, None, 8).unwrap();
        let mut tokens = record.tokens.clone();
        for (step, (&id, &gap)) in ids.values.iter().zip(&gaps.values).enumerate() {
            let logits = runner.logits(&tokens, &[]).unwrap();
            let last = &logits[logits.len() - runner.vocab()..];
            assert_eq!(argmax(last) as i32, id, "{name}: step {step}, gap {gap}");
            tokens.push(id as u32);
        }
    });
}

#[test]
fn chunking_and_threads_change_no_bit() {
    for_each_model(|name, path, record| {
        let whole = Runner::load(path, 1, None, 8)
            .unwrap()
            .logits(&record.tokens, &[])
            .unwrap();
        for threads in [1, 2] {
            let mut runner = Runner::load(path, threads, None, 8).unwrap();
            for sizes in [&[1; 96][..], &[64], &[7; 96], &[95]] {
                let other = runner.logits(&record.tokens, sizes).unwrap();
                assert!(
                    same_bits(&whole, &other),
                    "{name}, {threads} threads, batches of {sizes:?}"
                );
            }
        }
    });
}
