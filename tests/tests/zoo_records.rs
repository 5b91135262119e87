//! The committed golden records are whole, and the models beside them are those they were made from.

use std::{fs::File, io::Read};

use vitriol_testkit::{golden::ZooRecord, places};

const ZOO: [&str; 5] = [
    "llama.f32",
    "llama.f16",
    "llama.bf16",
    "llama.q8_0",
    "llama.q4_1",
];
const VOCAB: usize = 384;

#[test]
fn records_are_whole() {
    for name in ZOO {
        let record = ZooRecord::read(name).unwrap();
        assert_eq!(record.tokens.len(), 96, "{name}");
        assert!(
            record.tokens.iter().all(|&id| (id as usize) < VOCAB),
            "{name}"
        );
        let logits = record.f32("logits_batch").unwrap();
        assert_eq!(
            logits.shape,
            [record.batch_positions.len(), VOCAB],
            "{name}"
        );
        let last = logits.row(record.batch_positions.len() - 1);
        let best = (0..VOCAB)
            .max_by(|&a, &b| last[a].total_cmp(&last[b]))
            .unwrap();
        let greedy = record.i32("greedy").unwrap();
        assert_eq!(
            best as i32, greedy.values[0],
            "{name}: argmax at position 95 starts `greedy`"
        );
        for array in record.arrays() {
            let whole = record.f32(array).is_ok() || record.i32(array).is_ok();
            assert!(whole, "{name}: {array}");
        }
    }
}

#[test]
fn models_are_gguf_files() {
    for name in ZOO {
        let path = places::zoo_model(name).unwrap();
        let mut magic = [0; 4];
        File::open(&path).unwrap().read_exact(&mut magic).unwrap();
        assert_eq!(&magic, b"GGUF", "{}", path.display());
    }
}
