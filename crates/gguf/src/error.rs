use crate::{
    metadata::FromValue,
    value::{Shown, Value},
};
use std::path::PathBuf;
use vitriol_shm::MapError;

/// Why a model file could not be used. The message names the file.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file could not be opened or mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The file is not a sound GGUF file, or does not hold what was asked of it.
    #[error("{}: {problem}", path.display())]
    File {
        path: PathBuf,
        problem: Box<Problem>,
    },
}

impl GgufError {
    /// What is wrong inside the file; `None` if it could not even be mapped.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Map(_) => None,
            Self::File { problem, .. } => Some(problem),
        }
    }
}

/// What is wrong with a GGUF file. `at` is a byte offset into the file, `place` the key or tensor
/// that was being read.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    #[error("not a GGUF file: it is {found}; {remedy}")]
    NotGguf {
        found: &'static str,
        remedy: &'static str,
    },
    #[error("not a GGUF file: it starts with the bytes {start:02x?}")]
    Magic { start: Vec<u8> },
    #[error("big-endian GGUF (version {version}); only little-endian files are read: convert it")]
    BigEndian { version: u32 },
    #[error("GGUF version {version} is not read, only 2 and 3: {remedy}")]
    Version { version: u32, remedy: &'static str },
    #[error(
        "{place} at byte {at} needs {needed} bytes and {remaining} remain \
         (truncated download? fetch it again)"
    )]
    Truncated {
        place: String,
        at: u64,
        needed: u64,
        remaining: u64,
    },
    #[error(
        "the header claims {claimed} {what} and the {remaining} bytes after it can hold at most \
         {possible} (damaged file? fetch it again)"
    )]
    ImpossibleCount {
        what: &'static str,
        claimed: u64,
        possible: u64,
        remaining: u64,
    },
    #[error(
        "{place} at byte {at} claims an array of {claimed} elements and the {remaining} bytes \
         after it can hold at most {possible} (damaged file? fetch it again)"
    )]
    ImpossibleArray {
        place: String,
        at: u64,
        claimed: u64,
        possible: u64,
        remaining: u64,
    },
    #[error("{place} at byte {at} has the unknown value type {id}")]
    UnknownValueType { place: String, at: u64, id: u32 },
    #[error("{place} at byte {at} nests arrays deeper than {limit}")]
    NestedTooDeep {
        place: String,
        at: u64,
        limit: usize,
    },
    #[error("{place} at byte {at} is a bool with the byte {byte:#04x}; only 0 and 1 are bools")]
    NotABool { place: String, at: u64, byte: u8 },
    #[error("{place} at byte {at} has an empty name")]
    EmptyName { place: String, at: u64 },
    #[error("{place} at byte {at} has a name that is not UTF-8")]
    NameNotUtf8 { place: String, at: u64 },
    #[error("{place} at byte {at} has a name of {len} bytes; at most {limit} are allowed")]
    NameTooLong {
        place: String,
        at: u64,
        len: u64,
        limit: u64,
    },
    #[error("metadata key {} is there twice, again at byte {at}", Shown(.key))]
    DuplicateKey { key: String, at: u64 },
    #[error("tensor {} is there twice, again at byte {at}", Shown(.name))]
    DuplicateTensor { name: String, at: u64 },
    #[error("general.alignment is {value}; it must be a power of two that fits 32 bits")]
    Alignment { value: String },
    #[error(
        "tensor {} at byte {at} has {n_dims} dimensions; at most {limit} are allowed",
        Shown(.name)
    )]
    TooManyDims {
        name: String,
        at: u64,
        n_dims: u32,
        limit: usize,
    },
    #[error("tensor {} at byte {at} has a dimension of 0: {dims:?}", Shown(.name))]
    EmptyDim {
        name: String,
        at: u64,
        dims: Vec<u64>,
    },
    #[error(
        "tensor {} at byte {at} has the unknown type {id}: the file may be newer than this \
         release",
        Shown(.name)
    )]
    UnknownTensorType { name: String, at: u64, id: u32 },
    #[error(
        "tensor {} has rows of {row} elements, no multiple of the {block} elements of a \
         {tensor_type} block",
        Shown(.name)
    )]
    PartialBlock {
        name: String,
        row: u64,
        block: u64,
        tensor_type: &'static str,
    },
    #[error(
        "tensor {} with dimensions {dims:?} is larger than the address space",
        Shown(.name)
    )]
    TooLarge { name: String, dims: Vec<u64> },
    #[error(
        "tensor {} starts at data offset {offset}, no multiple of the alignment {align}",
        Shown(.name)
    )]
    Misaligned {
        name: String,
        offset: u64,
        align: u64,
    },
    #[error(
        "tensor {} needs {needed} bytes at data offset {offset} and the file holds {held} \
         bytes of tensor data (truncated download? fetch it again)",
        Shown(.name)
    )]
    OutOfBounds {
        name: String,
        offset: u64,
        needed: u64,
        held: u64,
    },
    #[error(
        "tensors {} and {} overlap at data offset {offset}",
        Shown(.first),
        Shown(.second)
    )]
    Overlap {
        first: String,
        second: String,
        offset: u64,
    },
    #[error("metadata key {} is missing", Shown(.key))]
    MissingKey { key: String },
    #[error("metadata key {} is {found}, not {wanted}", Shown(.key))]
    WrongType {
        key: String,
        found: String,
        wanted: String,
    },
    #[error("metadata key {} is {value}, which does not fit {wanted}", Shown(.key))]
    OutOfRange {
        key: String,
        value: String,
        wanted: String,
    },
    #[error("metadata key {} holds {len} elements; {wanted}", Shown(.key))]
    ArrayLength {
        key: String,
        len: usize,
        wanted: String,
    },
    #[error("general.architecture is {}, which names no architecture", Shown(.name))]
    ArchitectureName { name: String },
    #[error("split.count is {count}; a model has at most {limit} parts")]
    SplitCount { count: u32, limit: u32 },
    #[error(
        "it is one of {count} parts of a model, and its name does not tell which: rename the parts \
         to NAME-00001-of-{count:05}.gguf and so on"
    )]
    SplitName { count: u32 },
    #[error("no such file: it is part {number} of {count} of the model (fetch it too)")]
    SplitMissing { number: u32, count: u32 },
    #[error(
        "split.no is {index}, but by its name it is part {number}, which has {}: the parts were \
         renamed or mixed up",
        number - 1
    )]
    SplitNumber { number: u32, index: u32 },
    #[error(
        "it is a part of another model: {} is {found}, and {expected} in the part before it",
        Shown(.key)
    )]
    SplitOther {
        key: String,
        found: String,
        expected: String,
    },
    #[error(
        "split.tensors.count is {claimed}, and the {parts} parts hold {found} tensors (parts of \
         different versions? fetch them again)"
    )]
    SplitTensors {
        claimed: u64,
        found: u64,
        parts: usize,
    },
    #[error(
        "it is a part of another quantisation of the model: its {} are {found}, and {expected} in the \
         parts before it (fetch the parts of one again; a model meant to be so can be joined into one \
         file)",
        Shown(.role)
    )]
    SplitTypes {
        role: String,
        found: String,
        expected: String,
    },
    #[error("tensor {} is also in the part {}", Shown(.name), first.display())]
    SplitDuplicate { name: String, first: PathBuf },
}

impl Problem {
    /// That the value of `key` is no `T`.
    pub(crate) fn mismatch<'a, T: FromValue<'a>>(key: &str, value: Value<'a>) -> Self {
        let key = key.to_owned();
        match value.as_integer() {
            Some(integer) if T::INTEGER => Self::OutOfRange {
                key,
                value: integer.to_string(),
                wanted: T::WANTED.to_owned(),
            },
            _ => Self::WrongType {
                key,
                found: value.describe(),
                wanted: T::WANTED.to_owned(),
            },
        }
    }
}
