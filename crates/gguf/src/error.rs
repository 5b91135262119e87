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
    #[error("metadata key {key:?} is there twice, again at byte {at}")]
    DuplicateKey { key: String, at: u64 },
    #[error("tensor {name:?} is there twice, again at byte {at}")]
    DuplicateTensor { name: String, at: u64 },
    #[error("general.alignment is {value}; it must be a power of two that fits 32 bits")]
    Alignment { value: String },
    #[error("tensor {name:?} at byte {at} has {n_dims} dimensions; at most {limit} are allowed")]
    TooManyDims {
        name: String,
        at: u64,
        n_dims: u32,
        limit: usize,
    },
    #[error("tensor {name:?} at byte {at} has a dimension of 0: {dims:?}")]
    EmptyDim {
        name: String,
        at: u64,
        dims: Vec<u64>,
    },
    #[error(
        "tensor {name:?} at byte {at} has the unknown type {id}: the file may be newer than this \
         release"
    )]
    UnknownTensorType { name: String, at: u64, id: u32 },
    #[error(
        "tensor {name:?} has rows of {row} elements, no multiple of the {block} elements of a \
         {tensor_type} block"
    )]
    PartialBlock {
        name: String,
        row: u64,
        block: u64,
        tensor_type: &'static str,
    },
    #[error("tensor {name:?} with dimensions {dims:?} is larger than the address space")]
    TooLarge { name: String, dims: Vec<u64> },
    #[error("tensor {name:?} starts at data offset {offset}, no multiple of the alignment {align}")]
    Misaligned {
        name: String,
        offset: u64,
        align: u64,
    },
    #[error(
        "tensor {name:?} needs {needed} bytes at data offset {offset} and the file holds {held} \
         bytes of tensor data (truncated download? fetch it again)"
    )]
    OutOfBounds {
        name: String,
        offset: u64,
        needed: u64,
        held: u64,
    },
    #[error("tensors {first:?} and {second:?} overlap at data offset {offset}")]
    Overlap {
        first: String,
        second: String,
        offset: u64,
    },
    #[error("metadata key {key:?} is missing")]
    MissingKey { key: String },
    #[error("metadata key {key:?} is {found}, not {wanted}")]
    WrongType {
        key: String,
        found: String,
        wanted: String,
    },
    #[error("metadata key {key:?} is {value}, which does not fit {wanted}")]
    OutOfRange {
        key: String,
        value: String,
        wanted: &'static str,
    },
}
