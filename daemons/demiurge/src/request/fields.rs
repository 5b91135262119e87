//! The top level of a JSON request: field names and their raw values.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeOwned, MapAccess, Visitor};
use serde_json::Number;
use serde_json::value::RawValue;

use crate::api_error::ApiError;

/// Most fields a request may have; real ones have some thirty.
const FIELDS_MAX: usize = 1000;

/// Longest raw value of a field that is not the prompt. A tree of JSON values takes many times the
/// memory of its text, so only the prompt's own readers, which build none, see more than this.
const SMALL_FIELD_BYTES_MAX: usize = 64 << 10;

/// Fields of a JSON object, borrowed from the request body, taken out one by one.
///
/// A name given twice keeps its last value, as in the JSON readers clients use.
pub struct Fields<'a>(HashMap<Cow<'a, str>, &'a RawValue>);

impl<'a> Fields<'a> {
    /// Scans a body.
    ///
    /// Errors: 400 with line and column when it is not one JSON object in UTF-8.
    pub fn parse(body: &'a [u8]) -> Result<Fields<'a>, ApiError> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Err(ApiError::bad_json(
                "the request body is empty; send a JSON object",
            ));
        }
        serde_json::from_slice(body).map_err(|error| {
            // The reader's own words can quote the body; its category and place cannot.
            let (line, column) = (error.line(), error.column());
            let what = match error.classify() {
                serde_json::error::Category::Eof => "ends too early",
                serde_json::error::Category::Data => "is not a JSON object of at most 1000 fields",
                _ => "is not valid JSON",
            };
            ApiError::bad_json(format!(
                "the request body {what}: line {line}, column {column}"
            ))
        })
    }

    /// Takes a field out; JSON null counts as absent.
    pub fn raw(&mut self, name: &str) -> Option<&'a RawValue> {
        self.0.remove(name).filter(|value| value.get() != "null")
    }

    /// Takes a small field of any type that serde reads. `expected` is the type in the client's
    /// words.
    pub fn typed<T: DeserializeOwned>(
        &mut self,
        name: &'static str,
        expected: &str,
    ) -> Result<Option<T>, ApiError> {
        if self
            .0
            .get(name)
            .is_some_and(|value| value.get().len() > SMALL_FIELD_BYTES_MAX)
        {
            let message = format!("'{name}' must be shorter than {SMALL_FIELD_BYTES_MAX} bytes");
            return Err(ApiError::invalid(name, message));
        }
        self.large(name, expected)
    }

    /// Takes a field of any size, whose type must hold about as many bytes as its text.
    pub fn large<T: DeserializeOwned>(
        &mut self,
        name: &'static str,
        expected: &str,
    ) -> Result<Option<T>, ApiError> {
        self.raw(name)
            .map(|value| {
                serde_json::from_str(value.get())
                    .map_err(|_| ApiError::invalid(name, format!("'{name}' must be {expected}")))
            })
            .transpose()
    }

    /// Takes a string.
    pub fn string(&mut self, name: &'static str) -> Result<Option<String>, ApiError> {
        self.typed(name, "a string")
    }

    /// Takes a boolean.
    pub fn boolean(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false")
    }

    /// Takes a number within `range`.
    pub fn number(
        &mut self,
        name: &'static str,
        range: std::ops::RangeInclusive<f64>,
    ) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.typed::<f64>(name, "a number")? else {
            return Ok(None);
        };
        if range.contains(&value) {
            return Ok(Some(value));
        }
        let (low, high) = (range.start(), range.end());
        Err(ApiError::invalid(
            name,
            format!("'{name}' must be between {low} and {high}"),
        ))
    }

    /// Takes a whole number within `range`; `5.0` is one too.
    pub fn integer(
        &mut self,
        name: &'static str,
        range: std::ops::RangeInclusive<i128>,
    ) -> Result<Option<i128>, ApiError> {
        let Some(number) = self.typed::<Number>(name, "a whole number")? else {
            return Ok(None);
        };
        let Some(value) = whole(&number) else {
            return Err(ApiError::invalid(
                name,
                format!("'{name}' must be a whole number"),
            ));
        };
        if range.contains(&value) {
            return Ok(Some(value));
        }
        let (low, high) = (range.start(), range.end());
        Err(ApiError::invalid(
            name,
            format!("'{name}' must be between {low} and {high}"),
        ))
    }

    /// Takes a field that must be absent, null, or one that `harmless` accepts, because this
    /// release cannot honour any other value.
    pub fn refuse_unless(
        &mut self,
        name: &'static str,
        harmless: impl FnOnce(&serde_json::Value) -> bool,
        message: &str,
    ) -> Result<(), ApiError> {
        let Some(raw) = self.raw(name) else {
            return Ok(());
        };
        // Harmless values are short; a long one need not be read to be refused.
        if raw.get().len() > SMALL_FIELD_BYTES_MAX {
            return Err(ApiError::unsupported(name, message));
        }
        match serde_json::from_str(raw.get()) {
            Ok(value) if harmless(&value) => Ok(()),
            _ => Err(ApiError::unsupported(name, message)),
        }
    }

    /// The fields nobody took: unknown to this release, kept as the client wrote them.
    pub fn into_unknown(self) -> HashMap<Cow<'a, str>, &'a RawValue> {
        self.0
    }
}

/// The value of a number without a fraction.
fn whole(number: &Number) -> Option<i128> {
    if let Some(value) = number.as_i64() {
        return Some(value.into());
    }
    if let Some(value) = number.as_u64() {
        return Some(value.into());
    }
    let value = number.as_f64()?;
    // Above 2^53 a float stands for many whole numbers, so none is meant.
    (value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0).then_some(value as i128)
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;

        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Fields<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = HashMap::new();
                while let Some((name, value)) = map.next_entry::<FieldName<'de>, _>()? {
                    if fields.len() == FIELDS_MAX {
                        return Err(de::Error::custom("too many fields"));
                    }
                    fields.insert(name.0, value);
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(FieldsVisitor)
    }
}

/// A field name, borrowed unless it has escapes.
#[derive(Deserialize)]
struct FieldName<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(body: &[u8]) -> String {
        match Fields::parse(body) {
            Ok(_) => panic!("{body:?} was read"),
            Err(error) => error.message().to_owned(),
        }
    }

    #[test]
    fn broken_json_is_named_by_line_and_column() {
        assert!(message(b"{\n  \"a\": 1,\n  oops }").contains("line 3, column 3"));
        assert!(message(b"{\"a\":").contains("ends too early"));
        assert!(message(b"[1]").contains("is not a JSON object"));
        assert!(message(b" \n").contains("empty"));
        assert!(message(b"{\"a\": \"\xff\"}").contains("not valid JSON"));
        assert!(message(b"{} x").contains("line 1, column 4"));
    }

    #[test]
    fn messages_do_not_quote_the_body() {
        assert!(!message(b"\"a secret\"").contains("secret"));
        assert!(!message(b"{\"a\": secret}").contains("secret"));
    }

    #[test]
    fn names_may_have_escapes_and_the_last_of_two_counts() {
        let mut fields = Fields::parse(br#"{"\u0061": 1, "b": 1, "b": 2}"#).unwrap();
        assert_eq!(fields.integer("a", 0..=9).unwrap(), Some(1));
        assert_eq!(fields.integer("b", 0..=9).unwrap(), Some(2));
        assert_eq!(fields.integer("b", 0..=9).unwrap(), None);
    }

    #[test]
    fn what_would_take_much_memory_is_refused() {
        let many: String = (0..2000).map(|n| format!("\"f{n}\": 0,")).collect();
        let body = format!("{{{many} \"last\": 0}}");
        assert!(Fields::parse(body.as_bytes()).is_err());
        let body = format!("{{\"stop\": [{}0]}}", "0,".repeat(SMALL_FIELD_BYTES_MAX));
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        assert!(fields.typed::<serde_json::Value>("stop", "short").is_err());
    }

    #[test]
    fn null_is_absent() {
        let mut fields = Fields::parse(br#"{"a": null}"#).unwrap();
        assert_eq!(fields.string("a").unwrap(), None);
    }

    #[test]
    fn whole_numbers() {
        let read = |text: &str| {
            let body = format!("{{\"n\": {text}}}");
            Fields::parse(body.as_bytes())
                .unwrap()
                .integer("n", -10..=(u64::MAX as i128))
        };
        assert_eq!(read("5.0").unwrap(), Some(5));
        assert_eq!(
            read("18446744073709551615").unwrap(),
            Some(u64::MAX as i128)
        );
        for text in [
            "5.5",
            "-11",
            "1e300",
            "\"5\"",
            "true",
            "1e400",
            "99999999999999999999",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn deep_nesting_is_scanned_without_recursion() {
        let body = format!("{{\"a\": {}1{}}}", "[".repeat(200_000), "]".repeat(200_000));
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        assert!(fields.typed::<serde_json::Value>("a", "shallow").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(body: Vec<u8>) {
            let _ = Fields::parse(&body);
        }

        #[test]
        fn every_field_is_kept_as_written(
            fields in proptest::collection::hash_map("\\PC{0,12}", "\\PC{0,20}", 0..12)
        ) {
            let body = serde_json::to_vec(&fields).unwrap();
            let unknown = Fields::parse(&body).unwrap().into_unknown();
            prop_assert_eq!(unknown.len(), fields.len());
            for (name, value) in &fields {
                let raw = unknown[name.as_str()];
                prop_assert_eq!(&serde_json::from_str::<String>(raw.get()).unwrap(), value);
            }
        }
    }
}
