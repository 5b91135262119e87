//! POST /slots/{id}, in llama-server's form.

use crate::api_error::ApiError;
use crate::kvtier::FILE_NAME_BYTES_MAX;

use super::fields::Fields;

/// `{filename, session_id}`, both as the action wants them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SlotBody {
    pub filename: Option<String>,
    /// Which conversation is meant, of the header or the slot otherwise.
    pub session_id: Option<String>,
}

impl SlotBody {
    /// Parses a body, which may be empty. Errors: 400 naming the line and column, or the parameter.
    pub fn parse(body: &[u8]) -> Result<SlotBody, ApiError> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(SlotBody::default());
        }
        let mut fields = Fields::parse(body)?;
        let filename = fields.string("filename")?;
        if let Some(name) = &filename {
            check_file_name(name)?;
        }
        Ok(SlotBody {
            filename,
            session_id: fields.string("session_id")?.filter(|id| !id.is_empty()),
        })
    }
}

/// A name that leads nowhere else, whatever is made of it.
fn check_file_name(name: &str) -> Result<(), ApiError> {
    let leads_elsewhere = |c: char| matches!(c, '/' | '\\') || c.is_control();
    let is_sound = (1..=FILE_NAME_BYTES_MAX).contains(&name.len())
        && !matches!(name, "." | "..")
        && !name.contains(leads_elsewhere);
    match is_sound {
        true => Ok(()),
        false => Err(ApiError::invalid(
            "filename",
            format!(
                "'filename' must be a name of 1 to {FILE_NAME_BYTES_MAX} bytes without '/', '\\' and control \
                 characters, and not '.' or '..'"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_may_be_empty_and_names_stay_where_they_are() {
        assert_eq!(SlotBody::parse(b" \n").unwrap(), SlotBody::default());
        let body = SlotBody::parse(br#"{"filename": "a.bin", "session_id": "s", "x": 1}"#);
        let expected = SlotBody {
            filename: Some("a.bin".to_owned()),
            session_id: Some("s".to_owned()),
        };
        assert_eq!(body.unwrap(), expected);
        let long = "x".repeat(FILE_NAME_BYTES_MAX);
        for name in ["...", ".a", "a b", "é", &long] {
            assert_eq!(check_file_name(name), Ok(()), "{name}");
        }
        let too_long = format!("{long}x");
        for name in [
            "", ".", "..", "a/b", "../a", "/a", "a\\b", "a\0", "a\n", &too_long,
        ] {
            let error = check_file_name(name).unwrap_err();
            assert!(error.message().contains("'filename'"), "{name}");
        }
        let body = br#"{"filename": 5}"#;
        assert_eq!(SlotBody::parse(body).unwrap_err().status(), 400);
        assert_eq!(SlotBody::parse(b"[").unwrap_err().status(), 400);
    }
}
