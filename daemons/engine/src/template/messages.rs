//! The messages of a request, checked and brought into the shape that templates expect.

use super::{TemplateError, guard::Mark, json::guarded_value};
use minijinja::Value;
use serde_json::{Map, Value as Json};

/// Roles of the chat API. They are words of the schema, not text: templates compare them and may
/// write them into control tokens (`<|user|>`).
const ROLES: [&str; 6] = [
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "function",
];

/// What a template can do with messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abilities {
    /// It reads content as a list of parts, and only so.
    pub(super) wants_parts: bool,
    /// It knows the role `developer`; for others that is `system`.
    pub(super) knows_developer: bool,
}

/// Reads an optional JSON argument: no bytes stand for null.
pub(super) fn parse(what: &'static str, bytes: &[u8]) -> Result<Json, TemplateError> {
    if bytes.trim_ascii().is_empty() {
        return Ok(Json::Null);
    }
    serde_json::from_slice(bytes).map_err(|error| TemplateError::NotJson {
        what,
        detail: error.to_string(),
    })
}

/// Checks the request's messages and flattens their content: text parts are joined by line feeds
/// into one text, as llama.cpp does, unless the template `wants_parts`. Content that is absent or
/// null becomes the empty text.
///
/// Errors: not an array of messages, or a part that is no text.
pub(super) fn normalise(messages: Json, abilities: Abilities) -> Result<Vec<Json>, TemplateError> {
    let Json::Array(messages) = messages else {
        return Err(wrong_shape("messages", "an array of messages"));
    };
    if messages.is_empty() {
        return Err(wrong_shape("messages", "an array of at least one message"));
    }
    let numbered = messages.into_iter().enumerate();
    numbered
        .map(|(index, message)| normalise_message(index, message, abilities))
        .collect()
}

fn normalise_message(
    index: usize,
    message: Json,
    abilities: Abilities,
) -> Result<Json, TemplateError> {
    let Json::Object(mut message) = message else {
        return Err(wrong_shape(
            format!("messages[{index}]"),
            "an object with role and content",
        ));
    };
    match message.get_mut("role") {
        Some(Json::String(role)) => {
            if role == "developer" && !abilities.knows_developer {
                *role = "system".to_owned();
            }
        }
        _ => return Err(wrong_shape(format!("messages[{index}].role"), "a string")),
    }
    let content = message
        .get_mut("content")
        .map(Json::take)
        .unwrap_or_default();
    let texts = content_texts(index, content)?;
    let content = if abilities.wants_parts {
        texts
            .into_iter()
            .map(|text| serde_json::json!({ "type": "text", "text": text }))
            .collect()
    } else {
        Json::String(texts.join("\n"))
    };
    message.insert("content".to_owned(), content);
    Ok(Json::Object(message))
}

/// The texts of a message's content.
fn content_texts(index: usize, content: Json) -> Result<Vec<String>, TemplateError> {
    match content {
        Json::Null => Ok(Vec::new()),
        Json::String(text) => Ok(vec![text]),
        Json::Array(parts) => {
            let numbered = parts.into_iter().enumerate();
            numbered
                .map(|(part, json)| part_text(index, part, json))
                .collect()
        }
        _ => Err(wrong_shape(
            format!("messages[{index}].content"),
            "a string or an array of content parts",
        )),
    }
}

fn part_text(index: usize, part: usize, mut json: Json) -> Result<String, TemplateError> {
    let what = format!("messages[{index}].content[{part}]");
    match json.get("type").and_then(Json::as_str) {
        Some("text") => match json.get_mut("text").map(Json::take) {
            Some(Json::String(text)) => Ok(text),
            _ => Err(wrong_shape(format!("{what}.text"), "a string")),
        },
        Some(other) => Err(TemplateError::NotText {
            part_type: other.to_owned(),
            what,
        }),
        None => Err(wrong_shape(what, "an object with a type")),
    }
}

/// Puts another text into a normalised message, one that differs in its first character.
pub(super) fn replace_text(message: &mut Json) {
    let content = &mut message["content"];
    let text = match &*content {
        Json::Array(parts) => parts.first().and_then(|part| part["text"].as_str()),
        content => content.as_str(),
    };
    // Templates trim.
    let is_dot = text.is_some_and(|text| text.trim_start().starts_with('.'));
    let other = if is_dot { "-" } else { "." };
    *content = match content {
        Json::Array(_) => serde_json::json!([{ "type": "text", "text": other }]),
        _ => Json::String(other.to_owned()),
    };
}

/// Messages as the template sees them: every text guarded but the words of the schema.
pub(super) fn guarded_messages(messages: &[Json], mark: &Mark<'_>) -> Value {
    messages
        .iter()
        .map(|message| guarded_message(message, mark))
        .collect()
}

fn guarded_message(message: &Json, mark: &Mark<'_>) -> Value {
    let entries: &Map<String, Json> = match message {
        Json::Object(entries) => entries,
        other => return guarded_value(other, mark),
    };
    Value::from_pairs(entries.iter().map(|(key, value)| {
        let known_role = value
            .as_str()
            .filter(|role| key == "role" && ROLES.contains(role));
        let value = match known_role {
            Some(role) => Value::from(role),
            None => guarded_value(value, mark),
        };
        (mark.guarded(key), value)
    }))
}

fn wrong_shape(what: impl Into<String>, wanted: &'static str) -> TemplateError {
    TemplateError::WrongShape {
        what: what.into(),
        wanted,
    }
}
