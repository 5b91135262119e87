use vitriol_kernels_core::KvCodec;

use super::*;
use serde_json::json;

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A model file without weights but for one f32 matrix of 8 x 4.
pub fn tiny_model() -> Vec<u8> {
    let counts = [
        ("context_length", 128u32),
        ("block_count", 3),
        ("embedding_length", 8),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ];
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend(1u64.to_le_bytes());
    out.extend((counts.len() as u64 + 1).to_le_bytes());
    put_str(&mut out, "general.architecture");
    out.extend(8u32.to_le_bytes());
    put_str(&mut out, "llama");
    for (key, value) in counts {
        put_str(&mut out, &format!("llama.{key}"));
        out.extend(4u32.to_le_bytes());
        out.extend(value.to_le_bytes());
    }
    put_str(&mut out, "token_embd.weight");
    out.extend(2u32.to_le_bytes());
    out.extend(8u64.to_le_bytes());
    out.extend(4u64.to_le_bytes());
    out.extend(0u32.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend([0; 8 * 4 * 4]);
    out
}

/// The report on the tiny model, where the engine answers `check` and the machine is as given.
fn report(check: EngineCheck, available_bytes: u64) -> Report {
    let gguf = Gguf::from_bytes("tiny.gguf".as_ref(), tiny_model()).unwrap();
    let facts = Facts::read(&gguf).unwrap();
    let kv = kv_need(&check, &facts);
    let demand = Demand {
        weights_bytes: facts.weights_bytes(),
        overhead_bytes: 1 << 20,
        context_tokens: 128,
        kv: kv.as_ref().unwrap(),
        codecs: [KvCodec::F32; 2],
    };
    let supply = Supply {
        available_bytes,
        kv_bytes_max: 1 << 20,
    };
    let fit = Some(Fit::judge(&demand, supply));
    Report {
        facts,
        check,
        kv,
        fit,
    }
}

fn engine_that_runs_it() -> EngineCheck {
    let heads = |n_layers| vitriol_kernels_core::KvHeads {
        n_layers,
        n_kv_heads: 1,
        key_dim: 4,
        value_dim: 4,
    };
    let group = |window_tokens, n_layers| kv::KvGroup {
        window_tokens,
        heads: heads(n_layers),
    };
    EngineCheck::Runs {
        model: check::EngineModel {
            weights_bytes: 512,
            page_tokens: 64,
            kv_groups: vec![group(None, 1), group(Some(16), 2)],
        },
        tokenizer_fault: Some("the file has no tokenizer".into()),
    }
}

#[test]
fn a_model_that_runs() {
    let report = report(engine_that_runs_it(), 1 << 30);
    insta::assert_snapshot!("runs", report.describe());
    insta::assert_snapshot!("runs_json", format!("{:#}", report.to_json()));
}

#[test]
fn a_model_that_does_not_run_on_a_machine_too_small() {
    let check = EngineCheck::Refuses {
        why_not: "tiny.gguf: architecture \"odd\" is not supported yet".into(),
        architectures: vec!["llama".into()],
    };
    let report = report(check, 1 << 10);
    insta::assert_snapshot!("refused", report.describe());
    assert_eq!(report.to_json()["engine"]["runs"], false);
    assert_eq!(report.to_json()["fit"]["verdict"], "too_large");
    // 3 layers x 1 head x 4 elements, stored as 16, 4 bytes each.
    assert_eq!(
        report.to_json()["kv"]["bytes_per_token"]["f32"],
        json!({"k": 192, "v": 192})
    );
}

#[test]
fn a_file_that_is_no_model_is_refused() {
    let bytes = b"not a model".to_vec();
    assert!(Gguf::from_bytes("x".as_ref(), bytes).is_err());
}

/// What a file calls itself is printed without what could steer the terminal.
#[test]
fn names_are_harmless() {
    let mut bytes = tiny_model();
    // One more key, before the others.
    let mut entry = Vec::new();
    put_str(&mut entry, "general.name");
    entry.extend(8u32.to_le_bytes());
    put_str(&mut entry, "a\x1b[2Jb");
    bytes.splice(24..24, entry);
    bytes[16] += 1;
    let start = bytes
        .windows(17)
        .position(|at| at == b"token_embd.weight")
        .unwrap();
    let described = start + 17 + 4 + 16 + 4 + 8;
    let padded = described.next_multiple_of(32);
    bytes.truncate(described);
    bytes.resize(padded + 128, 0);
    let gguf = Gguf::from_bytes("m".as_ref(), bytes).unwrap();
    assert_eq!(Facts::read(&gguf).unwrap().name.as_deref(), Some("a[2Jb"));
}
