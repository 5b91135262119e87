//! A writer just large enough to build sound files and, by its public fields, unsound ones.

use std::path::Path;
use vitriol_gguf::{Gguf, GgufError, Problem};

pub const U8: u32 = 0;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;

pub const TYPE_F32: u32 = 0;
pub const TYPE_Q8_0: u32 = 8;

#[derive(Clone)]
pub struct File {
    pub magic: [u8; 4],
    pub version: u32,
    pub n_tensors: Option<u64>,
    pub n_metadata: Option<u64>,
    pub metadata: Vec<(Vec<u8>, u32, Vec<u8>)>,
    pub tensors: Vec<Described>,
    pub alignment: usize,
    pub data: Vec<u8>,
}

#[derive(Clone)]
pub struct Described {
    pub name: Vec<u8>,
    pub n_dims: Option<u32>,
    pub dims: Vec<u64>,
    pub type_id: u32,
    pub offset: u64,
}

/// A sound file: keys of every kind and two tensors, `a` (4, 8) f32 and `b` (32) q8_0.
pub fn sound() -> File {
    let tensor = |name: &str, dims: &[u64], type_id, offset| Described {
        name: name.into(),
        n_dims: None,
        dims: dims.into(),
        type_id,
        offset,
    };
    File {
        magic: *b"GGUF",
        version: 3,
        n_tensors: None,
        n_metadata: None,
        metadata: vec![
            entry("general.architecture", STRING, string(b"llama")),
            entry("llama.block_count", U32, 2u32.to_le_bytes().into()),
            entry("llama.rope.freq_base", F32, 1e4f32.to_le_bytes().into()),
            entry("general.size", U64, (1u64 << 40).to_le_bytes().into()),
            entry("general.negative", I32, (-7i32).to_le_bytes().into()),
            entry("general.sound", BOOL, vec![1]),
            entry(
                "general.tags",
                ARRAY,
                array(STRING, 2, [string(b"x"), string(b"\xff")].concat()),
            ),
            entry("general.sizes", ARRAY, array(U8, 3, vec![1, 2, 3])),
        ],
        tensors: vec![
            tensor("a", &[4, 8], TYPE_F32, 0),
            tensor("b", &[32], TYPE_Q8_0, 128),
        ],
        alignment: 32,
        data: (0..128 + 34).map(|byte| byte as u8).collect(),
    }
}

pub fn entry(key: &str, type_id: u32, value: Vec<u8>) -> (Vec<u8>, u32, Vec<u8>) {
    (key.into(), type_id, value)
}

pub fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

pub fn array(element_type: u32, count: u64, elements: Vec<u8>) -> Vec<u8> {
    [
        &element_type.to_le_bytes()[..],
        &count.to_le_bytes(),
        &elements,
    ]
    .concat()
}

impl File {
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(
            self.n_tensors
                .unwrap_or(self.tensors.len() as u64)
                .to_le_bytes(),
        );
        out.extend(
            self.n_metadata
                .unwrap_or(self.metadata.len() as u64)
                .to_le_bytes(),
        );
        for (key, type_id, value) in &self.metadata {
            out.extend(string(key));
            out.extend(type_id.to_le_bytes());
            out.extend(value);
        }
        for tensor in &self.tensors {
            out.extend(string(&tensor.name));
            out.extend(
                tensor
                    .n_dims
                    .unwrap_or(tensor.dims.len() as u32)
                    .to_le_bytes(),
            );
            tensor
                .dims
                .iter()
                .for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        if !self.tensors.is_empty() {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
        }
        out.extend(&self.data);
        out
    }

    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

pub fn open(bytes: Vec<u8>) -> Result<Gguf, GgufError> {
    Gguf::from_bytes(Path::new("model.gguf"), bytes)
}

pub fn problem(bytes: Vec<u8>) -> Problem {
    let error = open(bytes).expect_err("the file is damaged");
    let message = error.to_string();
    assert!(
        message.starts_with("model.gguf: "),
        "the message names the file: {message}"
    );
    match error {
        GgufError::File { problem, .. } => *problem,
        GgufError::Map(error) => panic!("nothing was mapped: {error}"),
    }
}
