//! JSON into template values, and template values into JSON as Python's `json.dumps` writes it.

use super::guard::Mark;
use minijinja::{Error, ErrorKind, State, Value, value::ValueKind};

/// Deepest nesting that is written: what serde_json reads, too.
const DEPTH_MAX: usize = 128;

/// `json` as a template sees it, every text and key of it guarded.
pub(super) fn guarded_value(json: &serde_json::Value, mark: &Mark<'_>) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => number_value(number),
        serde_json::Value::String(text) => Value::from(mark.guarded(text)),
        serde_json::Value::Array(items) => {
            items.iter().map(|item| guarded_value(item, mark)).collect()
        }
        serde_json::Value::Object(entries) => Value::from_pairs(
            entries
                .iter()
                .map(|(key, value)| (mark.guarded(key), guarded_value(value, mark))),
        ),
    }
}

fn number_value(number: &serde_json::Number) -> Value {
    match (number.as_i64(), number.as_u64()) {
        (Some(integer), _) => Value::from(integer),
        (None, Some(integer)) => Value::from(integer),
        (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
    }
}

/// Whether any text or key of `json` satisfies `test`.
pub(super) fn any_text(json: &serde_json::Value, test: &impl Fn(&str) -> bool) -> bool {
    match json {
        serde_json::Value::String(text) => test(text),
        serde_json::Value::Array(items) => items.iter().any(|item| any_text(item, test)),
        serde_json::Value::Object(entries) => entries
            .iter()
            .any(|(key, value)| test(key) || any_text(value, test)),
        _ => false,
    }
}

/// The keyword arguments of `json.dumps` that templates use.
#[derive(Debug)]
pub(super) struct Dumps {
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
    pub(super) indent: Option<usize>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
}

impl Dumps {
    /// Writes `value`. Errors: a value that JSON has no form for, or too deep a nesting.
    pub(super) fn write(&self, state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write_value(state, value, 0, &mut out)?;
        Ok(out)
    }

    fn write_value(
        &self,
        state: &State<'_, '_>,
        value: &Value,
        depth: usize,
        out: &mut String,
    ) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::new(
                ErrorKind::BadSerialization,
                "too deeply nested for JSON",
            ));
        }
        let start = out.len();
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => write_number(value, out),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                self.write_items(state, value, depth, out, ['[', ']'], |dumps, item, out| {
                    dumps.write_value(state, item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                self.write_items(state, value, depth, out, ['{', '}'], |dumps, key, out| {
                    let text = key.as_str().map_or(0, str::len);
                    state.consume_fuel((text + dumps.key_separator.len()) as u64 / 4)?;
                    dumps.write_key(key, out)?;
                    out.push_str(&dumps.key_separator);
                    dumps.write_value(state, &value.get_item(key)?, depth + 1, out)
                })?;
            }
            kind => {
                let detail = format!("a value of type {kind} has no form in JSON");
                return Err(Error::new(ErrorKind::BadSerialization, detail));
            }
        }
        // Containers were paid for by their parts.
        if !matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::Map | ValueKind::Iterable
        ) {
            state.consume_fuel(1 + (out.len() - start) as u64 / 4)?;
        }
        Ok(())
    }

    fn write_items(
        &self,
        state: &State<'_, '_>,
        container: &Value,
        depth: usize,
        out: &mut String,
        [open, close]: [char; 2],
        mut write: impl FnMut(&Self, &Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // Sequences may be lazy and of any length: each item is paid for before the next is made.
        let mut items = Vec::new();
        for item in container.try_iter()? {
            state.consume_fuel(1)?;
            items.push(item);
        }
        if self.sort_keys && open == '{' {
            items.sort();
        }
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                state.consume_fuel(self.item_separator.len() as u64 / 4)?;
                out.push_str(&self.item_separator);
            }
            self.break_line(state, depth + 1, out)?;
            write(self, item, out)?;
        }
        if !items.is_empty() {
            self.break_line(state, depth, out)?;
        }
        out.push(close);
        Ok(())
    }

    fn break_line(
        &self,
        state: &State<'_, '_>,
        depth: usize,
        out: &mut String,
    ) -> Result<(), Error> {
        let Some(indent) = self.indent else {
            return Ok(());
        };
        let spaces = indent.saturating_mul(depth);
        state.consume_fuel(1 + spaces as u64 / 16)?;
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', spaces));
        Ok(())
    }

    fn write_key(&self, key: &Value, out: &mut String) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.write_text(key.as_str().unwrap_or_default(), out),
            ValueKind::None => out.push_str("\"null\""),
            ValueKind::Bool => out.push_str(if key.is_true() {
                "\"true\""
            } else {
                "\"false\""
            }),
            ValueKind::Number => {
                out.push('"');
                write_number(key, out);
                out.push('"');
            }
            kind => {
                let detail = format!("a value of type {kind} cannot be a key in JSON");
                return Err(Error::new(ErrorKind::BadSerialization, detail));
            }
        }
        Ok(())
    }

    fn write_text(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                control if control < ' ' => escape(control, out),
                '\u{80}'.. if self.ensure_ascii => escape(character, out),
                plain => out.push(plain),
            }
        }
        out.push('"');
    }
}

/// `\uXXXX`, as a surrogate pair beyond the basic plane.
fn escape(character: char, out: &mut String) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        out.push_str(&format!("\\u{unit:04x}"));
    }
}

fn write_number(value: &Value, out: &mut String) {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => write_float(float, out),
        _ => out.push_str(&value.to_string()),
    }
}

/// A float as Python's `repr` writes it: shortest digits, an exponent outside 1e-4..1e16.
fn write_float(float: f64, out: &mut String) {
    if !float.is_finite() {
        let name = if float.is_nan() { "NaN" } else { "Infinity" };
        out.push_str(if float < 0.0 { "-" } else { "" });
        out.push_str(name);
        return;
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if float == 0.0 || (-4..16).contains(&exponent) {
        out.push_str(&format!("{float:?}"));
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        out.push_str(&format!("{digits}e{sign}{:02}", exponent.unsigned_abs()));
    }
}
