//! Each way of being damaged has its own error, which says where and, if there is one, the remedy.

use crate::writer::{ARRAY, BOOL, Described, File, STRING, U8, U32, array, entry, problem, sound};
use vitriol_gguf::Problem;

fn damage(change: impl FnOnce(&mut File)) -> Problem {
    problem(sound().with(change).bytes())
}

#[track_caller]
fn says(problem: Problem, words: &str) {
    let message = problem.to_string();
    assert!(message.contains(words), "{words:?} is not in {message:?}");
}

#[test]
fn a_foreign_file_is_named() {
    says(
        problem(b"version https://example\noid sha256:00".to_vec()),
        "a Git LFS pointer",
    );
    says(
        problem(b"<!DOCTYPE html><title>404".to_vec()),
        "an HTML page",
    );
    says(
        problem(b"tjgg\x03\0\0\0".to_vec()),
        "convert the model again",
    );
    says(problem(b"PK\x03\x04....".to_vec()), "a zip archive");
    says(
        damage(|file| file.magic = *b"FUGG"),
        "starts with the bytes [46, 55, 47, 47",
    );
    says(problem(b"GG".to_vec()), "not a GGUF file");
}

#[test]
fn versions_that_are_not_read_are_named() {
    says(
        damage(|file| file.version = 1),
        "version 1 is not read, only 2 and 3: convert",
    );
    says(damage(|file| file.version = 4), "version 4 is not read");
    says(damage(|file| file.version = 0), "version 0 is not read");
    says(
        damage(|file| file.version = 3u32.swap_bytes()),
        "big-endian GGUF (version 3)",
    );
}

#[test]
fn every_truncation_is_an_error() {
    let whole = sound().bytes();
    for len in 0..whole.len() {
        let message = problem(whole[..len].to_vec()).to_string();
        let known = ["needs", "claims", "not a GGUF file"];
        assert!(
            known.iter().any(|words| message.contains(words)),
            "{len}: {message}"
        );
    }
    says(
        problem(b"GGUF\x03\0".to_vec()),
        "the header at byte 4 needs 4 bytes and 2 remain",
    );
    says(
        problem(whole[..whole.len() - 1].to_vec()),
        "truncated download? fetch it again",
    );
}

#[test]
fn counts_beyond_the_file_are_refused() {
    says(
        damage(|file| file.n_metadata = Some(u64::MAX)),
        "claims 18446744073709551615 metadata",
    );
    says(
        damage(|file| file.n_tensors = Some(1 << 40)),
        "claims 1099511627776 tensors",
    );
}

#[test]
fn keys_are_checked() {
    let unnamed = |key: &[u8]| (key.to_vec(), U8, vec![0]);
    says(
        damage(|file| file.metadata[1] = unnamed(b"")),
        "metadata key number 1 at byte",
    );
    says(
        damage(|file| file.metadata[1] = unnamed(b"")),
        "has an empty name",
    );
    says(
        damage(|file| file.metadata[1] = unnamed(b"\xff")),
        "has a name that is not UTF-8",
    );
    let long = vec![b'k'; 1 << 16];
    says(
        damage(|file| file.metadata[1] = unnamed(&long)),
        "has a name of 65536 bytes",
    );
    let twice = entry("general.sound", BOOL, vec![0]);
    says(
        damage(|file| file.metadata.push(twice)),
        "\"general.sound\" is there twice",
    );
}

#[test]
fn values_are_checked() {
    let value = |type_id, bytes| damage(|file| file.metadata[1] = entry("k", type_id, bytes));
    says(value(13, vec![0]), "\"k\" at byte");
    says(value(13, vec![0]), "unknown value type 13");
    says(value(BOOL, vec![2]), "bool with the byte 0x02");
    says(
        value(ARRAY, array(BOOL, 2, vec![1, 9])),
        "bool with the byte 0x09",
    );
    says(value(ARRAY, array(14, 1, vec![1])), "unknown value type 14");
    says(
        value(ARRAY, array(U32, u64::MAX, vec![])),
        "array of 18446744073709551615 elements",
    );
    says(
        value(ARRAY, array(STRING, 1 << 32, vec![])),
        "array of 4294967296 elements",
    );
    says(
        value(STRING, (1u64 << 62).to_le_bytes().into()),
        "needs 4611686018427387904 bytes",
    );
    let nested = |levels| (0..levels).fold(array(U8, 0, vec![]), |a, _| array(ARRAY, 1, a));
    says(value(ARRAY, nested(4)), "nests arrays deeper than 4");
}

#[test]
fn alignment_is_checked() {
    let align = |value: u32| {
        let value = value.to_le_bytes().to_vec();
        damage(|file| file.metadata.push(entry("general.alignment", U32, value)))
    };
    says(align(0), "general.alignment is 0");
    says(align(48), "general.alignment is 48");
    let text = entry("general.alignment", STRING, crate::writer::string(b"32"));
    says(
        damage(|file| file.metadata.push(text)),
        "general.alignment is string",
    );
}

fn damaged_tensor(change: impl FnOnce(&mut Described)) -> Problem {
    damage(|file| change(&mut file.tensors[1]))
}

#[test]
fn tensor_descriptions_are_checked() {
    says(
        damaged_tensor(|b| b.name = b"".to_vec()),
        "tensor number 1 at byte",
    );
    says(
        damaged_tensor(|b| b.name = b"\xc3\x28".to_vec()),
        "not UTF-8",
    );
    says(
        damaged_tensor(|b| b.name = vec![b'n'; 1025]),
        "at most 1024",
    );
    says(
        damaged_tensor(|b| b.name = b"a".to_vec()),
        "tensor \"a\" is there twice",
    );
    says(
        damaged_tensor(|b| b.n_dims = Some(5)),
        "has 5 dimensions; at most 4",
    );
    says(
        damaged_tensor(|b| b.dims = vec![32, 0]),
        "a dimension of 0: [32, 0]",
    );
    says(damaged_tensor(|b| b.type_id = 4), "tensor \"b\" at byte");
    says(damaged_tensor(|b| b.type_id = 4), "unknown type 4");
    says(
        damaged_tensor(|b| b.dims = vec![33]),
        "no multiple of the 32 elements of a q8_0 block",
    );
    says(
        damaged_tensor(|b| b.dims = vec![1 << 40, 1 << 40]),
        "larger than the address space",
    );
    says(
        damaged_tensor(|b| b.dims = vec![u64::MAX - 31, 1, 2]),
        "larger than the address space",
    );
}

#[test]
fn tensor_data_is_checked() {
    says(
        damaged_tensor(|b| b.offset = 130),
        "data offset 130, no multiple of the alignment 32",
    );
    says(
        damaged_tensor(|b| b.offset = 160),
        "needs 34 bytes at data offset 160",
    );
    says(
        damaged_tensor(|b| b.offset = u64::MAX - 31),
        "truncated download?",
    );
    says(
        damaged_tensor(|b| b.offset = 96),
        "tensors \"a\" and \"b\" overlap at data offset 96",
    );
    let same = damage(|file| {
        file.tensors[0] = file.tensors[1].clone();
        file.tensors[0].name = b"a".to_vec();
    });
    says(same, "overlap at data offset 128");
}

#[test]
fn a_data_section_that_starts_beyond_the_file_is_refused() {
    let align = entry("general.alignment", U32, (1u32 << 31).to_le_bytes().into());
    says(
        damage(|file| file.metadata.push(align)),
        "holds 0 bytes of tensor data",
    );
}
