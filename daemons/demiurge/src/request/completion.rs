//! POST /v1/completions.

use serde_json::Value;
use serde_json::value::RawValue;
use vitriol_proto::engine::v1::{TextPrompt, TokenPrompt, submit};

use crate::api_error::ApiError;

use super::fields::Fields;
use super::generation::Generation;

/// What a text completion goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompletionPrompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// A text completion request, checked.
#[derive(Debug)]
pub struct CompletionRequest {
    /// The model the client named; None = the default.
    pub model: Option<String>,
    pub generation: Generation,
    pub prompt: CompletionPrompt,
}

impl CompletionRequest {
    /// Parses and checks a body.
    ///
    /// Errors: 400 naming the line and column, or the parameter.
    pub fn parse(body: &[u8]) -> Result<CompletionRequest, ApiError> {
        let mut fields = Fields::parse(body)?;
        fields.refuse_unless(
            "echo",
            |value| *value == Value::Bool(false),
            "'echo' is not supported yet",
        )?;
        fields.refuse_unless(
            "best_of",
            |value| value.as_f64() == Some(1.0),
            "only 'best_of': 1 is supported; send more requests",
        )?;
        fields.refuse_unless(
            "suffix",
            |value| value == "",
            "'suffix' is not supported yet",
        )?;
        fields.refuse_unless(
            "logprobs",
            |value| *value == Value::Bool(false),
            "'logprobs' is not supported yet",
        )?;
        let prompt = fields
            .raw("prompt")
            .ok_or_else(|| ApiError::missing("prompt"))?;
        Ok(CompletionRequest {
            model: fields.string("model")?,
            generation: Generation::take(&mut fields)?,
            prompt: read_prompt(prompt)?,
        })
    }

    /// The engine's form. Text is taken as raw text of the model's own making: special tokens
    /// written in it are recognised, as llama-server does on this route.
    pub fn into_prompt(self) -> submit::Prompt {
        match self.prompt {
            CompletionPrompt::Text(text) => submit::Prompt::Text(TextPrompt {
                text,
                add_special: true,
                parse_special: true,
            }),
            CompletionPrompt::Tokens(ids) => submit::Prompt::Tokens(TokenPrompt { ids }),
        }
    }
}

/// A string, token ids, or an array of exactly one of these. Told apart by their first characters,
/// so that a long array of ids is read straight into ids.
fn read_prompt(raw: &RawValue) -> Result<CompletionPrompt, ApiError> {
    let json = raw.get();
    let mut marks = json.bytes().filter(|byte| !byte.is_ascii_whitespace());
    match (marks.next(), marks.next()) {
        (Some(b'"'), _) => serde_json::from_str(json)
            .map(CompletionPrompt::Text)
            .map_err(|_| ApiError::invalid("prompt", "'prompt' is not a string of characters")),
        (Some(b'['), Some(b']')) => Err(empty()),
        (Some(b'['), Some(b'0'..=b'9' | b'-')) => read_tokens(json).map(CompletionPrompt::Tokens),
        (Some(b'['), Some(b'"' | b'[')) => {
            let [only] = serde_json::from_str::<[&RawValue; 1]>(json).map_err(|_| {
                let message = "'prompt' may hold one prompt only; send more requests";
                ApiError::unsupported("prompt", message)
            })?;
            match only.get() {
                text if text.starts_with('"') => read_prompt(only),
                ids => match read_tokens(ids)? {
                    ids if ids.is_empty() => Err(empty()),
                    ids => Ok(CompletionPrompt::Tokens(ids)),
                },
            }
        }
        _ => Err(ApiError::invalid(
            "prompt",
            "'prompt' must be a string or an array of token ids",
        )),
    }
}

fn read_tokens(json: &str) -> Result<Vec<u32>, ApiError> {
    serde_json::from_str(json)
        .map_err(|_| ApiError::invalid("prompt", "'prompt' token ids must be whole numbers"))
}

fn empty() -> ApiError {
    ApiError::invalid("prompt", "'prompt' must not be empty")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(json: &str) -> Result<CompletionPrompt, &'static str> {
        let body = format!("{{\"prompt\": {json}}}");
        CompletionRequest::parse(body.as_bytes())
            .map(|request| request.prompt)
            .map_err(|error| error.label())
    }

    #[test]
    fn prompt_forms() {
        let text = CompletionPrompt::Text("a".into());
        assert_eq!(prompt(r#""a""#), Ok(text.clone()));
        assert_eq!(prompt(r#"["a"]"#), Ok(text));
        let tokens = CompletionPrompt::Tokens(vec![1, 2]);
        assert_eq!(prompt("[1, 2]"), Ok(tokens.clone()));
        assert_eq!(prompt("[[1, 2]]"), Ok(tokens));
    }

    #[test]
    fn prompt_faults() {
        assert_eq!(prompt("null"), Err("missing_required_parameter"));
        assert_eq!(prompt(r#"["a", "b"]"#), Err("unsupported_parameter"));
        assert_eq!(prompt("[[1], [2]]"), Err("unsupported_parameter"));
        for json in [
            "[]",
            "[[]]",
            "5",
            "{}",
            "[null]",
            "[1, \"a\"]",
            "[-1]",
            "[1.5]",
            "[4294967296]",
        ] {
            assert_eq!(prompt(json), Err("invalid_value"), "{json}");
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        for field in [
            r#""echo": true"#,
            r#""best_of": 2"#,
            r#""suffix": "x""#,
            r#""logprobs": 3"#,
        ] {
            let body = format!(r#"{{"prompt": "a", {field}}}"#);
            let error = CompletionRequest::parse(body.as_bytes()).unwrap_err();
            assert_eq!(error.label(), "unsupported_parameter", "{field}");
        }
        let body = br#"{"prompt": "a", "echo": false, "best_of": 1, "suffix": null}"#;
        CompletionRequest::parse(body).unwrap();
    }
}
