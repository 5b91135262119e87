//! POST /tokenize and /detokenize, in llama-server's forms.

use crate::api_error::ApiError;

use super::fields::Fields;

/// `{content, add_special=false, parse_special=true, with_pieces=false}`.
#[derive(Debug, PartialEq, Eq)]
pub struct TokenizeBody {
    pub content: String,
    pub add_special: bool,
    pub parse_special: bool,
    pub with_pieces: bool,
}

impl TokenizeBody {
    /// Parses a body. Errors: 400 naming the line and column, or the parameter.
    pub fn parse(body: &[u8]) -> Result<TokenizeBody, ApiError> {
        let mut fields = Fields::parse(body)?;
        Ok(TokenizeBody {
            content: fields
                .large("content", "a string")?
                .ok_or_else(|| ApiError::missing("content"))?,
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
    /// Parses a body. Errors: 400 naming the line and column, or the parameter.
    pub fn parse(body: &[u8]) -> Result<DetokenizeBody, ApiError> {
        let mut fields = Fields::parse(body)?;
        let tokens = fields.large("tokens", "an array of token ids")?;
        Ok(DetokenizeBody {
            tokens: tokens.ok_or_else(|| ApiError::missing("tokens"))?,
        })
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
