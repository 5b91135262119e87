//! Where two profiles differ.

use crate::{Entry, Profile};

/// A setting that two profiles have differently, or that only one of them has (an engine of its
/// own).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Dotted name, `"engine.main.threads"`.
    pub key: String,
    pub from: Option<Entry>,
    pub to: Option<Entry>,
}

impl Profile {
    /// What changes in the settings from `self` to `other`, whatever the values' origins: in the
    /// order of `self`, then what only `other` has.
    pub fn changes_to(&self, other: &Profile) -> Vec<Change> {
        let (ours, theirs) = (self.entries(), other.entries());
        let of = |entries: &[Entry], key: &str| entries.iter().find(|e| e.key == key).cloned();
        let mut changes: Vec<Change> = ours
            .iter()
            .filter_map(|from| {
                let to = of(&theirs, &from.key);
                let same = to.as_ref().is_some_and(|to| to.value == from.value);
                (!same).then(|| Change {
                    key: from.key.clone(),
                    from: Some(from.clone()),
                    to,
                })
            })
            .collect();
        let added = theirs.into_iter().filter(|to| of(&ours, &to.key).is_none());
        changes.extend(added.map(|to| Change {
            key: to.key.clone(),
            from: None,
            to: Some(to),
        }));
        changes
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Overrides;

    fn profile(text: &str) -> Profile {
        Profile::parse(Path::new("p.toml"), text, &Overrides::new()).unwrap()
    }

    fn keys(changes: &[Change]) -> Vec<&str> {
        changes.iter().map(|change| change.key.as_str()).collect()
    }

    #[test]
    fn only_values_count_not_how_they_were_written() {
        let same = profile("[engine.main]\nkv_bytes_max = 1073741824\nthreads = 0\n");
        assert_eq!(Profile::default().changes_to(&same), []);
        let other = profile("[house]\nlog_format = 'json'\n[engine.main]\nthreads = 3\n");
        let changes = Profile::default().changes_to(&other);
        assert_eq!(keys(&changes), ["house.log_format", "engine.main.threads"]);
        let of = |entry: &Option<Entry>| {
            let entry = entry.as_ref().unwrap();
            (entry.value.clone(), entry.origin.to_string())
        };
        assert_eq!(of(&changes[1].from), ("0".into(), "default".into()));
        assert_eq!(of(&changes[1].to), ("3".into(), "p.toml:4".into()));
    }

    #[test]
    fn an_engine_that_only_one_has_is_all_change() {
        let two = profile("[engine.b]\n");
        let there = Profile::default().changes_to(&two);
        let back = two.changes_to(&Profile::default());
        assert_eq!(keys(&there), keys(&back));
        assert!(!there.is_empty() && there.iter().all(|c| c.key.starts_with("engine.b.")));
        assert!(there.iter().all(|c| c.from.is_none() && c.to.is_some()));
        assert!(back.iter().all(|c| c.from.is_some() && c.to.is_none()));
    }
}
