//! Where everything lies in a GGUF file: pure parsing and checking of its bytes.

use crate::{
    cursor::{Cursor, Place},
    error::Problem,
    value::{Value, ValueType},
};
use std::ops::Range;
use vitriol_kernels_core::TensorType;

const MAGIC: &[u8] = b"GGUF";
/// Longest metadata key, as the format's documentation sets it.
const KEY_BYTES_MAX: u64 = (1 << 16) - 1;
/// Longest tensor name. Writers in the field keep to 64 bytes; the bound only stops absurdity.
const TENSOR_NAME_BYTES_MAX: u64 = 1 << 10;
/// Most dimensions of a tensor, as in ggml.
pub(crate) const DIMS_MAX: usize = 4;
const ALIGNMENT_KEY: &str = "general.alignment";
const ALIGNMENT_DEFAULT: u64 = 32;
/// Key length, key of one byte, value type, value of one byte.
const METADATA_ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;
/// Name length, name of one byte, dimension count, no dimension, type, offset.
const TENSOR_ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 4 + 8;

/// Positions of a checked file's parts. It borrows nothing, so it can live beside the map.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) version: u32,
    pub(crate) alignment: u64,
    /// Where tensor data starts; beyond the file's end if there is none.
    pub(crate) data_start: usize,
    /// In file order.
    pub(crate) metadata: Vec<MetadataEntry>,
    /// Indices into `metadata`, ordered by key.
    pub(crate) metadata_by_key: Vec<u32>,
    /// In file order.
    pub(crate) tensors: Vec<TensorEntry>,
    /// Indices into `tensors`, ordered by name.
    pub(crate) tensors_by_name: Vec<u32>,
}

#[derive(Debug)]
pub(crate) struct MetadataEntry {
    pub(crate) key: Range<usize>,
    pub(crate) value_type: ValueType,
    pub(crate) value: Range<usize>,
}

impl MetadataEntry {
    pub(crate) fn key<'a>(&self, file: &'a [u8]) -> &'a str {
        checked_name(file, &self.key)
    }
}

#[derive(Debug)]
pub(crate) struct TensorEntry {
    pub(crate) name: Range<usize>,
    pub(crate) tensor_type: TensorType,
    pub(crate) dims: [u64; DIMS_MAX],
    pub(crate) n_dims: usize,
    /// In the file, not relative to the data section.
    pub(crate) data: Range<usize>,
}

impl TensorEntry {
    pub(crate) fn name<'a>(&self, file: &'a [u8]) -> &'a str {
        checked_name(file, &self.name)
    }
}

/// Keys and names were found to be UTF-8 when the file was parsed.
fn checked_name<'a>(file: &'a [u8], range: &Range<usize>) -> &'a str {
    std::str::from_utf8(&file[range.clone()]).unwrap_or_default()
}

impl Layout {
    /// Parses and checks `file`.
    ///
    /// Cost: one pass over header, metadata and tensor descriptions; memory grows only with
    /// entries that were really read. Errors: see [`Problem`].
    pub(crate) fn parse(file: &[u8]) -> Result<Self, Problem> {
        let mut cursor = Cursor::new(file);
        let version = read_version(file, &mut cursor)?;
        let n_tensors = cursor.u64()?;
        let n_metadata = cursor.u64()?;
        let remaining = cursor.remaining();
        check_count(
            "metadata keys",
            n_metadata,
            METADATA_ENTRY_BYTES_MIN,
            remaining,
        )?;
        check_count("tensors", n_tensors, TENSOR_ENTRY_BYTES_MIN, remaining)?;

        let metadata = (0..n_metadata)
            .map(|index| read_metadata(&mut cursor, index))
            .collect::<Result<Vec<_>, _>>()?;
        let metadata_by_key = index_by(metadata.len(), |index| metadata[index].key(file));
        if let Some(index) = first_repeat(&metadata_by_key, |index| metadata[index].key(file)) {
            let entry = &metadata[index];
            let key = entry.key(file).to_owned();
            return Err(Problem::DuplicateKey {
                key,
                at: entry.key.start as u64,
            });
        }
        let alignment = alignment(file, &metadata, &metadata_by_key)?;

        let described = (0..n_tensors)
            .map(|index| TensorDescription::read(&mut cursor, index))
            .collect::<Result<Vec<_>, _>>()?;
        let tensors_by_name = index_by(described.len(), |index| described[index].name);
        if let Some(index) = first_repeat(&tensors_by_name, |index| described[index].name) {
            let tensor = &described[index];
            return Err(Problem::DuplicateTensor {
                name: tensor.name.to_owned(),
                at: tensor.at,
            });
        }
        let data_start = cursor.at().next_multiple_of(alignment);
        let tensors = described
            .iter()
            .map(|tensor| tensor.place(file, data_start, alignment))
            .collect::<Result<Vec<_>, _>>()?;
        check_overlaps(file, &tensors, data_start)?;

        Ok(Self {
            version,
            alignment,
            data_start: data_start as usize,
            metadata,
            metadata_by_key,
            tensors,
            tensors_by_name,
        })
    }

    pub(crate) fn find_metadata(&self, file: &[u8], key: &str) -> Option<&MetadataEntry> {
        find_metadata(file, &self.metadata, &self.metadata_by_key, key)
    }
}

fn find_metadata<'m>(
    file: &[u8],
    metadata: &'m [MetadataEntry],
    by_key: &[u32],
    key: &str,
) -> Option<&'m MetadataEntry> {
    let found = by_key.binary_search_by(|&index| metadata[index as usize].key(file).cmp(key));
    found.ok().map(|slot| &metadata[by_key[slot] as usize])
}

/// Magic and version, with a plain word about files that are often taken for models.
fn read_version(file: &[u8], cursor: &mut Cursor<'_>) -> Result<u32, Problem> {
    if !file.starts_with(MAGIC) {
        return Err(foreign_file(file));
    }
    cursor.take(MAGIC.len() as u64)?;
    let version = cursor.u32()?;
    match version {
        2 | 3 => Ok(version),
        1 => Err(Problem::Version {
            version,
            remedy: "convert the model again",
        }),
        _ if matches!(version.swap_bytes(), 1..=3) => Err(Problem::BigEndian {
            version: version.swap_bytes(),
        }),
        _ => Err(Problem::Version {
            version,
            remedy: "it may need a newer release of vitriol",
        }),
    }
}

fn foreign_file(start: &[u8]) -> Problem {
    const KNOWN: [(&[u8], &str, &str); 8] = [
        (
            b"version https://",
            "a Git LFS pointer",
            "fetch the file it stands for",
        ),
        (
            b"<!DOCTYPE",
            "an HTML page",
            "the download went wrong: fetch it again",
        ),
        (
            b"<html",
            "an HTML page",
            "the download went wrong: fetch it again",
        ),
        (
            b"lmgg",
            "a GGML file of before GGUF",
            "convert the model again",
        ),
        (
            b"fmgg",
            "a GGML file of before GGUF",
            "convert the model again",
        ),
        (
            b"tjgg",
            "a GGML file of before GGUF",
            "convert the model again",
        ),
        (
            b"PK\x03\x04",
            "a zip archive",
            "take the GGUF file out of it",
        ),
        (b"\x1f\x8b", "a gzip archive", "unpack it"),
    ];
    match KNOWN.iter().find(|(prefix, ..)| start.starts_with(prefix)) {
        Some(&(_, found, remedy)) => Problem::NotGguf { found, remedy },
        None => Problem::Magic {
            start: start[..start.len().min(8)].to_vec(),
        },
    }
}

fn check_count(
    what: &'static str,
    claimed: u64,
    entry_bytes_min: u64,
    remaining: u64,
) -> Result<(), Problem> {
    let possible = (remaining / entry_bytes_min).min(u32::MAX.into());
    if claimed > possible {
        return Err(Problem::ImpossibleCount {
            what,
            claimed,
            possible,
            remaining,
        });
    }
    Ok(())
}

fn read_metadata(cursor: &mut Cursor<'_>, index: u64) -> Result<MetadataEntry, Problem> {
    cursor.enter(Place::Key(index));
    let key = cursor.name(KEY_BYTES_MAX)?;
    let key_range = cursor.position() - key.len()..cursor.position();
    cursor.enter(Place::ValueOf(key));
    let value_type = cursor.value_type()?;
    let start = cursor.position();
    cursor.skip_value(value_type)?;
    Ok(MetadataEntry {
        key: key_range,
        value_type,
        value: start..cursor.position(),
    })
}

/// `0..len` ordered by name, and among equal names by position in the file.
fn index_by<'a>(len: usize, name: impl Fn(usize) -> &'a str) -> Vec<u32> {
    let mut order: Vec<u32> = (0..len).map(|index| index as u32).collect();
    order.sort_by(|&a, &b| name(a as usize).cmp(name(b as usize)));
    order
}

/// The first entry in file order whose name an earlier one has already.
fn first_repeat<'a>(order: &[u32], name: impl Fn(usize) -> &'a str) -> Option<usize> {
    order
        .windows(2)
        .filter(|pair| name(pair[0] as usize) == name(pair[1] as usize))
        .map(|pair| pair[1] as usize)
        .min()
}

fn alignment(file: &[u8], metadata: &[MetadataEntry], by_key: &[u32]) -> Result<u64, Problem> {
    let Some(entry) = find_metadata(file, metadata, by_key, ALIGNMENT_KEY) else {
        return Ok(ALIGNMENT_DEFAULT);
    };
    let value = Value::take(entry.value_type, &mut &file[entry.value.clone()]);
    let integer = value.and_then(Value::as_integer);
    match integer.and_then(|integer| u32::try_from(integer).ok()) {
        Some(alignment) if alignment.is_power_of_two() => Ok(alignment.into()),
        _ => Err(Problem::Alignment {
            value: integer.map_or_else(|| entry.value_type.to_string(), |v| v.to_string()),
        }),
    }
}

/// A tensor as the file describes it, before its data is looked for.
struct TensorDescription<'a> {
    name: &'a str,
    name_end: usize,
    /// Byte at which the description starts.
    at: u64,
    tensor_type: TensorType,
    dims: [u64; DIMS_MAX],
    n_dims: usize,
    /// Relative to the data section.
    offset: u64,
}

impl<'a> TensorDescription<'a> {
    fn read(cursor: &mut Cursor<'a>, index: u64) -> Result<Self, Problem> {
        let at = cursor.at();
        cursor.enter(Place::TensorName(index));
        let name = cursor.name(TENSOR_NAME_BYTES_MAX)?;
        let name_end = cursor.position();
        cursor.enter(Place::Tensor(name));
        let n_dims = cursor.u32()?;
        if n_dims as usize > DIMS_MAX {
            let name = name.to_owned();
            return Err(Problem::TooManyDims {
                name,
                at,
                n_dims,
                limit: DIMS_MAX,
            });
        }
        let n_dims = n_dims as usize;
        let mut dims = [1; DIMS_MAX];
        for dim in &mut dims[..n_dims] {
            *dim = cursor.u64()?;
        }
        if dims.contains(&0) {
            let dims = dims[..n_dims].to_vec();
            return Err(Problem::EmptyDim {
                name: name.to_owned(),
                at,
                dims,
            });
        }
        let id = cursor.u32()?;
        let tensor_type = TensorType::from_id(id).ok_or_else(|| Problem::UnknownTensorType {
            name: name.to_owned(),
            at,
            id,
        })?;
        let offset = cursor.u64()?;
        Ok(Self {
            name,
            name_end,
            at,
            tensor_type,
            dims,
            n_dims,
            offset,
        })
    }

    /// Finds the tensor's bytes in the file.
    fn place(&self, file: &[u8], data_start: u64, align: u64) -> Result<TensorEntry, Problem> {
        let name = || self.name.to_owned();
        let needed = self.data_bytes()?;
        if !self.offset.is_multiple_of(align) {
            return Err(Problem::Misaligned {
                name: name(),
                offset: self.offset,
                align,
            });
        }
        let held = (file.len() as u64).saturating_sub(data_start);
        let end = self.offset.checked_add(needed).filter(|&end| end <= held);
        let Some(end) = end else {
            let offset = self.offset;
            return Err(Problem::OutOfBounds {
                name: name(),
                offset,
                needed,
                held,
            });
        };
        // Both ends lie inside the mapped file, so they fit usize.
        let data = (data_start + self.offset) as usize..(data_start + end) as usize;
        Ok(TensorEntry {
            name: self.name_end - self.name.len()..self.name_end,
            tensor_type: self.tensor_type,
            dims: self.dims,
            n_dims: self.n_dims,
            data,
        })
    }

    fn data_bytes(&self) -> Result<u64, Problem> {
        let block = self.tensor_type.block_len() as u64;
        let row = self.dims[0];
        if !row.is_multiple_of(block) {
            return Err(Problem::PartialBlock {
                name: self.name.to_owned(),
                row,
                block,
                tensor_type: self.tensor_type.name(),
            });
        }
        self.dims[1..]
            .iter()
            .try_fold(row / block, |blocks, &dim| blocks.checked_mul(dim))
            .and_then(|blocks| blocks.checked_mul(self.tensor_type.block_bytes() as u64))
            .ok_or_else(|| Problem::TooLarge {
                name: self.name.to_owned(),
                dims: self.dims[..self.n_dims].to_vec(),
            })
    }
}

fn check_overlaps(file: &[u8], tensors: &[TensorEntry], data_start: u64) -> Result<(), Problem> {
    let mut by_data: Vec<&TensorEntry> = tensors.iter().collect();
    by_data.sort_by_key(|tensor| tensor.data.start);
    for pair in by_data.windows(2) {
        if pair[1].data.start < pair[0].data.end {
            return Err(Problem::Overlap {
                first: pair[0].name(file).to_owned(),
                second: pair[1].name(file).to_owned(),
                offset: pair[1].data.start as u64 - data_start,
            });
        }
    }
    Ok(())
}
