//! POST /tokenize and /detokenize, in llama-server's forms.

use crate::api_error::ApiError;

use super::fields::Fields;

/// Longest text that is tokenised, bytes.
const CONTENT_BYTES_MAX: usize = 4 << 20;

/// Most token ids that are made text.
const IDS_MAX: usize = 1 << 20;

/// `{content, add_special=false, parse_special=true, with_pieces=false}`.
#[derive(Debug, PartialEq, Eq)]
pub struct TokenizeBody {
    pub content: String,
    pub add_special: bool,
    pub parse_special: bool,
    pub with_pieces: bool,
}

impl TokenizeBody {
    /// Parses a body. Errors: 400 naming the line and column, or the parameter; 413 when the content
    /// is longer than 4 MiB.
    pub fn parse(body: &[u8]) -> Result<TokenizeBody, ApiError> {
        let mut fields = Fields::parse(body)?;
        let content: String = fields
            .large("content", "a string")?
            .ok_or_else(|| ApiError::missing("content"))?;
        if content.len() > CONTENT_BYTES_MAX {
            return Err(ApiError::param_too_large("content", "4 MiB"));
        }
        Ok(TokenizeBody {
            content,
            add_special: fields.boolean("add_special")?.unwrap_or(false),
            parse_special: fields.boolean("parse_special")?.unwrap_or(true),
            with_pieces: fields.boolean("with_pieces")?.unwrap_or(false),
        })
    }
}

/// `{tokens}`.
#[derive(Debug, PartialEq, Eq)]
pub struct DetokenizeBody {
    pub tokens: Vec<u32>,
}

impl DetokenizeBody {
    /// Parses a body. Errors: 400 naming the line and column, or the parameter; 413 when there are
    /// more than 1,048,576 ids.
    pub fn parse(body: &[u8]) -> Result<DetokenizeBody, ApiError> {
        let mut fields = Fields::parse(body)?;
        let tokens: Vec<u32> = fields
            .large("tokens", "an array of token ids")?
            .ok_or_else(|| ApiError::missing("tokens"))?;
        if tokens.len() > IDS_MAX {
            return Err(ApiError::param_too_large("tokens", "1048576 ids"));
        }
        Ok(DetokenizeBody { tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_servers_defaults() {
        let body = TokenizeBody::parse(br#"{"content": "a"}"#).unwrap();
        assert!(!body.add_special && body.parse_special && !body.with_pieces);
    }

    #[test]
    fn content_and_ids_are_bounded_whatever_the_body_may_be() {
        let text = |bytes| format!(r#"{{"content": "{}"}}"#, "x".repeat(bytes));
        TokenizeBody::parse(text(CONTENT_BYTES_MAX).as_bytes()).unwrap();
        let error = TokenizeBody::parse(text(CONTENT_BYTES_MAX + 1).as_bytes()).unwrap_err();
        assert_eq!(error.status(), http::StatusCode::PAYLOAD_TOO_LARGE);
        assert!(error.message().contains("'content' is longer than 4 MiB"));
        let ids = |count: usize| format!(r#"{{"tokens": [{}1]}}"#, "1,".repeat(count - 1));
        DetokenizeBody::parse(ids(IDS_MAX).as_bytes()).unwrap();
        let error = DetokenizeBody::parse(ids(IDS_MAX + 1).as_bytes()).unwrap_err();
        assert_eq!(error.status(), http::StatusCode::PAYLOAD_TOO_LARGE);
        assert!(error.message().contains("'tokens' is longer"));
    }

    #[test]
    fn faults_name_the_field() {
        assert_eq!(
            TokenizeBody::parse(b"{}").unwrap_err().label(),
            "missing_required_parameter"
        );
        assert!(TokenizeBody::parse(br#"{"content": 5}"#).is_err());
        assert!(DetokenizeBody::parse(br#"{"tokens": [-1]}"#).is_err());
        assert!(DetokenizeBody::parse(br#"{"tokens": [1.5]}"#).is_err());
        assert_eq!(
            DetokenizeBody::parse(br#"{"tokens": [1, 2]}"#)
                .unwrap()
                .tokens,
            [1, 2]
        );
    }
}
