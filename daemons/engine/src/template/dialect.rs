//! The dialect of Jinja that model cards are written in.
//!
//! Hugging Face's `apply_chat_template` sets it: trim_blocks, lstrip_blocks, loop controls, methods
//! of Python's types, `raise_exception`, `strftime_now`, a `tojson` that is `json.dumps` with
//! `ensure_ascii=False`, and the tag `generation`, which is for training and means nothing here.

use super::json::Dumps;
use minijinja::{
    Environment, Error, ErrorKind, State, UndefinedBehavior, Value,
    syntax::SyntaxConfig,
    value::{Kwargs, ValueKind},
};
use std::fmt;
use time::{OffsetDateTime, format_description};

/// Where a template gets the time from.
pub(super) type Clock = fn() -> OffsetDateTime;

/// Deepest recursion of a template; each level of a macro counts as several.
const RECURSION_MAX: usize = 200;

/// An environment of that dialect, without templates.
pub(super) fn environment(clock: Clock) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?,
    );
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_debug(false);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", move |format: &str| {
        strftime(format, clock())
    });
    environment.add_filter("tojson", tojson);
    Ok(environment)
}

/// The local time, or UTC where the system does not say.
pub(super) fn local_time() -> OffsetDateTime {
    OffsetDateTime::now_local().unwrap_or_else(|_| OffsetDateTime::now_utc())
}

/// What a template said when it refused its messages.
#[derive(Debug)]
pub(super) struct Raised;

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("raised by the template")
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message).with_source(Raised))
}

fn strftime(format: &str, now: OffsetDateTime) -> Result<String, Error> {
    let invalid = |error: &dyn fmt::Display| {
        let detail = format!("strftime_now cannot use the format {format:?}: {error}");
        Error::new(ErrorKind::InvalidOperation, detail)
    };
    let items = format_description::parse_strftime_owned(format).map_err(|e| invalid(&e))?;
    now.format(&items).map_err(|e| invalid(&e))
}

fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    indent: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let indent = match indent
        .map_or_else(|| options.get::<Option<Value>>("indent"), |v| Ok(Some(v)))
    {
        Ok(Some(indent)) if indent.kind() == ValueKind::Bool => Some(usize::from(indent.is_true())),
        Ok(Some(indent)) if !indent.is_none() => Some(usize::try_from(indent)?),
        Ok(_) => None,
        Err(error) => return Err(error),
    };
    let separators = options
        .get::<Option<Vec<String>>>("separators")?
        .filter(|s| s.len() == 2);
    let [item_separator, key_separator] = match separators.map(<[String; 2]>::try_from) {
        Some(Ok(given)) => given,
        _ => [
            if indent.is_some() { "," } else { ", " }.to_owned(),
            ": ".to_owned(),
        ],
    };
    let dumps = Dumps {
        ensure_ascii: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
    };
    options.assert_all_used()?;
    dumps.write(state, value).map(Value::from)
}

/// `source` with the tags `generation` and `endgeneration` made a condition that is always true,
/// their white-space control kept.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let inner = tag[..end].trim_matches(|c: char| c.is_ascii_whitespace() || "-+".contains(c));
        let meaning = match inner {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        out.push_str(&tag[..end].replacen(inner, meaning, 1));
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}
