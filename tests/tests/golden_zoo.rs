//! The zoo against its golden records, and batch invariance: the same bits in any company.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its functions too"
)]

use proptest::prelude::*;
use vitriol_kernels_cpu::Isa;
use vitriol_testkit::{golden::ZooRecord, places};
use vitriol_tests::{
    Feed, Runner, Sequence,
    golden::{argmax, max_difference, same_bits},
};

/// Limit on |Δlogit| for weights multiplied in f32; the reference's own spread is below 1e-5.
const LOGIT_TOLERANCE: f32 = 2e-4;
const PAGES: usize = 64;

fn runner(name: &str, threads: usize, isa: Option<Isa>) -> Runner {
    Runner::load(&places::zoo_model(name).unwrap(), threads, isa, PAGES).unwrap()
}

fn present() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_present())
}

/// Compares with the rows of `array`, which stand at `positions`.
fn close(logits: &[f32], record: &ZooRecord, array: &str, positions: &[usize], what: &str) {
    let expected = record.f32(array).unwrap();
    let vocab = expected.shape[1];
    for (row, &position) in positions.iter().enumerate() {
        let ours = &logits[position * vocab..(position + 1) * vocab];
        let difference = max_difference(ours, expected.row(row));
        assert!(
            difference <= LOGIT_TOLERANCE,
            "{what}: position {position}: |Δlogit| {difference:e}"
        );
    }
}

#[test]
fn f32_logits_match_on_every_instruction_set() {
    let record = ZooRecord::read("llama.f32").unwrap();
    for isa in present() {
        let logits = runner("llama.f32", 1, Some(isa))
            .logits(&record.tokens, &[])
            .unwrap();
        close(
            &logits,
            &record,
            "logits_batch",
            &record.batch_positions,
            &format!("{isa}, batch"),
        );
        let mut step = runner("llama.f32", 1, Some(isa));
        let logits = step.logits(&record.tokens, &[1; 96]).unwrap();
        close(
            &logits,
            &record,
            "logits_step",
            &record.positions,
            &format!("{isa}, step"),
        );
    }
}

#[test]
fn stored_types_match_their_dequantised_reference() {
    for name in ["llama.f16", "llama.bf16", "llama.q8_0", "llama.q4_1"] {
        let record = ZooRecord::read(name).unwrap();
        for isa in present() {
            let logits = runner(name, 1, Some(isa))
                .logits(&record.tokens, &[])
                .unwrap();
            let what = format!("{name}, {isa}");
            close(
                &logits,
                &record,
                "deq_logits_batch",
                &record.positions,
                &what,
            );
        }
    }
}

#[test]
fn greedy_continuations_match() {
    for (name, ids, gaps) in [
        ("llama.f32", "greedy", "greedy_gap"),
        ("llama.q8_0", "deq_greedy", "deq_greedy_gap"),
        ("llama.q4_1", "deq_greedy", "deq_greedy_gap"),
    ] {
        let record = ZooRecord::read(name).unwrap();
        let (expected, gaps) = (record.i32(ids).unwrap(), record.f32(gaps).unwrap());
        let mut runner = runner(name, 2, None);
        let mut tokens = record.tokens.clone();
        for (step, (&id, &gap)) in expected.values.iter().zip(&gaps.values).enumerate() {
            let logits = runner.logits(&tokens, &[]).unwrap();
            let last = &logits[logits.len() - runner.vocab()..];
            assert!(
                gap > LOGIT_TOLERANCE,
                "{name}: step {step} of the record is a near tie"
            );
            assert_eq!(argmax(last) as i32, id, "{name}: step {step}, gap {gap}");
            tokens.push(id as u32);
        }
    }
}

#[test]
fn threads_and_single_steps_change_no_bit() {
    for name in ["llama.f32", "llama.q8_0", "llama.q4_1"] {
        let record = ZooRecord::read(name).unwrap();
        for isa in present() {
            let whole = runner(name, 1, Some(isa))
                .logits(&record.tokens, &[])
                .unwrap();
            for threads in [1, 2, 3] {
                let mut runner = runner(name, threads, Some(isa));
                for sizes in [&[1; 96][..], &[], &[64], &[95], &[7; 96]] {
                    let other = runner.logits(&record.tokens, sizes).unwrap();
                    assert!(
                        same_bits(&whole, &other),
                        "{name}, {isa}, {threads} threads, batches of {sizes:?}"
                    );
                }
            }
        }
    }
}

/// Longer than the 256-key grid of attention, so that merges of several chunks are in it.
fn long_prompt(salt: u32) -> Vec<u32> {
    (0..300)
        .map(|i| 8 + (i * 31 + salt * 97 + i * i / 7) % 362)
        .collect()
}

#[test]
fn sixteen_sequences_in_a_batch_are_sixteen_alone() {
    let prompts: Vec<Vec<u32>> = (0..16u32)
        .map(|i| {
            long_prompt(i)
                .into_iter()
                .take(20 + 17 * i as usize)
                .collect()
        })
        .collect();
    let mut runner = Runner::load(&places::zoo_model("llama.f32").unwrap(), 2, None, 160).unwrap();
    let alone: Vec<Vec<f32>> = prompts
        .iter()
        .map(|p| runner.logits(p, &[]).unwrap())
        .collect();

    // All prompts at once, then all last tokens at once: a mixed prefill and a batch of decodes.
    let mut sequences: Vec<Sequence> = prompts.iter().map(|_| Sequence::default()).collect();
    let mut together: Vec<Vec<f32>> = prompts.iter().map(|_| Vec::new()).collect();
    for last in [false, true] {
        let mut feeds: Vec<Feed> = sequences
            .iter_mut()
            .zip(&prompts)
            .map(|(sequence, prompt)| {
                let (most, end) = prompt.split_at(prompt.len() - 1);
                let tokens = if last { end } else { most };
                Feed {
                    sequence,
                    tokens,
                    wanted: 0..tokens.len(),
                }
            })
            .collect();
        let mut rest = &runner.step(&mut feeds).unwrap()[..];
        for (feed, logits) in feeds.iter().zip(&mut together) {
            let (own, others) = rest.split_at(feed.tokens.len() * runner.vocab());
            logits.extend_from_slice(own);
            rest = others;
        }
    }
    for (i, (alone, together)) in alone.iter().zip(&together).enumerate() {
        assert!(
            same_bits(alone, together),
            "sequence {i} of {} tokens",
            prompts[i].len()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any chunking, beside neighbours of any length that are fed in the same batches.
    #[test]
    fn any_chunking_in_any_company_is_the_same_to_the_bit(
        salt in 0u32..1000,
        sizes in prop::collection::vec(1usize..130, 1..12),
        neighbours in prop::collection::vec((0u32..1000, 1usize..90), 0..4),
    ) {
        let tokens = long_prompt(salt);
        let mut runner = runner("llama.f32", 2, None);
        let whole = runner.logits(&tokens, &[]).unwrap();

        let prompts: Vec<Vec<u32>> = neighbours
            .iter()
            .map(|&(salt, length)| long_prompt(salt).into_iter().take(length).collect())
            .collect();
        let mut others: Vec<Sequence> = prompts.iter().map(|_| Sequence::default()).collect();
        let mut own = Sequence::default();
        let mut logits = Vec::new();
        let (mut rest, mut round) = (&tokens[..], 0);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(sizes[round % sizes.len()].min(rest.len()));
            let mut feeds: Vec<Feed> = Vec::new();
            for (sequence, prompt) in others.iter_mut().zip(&prompts) {
                // A neighbour gives its prompt in the first round, then one token a round.
                let tokens = if round == 0 { &prompt[..] } else { &prompt[..1] };
                feeds.push(Feed { sequence, tokens, wanted: 0..0 });
            }
            feeds.push(Feed { sequence: &mut own, tokens: now, wanted: 0..now.len() });
            logits.extend(runner.step(&mut feeds).unwrap());
            (rest, round) = (later, round + 1);
        }
        prop_assert!(same_bits(&whole, &logits));
    }
}
