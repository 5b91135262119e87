//! Model files with a sound header and damaged weights: whatever computes with them says so instead of
//! an answer.

use crate::limits::limits;
use std::{path::Path, process::Command};
use tempfile::TempDir;
use vitriol_chassis::Heartbeat;
use vitriol_engine::{
    engine::{Engine, EngineLimits},
    generate::GenerationRequest,
    load::{LoadError, Repack, load, start},
    metrics::EngineMetrics,
    sampler::Sampling,
    sequence::EndReason,
};
use vitriol_gguf::Gguf;
use vitriol_testkit::places::zoo_model;

/// A copy of a zoo model with `bytes` of 0xff at `from` in the data of `tensor`.
struct Damaged {
    directory: TempDir,
}

impl Damaged {
    fn copy(model: &str, tensor: &str, from: usize, bytes: usize) -> Self {
        let gguf = Gguf::open(&zoo_model(model).unwrap()).unwrap();
        let whole = gguf.parts()[0].bytes();
        let tensor = gguf.tensor(tensor).unwrap();
        let at = tensor.file_offset as usize + from;
        let end = at + bytes.min(tensor.bytes.len() - from);
        let mut copy = whole.to_vec();
        copy[at..end].fill(0xff);
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("damaged.gguf"), copy).unwrap();
        Self { directory }
    }

    fn file(&self) -> std::path::PathBuf {
        self.directory.path().join("damaged.gguf")
    }
}

fn start_engine(file: &Path, metrics: EngineMetrics) -> Result<Engine, LoadError> {
    let loaded = load(file, 1, None, &Repack::Ram, |_, _| 0, &mut |_| {}).unwrap();
    let limits = EngineLimits {
        sequences_max: 4,
        queue_max: 4,
        ..limits(&[32])
    };
    start(loaded, limits, metrics, Heartbeat::silent(), None)
}

fn request(token: u32) -> GenerationRequest {
    GenerationRequest {
        session_id: "".into(),
        prompt: vec![token; 3],
        tokens_max: 4,
        sampling: Sampling::GREEDY,
        ignore_eog: true,
        may_draft: true,
    }
}

/// Every way in which weights are laid out in memory keeps a NaN, so that the self test sees it.
#[test]
fn an_engine_with_damaged_weights_does_not_start() {
    let types = ["f32", "bf16", "q8_0", "q4_0", "q4_1", "q6_k", "iq2_xs"];
    for model in types {
        for tensor in ["blk.0.attn_q.weight", "blk.1.ffn_down.weight"] {
            let damaged = Damaged::copy(&format!("llama.{model}"), tensor, 0, 4096);
            let error = start_engine(&damaged.file(), EngineMetrics::default()).unwrap_err();
            let LoadError::Damaged { file, source } = error else {
                panic!("{model}, {tensor}: {error}");
            };
            assert!(file.ends_with("damaged.gguf"), "{file}");
            assert!(source.to_string().contains("fetch it again"), "{source}");
        }
    }
}

/// The self test cannot see one row of an embedding; who asks for it gets an error and no token.
#[test]
fn a_sequence_whose_logits_are_not_finite_ends_in_an_error_and_others_go_on() {
    let (sound_token, damaged_token) = (9, 300);
    let row_bytes = {
        let gguf = Gguf::open(&zoo_model("llama.f32").unwrap()).unwrap();
        assert!(
            gguf.tensor("output.weight").is_some(),
            "its embedding is not its output matrix"
        );
        gguf.tensor("token_embd.weight").unwrap().dims[0] as usize * size_of::<f32>()
    };
    let from = damaged_token as usize * row_bytes;
    let damaged = Damaged::copy("llama.f32", "token_embd.weight", from, row_bytes);

    let sound = start_engine(&zoo_model("llama.f32").unwrap(), EngineMetrics::default()).unwrap();
    let expected = sound.generate(request(sound_token)).unwrap().finish();
    assert_eq!(expected.1, Some(EndReason::Length));

    let metrics = EngineMetrics::default();
    let engine = start_engine(&damaged.file(), metrics.clone()).unwrap();
    let bad = engine.generate(request(damaged_token)).unwrap();
    let good = engine.generate(request(sound_token)).unwrap();
    assert_eq!(bad.finish(), (Vec::new(), Some(EndReason::NotFinite)));
    assert_eq!(good.finish(), expected);
    assert_eq!(metrics.sequences_not_finite.get(), 1);
    assert!(engine.step.snapshot().slots.is_empty());
}

/// The end of a command of the engine on a model whose file is damaged: exit code and standard error.
fn command(arguments: &[&str], file: &Path) -> (Option<i32>, String, String) {
    let (subcommand, rest) = arguments.split_first().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_vitriol-engine"))
        .arg(subcommand)
        .arg(file)
        .args(rest)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn run_and_perplexity_of_damaged_weights_fail_and_name_the_file() {
    let damaged = Damaged::copy("llama.q8_0", "blk.0.attn_v.weight", 0, 4096);
    let text = damaged.directory.path().join("text");
    std::fs::write(&text, "all that is solid melts into air, ".repeat(40)).unwrap();
    let text = text.to_str().unwrap();
    for arguments in [
        &["run", "--max-tokens", "3", "hello"][..],
        &["perplexity", text, "--context", "16"],
    ] {
        let (code, out, err) = command(arguments, &damaged.file());
        assert_eq!(code, Some(78), "{arguments:?}: {out}{err}");
        assert!(!out.contains("NaN"), "{out}");
        assert!(err.contains("damaged.gguf"), "{err}");
        assert!(err.contains("not finite"), "{err}");
    }
}
