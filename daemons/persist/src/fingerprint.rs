//! What a launch of an engine is made of, in one line, and in what two launches differ.
//!
//! ```text
//! VITRIOL-FINGERPRINT: version=0.2.0 model=b179c952… isa=avx2 engine.alias="" engine.threads=2 …
//! ```
//! Every setting of the engine is in it, and what it was launched on. A setting that was dropped without
//! anybody noticing is a field that changed; an empty value is printed as one, for that is what a
//! dropped one looks like.

use std::fmt;

use vitriol_profile::{Plain, Profile};

/// What the line begins with.
pub const PREFIX: &str = "VITRIOL-FINGERPRINT: ";

/// A launch: names and values, in a fixed order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    fields: Vec<(String, String)>,
}

/// What is not in the profile, and bears on speed or on what answers mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Of the binary.
    pub version: String,
    /// Digest of the weights.
    pub model: String,
    /// The instruction set that was chosen, not the one asked for.
    pub isa: String,
    /// Compute threads that run.
    pub threads: u32,
    /// Of the processor, as the kernel calls it.
    pub cpu: String,
    pub memory_bytes: u64,
    /// What the environment overrides, e.g. `VITRIOL_ISA=scalar`.
    pub environment: String,
}

/// A field that two launches have differently; `None`: one does not have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub field: String,
    pub from: Option<String>,
    pub to: Option<String>,
}

/// Why a line is no fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("the line does not begin with '{PREFIX}'")]
    Prefix,
    #[error("'{0}' is no field; a field is NAME=VALUE, or NAME=\"VALUE\" with \\\" and \\\\ in it")]
    Field(String),
    #[error("field '{0}' is there twice")]
    Twice(String),
}

impl Fingerprint {
    /// The launch of the engine called `name`.
    pub fn new(profile: &Profile, name: &str, facts: &Facts) -> Self {
        let Facts {
            version,
            model,
            isa,
            threads,
            cpu,
            memory_bytes,
            environment,
        } = facts;
        let mut fields: Vec<(String, String)> = [
            ("version", version.clone()),
            ("model", model.clone()),
            ("isa", isa.clone()),
            ("threads", threads.to_string()),
            ("cpu", cpu.clone()),
            ("memory_bytes", memory_bytes.to_string()),
            ("environment", environment.clone()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        // By what the profile itself lists, so that a setting of a later release is in it too.
        let table = format!("engine.{name}.");
        let settings = profile.entries().into_iter().filter_map(|entry| {
            let field = entry.key.strip_prefix(&table)?;
            let value = match entry.plain() {
                Plain::Text(text) => text,
                // As TOML writes numbers and the like.
                _ => entry.value.clone(),
            };
            Some((format!("engine.{field}"), value))
        });
        fields.extend(settings);
        Self { fields }
    }

    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Reads a line back. Errors: it is none, or damaged.
    pub fn parse(line: &str) -> Result<Self, ParseError> {
        let mut rest = line
            .trim_end()
            .strip_prefix(PREFIX)
            .ok_or(ParseError::Prefix)?;
        let mut fields: Vec<(String, String)> = Vec::new();
        while !rest.is_empty() {
            let (field, after) =
                read_field(rest).ok_or_else(|| ParseError::Field(rest.to_owned()))?;
            if fields.iter().any(|(name, _)| *name == field.0) {
                return Err(ParseError::Twice(field.0));
            }
            fields.push(field);
            rest = after;
        }
        Ok(Self { fields })
    }

    /// In what `other` differs from this launch, in this one's order, then what only `other` has.
    pub fn changes_to(&self, other: &Self) -> Vec<Difference> {
        let of = |fields: &[(String, String)], name: &str| {
            let found = fields.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone())
        };
        let names = self.fields.iter().map(|(name, _)| name);
        let new = other.fields.iter().map(|(name, _)| name);
        let new = new.filter(|name| of(&self.fields, name).is_none());
        names
            .chain(new)
            .map(|name| Difference {
                field: name.clone(),
                from: of(&self.fields, name),
                to: of(&other.fields, name),
            })
            .filter(|difference| difference.from != difference.to)
            .collect()
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        for (place, (name, value)) in self.fields.iter().enumerate() {
            let gap = if place == 0 { "" } else { " " };
            write!(f, "{gap}{name}=")?;
            match value.is_empty() || !value.chars().all(is_plain) {
                true => write_quoted(f, value)?,
                false => f.write_str(value)?,
            }
        }
        Ok(())
    }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-+/:,".contains(c)
}

fn write_quoted(f: &mut fmt::Formatter<'_>, value: &str) -> fmt::Result {
    f.write_str("\"")?;
    for c in value.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            // A value of two lines would be two lines of the journal.
            '\n' => f.write_str("\\n")?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

/// The first field and what comes after it.
fn read_field(text: &str) -> Option<((String, String), &str)> {
    let (name, value) = text.split_once('=')?;
    if name.is_empty() || !name.chars().all(is_plain) {
        return None;
    }
    let (value, rest) = match value.strip_prefix('"') {
        Some(quoted) => read_quoted(quoted)?,
        None => {
            let end = value.find(' ').unwrap_or(value.len());
            let plain = &value[..end];
            if plain.is_empty() || !plain.chars().all(is_plain) {
                return None;
            }
            (plain.to_owned(), &value[end..])
        }
    };
    let rest = match rest.strip_prefix(' ') {
        Some(rest) if !rest.is_empty() => rest,
        None if rest.is_empty() => rest,
        _ => return None,
    };
    Some(((name.to_owned(), value), rest))
}

fn read_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                escaped @ ('"' | '\\') => value.push(escaped),
                _ => return None,
            },
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use vitriol_profile::Overrides;

    use super::*;

    fn profile(text: &str) -> Profile {
        Profile::parse(Path::new("p.toml"), text, &Overrides::new()).unwrap()
    }

    fn launch(text: &str) -> Fingerprint {
        let facts = Facts {
            version: "0.2.0".into(),
            cpu: "Some CPU @ 2.10GHz".into(),
            threads: 2,
            ..Facts::default()
        };
        Fingerprint::new(&profile(text), "main", &facts)
    }

    #[test]
    fn every_setting_of_the_engine_is_in_it_the_empty_ones_too() {
        let line = launch("").to_string();
        assert!(
            line.starts_with("VITRIOL-FINGERPRINT: version=0.2.0 model=\"\" isa=\"\""),
            "{line}"
        );
        assert!(line.contains(" cpu=\"Some CPU @ 2.10GHz\" "), "{line}");
        assert!(
            line.contains(" engine.alias=\"\" ") && line.contains(" engine.kv_keys=f16 "),
            "{line}"
        );
        let known = launch("");
        for entry in Profile::default().entries() {
            let Some(field) = entry.key.strip_prefix("engine.main.") else {
                continue;
            };
            let name = format!("engine.{field}");
            assert!(
                known.fields().any(|(known, _)| known == name),
                "{name} is missing"
            );
        }
    }

    #[test]
    fn a_setting_that_was_dropped_is_seen() {
        let before = launch("[engine.main]\nspeculation = 'off'\nthreads = 4\n");
        let after = launch("[engine.main]\nthreads = 4\n");
        let expected = Difference {
            field: "engine.speculation".into(),
            from: Some("off".into()),
            to: Some("prompt-lookup".into()),
        };
        assert_eq!(before.changes_to(&after), [expected]);
        assert_eq!(before.changes_to(&before), []);
    }

    #[test]
    fn a_field_that_only_one_release_knows_is_a_change() {
        let old = Fingerprint::parse("VITRIOL-FINGERPRINT: a=1 gone=2").unwrap();
        let new = Fingerprint::parse("VITRIOL-FINGERPRINT: a=1 new=\"\"\n").unwrap();
        let changes = old.changes_to(&new);
        let named: Vec<_> = changes
            .iter()
            .map(|c| (c.field.as_str(), &c.from, &c.to))
            .collect();
        assert_eq!(
            named,
            [
                ("gone", &Some("2".to_owned()), &None),
                ("new", &None, &Some(String::new()))
            ]
        );
    }

    #[test]
    fn damaged_lines_are_refused() {
        for (line, expected) in [
            ("a=1", ParseError::Prefix),
            (
                "VITRIOL-FINGERPRINT: a=1  b=2",
                ParseError::Field("a=1  b=2".into()),
            ),
            ("VITRIOL-FINGERPRINT: a=", ParseError::Field("a=".into())),
            (
                "VITRIOL-FINGERPRINT: a=\"x",
                ParseError::Field("a=\"x".into()),
            ),
            (
                "VITRIOL-FINGERPRINT: a=\"x\"y",
                ParseError::Field("a=\"x\"y".into()),
            ),
            (
                "VITRIOL-FINGERPRINT: a=1 a=2",
                ParseError::Twice("a".into()),
            ),
        ] {
            let found = Fingerprint::parse(line).unwrap_err();
            match (&found, &expected) {
                // What is quoted is what could not be read, from there on.
                (ParseError::Field(_), ParseError::Field(_)) => {}
                _ => assert_eq!(found, expected, "{line}"),
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(values in prop::collection::vec("[ -~\\n\"\\\\é]{0,12}", 1..8)) {
            let fields = values.into_iter().enumerate().map(|(n, value)| (format!("f{n}"), value));
            let written = Fingerprint { fields: fields.collect() };
            let line = written.to_string();
            prop_assert!(!line.contains('\n'));
            prop_assert_eq!(Fingerprint::parse(&line), Ok(written));
        }

        #[test]
        fn no_line_panics(line in "(VITRIOL-FINGERPRINT: )?[ -~]{0,40}") {
            let _ = Fingerprint::parse(&line);
        }
    }
}
