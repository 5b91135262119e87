use std::{
    ffi::OsStr,
    fs::File,
    path::{Path, PathBuf},
};

use tempfile::NamedTempFile;
use vitriol_gguf::{Gguf, Part};
use vitriol_profile::catalog::{self, KnownModel};

use super::{
    super::digest::{Digested, Hasher, digest_file},
    Cache, FetchError, Fetched, Step, check_digest,
};

/// A file to take in, and its place.
struct Source {
    file: PathBuf,
    digested: Digested,
    target: PathBuf,
}

impl Cache {
    /// Takes in a copy of a local file; a link would make a later write to either one the other's
    /// too. Of a split model `file` is any part, and all are taken. With `model` it must be that one;
    /// without, a known model is stored under its known name and any other under its own.
    ///
    /// Errors: no model, or one that lacks a part; with `model` another one; no room.
    pub fn take_file(
        &self,
        file: &Path,
        model: Option<&KnownModel>,
        mut tell: impl FnMut(Step),
    ) -> Result<Fetched, FetchError> {
        let gguf = Gguf::open(file)?;
        tell(Step::Checking);
        let mut sources = Vec::new();
        for part in gguf.parts() {
            sources.push(self.source(part)?);
        }
        let first = sources[0].target.clone();
        if let Some(model) = model {
            // A known model is one file, so no part of another has its digest.
            check_digest(&sources[0].digested, model, &file.display().to_string())?;
        }
        let is_missing = |source: &Source| {
            !digest_file(&source.target).is_ok_and(|there| there == source.digested)
        };
        sources.retain(is_missing);
        if sources.is_empty() {
            return Ok(Fetched::AlreadyThere(first));
        }
        let all = sources.iter().map(|source| source.digested.bytes).sum();
        self.check_room(all)?;
        let (mut copies, mut before) = (Vec::new(), 0);
        for source in sources {
            let copy = self.copy(&source, |bytes| {
                let done = before + bytes;
                tell(Step::Copying { done, all });
            })?;
            before += source.digested.bytes;
            copies.push((copy, source.target));
        }
        self.keep(copies)?;
        Ok(Fetched::Stored(first))
    }

    fn source(&self, part: &Part) -> Result<Source, FetchError> {
        let file = part.path().to_owned();
        let digested =
            digest_file(&file).map_err(|source| FetchError::io("read", &file, source))?;
        let known = catalog::KNOWN
            .iter()
            .find(|known| known.sha256 == digested.sha256);
        let name = match known {
            Some(known) => OsStr::new(known.file),
            None => file.file_name().unwrap_or_else(|| OsStr::new("model.gguf")),
        };
        let target = self.models.join(name);
        Ok(Source {
            file,
            digested,
            target,
        })
    }

    fn copy(&self, source: &Source, tell: impl FnMut(u64)) -> Result<NamedTempFile, FetchError> {
        let file = &source.file;
        let mut from = File::open(file).map_err(|source| FetchError::io("read", file, source))?;
        let mut copy = self.temp_file()?;
        let mut hasher = Hasher::default();
        hasher
            .copy(&mut from, copy.as_file_mut(), tell)
            .map_err(|source| FetchError::io("write", copy.path(), source))?;
        let copied = hasher.finish();
        if copied != source.digested {
            return Err(FetchError::Digest {
                what: format!("the copy of {}", file.display()),
                found: copied.sha256,
                expected: source.digested.sha256.clone(),
            });
        }
        Ok(copy)
    }
}
