//! ```text
//! 0      magic, layout version u32, 0 u32, digest of the model [32], zeros to 4096
//! 4096   the panels of each matrix, each at a multiple of 4096
//! ...    table: an entry for each matrix, in the order in which they were made
//! end−48 bytes of the table u64, BLAKE3 of head and table [32], magic
//! entry  len u32 and bytes of the tensor's name, which matrix of the tensor u32, id of its type u32,
//!        is decoded u32, rows u64, cols u64, start u64, bytes u64, digest [32]
//! ```
//! Numbers are little-endian. What is written last says that all was written: whatever ends in it, and
//! whose table fits, is whole but for a damaged medium, which the digest of each matrix shows.

use super::{
    LAYOUT_VERSION, ModelDigest,
    digest::{digest, read_and_digest},
};
use std::{
    collections::HashMap,
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};
use vitriol_kernels_core::TensorType;
use vitriol_kernels_cpu::{PackError, PanelKind, PanelMatrix};

const MAGIC: [u8; 8] = *b"VTRLPANL";
const PAGE_BYTES: u64 = 4096;
const HEAD_BYTES: usize = 48;
const FOOT_BYTES: usize = 48;
/// Longest table that is read: a million matrices with names as long as any.
const TABLE_BYTES_MAX: u64 = 256 << 20;

/// Why panels could not be read from a file or written to it.
#[derive(Debug, thiserror::Error)]
pub enum PanelFileError {
    #[error("{}: cannot {what}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{}: {fault}", path.display())]
    Unsound { path: PathBuf, fault: Fault },
    #[error("{}: panels of tensor {tensor}", path.display())]
    Pack {
        path: PathBuf,
        tensor: String,
        source: PackError,
    },
}

/// What is wrong with a file of panels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("it is no file of panels, or was cut off")]
    Foreign,
    #[error("its panels have layout {found}, not {LAYOUT_VERSION}")]
    Layout { found: u32 },
    #[error("its panels are another model's")]
    OtherModel,
    #[error("its table is damaged")]
    Table,
    #[error("it has no matrix {part} of tensor {tensor} in this shape")]
    Lacks { tensor: String, part: u32 },
    #[error("the panels of tensor {tensor} are damaged")]
    Damaged { tensor: String },
}

/// Where panels lie in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    kind: PanelKind,
    start: u64,
    bytes: u64,
    digest: [u8; 32],
}

/// Writes panels one after the other.
pub struct PanelWriter {
    path: PathBuf,
    out: Box<dyn Write>,
    /// Written so far, bytes.
    at: u64,
    head: [u8; HEAD_BYTES],
    table: Vec<u8>,
    threads: usize,
}

impl PanelWriter {
    /// A file of the model's panels; `path` is what errors call it.
    pub fn begin(
        path: &Path,
        out: Box<dyn Write>,
        model: ModelDigest,
        threads: usize,
    ) -> Result<Self, PanelFileError> {
        let mut writer = Self {
            path: path.to_owned(),
            out,
            at: 0,
            head: head(model),
            table: Vec::new(),
            threads,
        };
        let head = writer.head;
        writer.write(&head)?;
        Ok(writer)
    }

    /// Writes matrix `part` of a tensor.
    pub fn add(
        &mut self,
        tensor: &str,
        part: u32,
        matrix: &PanelMatrix,
    ) -> Result<(), PanelFileError> {
        self.fill_page()?;
        let (panels, kind) = (matrix.panel_bytes(), matrix.kind());
        let entry = Entry {
            kind,
            start: self.at,
            bytes: panels.len() as u64,
            digest: digest(panels, self.threads),
        };
        self.write(panels)?;
        entry.append(tensor, part, &mut self.table);
        Ok(())
    }

    /// Writes what makes the file whole. It is on disk only once somebody has it synced.
    pub fn finish(mut self) -> Result<(), PanelFileError> {
        let table = std::mem::take(&mut self.table);
        self.write(&table)?;
        let foot = foot(&self.head, &table);
        self.write(&foot)?;
        self.out.flush().map_err(|source| self.failed(source))
    }

    fn fill_page(&mut self) -> Result<(), PanelFileError> {
        let gap = self.at.next_multiple_of(PAGE_BYTES) - self.at;
        self.write(&[0; PAGE_BYTES as usize][..gap as usize])
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), PanelFileError> {
        let written = self.out.write_all(bytes);
        written.map_err(|source| self.failed(source))?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn failed(&self, source: io::Error) -> PanelFileError {
        PanelFileError::Io {
            what: "write",
            path: self.path.clone(),
            source,
        }
    }
}

impl std::fmt::Debug for PanelWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PanelWriter({} at {})", self.path.display(), self.at)
    }
}

fn head(model: ModelDigest) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
    head[16..].copy_from_slice(&model.0);
    head
}

fn foot(head: &[u8], table: &[u8]) -> [u8; FOOT_BYTES] {
    let mut foot = [0; FOOT_BYTES];
    foot[..8].copy_from_slice(&(table.len() as u64).to_le_bytes());
    let sum = blake3::Hasher::new().update(head).update(table).finalize();
    foot[8..40].copy_from_slice(sum.as_bytes());
    foot[40..].copy_from_slice(&MAGIC);
    foot
}

impl Entry {
    fn append(&self, tensor: &str, part: u32, table: &mut Vec<u8>) {
        let PanelKind {
            tensor_type,
            is_decoded,
            rows,
            cols,
        } = self.kind;
        table.extend((tensor.len() as u32).to_le_bytes());
        table.extend(tensor.as_bytes());
        for number in [part, tensor_type as u32, is_decoded.into()] {
            table.extend(number.to_le_bytes());
        }
        for number in [rows as u64, cols as u64, self.start, self.bytes] {
            table.extend(number.to_le_bytes());
        }
        table.extend(self.digest);
    }

    /// The first entry of `table`, which is moved past it; `None` where there is none.
    fn take(table: &mut &[u8]) -> Option<((String, u32), Self)> {
        let name_len = u32::from_le_bytes(*take(table)?) as usize;
        let name = table.split_off(..name_len)?;
        let name = String::from_utf8(name.to_vec()).ok()?;
        let part = u32::from_le_bytes(*take(table)?);
        let tensor_type = TensorType::from_id(u32::from_le_bytes(*take(table)?))?;
        let is_decoded = match u32::from_le_bytes(*take(table)?) {
            0 => false,
            1 => true,
            _ => return None,
        };
        let mut number = || Some(u64::from_le_bytes(*take(table)?));
        let (rows, cols, start, bytes) = (number()?, number()?, number()?, number()?);
        let entry = Self {
            kind: PanelKind {
                tensor_type,
                is_decoded,
                rows: usize::try_from(rows).ok()?,
                cols: usize::try_from(cols).ok()?,
            },
            start,
            bytes,
            digest: *take(table)?,
        };
        Some(((name, part), entry))
    }
}

fn take<'a, const N: usize>(from: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(taken)
}

/// A file of panels whose table was checked; its panels are checked when they are read.
#[derive(Debug)]
pub struct PanelFile {
    path: PathBuf,
    file: File,
    /// By tensor and which of its matrices.
    entries: HashMap<(String, u32), Entry>,
    threads: usize,
}

impl PanelFile {
    /// Opens the panels of `model`.
    ///
    /// Errors: it cannot be read; it is another model's, of another layout, damaged or cut off
    pub fn open(path: &Path, model: ModelDigest, threads: usize) -> Result<Self, PanelFileError> {
        let io = |source| PanelFileError::Io {
            what: "read",
            path: path.to_owned(),
            source,
        };
        let unsound = |fault| PanelFileError::Unsound {
            path: path.to_owned(),
            fault,
        };
        let file = File::open(path).map_err(io)?;
        let found = file.metadata().map_err(io)?;
        if !found.is_file() || found.len() < (HEAD_BYTES + FOOT_BYTES) as u64 {
            return Err(unsound(Fault::Foreign));
        }
        let (mut head_found, mut foot_found) = ([0; HEAD_BYTES], [0; FOOT_BYTES]);
        let foot_start = found.len() - FOOT_BYTES as u64;
        file.read_exact_at(&mut head_found, 0).map_err(io)?;
        file.read_exact_at(&mut foot_found, foot_start)
            .map_err(io)?;
        if head_found[..8] != MAGIC || foot_found[40..] != MAGIC {
            return Err(unsound(Fault::Foreign));
        }
        let expected = head(model);
        let mut after_magic = &head_found[8..];
        match take(&mut after_magic).map(|number| u32::from_le_bytes(*number)) {
            Some(LAYOUT_VERSION) => {}
            found => {
                let found = found.unwrap_or_default();
                return Err(unsound(Fault::Layout { found }));
            }
        }
        if head_found != expected {
            return Err(unsound(Fault::OtherModel));
        }
        let table_bytes = take(&mut &foot_found[..]).map(|number| u64::from_le_bytes(*number));
        let table_bytes = table_bytes.filter(|&bytes| bytes <= foot_start.min(TABLE_BYTES_MAX));
        let table_bytes = table_bytes.ok_or_else(|| unsound(Fault::Table))?;
        let table_start = foot_start - table_bytes;
        let mut table = vec![0; table_bytes as usize];
        file.read_exact_at(&mut table, table_start).map_err(io)?;
        if foot_found != foot(&head_found, &table) {
            return Err(unsound(Fault::Table));
        }
        let mut rest = &table[..];
        let entries: HashMap<_, _> = std::iter::from_fn(|| Entry::take(&mut rest)).collect();
        if !rest.is_empty() {
            return Err(unsound(Fault::Table));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            entries,
            threads,
        })
    }

    /// Matrix `part` of a tensor.
    ///
    /// Errors: it is not there in this shape, or damaged; no memory
    pub fn matrix(
        &self,
        tensor: &str,
        part: u32,
        tensor_type: TensorType,
        rows: usize,
        cols: usize,
    ) -> Result<PanelMatrix, PanelFileError> {
        let unsound = |fault| PanelFileError::Unsound {
            path: self.path.clone(),
            fault,
        };
        let lacks = || {
            unsound(Fault::Lacks {
                tensor: tensor.to_owned(),
                part,
            })
        };
        let entry = self.entries.get(&(tensor.to_owned(), part));
        let entry = entry.ok_or_else(lacks)?;
        let is_decoded = entry.kind.is_decoded;
        let asked = PanelKind {
            tensor_type,
            is_decoded,
            rows,
            cols,
        };
        if entry.kind != asked {
            return Err(lacks());
        }
        let read = |panels: &mut [u8]| {
            if panels.len() as u64 != entry.bytes {
                return Err(Failed::Unsound);
            }
            let read_at = |piece: &mut [u8], at: u64| {
                let start = entry.start.checked_add(at);
                let start = start.ok_or(io::ErrorKind::UnexpectedEof)?;
                self.file.read_exact_at(piece, start)
            };
            let found = read_and_digest(panels, self.threads, read_at).map_err(Failed::Io)?;
            match found == entry.digest {
                true => Ok(()),
                false => Err(Failed::Unsound),
            }
        };
        PanelMatrix::restore(asked, read).map_err(|failed| match failed {
            Failed::Io(source) => PanelFileError::Io {
                what: "read",
                path: self.path.clone(),
                source,
            },
            Failed::Unsound => unsound(Fault::Damaged {
                tensor: tensor.to_owned(),
            }),
            Failed::Pack(source) => PanelFileError::Pack {
                path: self.path.clone(),
                tensor: tensor.to_owned(),
                source,
            },
        })
    }
}

/// Why panels were not restored.
enum Failed {
    Io(io::Error),
    Unsound,
    Pack(PackError),
}

impl From<PackError> for Failed {
    fn from(error: PackError) -> Self {
        Self::Pack(error)
    }
}

#[cfg(test)]
mod tests;
