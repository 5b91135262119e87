use crate::{
    error::{GgufError, Problem},
    metadata::Metadata,
    part::{Content, Part},
    split,
};
use std::{
    fmt, io,
    path::{Path, PathBuf},
};
use vitriol_kernels_core::TensorType;
use vitriol_shm::{MapError, MappedFile};

/// Longest name of an architecture. It is the prefix of keys and shown in messages.
const ARCHITECTURE_BYTES_MAX: usize = 64;

/// A checked model, mapped read-only: one file, or all the parts of one that was split.
pub struct Gguf {
    /// At least one; the first has the metadata.
    parts: Vec<Part>,
    /// All tensors by name: indices of part and of tensor in it.
    tensors_by_name: Vec<(u32, u32)>,
}

/// A tensor of a model file.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    pub name: &'a str,
    pub tensor_type: TensorType,
    /// In ggml's order: `dims[0]` runs fastest, so a matrix (d_out, d_in) has `[d_in, d_out]`.
    /// Trailing dimensions of 1 may be left out.
    pub dims: &'a [u64],
    /// Encoded rows of `dims[0]` elements, one after the other, in the file's map.
    pub bytes: &'a [u8],
    /// The file that holds it: a part of the model.
    pub file: &'a Path,
    /// Where `bytes` start in `file`.
    pub file_offset: u64,
}

impl Tensor<'_> {
    /// How many elements the tensor has.
    pub fn n_elements(&self) -> u64 {
        self.dims.iter().product()
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {:?} at {}",
            self.name,
            self.tensor_type.name(),
            self.dims,
            self.file_offset
        )
    }
}

impl Gguf {
    /// Maps and checks the model at `path`; if that is a part of a split model, all of its parts.
    ///
    /// Errors: a file cannot be mapped, is damaged, or of a version, byte order or tensor type that
    /// is not read; a part is missing or of another model. Cost: the header pages are read; weights
    /// stay on disk until used.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let map = |path: &Path| {
            let content = Content::Mapped(MappedFile::open(path)?);
            Part::parse(path.to_owned(), content)
        };
        let asked = map(path)?;
        let parts = split::gather(asked, |sibling| match map(sibling) {
            Err(GgufError::Map(MapError::Open { source, .. }))
                if source.kind() == io::ErrorKind::NotFound =>
            {
                Ok(None)
            }
            opened => opened.map(Some),
        })?;
        Self::of_parts(parts)
    }

    /// Checks a file that is in memory already; `name` stands for its path in messages. A part of a
    /// split model is an error here: see [`from_files`](Self::from_files).
    pub fn from_bytes(name: &Path, bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::from_files(vec![(name.to_owned(), bytes)])
    }

    /// As [`open`](Self::open) of the first of `files`, each a path and its content, where there
    /// are no other files than these.
    pub fn from_files(files: Vec<(PathBuf, Vec<u8>)>) -> Result<Self, GgufError> {
        let mut files: Vec<_> = files.into_iter().map(Some).collect();
        let parse = |file: Option<(PathBuf, Vec<u8>)>| {
            let (path, bytes) = file.unwrap_or_default();
            Part::parse(path, Content::Owned(bytes.into()))
        };
        let asked = parse(files.first_mut().and_then(Option::take))?;
        let parts = split::gather(asked, |sibling| {
            let is_it = |file: &&mut Option<_>| matches!(file, Some((path, _)) if path == sibling);
            match files.iter_mut().find(is_it) {
                Some(file) => parse(file.take()).map(Some),
                None => Ok(None),
            }
        })?;
        Self::of_parts(parts)
    }

    /// Errors: a tensor that is in two parts.
    fn of_parts(parts: Vec<Part>) -> Result<Self, GgufError> {
        let mut tensors_by_name: Vec<(u32, u32)> = Vec::new();
        for (part, at) in parts.iter().zip(0..) {
            let of_part = &part.layout().tensors_by_name;
            tensors_by_name.extend(of_part.iter().map(|&tensor| (at, tensor)));
        }
        let name = |&(part, tensor): &(u32, u32)| {
            let part = &parts[part as usize];
            part.layout().tensors[tensor as usize].name(part.bytes())
        };
        // Within a part they are in order, and no name is there twice.
        if parts.len() > 1 {
            tensors_by_name.sort_by(|a, b| name(a).cmp(name(b)).then(a.0.cmp(&b.0)));
            let twice = |pair: &&[(u32, u32)]| name(&pair[0]) == name(&pair[1]);
            if let Some([first, second]) = tensors_by_name.windows(2).find(twice) {
                return Err(parts[second.0 as usize].error(Problem::SplitDuplicate {
                    name: name(second).to_owned(),
                    first: parts[first.0 as usize].path().to_owned(),
                }));
            }
        }
        Ok(Self {
            parts,
            tensors_by_name,
        })
    }

    /// The part with the metadata.
    pub(crate) fn first(&self) -> &Part {
        &self.parts[0]
    }

    /// The file with the metadata: the model's only one, or its first part.
    pub fn path(&self) -> &Path {
        self.first().path()
    }

    /// The model's files in order: for digests, and for what must know where bytes are.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Size of all parts in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.parts
            .iter()
            .map(|part| part.bytes().len() as u64)
            .sum()
    }

    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.first().layout().version
    }

    /// Alignment of tensor data in bytes, a power of two. Other parts may have another.
    pub fn alignment(&self) -> u64 {
        self.first().layout().alignment
    }

    pub fn metadata(&self) -> Metadata<'_> {
        Metadata::new(self)
    }

    /// Name of the model's architecture, the prefix of its parameters' keys. Errors: the key is
    /// missing (an adapter or a bare vocabulary), not a string, or nothing that names one.
    pub fn architecture(&self) -> Result<&str, GgufError> {
        const KEY: &str = "general.architecture";
        let name: &str = self.metadata().require(KEY)?;
        let is_sound = (1..=ARCHITECTURE_BYTES_MAX).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_graphic());
        match is_sound {
            true => Ok(name),
            false => Err(self.error(Problem::ArchitectureName {
                name: name.to_owned(),
            })),
        }
    }

    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let found = self
            .tensors_by_name
            .binary_search_by(|&at| self.view(at).name.cmp(name));
        found.ok().map(|slot| self.view(self.tensors_by_name[slot]))
    }

    /// How many tensors all parts hold.
    pub fn n_tensors(&self) -> usize {
        self.tensors_by_name.len()
    }

    /// All tensors, part by part in file order.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.parts.iter().flat_map(Part::tensors)
    }

    /// Lets the kernel take back the files' pages once the weights have been copied elsewhere.
    pub fn advise_dont_need(&self) {
        self.parts.iter().for_each(Part::advise_dont_need);
    }

    /// An error about this model.
    pub fn error(&self, problem: Problem) -> GgufError {
        self.first().error(problem)
    }

    fn view(&self, (part, tensor): (u32, u32)) -> Tensor<'_> {
        let part = &self.parts[part as usize];
        part.view(&part.layout().tensors[tensor as usize])
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gguf").field("parts", &self.parts).finish()
    }
}
