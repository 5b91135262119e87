//! Model files whose header was damaged at random: the reader lets pass what is sound by itself, so
//! hyperparameters and shapes of any kind reach the engine. It answers, whatever they are.

use proptest::prelude::*;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};
use vitriol_engine::model::Model;
use vitriol_gguf::Gguf;
use vitriol_kernels_cpu::Cpu;
use vitriol_testkit::places::zoo_model;

/// The smallest zoo model of each architecture, and how long its header is.
static MODELS: LazyLock<Vec<(Vec<u8>, usize)>> = LazyLock::new(|| {
    let directory = zoo_model("llama.f32").unwrap();
    let files = std::fs::read_dir(directory.parent().unwrap()).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "gguf")
    });
    files.sort_by_key(|path| path.metadata().unwrap().len());
    let mut seen = std::collections::HashSet::new();
    let mut models = Vec::new();
    for path in files {
        let gguf = Gguf::open(&path).unwrap();
        if seen.insert(gguf.architecture().unwrap().to_owned()) {
            let part = &gguf.parts()[0];
            models.push((part.bytes().to_vec(), part.header().len()));
        }
    }
    models
});

static DEVICE: LazyLock<Arc<Cpu>> = LazyLock::new(|| Arc::new(Cpu::new(1, None).unwrap()));

/// Where a number of the header stands: an entry's value, a dimension or a type.
fn numbers(bytes: &[u8], header: usize) -> Vec<usize> {
    let name = |text: &[u8]| {
        bytes[..header]
            .windows(text.len())
            .position(|at| at == text)
    };
    let vocabulary = name(b"tokenizer.ggml.tokens").unwrap_or(header);
    let tensors = name(b"token_embd.weight").unwrap_or(header);
    (24..vocabulary).chain(tensors..header - 8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn a_damaged_header_is_answered(
        model in any::<prop::sample::Index>(),
        at in prop::collection::vec(any::<prop::sample::Index>(), 1..3),
        value in prop_oneof![
            any::<u32>(),
            Just(0),
            Just(1),
            Just(u32::MAX),
            Just(1 << 31),
            Just(f32::NAN.to_bits()),
            Just(f32::INFINITY.to_bits()),
            0u32..300,
        ],
        width in 1usize..=4,
    ) {
        let (sound, header) = &MODELS[model.index(MODELS.len())];
        let mut bytes = sound.clone();
        let places = numbers(sound, *header);
        for at in at {
            let at = places[at.index(places.len())];
            bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
        if let Ok(gguf) = Gguf::from_bytes(Path::new("model.gguf"), bytes)
            && let Err(error) = Model::check(&gguf, DEVICE.clone(), 0)
        {
            prop_assert!(error.to_string().starts_with("model.gguf"), "{error}");
        }
    }
}
