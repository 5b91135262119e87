//! Every model of the zoo that the engine runs against its golden record, and every other one refused.
//! `cargo test -p vitriol-tests --test golden_architectures -- qwen3moe` is the loop for one architecture;
//! the example `zoo_check` says where it goes wrong first.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its functions too"
)]

use std::collections::BTreeSet;

use vitriol_engine::kv::KvCodecs;
use vitriol_kernels_cpu::{Isa, KvCodec};
use vitriol_testkit::{golden::ZooRecord, not_run, places};
use vitriol_tests::{
    Runner, RunnerOptions,
    judge::{continuation, distance, misrouted, yardstick},
    zoo,
};

/// A test for each model, so that a filter picks one.
macro_rules! models {
    ($($model:ident)*) => {
        const MODELS: &[&str] = &[$(stringify!($model)),*];
        $(
            #[test]
            fn $model() {
                super::check(stringify!($model));
            }
        )*
    };
}

/// A supported model matches its records; another one is refused.
mod model {
    models! {
        llama llama_moe llama_yarn mistral3 qwen2 qwen3 qwen3moe gemma2 gemma3 gemma4 gemma4_moe phi3 phi3_long
        olmoe granitemoe gpt_oss llama4 deepseek2 deepseek2_kvb
        qwen35 qwen35_d256 qwen35moe qwen35moe_merged qwen3next qwen3next_legacy
    }

    #[test]
    fn list_is_complete() {
        super::check_list(MODELS);
    }
}

fn check(model: &str) {
    if !zoo::SUPPORTED.contains(&model) {
        check_refusal(model);
        return;
    }
    let mut wrong = Vec::new();
    check_f32(&format!("{model}.f32"), &mut wrong);
    check_f16_kv(&format!("{model}.f32"), &mut wrong);
    check_stored_types(model, &mut wrong);
    assert!(wrong.is_empty(), "{model}:\n{}", wrong.join("\n"));
}

fn present() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_present())
}

fn on(isa: Option<Isa>) -> RunnerOptions {
    RunnerOptions {
        isa,
        ..RunnerOptions::default()
    }
}

/// Logits of one batch and token by token on every instruction set, experts, greedy continuation.
fn check_f32(file: &str, wrong: &mut Vec<String>) {
    let (path, record) = zoo::find(file).unwrap().expect("a generated file");
    let yard = yardstick(file);
    for isa in present() {
        let mut runner = Runner::load(&path, &on(Some(isa))).unwrap();
        let mut compare = |logits: &[f32], (array, limit): (&str, f32), positions: &[usize]| {
            let found = distance(logits, &record.f32(array).unwrap(), positions);
            if found.difference > limit {
                wrong.push(format!("{isa}, {array}: {found:?}"));
            }
        };
        let (batch, trace) = runner.traced(&record.tokens).unwrap();
        compare(&batch, yard.batch, &record.batch_positions);
        let step = runner.logits(&record.tokens, &[1; 96]).unwrap();
        compare(&step, yard.step.unwrap(), &record.positions);
        match misrouted(&trace, &record) {
            Ok(found) if found.is_empty() => {}
            Ok(found) => wrong.push(format!(
                "{isa}, other experts at (layer, position) {found:?}"
            )),
            Err(error) => wrong.push(format!("{isa}, experts: {error:#}")),
        }
        check_greedy(file, &mut runner, &record, wrong);
    }
}

/// KV in f16, within three times what it moves the reference's logits.
fn check_f16_kv(file: &str, wrong: &mut Vec<String>) {
    let (path, record) = zoo::find(file).unwrap().expect("a generated file");
    let options = RunnerOptions {
        codecs: KvCodecs {
            keys: KvCodec::F16,
            values: KvCodec::F16,
        },
        ..RunnerOptions::default()
    };
    let mut runner = Runner::load(&path, &options).unwrap();
    let logits = runner.logits(&record.tokens, &[]).unwrap();
    let (array, exact) = yardstick(file).batch;
    let expected = record.f32(array).unwrap();
    let found = distance(&logits, &expected, &record.batch_positions);
    let limit = 3.0 * record.noise["f16kv"].max_abs;
    // As near as with f32 KV would mean that nothing was rounded.
    let is_rounded = found.difference > exact;
    if f64::from(found.difference) > limit || !is_rounded {
        wrong.push(format!("f16 KV, {array}: {found:?}, limit {limit:e}"));
    }
}

fn check_greedy(file: &str, runner: &mut Runner, record: &ZooRecord, wrong: &mut Vec<String>) {
    let found = continuation(runner, record, yardstick(file).greedy).unwrap();
    // The f32 files were picked for clear choices: more ties than this are a mistake that hides in them.
    if !found.wrong.is_empty() || found.ties.len() > 3 {
        wrong.push(format!("{file}: {found:?}"));
    }
}

/// What the file holds, multiplied by rounded tokens, against the same weights dequantised by the
/// reference: the error within three times that of the reference's own rounding.
fn check_stored_types(model: &str, wrong: &mut Vec<String>) {
    let (_, plain) = zoo::find(&format!("{model}.f32"))
        .unwrap()
        .expect("a generated file");
    let has_experts = plain.arrays().any(|array| array.starts_with("moe_topk"));
    let mut not_here = Vec::new();
    for stored in zoo::stored_types(model) {
        let file = format!("{model}.{stored}");
        let Some((path, record)) = zoo::find(&file).unwrap() else {
            not_here.push(stored);
            continue;
        };
        let expected = record.f32(yardstick(&file).batch.0).unwrap();
        let nmse_max = 3.0 * record.noise["vs_deq"].nmse;
        for isa in present() {
            let mut runner = Runner::load(&path, &on(Some(isa))).unwrap();
            let logits = runner.logits(&record.tokens, &[]).unwrap();
            let found = distance(&logits, &expected, &record.batch_positions);
            if found.nmse > nmse_max {
                wrong.push(format!("{file}, {isa}: {found:?}, NMSE limit {nmse_max:e}"));
            }
        }
        // Where a rounded token chooses another expert its logits move by units.
        if !has_experts {
            let mut runner = Runner::load(&path, &on(None)).unwrap();
            check_greedy(&file, &mut runner, &record, wrong);
        }
    }
    if !not_here.is_empty() {
        let what = format!(
            "{model} in {} types ({})",
            not_here.len(),
            not_here.join(" ")
        );
        not_run(&format!("golden_architectures: {what}"), "set VITRIOL_ZOO");
    }
}

/// A model that is not supported is refused with a reason, not computed wrongly.
fn check_refusal(model: &str) {
    let path = places::zoo_model(&format!("{model}.f32")).unwrap();
    match Runner::load(&path, &on(None)) {
        Ok(_) => panic!("{model} loads: if it is right, move it to SUPPORTED in tests/src/zoo.rs"),
        Err(error) => {
            let said = format!("{error:#}");
            assert!(said.contains("not supported"), "{model}: {said}");
        }
    }
}

fn check_list(models: &[&str]) {
    let tested: BTreeSet<&str> = models.iter().copied().collect();
    let listed: BTreeSet<&str> = zoo::SUPPORTED.iter().chain(zoo::LATER).copied().collect();
    assert_eq!(tested, listed);
}

/// What the zoo has that no list names would go untested.
#[test]
fn every_file_of_the_zoo_is_listed() {
    let mut directories = vec![
        places::checkout().join("target/zoo"),
        places::checkout().join("tests/zoo/stored"),
    ];
    let Some(whole) = places::whole_zoo() else {
        panic_on_unlisted(&directories);
        not_run(
            "golden_architectures: the list of the whole zoo",
            "set VITRIOL_ZOO",
        );
        return;
    };
    directories.extend([whole.with_file_name("variants"), whole]);
    let found = panic_on_unlisted(&directories);
    let listed: BTreeSet<String> = zoo::files().into_iter().collect();
    assert_eq!(found, listed, "a file of the zoo is missing");
}

/// Names of the models in `directories`; each must be in the lists.
fn panic_on_unlisted(directories: &[std::path::PathBuf]) -> BTreeSet<String> {
    let listed: BTreeSet<String> = zoo::files().into_iter().collect();
    let mut found = BTreeSet::new();
    for directory in directories {
        for entry in directory
            .read_dir()
            .unwrap_or_else(|e| panic!("{directory:?}: {e}"))
        {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if let Some(file) = name.strip_suffix(".gguf") {
                assert!(
                    listed.contains(file),
                    "{file} is neither in SUPPORTED nor in LATER"
                );
                found.insert(file.to_owned());
            }
        }
    }
    found
}
