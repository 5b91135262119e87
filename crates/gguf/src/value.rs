use std::fmt;

/// Type of a metadata value, as the file writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// The type with this id in the file, if there is one.
    pub fn from_id(id: u32) -> Option<Self> {
        use ValueType::*;
        const ALL: [ValueType; 13] = [
            U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64,
        ];
        ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The type's name in the format's documentation.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of one value; `None` for strings and arrays, which carry their length.
    pub(crate) fn fixed_bytes(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    /// Least bytes one value can take: what bounds a claimed element count.
    pub(crate) fn min_bytes(self) -> usize {
        match self {
            Self::String => 8,
            Self::Array => 12,
            fixed => fixed.fixed_bytes().unwrap_or(1),
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A metadata value; strings and arrays lie in the file's map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    /// Bytes, usually UTF-8: the format does not promise it for values.
    String(&'a [u8]),
    Array(Array<'a>),
}

impl<'a> Value<'a> {
    /// The value as an integer of any width and sign.
    pub fn as_integer(self) -> Option<i128> {
        Some(match self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// What the value is, for messages: `u32`, `array of string`.
    pub fn describe(self) -> String {
        let value_type = match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F32(_) => ValueType::F32,
            Self::F64(_) => ValueType::F64,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(array) => return format!("an array of {}", array.element_type()),
        };
        format!("of type {value_type}")
    }

    /// What the value is, in few words: numbers and short strings themselves.
    pub(crate) fn shown(self) -> String {
        match (self, self.as_integer()) {
            (_, Some(integer)) => integer.to_string(),
            (Self::F32(v), _) => v.to_string(),
            (Self::F64(v), _) => v.to_string(),
            (Self::Bool(v), _) => v.to_string(),
            (Self::String(bytes), _) => Shown(&String::from_utf8_lossy(bytes)).to_string(),
            (Self::Array(array), _) => {
                format!("an array of {} {}", array.len(), array.element_type())
            }
            _ => self.describe(),
        }
    }

    /// Whether both are the same bytes of the same type: NaN is the same as itself.
    pub(crate) fn same_as(self, other: Value<'_>) -> bool {
        match (self, other) {
            (Self::F32(a), Value::F32(b)) => a.to_bits() == b.to_bits(),
            (Self::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits(),
            (a, b) => a == b,
        }
    }

    /// Takes one value of `value_type` off the front of `bytes`; `None` only where the bytes were
    /// not validated.
    pub(crate) fn take(value_type: ValueType, bytes: &mut &'a [u8]) -> Option<Self> {
        Some(match value_type {
            ValueType::U8 => Self::U8(u8::from_le_bytes(take_array(bytes)?)),
            ValueType::I8 => Self::I8(i8::from_le_bytes(take_array(bytes)?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(take_array(bytes)?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(take_array(bytes)?)),
            ValueType::U32 => Self::U32(u32::from_le_bytes(take_array(bytes)?)),
            ValueType::I32 => Self::I32(i32::from_le_bytes(take_array(bytes)?)),
            ValueType::U64 => Self::U64(u64::from_le_bytes(take_array(bytes)?)),
            ValueType::I64 => Self::I64(i64::from_le_bytes(take_array(bytes)?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(take_array(bytes)?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(take_array(bytes)?)),
            ValueType::Bool => Self::Bool(take_array::<1>(bytes)? != [0]),
            ValueType::String => {
                let len = usize::try_from(u64::from_le_bytes(take_array(bytes)?)).ok()?;
                Self::String(bytes.split_off(..len)?)
            }
            ValueType::Array => Self::Array(Array::take(bytes)?),
        })
    }
}

/// A text from a file in a message: quoted, escaped, and cut where it is absurdly long.
pub(crate) struct Shown<'a>(pub(crate) &'a str);

const SHOWN_BYTES_MAX: usize = 160;

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        if text.len() <= SHOWN_BYTES_MAX {
            return write!(f, "{text:?}");
        }
        let start = &text[..text.floor_char_boundary(SHOWN_BYTES_MAX / 2)];
        write!(f, "{start:?}… ({} bytes)", text.len())
    }
}

fn take_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = bytes.split_first_chunk()?;
    *bytes = tail;
    Some(*head)
}

/// An array value: element type, count, and the elements' bytes in the map.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    element_type: ValueType,
    len: usize,
    bytes: &'a [u8],
}

/// The empty array.
impl Default for Array<'_> {
    fn default() -> Self {
        Self {
            element_type: ValueType::U8,
            len: 0,
            bytes: &[],
        }
    }
}

impl<'a> Array<'a> {
    pub fn element_type(self) -> ValueType {
        self.element_type
    }

    pub fn len(self) -> usize {
        self.len
    }

    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The elements in order. Cost: no allocation; strings are borrowed.
    pub fn iter(self) -> impl Iterator<Item = Value<'a>> {
        let mut rest = self.bytes;
        (0..self.len).map_while(move |_| Value::take(self.element_type, &mut rest))
    }

    fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let element_type = ValueType::from_id(u32::from_le_bytes(take_array(bytes)?))?;
        let len = usize::try_from(u64::from_le_bytes(take_array(bytes)?)).ok()?;
        let start = *bytes;
        match element_type.fixed_bytes() {
            Some(size) => *bytes = bytes.get(len.checked_mul(size)?..)?,
            None => {
                for _ in 0..len {
                    Value::take(element_type, bytes)?;
                }
            }
        }
        Some(Self {
            element_type,
            len,
            bytes: &start[..start.len() - bytes.len()],
        })
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.element_type, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_in_messages() {
        assert_eq!(Shown("a\u{1b}").to_string(), "\"a\\u{1b}\"");
        let long = Shown(&"é".repeat(100)).to_string();
        assert_eq!(long, format!("\"{}\"… (200 bytes)", "é".repeat(40)));
    }

    #[test]
    fn a_value_is_the_same_as_itself() {
        assert!(Value::F32(f32::NAN).same_as(Value::F32(f32::NAN)));
        assert!(!Value::F32(0.0).same_as(Value::F32(-0.0)));
        assert!(!Value::U8(1).same_as(Value::U32(1)));
    }

    #[test]
    fn every_type_id_names_itself() {
        for id in 0..13 {
            assert_eq!(ValueType::from_id(id).unwrap() as u32, id);
        }
        assert_eq!(ValueType::from_id(13), None);
    }
}
