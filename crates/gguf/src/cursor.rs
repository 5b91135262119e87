use crate::{
    error::Problem,
    value::{Shown, ValueType},
};
use std::fmt;

/// Deepest nesting of arrays in a value. Files in the field have none; the bound keeps a hostile
/// file from using up the stack.
const ARRAY_DEPTH_MAX: usize = 4;

/// What is being read, for messages.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    Header,
    Key(u64),
    ValueOf(&'a str),
    TensorName(u64),
    Tensor(&'a str),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => write!(f, "the header"),
            Self::Key(index) => write!(f, "metadata key number {index}"),
            Self::ValueOf(key) => write!(f, "the value of metadata key {}", Shown(key)),
            Self::TensorName(index) => write!(f, "tensor number {index}"),
            Self::Tensor(name) => write!(f, "the description of tensor {}", Shown(name)),
        }
    }
}

/// Bounded reader over the file's bytes: no byte is used before it is known to be there.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
    place: Place<'a>,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            position: 0,
            place: Place::Header,
        }
    }

    /// Says what the next reads belong to.
    pub(crate) fn enter(&mut self, place: Place<'a>) {
        self.place = place;
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    pub(crate) fn at(&self) -> u64 {
        self.position as u64
    }

    pub(crate) fn remaining(&self) -> u64 {
        (self.bytes.len() - self.position) as u64
    }

    pub(crate) fn take(&mut self, len: u64) -> Result<&'a [u8], Problem> {
        if len > self.remaining() {
            return Err(Problem::Truncated {
                place: self.place.to_string(),
                at: self.at(),
                needed: len,
                remaining: self.remaining(),
            });
        }
        let start = self.position;
        self.position += len as usize;
        Ok(&self.bytes[start..self.position])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Problem> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Problem> {
        self.array().map(u64::from_le_bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64)?);
        Ok(out)
    }

    pub(crate) fn string(&mut self) -> Result<&'a [u8], Problem> {
        let len = self.u64()?;
        self.take(len)
    }

    /// A key or a tensor name: not empty, UTF-8, at most `limit` bytes.
    pub(crate) fn name(&mut self, limit: u64) -> Result<&'a str, Problem> {
        let at = self.at();
        let place = |cursor: &Self| cursor.place.to_string();
        let len = self.u64()?;
        if len > limit {
            return Err(Problem::NameTooLong {
                place: place(self),
                at,
                len,
                limit,
            });
        }
        let bytes = self.take(len)?;
        if bytes.is_empty() {
            return Err(Problem::EmptyName {
                place: place(self),
                at,
            });
        }
        std::str::from_utf8(bytes).map_err(|_| Problem::NameNotUtf8 {
            place: place(self),
            at,
        })
    }

    pub(crate) fn value_type(&mut self) -> Result<ValueType, Problem> {
        let at = self.at();
        let id = self.u32()?;
        ValueType::from_id(id).ok_or_else(|| Problem::UnknownValueType {
            place: self.place.to_string(),
            at,
            id,
        })
    }

    /// Walks over one value, checking all of it.
    pub(crate) fn skip_value(&mut self, value_type: ValueType) -> Result<(), Problem> {
        self.skip_nested(value_type, 0)
    }

    fn skip_nested(&mut self, value_type: ValueType, depth: usize) -> Result<(), Problem> {
        match value_type {
            ValueType::Bool => self.skip_bools(1),
            ValueType::String => self.string().map(drop),
            ValueType::Array => self.skip_array(depth),
            fixed => self.take(fixed.min_bytes() as u64).map(drop),
        }
    }

    fn skip_array(&mut self, depth: usize) -> Result<(), Problem> {
        let at = self.at();
        if depth == ARRAY_DEPTH_MAX {
            let place = self.place.to_string();
            return Err(Problem::NestedTooDeep {
                place,
                at,
                limit: ARRAY_DEPTH_MAX,
            });
        }
        let element_type = self.value_type()?;
        let claimed = self.u64()?;
        let possible = self.remaining() / element_type.min_bytes() as u64;
        if claimed > possible {
            return Err(Problem::ImpossibleArray {
                place: self.place.to_string(),
                at,
                claimed,
                possible,
                remaining: self.remaining(),
            });
        }
        match element_type {
            ValueType::Bool => self.skip_bools(claimed),
            ValueType::String | ValueType::Array => {
                (0..claimed).try_for_each(|_| self.skip_nested(element_type, depth + 1))
            }
            // No overflow: `claimed` elements are known to fit the bytes that remain.
            fixed => self.take(claimed * fixed.min_bytes() as u64).map(drop),
        }
    }

    fn skip_bools(&mut self, count: u64) -> Result<(), Problem> {
        let at = self.at();
        let bytes = self.take(count)?;
        match bytes.iter().position(|&byte| byte > 1) {
            None => Ok(()),
            Some(index) => Err(Problem::NotABool {
                place: self.place.to_string(),
                at: at + index as u64,
                byte: bytes[index],
            }),
        }
    }
}
