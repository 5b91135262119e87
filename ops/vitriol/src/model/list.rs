//! What models there are: those that can be fetched, and whatever lies in the cache.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use vitriol_profile::catalog::{self, KnownModel};
use vitriol_units::Bytes;

/// A model of the catalog or a file in the cache.
#[derive(Debug, PartialEq, Eq)]
pub struct Listed {
    /// What `vitriol model fetch` and clients call it; of a file that is no known model its name.
    pub name: String,
    /// Where it lies, or will when it is fetched.
    pub file: PathBuf,
    pub bytes: u64,
    pub state: State,
    pub known: Option<&'static KnownModel>,
}

/// Judged by presence and size; `vitriol doctor` looks at every byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Cached,
    Damaged,
    NotFetched,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Cached => "cached",
            State::Damaged => "damaged",
            State::NotFetched => "not_fetched",
        }
    }
}

/// Known models first, then whatever else lies in `models`, by name.
pub fn list(models: &Path) -> Vec<Listed> {
    let known = catalog::KNOWN.iter().map(|known| {
        let file = models.join(known.file);
        let state = match file.metadata() {
            Ok(found) if found.len() == known.bytes => State::Cached,
            Ok(_) => State::Damaged,
            Err(_) => State::NotFetched,
        };
        Listed {
            name: known.name.to_owned(),
            file,
            bytes: known.bytes,
            state,
            known: Some(known),
        }
    });
    let mut others: Vec<Listed> = fs::read_dir(models)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let other = name.ends_with(".gguf") && catalog::by_file(&name).is_none();
            let bytes = entry.metadata().ok()?.len();
            other.then(|| Listed {
                name,
                file: entry.path(),
                bytes,
                state: State::Cached,
                known: None,
            })
        })
        .collect();
    others.sort_by(|a, b| a.name.cmp(&b.name));
    known.chain(others).collect()
}

/// For people: a line a model.
pub fn describe(listed: &[Listed]) -> String {
    let line = |model: &Listed| {
        let size = Bytes(model.bytes).rounded().to_string();
        match model.known {
            None => format!("{:<24} {size:>9}  {}\n", model.name, model.file.display()),
            Some(known) => {
                let state = match model.state {
                    State::Cached => "in the cache",
                    State::Damaged => "damaged; fetch it again",
                    State::NotFetched => "not fetched",
                };
                format!(
                    "{:<24} {size:>9}  {:<11} {state}; {}\n",
                    model.name, known.licence, known.about
                )
            }
        }
    };
    listed.iter().map(line).collect()
}

/// For programs.
pub fn to_json(listed: &[Listed]) -> Value {
    let models = listed.iter().map(|model| {
        json!({
            "name": model.name,
            "known": model.known.is_some(),
            "default": model.known.is_some() && model.known == catalog::find(None),
            "state": model.state.name(),
            "file": model.file.to_string_lossy(),
            "bytes": model.bytes,
            "sha256": model.known.map(|known| known.sha256),
            "licence": model.known.map(|known| known.licence),
            "about": model.known.map(|known| known.about),
        })
    });
    json!({"models": models.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_tells_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let text = describe(&list(dir.path()));
        assert!(
            text.contains("smollm2-135m-instruct     93.8 MiB  Apache-2.0  not fetched"),
            "{text}"
        );
        assert!(
            text.contains("gemma-3-270m             241.4 MiB  Gemma terms not"),
            "{text}"
        );
        fs::write(dir.path().join(catalog::KNOWN[0].file), "short").unwrap();
        fs::write(dir.path().join("own.gguf"), "x").unwrap();
        let text = describe(&list(dir.path()));
        assert!(text.contains("damaged; fetch it again"), "{text}");
        assert!(text.contains("own.gguf"), "{text}");
        assert_eq!(list(Path::new("/nonexistent")).len(), catalog::KNOWN.len());
    }

    #[test]
    fn the_list_for_programs() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(catalog::KNOWN[1].file), "short").unwrap();
        fs::write(dir.path().join("own.gguf"), "x").unwrap();
        let json = format!("{:#}", to_json(&list(dir.path())));
        insta::assert_snapshot!(json.replace(dir.path().to_str().unwrap(), "MODELS"));
    }
}
