use crate::{
    error::{GgufError, Problem},
    file::Gguf,
    layout::MetadataEntry,
    value::{Array, Value, ValueType},
};

/// The key-value pairs of a model file.
///
/// A getter answers `Ok(None)` where the key is absent and an error where it is of another kind.
/// Integers are read from any integer type that holds the value, since writers differ in width.
#[derive(Clone, Copy, Debug)]
pub struct Metadata<'a> {
    file: &'a Gguf,
}

impl<'a> Metadata<'a> {
    pub(crate) fn new(file: &'a Gguf) -> Self {
        Self { file }
    }

    pub fn len(self) -> usize {
        self.file.layout().metadata.len()
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// All pairs in file order.
    pub fn iter(self) -> impl Iterator<Item = (&'a str, Value<'a>)> {
        let bytes = self.file.bytes();
        let entries = self.file.layout().metadata.iter();
        entries.filter_map(move |entry| Some((entry.key(bytes), value(bytes, entry)?)))
    }

    /// The value of `key`, whatever its type.
    pub fn value(self, key: &str) -> Option<Value<'a>> {
        let bytes = self.file.bytes();
        value(bytes, self.file.layout().find_metadata(bytes, key)?)
    }

    /// The value of `key` as `T`. Errors: the value has another type or does not fit `T`.
    pub fn get<T: FromValue<'a>>(self, key: &str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        match T::from_value(value) {
            Some(wanted) => Ok(Some(wanted)),
            None => Err(self.file.error(self.mismatch::<T>(key, value))),
        }
    }

    /// As [`get`](Self::get), for a key that must be there.
    pub fn require<T: FromValue<'a>>(self, key: &str) -> Result<T, GgufError> {
        let missing = || {
            self.file.error(Problem::MissingKey {
                key: key.to_owned(),
            })
        };
        self.get(key)?.ok_or_else(missing)
    }

    pub fn get_u32(self, key: &str) -> Result<Option<u32>, GgufError> {
        self.get(key)
    }

    pub fn get_u64(self, key: &str) -> Result<Option<u64>, GgufError> {
        self.get(key)
    }

    pub fn get_f32(self, key: &str) -> Result<Option<f32>, GgufError> {
        self.get(key)
    }

    pub fn get_bool(self, key: &str) -> Result<Option<bool>, GgufError> {
        self.get(key)
    }

    /// The string's bytes, which the format does not promise to be UTF-8.
    pub fn get_bytes(self, key: &str) -> Result<Option<&'a [u8]>, GgufError> {
        self.get(key)
    }

    /// A string that is UTF-8.
    pub fn get_str(self, key: &str) -> Result<Option<&'a str>, GgufError> {
        self.get(key)
    }

    pub fn get_array(self, key: &str) -> Result<Option<Array<'a>>, GgufError> {
        self.get(key)
    }

    /// An array whose elements are all of `element_type`.
    pub fn get_array_of(
        self,
        key: &str,
        element_type: ValueType,
    ) -> Result<Option<Array<'a>>, GgufError> {
        let Some(array) = self.get_array(key)? else {
            return Ok(None);
        };
        if array.element_type() == element_type {
            return Ok(Some(array));
        }
        Err(self.file.error(Problem::WrongType {
            key: key.to_owned(),
            found: Value::Array(array).describe(),
            wanted: format!("an array of {element_type}"),
        }))
    }

    /// The elements of an array as `T`, or a lone value as an array of one: how per-layer
    /// parameters are written. Errors: an element that is no `T`.
    pub fn get_vec<T: FromValue<'a>>(self, key: &str) -> Result<Option<Vec<T>>, GgufError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let element = |value| {
            T::from_value(value).ok_or_else(|| self.file.error(self.mismatch::<T>(key, value)))
        };
        match value {
            Value::Array(array) => array
                .iter()
                .map(element)
                .collect::<Result<_, _>>()
                .map(Some),
            lone => Ok(Some(vec![element(lone)?])),
        }
    }

    fn mismatch<T: FromValue<'a>>(self, key: &str, value: Value<'a>) -> Problem {
        let key = key.to_owned();
        match value.as_integer() {
            Some(integer) if T::INTEGER => Problem::OutOfRange {
                key,
                value: integer.to_string(),
                wanted: T::WANTED,
            },
            _ => Problem::WrongType {
                key,
                found: value.describe(),
                wanted: T::WANTED.to_owned(),
            },
        }
    }
}

/// `None` never happens: the file was checked when it was opened.
fn value<'a>(file: &'a [u8], entry: &MetadataEntry) -> Option<Value<'a>> {
    Value::take(entry.value_type, &mut &file[entry.value.clone()])
}

/// A type that a metadata value can be read as.
pub trait FromValue<'a>: Sized {
    /// What the type is called in messages.
    const WANTED: &'static str;
    /// Whether integers of any width are accepted if they fit.
    const INTEGER: bool = false;

    /// `None` if `value` is of another kind or does not fit.
    fn from_value(value: Value<'a>) -> Option<Self>;
}

macro_rules! from_integer {
    ($($integer:ty => $wanted:literal),*) => {$(
        impl FromValue<'_> for $integer {
            const WANTED: &'static str = $wanted;
            const INTEGER: bool = true;

            fn from_value(value: Value<'_>) -> Option<Self> {
                value.as_integer()?.try_into().ok()
            }
        }
    )*};
}
from_integer!(
    u32 => "an unsigned 32-bit integer",
    i32 => "a signed 32-bit integer",
    u64 => "an unsigned 64-bit integer",
    i64 => "a signed 64-bit integer",
    usize => "a count"
);

impl FromValue<'_> for f32 {
    const WANTED: &'static str = "a float";

    fn from_value(value: Value<'_>) -> Option<Self> {
        match value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        }
    }
}

impl FromValue<'_> for bool {
    const WANTED: &'static str = "a bool";

    fn from_value(value: Value<'_>) -> Option<Self> {
        match value {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a [u8] {
    const WANTED: &'static str = "a string";

    fn from_value(value: Value<'a>) -> Option<Self> {
        match value {
            Value::String(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const WANTED: &'static str = "a UTF-8 string";

    fn from_value(value: Value<'a>) -> Option<Self> {
        <&[u8]>::from_value(value).and_then(|bytes| std::str::from_utf8(bytes).ok())
    }
}

impl<'a> FromValue<'a> for Array<'a> {
    const WANTED: &'static str = "an array";

    fn from_value(value: Value<'a>) -> Option<Self> {
        match value {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }
}
