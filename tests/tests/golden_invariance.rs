//! The same bits in any company: batch or token by token, any chunking, threads, neighbours.
//! For every architecture that the engine runs and every KV codec.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its functions too"
)]

use proptest::prelude::*;
use vitriol_engine::kv::KvCodecs;
use vitriol_kernels_cpu::{Isa, KvCodec};
use vitriol_testkit::{golden::ZooRecord, places};
use vitriol_tests::{Feed, Runner, RunnerOptions, Sequence, golden::same_bits, zoo};

fn runner(file: &str, options: RunnerOptions) -> Runner {
    Runner::load(&places::zoo_model(file).unwrap(), &options).unwrap()
}

/// Every codec on both sides, and each once beside another.
fn codecs() -> Vec<KvCodecs> {
    let pair = |keys, values| KvCodecs { keys, values };
    let both = KvCodec::ALL.map(|codec| pair(codec, codec));
    let mixed = [
        pair(KvCodec::Q8_0, KvCodec::Q4_0),
        pair(KvCodec::F16, KvCodec::F32),
    ];
    [&both[..], &mixed].concat()
}

fn present() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_present())
}

/// All supported models in f32, and two whose weights take other kernels.
fn files() -> Vec<String> {
    let f32_files = zoo::SUPPORTED.iter().map(|model| format!("{model}.f32"));
    f32_files
        .chain(["llama.q8_0", "llama.q4_1"].map(str::to_owned))
        .collect()
}

/// A prompt longer than the 256-key grid of attention, so that merges of several chunks are in it.
fn long_prompt(salt: u32) -> Vec<u32> {
    (0..300)
        .map(|i| 8 + (i * 31 + salt * 97 + i * i / 7) % 362)
        .collect()
}

/// On every instruction set, with every codec.
#[test]
fn threads_and_single_steps_change_no_bit() {
    for file in files() {
        let tokens = ZooRecord::read(&file).unwrap().tokens;
        for (isa, codecs) in present().flat_map(|isa| codecs().into_iter().map(move |c| (isa, c))) {
            let options = |threads| RunnerOptions {
                threads,
                isa: Some(isa),
                codecs,
                ..RunnerOptions::default()
            };
            let whole = runner(&file, options(1)).logits(&tokens, &[]).unwrap();
            for threads in [1, 2, 3] {
                let mut runner = runner(&file, options(threads));
                for sizes in sizes_with(threads) {
                    let other = runner.logits(&tokens, sizes).unwrap();
                    let same = same_bits(&whole, &other);
                    assert!(
                        same,
                        "{file}, {isa}, {codecs:?}, {threads} threads, batches of {sizes:?}"
                    );
                }
            }
        }
    }
}

/// Batch sizes of a 96-token prompt: all of them with two threads, some with the others.
fn sizes_with(threads: usize) -> &'static [&'static [usize]] {
    match threads {
        2 => &[&[1; 96], &[], &[64], &[95], &[7; 96]],
        _ => &[&[1; 96], &[64]],
    }
}

#[test]
fn sixteen_sequences_in_a_batch_are_sixteen_alone() {
    for file in files() {
        for codecs in codecs() {
            // One codec with prompts beyond the 256-key grid, the others with short ones.
            let growth = if codecs == KvCodecs::F32 { 17 } else { 5 };
            check_sixteen(&file, codecs, growth);
        }
    }
}

fn check_sixteen(file: &str, codecs: KvCodecs, growth: usize) {
    let prompts: Vec<Vec<u32>> = (0..16u32)
        .map(|i| long_prompt(i)[..20 + growth * i as usize].to_vec())
        .collect();
    let mut runner = runner(
        file,
        RunnerOptions {
            pages: 160,
            codecs,
            ..RunnerOptions::default()
        },
    );
    let alone: Vec<Vec<f32>> = prompts
        .iter()
        .map(|prompt| runner.logits(prompt, &[]).unwrap())
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
        let tokens = prompts[i].len();
        assert!(
            same_bits(alone, together),
            "{file}, {codecs:?}: sequence {i} of {tokens} tokens"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any chunking, beside neighbours of any length that are fed in the same batches.
    #[test]
    fn any_chunking_in_any_company_is_the_same_to_the_bit(
        file in prop::sample::select(files()),
        codecs in prop::sample::select(codecs()),
        salt in 0u32..1000,
        sizes in prop::collection::vec(1usize..130, 1..12),
        neighbours in prop::collection::vec((0u32..1000, 1usize..90), 0..4),
    ) {
        let tokens = long_prompt(salt);
        let mut runner = runner(&file, RunnerOptions { codecs, ..RunnerOptions::default() });
        let whole = runner.logits(&tokens, &[]).unwrap();

        let prompts: Vec<Vec<u32>> = neighbours
            .iter()
            .map(|&(salt, length)| long_prompt(salt)[..length].to_vec())
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
        prop_assert!(same_bits(&whole, &logits), "{file}, {codecs:?}");
    }
}
