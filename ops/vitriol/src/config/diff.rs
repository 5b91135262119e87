//! `vitriol config diff`: where two sets of settings differ.

use std::path::PathBuf;

use serde_json::{Value, json};
use vitriol_chassis::Failure;
use vitriol_profile::{Change, Entry, Overrides, Profile};

use super::{origin_json, value_json};

/// What is compared; a side without a file is the defaults.
#[derive(Debug)]
pub struct Sides {
    from: Option<PathBuf>,
    to: Option<PathBuf>,
    changes: Vec<Change>,
}

impl Sides {
    /// `a` with `b`; without `b` the defaults with `a`; without either the defaults with the profile
    /// in use.
    ///
    /// Errors: a file that is no profile (78).
    pub fn choose(
        a: Option<PathBuf>,
        b: Option<PathBuf>,
        in_use: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let (from, to) = match (a, b) {
            (a, Some(b)) => (a, Some(b)),
            (a, None) => (None, a.or(in_use)),
        };
        let load = |file: &Option<PathBuf>| -> Result<Profile, Failure> {
            Ok(Profile::load(file.as_deref(), &Overrides::new())?)
        };
        let changes = load(&from)?.changes_to(&load(&to)?);
        Ok(Self { from, to, changes })
    }

    /// For people: a line a setting.
    pub fn describe(&self) -> String {
        match self.changes.is_empty() {
            true => "no difference\n".to_owned(),
            false => describe(&self.changes),
        }
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let file = |side: &Option<PathBuf>| {
            side.as_ref()
                .map(|file| file.to_string_lossy().into_owned())
        };
        json!({
            "from": file(&self.from),
            "to": file(&self.to),
            "changes": self.changes.iter().map(change_json).collect::<Vec<_>>(),
        })
    }
}

/// The changes, a line each: key, value before, value after, each with its origin.
pub fn describe(changes: &[Change]) -> String {
    let side = |entry: &Option<Entry>| match entry {
        Some(entry) => format!("{} ({})", entry.value, entry.origin),
        None => "absent".to_owned(),
    };
    let width = changes.iter().map(|change| change.key.len()).max();
    let width = width.unwrap_or(0);
    let line = |change: &Change| {
        let (from, to) = (side(&change.from), side(&change.to));
        format!("{:<width$}  {from} -> {to}\n", change.key)
    };
    changes.iter().map(line).collect()
}

fn change_json(change: &Change) -> Value {
    let side = |entry: &Option<Entry>| {
        entry
            .as_ref()
            .map(|entry| json!({"value": value_json(entry), "origin": origin_json(&entry.origin)}))
    };
    json!({"key": change.key, "from": side(&change.from), "to": side(&change.to)})
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn two_profiles_one_profile_and_the_one_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            Some(path)
        };
        let a = file("a.toml", "[engine.main]\nthreads = 2\n");
        let b = file(
            "b.toml",
            "[house]\nlog_format = 'json'\n[engine.main]\nthreads = 3\n",
        );
        let shown = |a: &Option<PathBuf>, b: &Option<PathBuf>, in_use: &Option<PathBuf>| {
            let sides = Sides::choose(a.clone(), b.clone(), in_use.clone()).unwrap();
            (
                sides
                    .describe()
                    .replace(dir.path().to_str().unwrap(), "DIR"),
                format!("{:#}", sides.to_json()).replace(dir.path().to_str().unwrap(), "DIR"),
            )
        };
        let (text, json) = shown(&a, &b, &None);
        assert_eq!(
            text,
            "house.log_format     \"text\" (default) -> \"json\" (DIR/b.toml:2)\n\
             engine.main.threads  2 (DIR/a.toml:2) -> 3 (DIR/b.toml:4)\n"
        );
        insta::assert_snapshot!(json);
        let against_defaults = "engine.main.threads  0 (default) -> 2 (DIR/a.toml:2)\n";
        assert_eq!(shown(&a, &None, &b).0, against_defaults);
        assert_eq!(shown(&None, &None, &a).0, against_defaults);
        assert_eq!(shown(&a, &a, &None).0, "no difference\n");
        assert_eq!(shown(&None, &None, &None).0, "no difference\n");
    }
}
