//! Random damage: whatever the bytes, the reader answers, and what it accepts can be read.

use crate::writer::{open, sound};
use proptest::prelude::*;
use vitriol_gguf::{Gguf, Value};

/// Touches all that a file gives access to.
fn read_all(gguf: &Gguf) -> u64 {
    let mut sum = 0;
    for (key, value) in gguf.metadata().iter() {
        sum += key.len() as u64;
        assert_eq!(
            gguf.metadata().value(key).map(Value::describe),
            Some(value.describe())
        );
        if let Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len());
        }
    }
    for tensor in gguf.tensors() {
        assert_eq!(
            gguf.tensor(tensor.name).expect("listed").file_offset,
            tensor.file_offset
        );
        let row = tensor
            .tensor_type
            .row_bytes(tensor.dims.first().map_or(1, |&d| d as usize));
        assert!(tensor.bytes.len().is_multiple_of(row.expect("fits")));
        sum += tensor
            .bytes
            .iter()
            .map(|&byte| u64::from(byte))
            .sum::<u64>();
    }
    sum
}

fn is_answered(bytes: Vec<u8>) {
    if let Ok(gguf) = open(bytes) {
        read_all(&gguf);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_are_answered(mut bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        is_answered(bytes.clone());
        bytes.splice(0..0, *b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
        is_answered(bytes);
    }

    #[test]
    fn flipped_bytes_are_answered(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = sound().bytes();
        for (index, byte) in flips {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        is_answered(bytes);
    }

    #[test]
    fn planted_integers_are_answered(
        at in any::<prop::sample::Index>(),
        value in prop_oneof![
            any::<u64>(),
            Just(u64::MAX),
            Just(u64::MAX - 31),
            Just(1 << 63),
            Just(0),
            0u64..64,
        ],
    ) {
        let mut bytes = sound().bytes();
        let at = at.index(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        is_answered(bytes);
    }

    #[test]
    fn a_cut_and_joined_file_is_answered(
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
    ) {
        let bytes = sound().bytes();
        let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
        is_answered([&bytes[..from], &bytes[to..]].concat());
    }
}
