//! The committed golden records are whole, they belong to the models beside them, and they say what the
//! records they were cut from say.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its functions too"
)]

use std::{collections::BTreeMap, fs};

use vitriol_testkit::{golden::ZooRecord, not_run, places};
use vitriol_tests::{golden::argmax, judge::yardstick, zoo};

const VOCAB: usize = 384;

/// Files that a clean checkout has, records and all: those of no later release's hybrids.
fn own_files() -> Vec<String> {
    let is_own = |file: &String| {
        let hybrid = file.starts_with("qwen35") || file.starts_with("qwen3next");
        zoo::origin(file) != zoo::Origin::Whole && !hybrid
    };
    zoo::files().into_iter().filter(is_own).collect()
}

fn own_record(file: &str) -> ZooRecord {
    ZooRecord::read_in(&places::checkout().join("tests/zoo/golden"), file).unwrap()
}

#[test]
fn records_are_whole() {
    for file in own_files() {
        let record = own_record(&file);
        assert_eq!(record.tokens.len(), 96, "{file}");
        let in_vocabulary = record.tokens.iter().all(|&id| (id as usize) < VOCAB);
        assert!(in_vocabulary, "{file}");
        for array in record.arrays() {
            let whole = record.f32(array).is_ok() || record.i32(array).is_ok();
            assert!(whole, "{file}: {array}");
        }

        let yard = yardstick(&file);
        let logits = record.f32(yard.batch.0).unwrap();
        let rows = record.batch_positions.len();
        assert_eq!(logits.shape, [rows, VOCAB], "{file}");
        let (greedy, gaps) = (
            record.i32(yard.greedy.0).unwrap(),
            record.f32(yard.greedy.1).unwrap(),
        );
        assert_eq!((greedy.values.len(), gaps.values.len()), (32, 32), "{file}");
        let best = argmax(logits.row(rows - 1));
        assert_eq!(
            best as i32, greedy.values[0],
            "{file}: position 95 starts the continuation"
        );
    }
}

/// `models.sha256`, by file.
fn digests() -> BTreeMap<String, String> {
    let list = places::checkout().join("tests/zoo/models.sha256");
    let text = fs::read_to_string(list).unwrap();
    text.lines()
        .map(|line| {
            let (digest, name) = line.split_once("  ").unwrap();
            let file = name.strip_suffix(".gguf").unwrap();
            (file.to_owned(), digest.to_owned())
        })
        .collect()
}

/// `make_zoo.py` refuses to leave a file behind that has another digest than the list.
#[test]
fn records_belong_to_the_models() {
    let digests = digests();
    let listed: Vec<&String> = digests.keys().collect();
    let mut files = zoo::files();
    files.sort_unstable();
    assert_eq!(listed, files.iter().collect::<Vec<_>>());
    for file in own_files() {
        assert_eq!(own_record(&file).sha256, digests[&file], "{file}");
    }
}

#[test]
fn models_are_gguf_files() {
    for file in zoo::files() {
        if zoo::origin(&file) != zoo::Origin::Whole {
            let path = places::zoo_model(&file).unwrap();
            let magic = fs::read(&path).unwrap()[..4].to_vec();
            assert_eq!(magic, b"GGUF", "{}", path.display());
        }
    }
}

/// Every array of a record of ours, bit for bit, in the record of the whole zoo.
#[test]
fn records_equal_those_of_the_whole_zoo() {
    let Some(out) = places::whole_zoo() else {
        not_run(
            "zoo_records: the trimmed records against the whole ones",
            "set VITRIOL_ZOO",
        );
        return;
    };
    for file in own_files() {
        let variants = out.with_file_name("variants");
        let is_variant = variants.join(format!("{file}.golden.json")).is_file();
        let place = if is_variant { variants } else { out.clone() };
        let (ours, whole) = (
            own_record(&file),
            ZooRecord::read_in(&place, &file).unwrap(),
        );
        assert_eq!(
            (&ours.sha256, &ours.tokens),
            (&whole.sha256, &whole.tokens),
            "{file}"
        );
        assert_eq!(ours.batch_positions, whole.batch_positions, "{file}");
        for array in ours.arrays() {
            let same = match (ours.f32(array), whole.f32(array)) {
                (Ok(ours), Ok(whole)) => ours == whole,
                _ => ours.i32(array).unwrap() == whole.i32(array).unwrap(),
            };
            assert!(same, "{file}: {array}");
        }
    }
}
