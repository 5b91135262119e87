use crate::{
    error::{GgufError, Problem},
    file::Tensor,
    layout::{Layout, MetadataEntry, TensorEntry},
    value::Value,
};
use std::{
    fmt,
    path::{Path, PathBuf},
};
use vitriol_shm::{FileIdentity, MappedFile};

/// One file of a model, checked by itself. Most models are a single part.
pub struct Part {
    path: PathBuf,
    content: Content,
    layout: Layout,
}

pub(crate) enum Content {
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

impl Part {
    pub(crate) fn parse(path: PathBuf, content: Content) -> Result<Self, GgufError> {
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

    /// The file that is mapped, as it was when it was opened; `None` where the bytes were given.
    pub fn identity(&self) -> Option<FileIdentity> {
        match &self.content {
            Content::Mapped(file) => Some(file.identity()),
            Content::Owned(_) => None,
        }
    }

    /// Whether the file at the part's path is still the one that is mapped, in the same state.
    pub fn is_unchanged(&self) -> bool {
        FileIdentity::at(&self.path).ok() == self.identity()
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        self.content.bytes()
    }

    /// All that stands before the tensors' data: metadata and tensor descriptions.
    pub fn header(&self) -> &[u8] {
        let bytes = self.bytes();
        &bytes[..self.layout.data_start.min(bytes.len())]
    }

    /// The part's tensors in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.layout.tensors.iter().map(|entry| self.view(entry))
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn value(&self, key: &str) -> Option<Value<'_>> {
        self.value_of(self.layout.find_metadata(self.bytes(), key)?)
    }

    /// `None` never happens: the file was checked when it was opened.
    pub(crate) fn value_of(&self, entry: &MetadataEntry) -> Option<Value<'_>> {
        Value::take(entry.value_type, &mut &self.bytes()[entry.value.clone()])
    }

    pub(crate) fn view<'a>(&'a self, entry: &'a TensorEntry) -> Tensor<'a> {
        let bytes = self.bytes();
        Tensor {
            name: entry.name(bytes),
            tensor_type: entry.tensor_type,
            dims: &entry.dims[..entry.n_dims],
            bytes: &bytes[entry.data.clone()],
            file: &self.path,
            file_offset: entry.data.start as u64,
        }
    }

    pub(crate) fn error(&self, problem: Problem) -> GgufError {
        GgufError::File {
            path: self.path.clone(),
            problem: Box::new(problem),
        }
    }

    pub(crate) fn advise_dont_need(&self) {
        if let Content::Mapped(file) = &self.content {
            file.advise_dont_need();
        }
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part")
            .field("path", &self.path)
            .field("version", &self.layout.version)
            .field("metadata", &self.layout.metadata.len())
            .field("tensors", &self.layout.tensors.len())
            .finish()
    }
}
