use super::*;
use crate::{
    commands::perplexity::{Score, Scorer},
    kv::KvCodecs,
};
use std::{fs, os::unix::fs::MetadataExt};
use vitriol_testkit::places::zoo_model;

/// A model file and a directory for panels.
struct Place {
    temp: tempfile::TempDir,
    model: PathBuf,
}

/// Bits of the mean of what a model makes of some tokens, and what its load did.
#[derive(Debug, PartialEq)]
struct Outcome {
    bits: u64,
    phases: Vec<LoadPhase>,
}

impl Place {
    fn of(model: &str) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("model.gguf");
        fs::copy(zoo_model(model).unwrap(), &path).unwrap();
        Self { temp, model: path }
    }

    fn panels(&self) -> PathBuf {
        self.temp.path().join("panels")
    }

    fn load(&self) -> Outcome {
        self.load_from(&Repack::File(self.panels()))
    }

    fn load_from(&self, repack: &Repack) -> Outcome {
        let mut phases = Vec::new();
        let mut last = 0;
        let mut progress = |at: LoadProgress| {
            let is_same = phases.last() == Some(&at.phase);
            assert!(!is_same || at.bytes_done >= last, "{at:?} after {last}");
            assert!(at.bytes_done <= at.bytes_all, "{at:?}");
            last = at.bytes_done;
            if !is_same {
                phases.push(at.phase);
            }
        };
        let loaded = load(&self.model, 2, None, repack, |_, _| 0, &mut progress).unwrap();
        let mut score = Score::default();
        let chunk: Vec<u32> = (1..60).collect();
        let mut scorer = Scorer::new(&loaded.model, KvCodecs::F32, chunk.len()).unwrap();
        scorer.score(&chunk, &mut score).unwrap();
        let bits = score.nll_sum.to_bits();
        Outcome { bits, phases }
    }

    /// The one file of panels.
    fn file(&self) -> PathBuf {
        let files = fs::read_dir(self.panels()).unwrap();
        let files = files.map(|file| file.unwrap().path());
        let mut panels = files.filter(|file| file.extension().is_some_and(|of| of == "panels"));
        let found = panels.next().unwrap();
        assert_eq!(panels.next(), None);
        found
    }
}

use LoadPhase::{Digest, Load, Repack as Packs};

#[test]
fn kv_that_outlives_the_process_is_named_by_every_byte_of_the_model() {
    let place = Place::of("llama.f32");
    let identity = |of_all: bool, repack: &Repack| {
        let progress = &mut |_| {};
        let loaded = match of_all {
            true => load_for_tier(&place.model, 2, None, repack, |_, _| 0, progress),
            false => load(&place.model, 2, None, repack, |_, _| 0, progress),
        };
        loaded.unwrap().model.identity
    };
    let (ram, file) = (Repack::Ram, Repack::File(place.panels()));
    let (sampled, named) = (identity(false, &ram), identity(true, &ram));
    assert_ne!(sampled, named);
    assert_eq!(
        identity(true, &file),
        named,
        "wherever the panels come from"
    );
    // A weight in the middle of a tensor.
    let mut bytes = fs::read(&place.model).unwrap();
    let middle = bytes.len() - 1000;
    bytes[middle] ^= 1;
    fs::write(&place.model, bytes).unwrap();
    assert_eq!(
        identity(false, &ram),
        sampled,
        "which the samples do not see"
    );
    assert_ne!(identity(true, &ram), named);
    assert_ne!(identity(true, &file), named);
}

#[test]
fn a_restart_repacks_nothing_and_computes_the_same_bits() {
    // Experts, transposed keys, stacked and 2-bit matrices.
    for model in ["qwen3moe.f32", "deepseek2.f32", "phi3.f32", "llama.f32"] {
        let place = Place::of(model);
        let ram = place.load_from(&Repack::Ram);
        assert_eq!(ram.phases, [Load], "{model}");
        let first = place.load();
        assert_eq!(first.phases, [Load, Digest, Packs, Load], "{model}");
        let inode = fs::metadata(place.file()).unwrap().ino();
        let second = place.load();
        assert!(!second.phases.contains(&Packs), "{model}: {second:?}");
        assert_eq!(fs::metadata(place.file()).unwrap().ino(), inode, "{model}");
        assert_eq!([first.bits, second.bits], [ram.bits; 2], "{model}");
    }
}

#[test]
fn panels_that_are_not_sound_are_made_anew() {
    let place = Place::of("llama.f32");
    let expected = place.load();
    let sound = fs::read(place.file()).unwrap();
    let mut damaged = sound.clone();
    damaged[4096] ^= 1;
    let mut older = sound.clone();
    older[8] ^= 1;
    let wrong = [
        ("damaged", damaged),
        ("of another layout", older),
        ("cut off", sound[..sound.len() / 2].to_vec()),
        ("empty", Vec::new()),
        ("foreign", b"GGUF".repeat(5000)),
    ];
    for (what, bytes) in wrong {
        fs::write(place.file(), bytes).unwrap();
        let outcome = place.load();
        assert!(outcome.phases.contains(&Packs), "{what}: {outcome:?}");
        assert_eq!(outcome.bits, expected.bits, "{what}");
        assert!(fs::read(place.file()).unwrap() == sound, "{what}");
        assert!(!place.load().phases.contains(&Packs), "{what}");
    }
}

#[test]
fn another_model_at_the_path_has_panels_of_its_own() {
    let place = Place::of("llama.f32");
    place.load();
    let first = place.file();
    fs::copy(zoo_model("qwen3moe.f32").unwrap(), &place.model).unwrap();
    let second = place.load();
    assert!(second.phases.contains(&Packs), "{second:?}");
    assert_eq!(second.bits, place.load_from(&Repack::Ram).bits);
    assert_ne!(place.file(), first);
}

#[test]
fn without_a_place_for_panels_a_model_is_loaded_all_the_same() {
    let place = Place::of("llama.f32");
    let ram = place.load_from(&Repack::Ram);
    let below_a_file = place.load_from(&Repack::File(place.model.join("panels")));
    assert_eq!(below_a_file, ram);
    // What no file can be put in the place of.
    place.load();
    let file = place.file();
    fs::remove_file(&file).unwrap();
    fs::create_dir_all(file.join("in the way")).unwrap();
    let outcome = place.load();
    assert_eq!(outcome.phases.last(), Some(&Load));
    assert_eq!(outcome.bits, ram.bits);
    assert_eq!(fs::read_dir(place.panels()).unwrap().count(), 2);
}

#[test]
fn engines_that_start_at_once_do_not_harm_each_other() {
    let place = Place::of("llama.f32");
    let ram = place.load_from(&Repack::Ram);
    for _ in 0..2 {
        std::thread::scope(|scope| {
            let loads: Vec<_> = (0..4).map(|_| scope.spawn(|| place.load())).collect();
            for load in loads {
                assert_eq!(load.join().unwrap().bits, ram.bits);
            }
        });
        assert!(!place.load().phases.contains(&Packs));
        assert_eq!(fs::read_dir(place.panels()).unwrap().count(), 2);
        fs::remove_file(place.file()).unwrap();
    }
}
