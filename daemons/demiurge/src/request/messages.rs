//! A light check of chat messages: enough to refuse early and by name what no template can take.
//! The text itself is read over, never kept.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer as _, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::api_error::ApiError;

/// Checks `messages`: a non-empty array of objects with a string `role`, and `content` that is a
/// string or text parts; an assistant's may be absent or null.
///
/// Errors: 400 naming the element at fault, e.g. `messages[2].role`.
pub fn check_messages(raw: &RawValue) -> Result<(), ApiError> {
    let mut fault = None;
    let read = serde_json::Deserializer::from_str(raw.get())
        .deserialize_seq(MessagesVisitor { fault: &mut fault });
    match (read, fault) {
        (_, Some(fault)) => Err(fault),
        (Err(_), None) => Err(ApiError::invalid(
            "messages",
            "'messages' must be an array of messages",
        )),
        (Ok(0), None) => Err(ApiError::invalid(
            "messages",
            "'messages' must hold at least one message",
        )),
        (Ok(_), None) => Ok(()),
    }
}

/// Checks messages one by one, without a list of them, and counts them.
struct MessagesVisitor<'f> {
    fault: &'f mut Option<ApiError>,
}

impl<'de> Visitor<'de> for MessagesVisitor<'_> {
    type Value = usize;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("an array of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut messages: A) -> Result<usize, A::Error> {
        let mut count = 0;
        while let Some(message) = messages.next_element::<&RawValue>()? {
            if let Err(fault) = check_message(count, message) {
                *self.fault = Some(fault);
                return Err(de::Error::custom("a message is at fault"));
            }
            count += 1;
        }
        Ok(count)
    }
}

#[derive(Deserialize)]
struct MessageFields<'a> {
    #[serde(borrow)]
    role: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

fn check_message(index: usize, element: &RawValue) -> Result<(), ApiError> {
    let place = |field: &str| format!("messages[{index}]{field}");
    let fields: MessageFields = serde_json::from_str(element.get()).map_err(|_| {
        let param = place("");
        let message = format!("'{param}' must be an object with 'role' and 'content'");
        ApiError::invalid(param, message)
    })?;
    let role = fields
        .role
        .map(|role| serde_json::from_str::<String>(role.get()));
    let Some(Ok(role)) = role else {
        let param = place(".role");
        let message = format!("'{param}' must be a string such as 'user'");
        return Err(ApiError::invalid(param, message));
    };
    let param = place(".content");
    let Some(content) = fields.content else {
        // Only an assistant's turn may be all tool calls.
        if role == "assistant" {
            return Ok(());
        }
        let message = format!("'{param}' must be a string or an array of text parts");
        return Err(ApiError::invalid(param, message));
    };
    match serde_json::from_str::<Content>(content.get()) {
        Ok(Content::Text) => Ok(()),
        Ok(Content::UnsupportedPart) => {
            let message =
                format!("'{param}' has a part that is not text; this model reads text only");
            Err(ApiError::unsupported(param, message))
        }
        Err(_) => {
            let message = format!("'{param}' must be a string or an array of text parts");
            Err(ApiError::invalid(param, message))
        }
    }
}

/// What a message's content is made of; its text is not kept.
enum Content {
    Text,
    UnsupportedPart,
}

#[derive(Deserialize)]
struct Part {
    r#type: String,
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        struct ContentVisitor;

        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a string or an array of parts")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Content, E> {
                Ok(Content::Text)
            }

            fn visit_str<E: de::Error>(self, _: &str) -> Result<Content, E> {
                Ok(Content::Text)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
                while let Some(part) = parts.next_element::<Part>()? {
                    if !matches!(part.r#type.as_str(), "text" | "refusal") {
                        // The rest is read over so that its syntax is still checked.
                        while parts.next_element::<IgnoredAny>()?.is_some() {}
                        return Ok(Content::UnsupportedPart);
                    }
                }
                Ok(Content::Text)
            }
        }

        deserializer.deserialize_any(ContentVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(messages: &str) -> Result<(), serde_json::Value> {
        let raw: &RawValue = serde_json::from_str(messages).unwrap();
        check_messages(raw)
            .map_err(|error| error.body(crate::api_error::Dialect::OpenAi)["error"].clone())
    }

    #[test]
    fn forms_clients_send() {
        for messages in [
            r#"[{"role": "user", "content": "hi"}]"#,
            r#"[{"role": "system", "content": "x", "name": "n"}, {"role": "user", "content": ""}]"#,
            r#"[{"role": "user", "content": [{"type": "text", "text": "hi"}]}]"#,
            r#"[{"role": "user", "content": []}]"#,
            r#"[{"role": "assistant", "content": null, "tool_calls": []}]"#,
            r#"[{"role": "assistant"}]"#,
        ] {
            check(messages).unwrap();
        }
    }

    #[test]
    fn faults_are_named_by_place() {
        for (messages, param) in [
            ("[]", "messages"),
            (r#""hi""#, "messages"),
            ("{}", "messages"),
            (r#"["hi"]"#, "messages[0]"),
            (r#"[{"content": "hi"}]"#, "messages[0].role"),
            (
                r#"[{"role": "user", "content": ""}, {"role": 1}]"#,
                "messages[1].role",
            ),
            (r#"[{"role": "user"}]"#, "messages[0].content"),
            (r#"[{"role": "user", "content": 5}]"#, "messages[0].content"),
            (
                r#"[{"role": "user", "content": {"type": "text"}}]"#,
                "messages[0].content",
            ),
            (
                r#"[{"role": "user", "content": ["x"]}]"#,
                "messages[0].content",
            ),
            (
                r#"[{"role": "user", "content": "\ud800"}]"#,
                "messages[0].content",
            ),
        ] {
            assert_eq!(check(messages).unwrap_err()["param"], param, "{messages}");
        }
    }

    #[test]
    fn images_are_refused_as_unsupported() {
        let error = check(
            r#"[{"role": "user", "content": [{"type": "text", "text": "what is it?"},
                {"type": "image_url", "image_url": {"url": "data:,"}}]}]"#,
        )
        .unwrap_err();
        assert_eq!(error["code"], "unsupported_parameter");
        assert_eq!(error["param"], "messages[0].content");
    }
}
