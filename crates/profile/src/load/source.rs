use std::{fs, path::Path};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::ProfileError;

/// The file being read, for messages with a line.
pub struct Source<'a> {
    pub path: &'a Path,
    pub text: &'a str,
}

impl Source<'_> {
    pub fn line(&self, offset: usize) -> usize {
        1 + self
            .text
            .as_bytes()
            .iter()
            .take(offset)
            .filter(|&&byte| byte == b'\n')
            .count()
    }

    pub fn syntax(&self, error: &toml::de::Error) -> ProfileError {
        ProfileError::Syntax {
            path: self.path.to_owned(),
            line: self.line(error.span().map_or(0, |span| span.start)),
            message: error.message().replace('\n', "; "),
        }
    }

    pub fn table<'t, 'i>(
        &self,
        key: &str,
        value: &'t Spanned<DeValue<'i>>,
    ) -> Result<&'t DeTable<'i>, ProfileError> {
        value
            .get_ref()
            .as_table()
            .ok_or_else(|| ProfileError::NotATable {
                path: self.path.to_owned(),
                line: self.line(value.span().start),
                key: key.to_owned(),
            })
    }

    pub fn unknown<T>(
        &self,
        at: &Spanned<T>,
        what: &'static str,
        key: &str,
        nearest: String,
    ) -> ProfileError {
        ProfileError::UnknownKey {
            path: self.path.to_owned(),
            line: self.line(at.span().start),
            what,
            key: key.to_owned(),
            nearest,
        }
    }
}

/// Reads a profile. What is not a regular file is not opened: a FIFO would be waited for, and a device
/// may have no end.
pub fn read_regular(path: &Path) -> Result<String, ProfileError> {
    let unread = |source| ProfileError::Read {
        path: path.to_owned(),
        source,
    };
    let is_odd = |found: &fs::Metadata| !found.is_file() && !found.is_dir();
    if is_odd(&fs::metadata(path).map_err(unread)?) {
        let path = path.to_owned();
        return Err(ProfileError::NotAFile { path });
    }
    fs::read_to_string(path).map_err(unread)
}
