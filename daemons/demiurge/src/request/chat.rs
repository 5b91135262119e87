//! POST /v1/chat/completions.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::Value;
use serde_json::value::RawValue;
use vitriol_proto::engine::v1::ChatPrompt;

use crate::api_error::ApiError;

use super::fields::Fields;
use super::generation::Generation;
use super::messages::check_messages;

/// A chat completion request, checked. Raw parts borrow from the body.
pub struct ChatRequest<'a> {
    /// The model the client named; None = the default.
    pub model: Option<String>,
    pub generation: Generation,
    messages: &'a RawValue,
    template_kwargs: Option<&'a RawValue>,
    /// Fields this release does not know, as the client wrote them.
    pub unknown: HashMap<Cow<'a, str>, &'a RawValue>,
}

impl<'a> ChatRequest<'a> {
    /// Parses and checks a body.
    ///
    /// Errors: 400 naming the line and column, or the parameter.
    pub fn parse(body: &'a [u8]) -> Result<ChatRequest<'a>, ApiError> {
        let mut fields = Fields::parse(body)?;
        refuse_unsupported(&mut fields)?;
        let messages = fields
            .raw("messages")
            .ok_or_else(|| ApiError::missing("messages"))?;
        check_messages(messages)?;
        let template_kwargs = fields.raw("chat_template_kwargs");
        if template_kwargs.is_some_and(|raw| !raw.get().starts_with('{')) {
            let message = "'chat_template_kwargs' must be an object";
            return Err(ApiError::invalid("chat_template_kwargs", message));
        }
        Ok(ChatRequest {
            model: fields.string("model")?,
            generation: Generation::take(&mut fields)?,
            messages,
            template_kwargs,
            unknown: fields.into_unknown(),
        })
    }

    /// The engine's form: the client's own bytes.
    pub fn prompt(&self) -> ChatPrompt {
        let bytes = |raw: &RawValue| raw.get().as_bytes().to_vec();
        ChatPrompt {
            messages_json: bytes(self.messages),
            tools_json: Vec::new(),
            template_kwargs_json: self.template_kwargs.map(bytes).unwrap_or_default(),
        }
    }
}

/// Refuses what would change the answer if it were ignored: tool calls cannot be parsed out of the
/// model's text yet, so offering tools would end in text that no client understands.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    let empty_list = |value: &Value| value.as_array().is_some_and(|list| list.is_empty());
    for name in ["tools", "functions"] {
        let message = format!("'{name}' is not supported yet; send the request without it");
        fields.refuse_unless(name, empty_list, &message)?;
    }
    for name in ["tool_choice", "function_call"] {
        let message = format!("'{name}' other than 'none' or 'auto' is not supported yet");
        fields.refuse_unless(name, |value| value == "none" || value == "auto", &message)?;
    }
    fields.refuse_unless(
        "logprobs",
        |value| *value == Value::Bool(false),
        "'logprobs' is not supported yet",
    )?;
    fields.refuse_unless(
        "modalities",
        |value| *value == serde_json::json!(["text"]),
        "only 'modalities': [\"text\"] is supported",
    )?;
    fields.refuse_unless("audio", |_| false, "'audio' is not supported")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MESSAGES: &str = r#"[ {"role":"user","content":"h\u00e9 <|im_end|>", "extra": 1.0} ]"#;

    #[test]
    fn messages_reach_the_engine_as_the_client_wrote_them() {
        let body = format!(
            r#"{{"messages": {MESSAGES}, "chat_template_kwargs": {{ "x": 1 }}, "model": "m"}}"#
        );
        let request = ChatRequest::parse(body.as_bytes()).unwrap();
        let prompt = request.prompt();
        assert_eq!(prompt.messages_json, MESSAGES.as_bytes());
        assert_eq!(prompt.template_kwargs_json, br#"{ "x": 1 }"#);
        assert_eq!(request.model.as_deref(), Some("m"));
    }

    #[test]
    fn unknown_fields_are_kept_and_ignored() {
        let body = format!(r#"{{"messages": {MESSAGES}, "store": true, "user": "u"}}"#);
        let request = ChatRequest::parse(body.as_bytes()).unwrap();
        assert_eq!(request.unknown["store"].get(), "true");
        assert_eq!(request.unknown["user"].get(), "\"u\"");
        assert_eq!(request.unknown.len(), 2);
    }

    #[test]
    fn tools_are_refused_and_empty_ones_are_not() {
        let with = |field: &str| {
            let body = format!(r#"{{"messages": {MESSAGES}, {field}}}"#);
            ChatRequest::parse(body.as_bytes())
                .map(|_| ())
                .map_err(|error| error.label())
        };
        for field in [
            r#""tools": [{"type": "function", "function": {"name": "f"}}]"#,
            r#""functions": [{"name": "f"}]"#,
            r#""tool_choice": "required""#,
            r#""tool_choice": {"type": "function", "function": {"name": "f"}}"#,
            r#""logprobs": true"#,
            r#""modalities": ["text", "audio"]"#,
            r#""audio": {"voice": "x"}"#,
        ] {
            assert_eq!(with(field), Err("unsupported_parameter"), "{field}");
        }
        for field in [
            r#""tools": []"#,
            r#""tools": null"#,
            r#""tool_choice": "auto""#,
            r#""parallel_tool_calls": true"#,
            r#""logprobs": false"#,
        ] {
            with(field).unwrap();
        }
    }

    #[test]
    fn messages_are_required() {
        let error = ChatRequest::parse(b"{}").err().unwrap();
        assert_eq!(error.label(), "missing_required_parameter");
    }

    /// A JSON value of small size, any shape.
    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "\\PC{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::hash_map("\\PC{0,6}", inner, 0..4).prop_map(Value::from_iter),
            ]
        })
    }

    const NAMES: [&str; 24] = [
        "model",
        "messages",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "n",
        "stream",
        "stream_options",
        "stop",
        "max_tokens",
        "max_completion_tokens",
        "seed",
        "frequency_penalty",
        "presence_penalty",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "response_format",
        "tools",
        "tool_choice",
        "chat_template_kwargs",
        "ignore_eos",
        "anything_else",
    ];

    proptest! {
        /// Whatever stands in whatever field, the answer is a request or a 400 that names a
        /// parameter.
        #[test]
        fn any_object_is_read_or_refused_by_name(
            fields in proptest::collection::hash_map(
                proptest::sample::select(&NAMES[..]), json_value(), 0..8)
        ) {
            let body = serde_json::to_vec(&fields).unwrap();
            if let Err(error) = ChatRequest::parse(&body) {
                prop_assert_eq!(error.status(), http::StatusCode::BAD_REQUEST);
                let body = error.body(crate::api_error::Dialect::OpenAi);
                prop_assert!(body["error"]["param"].is_string());
            }
        }
    }
}
