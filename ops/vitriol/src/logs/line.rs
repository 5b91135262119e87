//! A log line as `vitriol up` keeps it: when it was written and what it is about.

use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// The form of a file's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A daemon's log: text (`2026-11-30T08:00:00.1Z  INFO target: what field=value`) or JSON.
    Log,
    /// decisions.jsonl.
    Decisions,
}

/// When the line says it was written; `None` for one that goes on where another began.
pub fn time_of(line: &str, form: Form) -> Option<OffsetDateTime> {
    let stamp = match json_of(line) {
        Some(object) => {
            let key = match form {
                Form::Log => "timestamp",
                Form::Decisions => "ts",
            };
            return OffsetDateTime::parse(object.get(key)?.as_str()?, &Rfc3339).ok();
        }
        None => line.split(' ').next()?,
    };
    OffsetDateTime::parse(stamp, &Rfc3339).ok()
}

/// Whether the line is about `value` in `field` (`"session"`, `"lane"`).
pub fn is_about(line: &str, form: Form, field: &str, value: &str) -> bool {
    let in_log = format!("vitriol_{field}");
    match json_of(line) {
        Some(object) => {
            let key = match form {
                Form::Log => in_log.as_str(),
                Form::Decisions => field,
            };
            object.get(key).and_then(Value::as_str) == Some(value)
        }
        None => {
            // As the log writes a text field: quoted as Rust quotes it, or plain.
            let forms = [format!("{in_log}={value:?}"), format!("{in_log}={value}")];
            forms.iter().any(|form| has_field(line, form))
        }
    }
}

/// Whether `field` stands in the line as a whole word.
fn has_field(line: &str, field: &str) -> bool {
    line.match_indices(field).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + field.len()..].chars().next();
        before == Some(' ') && after.is_none_or(|c| c == ' ')
    })
}

fn json_of(line: &str) -> Option<Value> {
    if !line.starts_with('{') {
        return None;
    }
    serde_json::from_str(line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_tell_their_time() {
        let text = "2026-11-30T08:00:00.123456Z  INFO vitriol_engine: ready";
        let json = "{\"timestamp\":\"2026-11-30T08:00:00.123456Z\",\"level\":\"INFO\"}";
        let decision = "{\"schema\":1,\"ts\":\"2026-11-30T08:00:00.123456Z\"}";
        let time = time_of(text, Form::Log).unwrap();
        assert_eq!(time_of(json, Form::Log), Some(time));
        assert_eq!(time_of(decision, Form::Decisions), Some(time));
        for line in [
            "  at src/main.rs:1",
            "",
            "{",
            "thread 'x' panicked",
            "{\"timestamp\":3}",
        ] {
            assert_eq!(time_of(line, Form::Log), None, "{line}");
        }
    }

    #[test]
    fn lines_tell_what_they_are_about() {
        let about = |line: &str, value: &str| is_about(line, Form::Log, "session", value);
        let text =
            "2026-11-30T08:00:00Z  INFO x: ended vitriol_session=\"s 1\" vitriol_lane=\"local\"";
        assert!(about(text, "s 1"));
        assert!(!about(text, "s") && !about(text, "1") && !about(text, ""));
        assert!(is_about(text, Form::Log, "lane", "local"));
        let plain = "2026-11-30T08:00:00Z  INFO x: ended vitriol_session=s-1";
        assert!(about(plain, "s-1") && !about(plain, "s"));
        let json = "{\"timestamp\":\"2026-11-30T08:00:00Z\",\"vitriol_session\":\"s\"}";
        assert!(about(json, "s") && !about(json, "t"));
        let decision = "{\"session\":\"s\",\"lane\":\"local\"}";
        assert!(is_about(decision, Form::Decisions, "session", "s"));
        assert!(is_about(decision, Form::Decisions, "lane", "local"));
        assert!(!is_about(decision, Form::Log, "session", "s"));
    }
}
