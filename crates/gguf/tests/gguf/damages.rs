//! The table of damaged files: a sound file with one damage each, and the error it must give. Also
//! the seeds of the fuzz target.

use vitriol_testkit::gguf_file::{
    ARRAY, BOOL, Described, GgufFile, STRING, U8, U16, U32, array, entry, part_names, sound, split,
    string,
};

/// One damaged file, or the files of a damaged split model.
pub struct Damage {
    pub name: &'static str,
    /// What is opened is the first.
    pub files: Vec<(String, Vec<u8>)>,
    /// The case of `Problem`.
    pub variant: &'static str,
    /// What the message must have: file, key or tensor, offset.
    pub words: &'static [&'static str],
}

/// The first file of each damage, with its name.
pub fn all() -> Vec<(&'static str, Vec<u8>)> {
    let first = |damage: Damage| (damage.name, damage.files.into_iter().next());
    let named = table().into_iter().map(first);
    named
        .filter_map(|(name, file)| Some((name, file?.1)))
        .collect()
}

/// All damages.
pub fn table() -> Vec<Damage> {
    [
        foreign(),
        cut(),
        counts(),
        keys(),
        values(),
        tensors(),
        data(),
        parts(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn raw(
    name: &'static str,
    bytes: &[u8],
    variant: &'static str,
    words: &'static [&'static str],
) -> Damage {
    Damage {
        name,
        files: vec![("model.gguf".to_owned(), bytes.to_vec())],
        variant,
        words,
    }
}

fn changed(
    name: &'static str,
    change: impl FnOnce(&mut GgufFile),
    variant: &'static str,
    words: &'static [&'static str],
) -> Damage {
    raw(name, &sound().with(change).bytes(), variant, words)
}

/// Metadata entry number 1 in place of `llama.block_count`.
fn valued(
    name: &'static str,
    type_id: u32,
    value: Vec<u8>,
    variant: &'static str,
    words: &'static [&'static str],
) -> Damage {
    let change = |file: &mut GgufFile| file.metadata[1] = entry("k", type_id, value);
    changed(name, change, variant, words)
}

/// Tensor number 1, `b` (32) q8_0 at data offset 128.
fn tensor(
    name: &'static str,
    change: impl FnOnce(&mut Described),
    variant: &'static str,
    words: &'static [&'static str],
) -> Damage {
    changed(name, |file| change(&mut file.tensors[1]), variant, words)
}

#[rustfmt::skip]
fn foreign() -> Vec<Damage> {
    vec![
        raw("a pointer", b"version https://example\noid sha256:00", "NotGguf", &["a Git LFS pointer", "fetch the file"]),
        raw("a web page", b"<!DOCTYPE html><title>404", "NotGguf", &["an HTML page", "fetch it again"]),
        raw("an old format", b"tjgg\x03\0\0\0", "NotGguf", &["of before GGUF", "convert the model again"]),
        raw("an archive", b"PK\x03\x04....", "NotGguf", &["a zip archive"]),
        changed("a wrong magic", |file| file.magic = *b"FUGG", "Magic", &["starts with the bytes [46, 55, 47, 47"]),
        changed("version 1", |file| file.version = 1, "Version", &["version 1 is not read, only 2 and 3: convert"]),
        changed("version 4", |file| file.version = 4, "Version", &["version 4 is not read", "newer release"]),
        changed("big endian", |file| file.version = 3u32.swap_bytes(), "BigEndian", &["big-endian GGUF (version 3)"]),
    ]
}

#[rustfmt::skip]
fn cut() -> Vec<Damage> {
    let whole = sound().bytes();
    let find = |text: &[u8]| whole.windows(text.len()).position(|at| at == text).expect("it is in the file");
    let in_value = find(b"llama.rope.freq_base") + 20 + 4 + 2;
    let in_tensor = find(b"\x01\0\0\0\0\0\0\0b") + 9 + 4 + 3;
    vec![
        raw("cut in the header", b"GGUF\x03\0", "Truncated", &["the header at byte 4 needs 4 bytes and 2 remain"]),
        raw("cut in a value", &whole[..in_value], "Truncated", &["\"llama.rope.freq_base\" at byte", "needs 4 bytes and 2 remain"]),
        raw("cut in a tensor description", &whole[..in_tensor], "Truncated", &["the description of tensor \"b\" at byte", "needs 8 bytes and 3 remain"]),
        raw("cut in the data", &whole[..whole.len() - 1], "OutOfBounds", &["tensor \"b\" needs 34 bytes at data offset 128", "holds 161", "truncated download?"]),
    ]
}

#[rustfmt::skip]
fn counts() -> Vec<Damage> {
    vec![
        changed("more keys than fit", |file| file.n_metadata = Some(u64::MAX), "ImpossibleCount", &["claims 18446744073709551615 metadata keys"]),
        changed("more tensors than fit", |file| file.n_tensors = Some(1 << 40), "ImpossibleCount", &["claims 1099511627776 tensors"]),
        changed("one key too many", |file| file.n_metadata = Some(9), "NameTooLong", &["tensor number 0 at byte"]),
        changed("one tensor too many", |file| file.n_tensors = Some(3), "EmptyName", &["tensor number 2 at byte"]),
    ]
}

#[rustfmt::skip]
fn keys() -> Vec<Damage> {
    fn named(name: &'static str, key: &[u8], variant: &'static str, words: &'static [&'static str]) -> Damage {
        changed(name, |file| file.metadata[1] = (key.to_vec(), U8, vec![0]), variant, words)
    }
    let twice = entry("general.sound", BOOL, vec![0]);
    vec![
        named("a key without a name", b"", "EmptyName", &["metadata key number 1 at byte", "has an empty name"]),
        named("a key that is no text", b"\xff", "NameNotUtf8", &["metadata key number 1 at byte", "not UTF-8"]),
        named("an endless key", &vec![b'k'; 1 << 16], "NameTooLong", &["metadata key number 1 at byte", "has a name of 65536 bytes"]),
        changed("a key twice", |file| file.metadata.push(twice), "DuplicateKey", &["\"general.sound\" is there twice, again at byte"]),
    ]
}

#[rustfmt::skip]
fn values() -> Vec<Damage> {
    let nested = |levels, innermost| (0..levels).fold(innermost, |inner, _| array(ARRAY, 1, inner));
    let aligned = |name, type_id, value: Vec<u8>, words| {
        changed(name, |file| file.metadata.push(entry("general.alignment", type_id, value)), "Alignment", words)
    };
    let u32_value = |value: u32| value.to_le_bytes().to_vec();
    vec![
        valued("an unknown type", 13, vec![0], "UnknownValueType", &["\"k\" at byte", "unknown value type 13"]),
        valued("a bool of 2", BOOL, vec![2], "NotABool", &["\"k\" at byte", "bool with the byte 0x02"]),
        valued("a bool of 9 in an array", ARRAY, array(BOOL, 2, vec![1, 9]), "NotABool", &["\"k\" at byte", "0x09"]),
        valued("an array of an unknown type", ARRAY, array(14, 1, vec![1]), "UnknownValueType", &["\"k\" at byte", "type 14"]),
        valued("more numbers than fit", ARRAY, array(U32, u64::MAX, vec![]), "ImpossibleArray", &["\"k\" at byte", "array of 18446744073709551615"]),
        valued("more strings than fit", ARRAY, array(STRING, 1 << 32, vec![]), "ImpossibleArray", &["\"k\" at byte", "array of 4294967296"]),
        valued("more arrays than fit", ARRAY, nested(2, array(U8, 1 << 62, vec![])), "ImpossibleArray", &["\"k\" at byte", "array of 4611686018427387904"]),
        valued("arrays too deep", ARRAY, nested(4, array(U8, 0, vec![])), "NestedTooDeep", &["\"k\" at byte", "nests arrays deeper than 4"]),
        valued("an endless string", STRING, (1u64 << 62).to_le_bytes().into(), "Truncated", &["\"k\" at byte", "needs 4611686018427387904 bytes"]),
        aligned("an alignment of 0", U32, u32_value(0), &["general.alignment is 0"]),
        aligned("an alignment of 48", U32, u32_value(48), &["general.alignment is 48"]),
        aligned("an alignment in words", STRING, string(b"32"), &["general.alignment is string"]),
    ]
}

#[rustfmt::skip]
fn tensors() -> Vec<Damage> {
    vec![
        tensor("a tensor without a name", |b| b.name = vec![], "EmptyName", &["tensor number 1 at byte", "empty name"]),
        tensor("a tensor's name that is no text", |b| b.name = b"\xc3\x28".to_vec(), "NameNotUtf8", &["tensor number 1 at byte", "not UTF-8"]),
        tensor("an endless tensor name", |b| b.name = vec![b'n'; 1025], "NameTooLong", &["tensor number 1 at byte", "at most 1024"]),
        tensor("a tensor twice", |b| b.name = b"a".to_vec(), "DuplicateTensor", &["tensor \"a\" is there twice, again at byte"]),
        tensor("five dimensions", |b| b.n_dims = Some(5), "TooManyDims", &["tensor \"b\" at byte", "has 5 dimensions; at most 4"]),
        tensor("a dimension of 0", |b| b.dims = vec![32, 0], "EmptyDim", &["tensor \"b\" at byte", "[32, 0]"]),
        tensor("an unknown tensor type", |b| b.type_id = 4, "UnknownTensorType", &["tensor \"b\" at byte", "unknown type 4"]),
        tensor("half a block", |b| b.dims = vec![33], "PartialBlock", &["tensor \"b\"", "no multiple of the 32 elements of a q8_0 block"]),
        tensor("dimensions that overflow", |b| b.dims = vec![1 << 40, 1 << 40], "TooLarge", &["tensor \"b\"", "larger than the address space"]),
        tensor("a size that wraps around", |b| b.dims = vec![u64::MAX - 31, 1, 2], "TooLarge", &["tensor \"b\"", "[18446744073709551584, 1, 2]"]),
    ]
}

#[rustfmt::skip]
fn data() -> Vec<Damage> {
    let far = entry("general.alignment", U32, (1u32 << 31).to_le_bytes().into());
    vec![
        tensor("an unaligned offset", |b| b.offset = 130, "Misaligned", &["tensor \"b\" starts at data offset 130", "alignment 32"]),
        tensor("an offset beyond the data", |b| b.offset = 160, "OutOfBounds", &["tensor \"b\" needs 34 bytes at data offset 160"]),
        tensor("an offset that wraps around", |b| b.offset = u64::MAX - 31, "OutOfBounds", &["tensor \"b\"", "offset 18446744073709551584"]),
        tensor("tensors that overlap", |b| b.offset = 96, "Overlap", &["\"a\" and \"b\" overlap at data offset 96"]),
        changed("tensors in one place", |file| {
            file.tensors[0] = Described { name: b"c".to_vec(), ..file.tensors[1].clone() };
        }, "Overlap", &["\"c\" and \"b\" overlap at data offset 128"]),
        changed("data that starts beyond the file", |file| file.metadata.push(far), "OutOfBounds", &["tensor \"a\" needs 128 bytes", "holds 0 bytes"]),
    ]
}

/// A model in two parts, `a` in the first and `b` in the second, damaged by `change`.
fn in_parts(
    name: &'static str,
    change: impl FnOnce(&mut Vec<GgufFile>),
    variant: &'static str,
    words: &'static [&'static str],
) -> Damage {
    let mut parts = split(&sound(), &[1, 1]);
    change(&mut parts);
    let names = part_names("model", 2).into_iter();
    Damage {
        name,
        files: names.zip(parts.iter().map(GgufFile::bytes)).collect(),
        variant,
        words,
    }
}

/// Sets a key of a part.
fn set(part: &mut GgufFile, key: &str, type_id: u32, value: Vec<u8>) {
    part.metadata.retain(|(name, ..)| name != key.as_bytes());
    part.metadata.push(entry(key, type_id, value));
}

#[rustfmt::skip]
fn parts() -> Vec<Damage> {
    let u16_value = |value: u16| value.to_le_bytes().to_vec();
    let renamed = in_parts("a part under another name", |_| {}, "SplitName", &["model.gguf: ", "NAME-00001-of-00002.gguf"]);
    vec![
        in_parts("a part that is not there", |parts| drop(parts.pop()), "SplitMissing", &["model-00002-of-00002.gguf", "part 2 of 2"]),
        Damage { files: renamed.files.into_iter().map(|(_, bytes)| ("model.gguf".to_owned(), bytes)).collect(), ..renamed },
        in_parts("a part of three", |parts| set(&mut parts[1], "split.count", U16, u16_value(3)), "SplitOther", &["model-00002-of-00002.gguf", "\"split.count\" is 3, and 2"]),
        in_parts("the first part twice", |parts| parts[1] = parts[0].clone(), "SplitNumber", &["model-00002-of-00002.gguf", "split.no is 0", "part 2"]),
        in_parts("a part of another model", |parts| {
            set(&mut parts[1], "general.architecture", STRING, string(b"qwen2"));
        }, "SplitOther", &["model-00002-of-00002.gguf", "\"general.architecture\" is \"qwen2\", and \"llama\""]),
        in_parts("a part of another count of tensors", |parts| {
            set(&mut parts[1], "split.tensors.count", U32, 7u32.to_le_bytes().into());
        }, "SplitOther", &["model-00002-of-00002.gguf", "\"split.tensors.count\" is 7, and 2"]),
        in_parts("a tensor in two parts", |parts| parts[1].tensors[0].name = b"a".to_vec(), "SplitDuplicate", &["model-00002-of-00002.gguf", "tensor \"a\"", "model-00001-of-00002.gguf"]),
        in_parts("a tensor in no part", |parts| parts[1].tensors.clear(), "SplitTensors", &["split.tensors.count is 2, and the 2 parts hold 1 tensors"]),
        in_parts("parts that do not say of how many tensors", |parts| {
            parts[0].metadata.retain(|(name, ..)| name != b"split.tensors.count");
        }, "MissingKey", &["\"split.tensors.count\" is missing"]),
        in_parts("more parts than any model has", |parts| {
            set(&mut parts[0], "split.count", U32, u32::MAX.to_le_bytes().into());
        }, "SplitCount", &["split.count is 4294967295", "at most 65535"]),
        in_parts("a count in words", |parts| set(&mut parts[0], "split.count", STRING, string(b"2")), "WrongType", &["\"split.count\" is of type string"]),
        in_parts("a damaged second part", |parts| parts[1].magic = *b"GGUG", "Magic", &["model-00002-of-00002.gguf"]),
    ]
}
