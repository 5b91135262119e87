use crate::{
    error::{GgufError, Problem},
    layout::{Layout, TensorEntry},
    metadata::Metadata,
};
use std::{
    fmt,
    path::{Path, PathBuf},
};
use vitriol_kernels_core::TensorType;
use vitriol_shm::MappedFile;

/// A checked model file, mapped read-only.
pub struct Gguf {
    path: PathBuf,
    content: Content,
    layout: Layout,
}

enum Content {
    Mapped(MappedFile),
    Owned(Box<[u8]>),
}

impl Content {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(file) => file.bytes(),
            Self::Owned(bytes) => bytes,
        }
    }
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
    /// Where `bytes` start in the file.
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
    /// Maps and checks the file at `path`.
    ///
    /// Errors: it cannot be mapped, or is damaged, or of a version, byte order or tensor type that
    /// is not read. Cost: the header pages are read; weights stay on disk until used.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::parse(path.to_owned(), Content::Mapped(MappedFile::open(path)?))
    }

    /// Checks a file that is in memory already; `name` stands for its path in messages.
    pub fn from_bytes(name: &Path, bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::parse(name.to_owned(), Content::Owned(bytes.into()))
    }

    fn parse(path: PathBuf, content: Content) -> Result<Self, GgufError> {
        match Layout::parse(content.bytes()) {
            Ok(layout) => Ok(Self {
                path,
                content,
                layout,
            }),
            Err(problem) => Err(GgufError::File {
                path,
                problem: Box::new(problem),
            }),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// The whole file: for digests.
    pub fn bytes(&self) -> &[u8] {
        self.content.bytes()
    }

    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.layout.version
    }

    /// Alignment of tensor data in bytes, a power of two.
    pub fn alignment(&self) -> u64 {
        self.layout.alignment
    }

    pub fn metadata(&self) -> Metadata<'_> {
        Metadata::new(self)
    }

    /// Name of the model's architecture, the prefix of its parameters' keys. Errors: the key is
    /// missing (an adapter or a bare vocabulary) or not a string.
    pub fn architecture(&self) -> Result<&str, GgufError> {
        self.metadata().require("general.architecture")
    }

    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.layout
            .find_tensor(self.bytes(), name)
            .map(|entry| self.view(entry))
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.layout.tensors.iter().map(|entry| self.view(entry))
    }

    /// Lets the kernel take back the file's pages once the weights have been copied elsewhere.
    pub fn advise_dont_need(&self) {
        if let Content::Mapped(file) = &self.content {
            file.advise_dont_need();
        }
    }

    /// An error about this file.
    pub fn error(&self, problem: Problem) -> GgufError {
        GgufError::File {
            path: self.path.clone(),
            problem: Box::new(problem),
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    fn view<'a>(&'a self, entry: &'a TensorEntry) -> Tensor<'a> {
        let bytes = self.bytes();
        Tensor {
            name: entry.name(bytes),
            tensor_type: entry.tensor_type,
            dims: &entry.dims[..entry.n_dims],
            bytes: &bytes[entry.data.clone()],
            file_offset: entry.data.start as u64,
        }
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gguf")
            .field("path", &self.path)
            .field("version", &self.layout.version)
            .field("metadata", &self.layout.metadata.len())
            .field("tensors", &self.layout.tensors.len())
            .finish()
    }
}
