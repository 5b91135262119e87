//! Writes the seed corpus of the `gguf` target: `seeds DIR MODEL...`.
//!
//! Seeds are small: of each model the metadata and of each tensor one block; then the damaged files
//! of the reader's own tests, and split models.
#![allow(clippy::print_stdout, reason = "a command line tool")]

#[path = "../../../crates/gguf/tests/gguf/damages.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod damages;
#[path = "../../walks/gguf.rs"]
#[allow(dead_code, reason = "only the border is used here")]
mod walk;

use anyhow::{Context, Result, ensure};
use std::{
    env, fs,
    path::{Path, PathBuf},
};
use vitriol_gguf::Gguf;
use vitriol_testkit::gguf_file::{
    ARRAY, BOOL, F32, GgufFile, I32, STRING, U32, array, entry, sound, split, string,
};

fn main() -> Result<()> {
    let mut args = env::args_os().skip(1).map(PathBuf::from);
    let directory = args.next().context("usage: seeds DIR MODEL...")?;
    fs::create_dir_all(&directory)?;
    let put = |name: String, bytes: &[u8]| fs::write(directory.join(name), bytes);
    let mut written = 0;
    for model in args {
        let name = model.file_stem().unwrap_or_default().to_string_lossy();
        let gguf = Gguf::open(&model)?;
        put(format!("model-{name}"), &shrunk(&gguf).context("shrink")?)?;
        written += 1;
    }
    for (name, bytes) in damages::all() {
        put(format!("damaged-{}", name.replace(' ', "-")), &bytes)?;
        written += 1;
    }
    for model in ["gpt2", "llama", "gemma4"] {
        put(format!("tokenizer-{model}"), &with_tokenizer(model).bytes())?;
        written += 1;
    }
    for version in [2, 3] {
        let file = sound().with(|file| file.version = version);
        put(format!("sound-v{version}"), &file.bytes())?;
        put(format!("split-v{version}"), &joined(&split(&file, &[1, 1])))?;
        written += 2;
    }
    println!("{written} seeds in {}", directory.display());
    Ok(())
}

/// A few tokens of every kind, so that little stands between the fuzzer and the merges.
fn with_tokenizer(model: &str) -> GgufFile {
    let tokens = [
        "<s>",
        "</s>",
        "<|im_end|>",
        "<0x0A>",
        "H",
        "e",
        "l",
        "o",
        "He",
        "ll",
        "llo",
        "Hello",
        "\u{2581}",
        "\u{120}",
        "\u{2581}w",
        "\u{120}w",
        "1",
        "12",
    ];
    let kinds = [3, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 1, 1, 1];
    let merges = [
        "H e",
        "l l",
        "ll o",
        "He llo",
        "\u{2581} w",
        "\u{120} w",
        "1 2",
    ];
    let strings = |texts: &[&str]| {
        let elements = texts
            .iter()
            .flat_map(|text| string(text.as_bytes()))
            .collect();
        array(STRING, texts.len() as u64, elements)
    };
    let numbers = |type_id, bytes: Vec<[u8; 4]>| array(type_id, bytes.len() as u64, bytes.concat());
    let kinds = kinds.map(i32::to_le_bytes).to_vec();
    let scores = (0..tokens.len())
        .map(|id| (-(id as f32)).to_le_bytes())
        .collect();
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |id: u32| id.to_le_bytes().to_vec();
    sound().with(|file| {
        file.metadata.truncate(1);
        file.metadata.extend([
            entry(&key("model"), STRING, string(model.as_bytes())),
            entry(&key("pre"), STRING, string(b"qwen2")),
            entry(&key("tokens"), ARRAY, strings(&tokens)),
            entry(&key("token_type"), ARRAY, numbers(I32, kinds)),
            entry(&key("scores"), ARRAY, numbers(F32, scores)),
            entry(&key("merges"), ARRAY, strings(&merges)),
            entry(&key("bos_token_id"), U32, id(0)),
            entry(&key("eos_token_id"), U32, id(1)),
            entry(&key("add_bos_token"), BOOL, vec![1]),
        ]);
    })
}

fn joined(parts: &[GgufFile]) -> Vec<u8> {
    let parts: Vec<_> = parts.iter().map(GgufFile::bytes).collect();
    parts.join(walk::PART_BORDER)
}

/// The model's metadata, and every tensor with one block of its data.
fn shrunk(gguf: &Gguf) -> Result<Vec<u8>> {
    let header = gguf.parts()[0].header();
    let first = gguf.tensors().next().context("a tensor")?;
    let needle = [
        &(first.name.len() as u64).to_le_bytes(),
        first.name.as_bytes(),
    ]
    .concat();
    let described = header.windows(needle.len()).position(|at| at == needle);
    let mut out = header[..described.context("the first tensor's description")?].to_vec();
    let (mut data, align) = (Vec::new(), gguf.alignment() as usize);
    for tensor in gguf.tensors() {
        let block = tensor.tensor_type.block_len() as u64;
        out.extend((tensor.name.len() as u64).to_le_bytes());
        out.extend(tensor.name.as_bytes());
        out.extend(1u32.to_le_bytes());
        out.extend(block.to_le_bytes());
        out.extend((tensor.tensor_type as u32).to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.extend(&tensor.bytes[..tensor.tensor_type.block_bytes()]);
        data.resize(data.len().next_multiple_of(align), 0);
    }
    out.resize(out.len().next_multiple_of(align), 0);
    out.extend(data);
    let name = Path::new("shrunk");
    let again = Gguf::from_bytes(name, out.clone())?;
    ensure!(again.n_tensors() == gguf.n_tensors(), "no tensor is lost");
    Ok(out)
}
