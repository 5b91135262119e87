//! A writer of GGUF files, just large enough to build sound ones and, by its public fields, unsound
//! ones.

/// Ids of value types.
pub const U8: u32 = 0;
pub const U16: u32 = 2;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;

/// Ids of tensor types.
pub const TYPE_F32: u32 = 0;
pub const TYPE_Q8_0: u32 = 8;

/// What is written, field by field.
#[derive(Clone, Debug)]
pub struct GgufFile {
    pub magic: [u8; 4],
    pub version: u32,
    /// What the header claims; `None`: as many as there are.
    pub n_tensors: Option<u64>,
    /// As `n_tensors`.
    pub n_metadata: Option<u64>,
    /// Key, id of the value's type, the value's bytes.
    pub metadata: Vec<(Vec<u8>, u32, Vec<u8>)>,
    pub tensors: Vec<Described>,
    /// Where the data is put; `general.alignment` is written only if it is among `metadata`.
    pub alignment: usize,
    /// The data section.
    pub data: Vec<u8>,
}

/// A tensor's description.
#[derive(Clone, Debug)]
pub struct Described {
    pub name: Vec<u8>,
    /// What is claimed; `None`: as many as there are.
    pub n_dims: Option<u32>,
    pub dims: Vec<u64>,
    pub type_id: u32,
    /// In the data section.
    pub offset: u64,
}

/// A sound file: keys of every kind and two tensors, `a` (4, 8) f32 and `b` (32) q8_0.
pub fn sound() -> GgufFile {
    let tensor = |name: &str, dims: &[u64], type_id, offset| Described {
        name: name.into(),
        n_dims: None,
        dims: dims.into(),
        type_id,
        offset,
    };
    GgufFile {
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

/// A metadata entry.
pub fn entry(key: &str, type_id: u32, value: Vec<u8>) -> (Vec<u8>, u32, Vec<u8>) {
    (key.into(), type_id, value)
}

/// A string value: its length before it.
pub fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// An array value that claims `count` elements.
pub fn array(element_type: u32, count: u64, elements: Vec<u8>) -> Vec<u8> {
    [
        &element_type.to_le_bytes()[..],
        &count.to_le_bytes(),
        &elements,
    ]
    .concat()
}

impl GgufFile {
    /// The file.
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

    /// The same file, changed.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// `file` as `gguf-split` would cut it into files of `counts` tensors each: the first keeps the
/// metadata, all say which part they are.
///
/// The file's tensors must lie in their order in `data`.
pub fn split(file: &GgufFile, counts: &[usize]) -> Vec<GgufFile> {
    assert_eq!(
        counts.iter().sum::<usize>(),
        file.tensors.len(),
        "every tensor is in one part"
    );
    let (mut parts, mut at) = (Vec::new(), 0);
    for (number, count) in counts.iter().enumerate() {
        let start_of = |index: usize| match file.tensors.get(index) {
            Some(tensor) => tensor.offset as usize,
            None => file.data.len(),
        };
        let (start, end) = (start_of(at), start_of(at + count));
        let mut tensors = file.tensors[at..at + count].to_vec();
        for tensor in &mut tensors {
            tensor.offset -= start as u64;
        }
        let mut part = GgufFile {
            tensors,
            data: file.data[start..end].to_vec(),
            ..file.clone()
        };
        if number > 0 {
            part.metadata.clear();
        }
        let u16_value = |value: usize| (value as u16).to_le_bytes().to_vec();
        let n_tensors = (file.tensors.len() as i32).to_le_bytes().to_vec();
        part.metadata.extend([
            entry("split.no", U16, u16_value(number)),
            entry("split.count", U16, u16_value(counts.len())),
            entry("split.tensors.count", I32, n_tensors),
        ]);
        parts.push(part);
        at += count;
    }
    parts
}

/// The file names of `count` parts of the model `name`.
pub fn part_names(name: &str, count: usize) -> Vec<String> {
    let part = |number| format!("{name}-{number:05}-of-{count:05}.gguf");
    (1..=count).map(part).collect()
}
