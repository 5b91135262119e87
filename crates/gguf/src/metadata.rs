use crate::{
    error::{GgufError, Problem},
    file::Gguf,
    value::{Array, Value, ValueType},
};
use std::ops::RangeInclusive;

/// Most elements that [`Metadata::get_vec`] copies out: lists of parameters are one entry a layer.
const VEC_LEN_MAX: usize = 1 << 16;

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
        self.file.first().layout().metadata.len()
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// All pairs in file order.
    pub fn iter(self) -> impl Iterator<Item = (&'a str, Value<'a>)> {
        let part = self.file.first();
        let entries = part.layout().metadata.iter();
        entries.filter_map(|entry| Some((entry.key(part.bytes()), part.value_of(entry)?)))
    }

    /// The value of `key`, whatever its type.
    pub fn value(self, key: &str) -> Option<Value<'a>> {
        self.file.first().value(key)
    }

    /// The value of `key` as `T`. Errors: the value has another type or does not fit `T`.
    pub fn get<T: FromValue<'a>>(self, key: &str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        match T::from_value(value) {
            Some(wanted) => Ok(Some(wanted)),
            None => Err(self.file.error(Problem::mismatch::<T>(key, value))),
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

    /// A count or size within `range`. Errors: no integer, or one outside of the range.
    pub fn get_within(
        self,
        key: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, GgufError> {
        match self.get_u64(key)? {
            Some(value) if !range.contains(&value) => {
                Err(self.out_of_range(key, &value, format!("{} to {}", range.start(), range.end())))
            }
            value => Ok(value),
        }
    }

    /// A float that is a number. Errors: NaN or infinite.
    pub fn get_finite(self, key: &str) -> Result<Option<f32>, GgufError> {
        match self.get_f32(key)? {
            Some(value) if !value.is_finite() => {
                Err(self.out_of_range(key, &value, "a finite number".to_owned()))
            }
            value => Ok(value),
        }
    }

    /// A float above zero that is a number. Errors: zero, negative, NaN or infinite.
    pub fn get_positive(self, key: &str) -> Result<Option<f32>, GgufError> {
        match self.get_f32(key)? {
            Some(value) if !(value.is_finite() && value > 0.0) => {
                Err(self.out_of_range(key, &value, "a positive number".to_owned()))
            }
            value => Ok(value),
        }
    }

    fn out_of_range(self, key: &str, value: &dyn ToString, wanted: String) -> GgufError {
        self.file.error(Problem::OutOfRange {
            key: key.to_owned(),
            value: value.to_string(),
            wanted,
        })
    }

    /// A parameter of each of `n_layers` layers: an array with an element a layer, or a lone value
    /// that holds for all. Errors: an array of another length, an element that is no `T`.
    pub fn get_per_layer<T: FromValue<'a> + Clone>(
        self,
        key: &str,
        n_layers: usize,
    ) -> Result<Option<Vec<T>>, GgufError> {
        match self.value(key) {
            Some(Value::Array(array)) if array.len() != n_layers => {
                let wanted = format!("one for each of {n_layers} layers is wanted");
                Err(self.wrong_length(key, array, wanted))
            }
            Some(Value::Array(_)) => self.get_vec(key),
            _ => Ok(self.get(key)?.map(|value: T| vec![value; n_layers])),
        }
    }

    fn wrong_length(self, key: &str, array: Array<'_>, wanted: String) -> GgufError {
        self.file.error(Problem::ArrayLength {
            key: key.to_owned(),
            len: array.len(),
            wanted,
        })
    }

    /// The elements of an array as `T`, or a lone value as an array of one: how per-layer
    /// parameters are written. Errors: an element that is no `T`; more elements than lists of
    /// parameters have (vocabularies are read by [`get_array`](Self::get_array)).
    pub fn get_vec<T: FromValue<'a>>(self, key: &str) -> Result<Option<Vec<T>>, GgufError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let element = |value| {
            T::from_value(value).ok_or_else(|| self.file.error(Problem::mismatch::<T>(key, value)))
        };
        match value {
            Value::Array(array) if array.len() > VEC_LEN_MAX => {
                Err(self.wrong_length(key, array, format!("at most {VEC_LEN_MAX} are read")))
            }
            Value::Array(array) => array
                .iter()
                .map(element)
                .collect::<Result<_, _>>()
                .map(Some),
            lone => Ok(Some(vec![element(lone)?])),
        }
    }
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
