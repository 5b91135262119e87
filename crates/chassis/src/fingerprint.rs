//! What a launch of a daemon is made of, in one line, and in what two launches differ.
//!
//! ```text
//! VITRIOL-FINGERPRINT: version=0.2.0 build=5b1f… isa=avx2 threads=2 engine.alias="" engine.threads=0 …
//! ```
//! Every setting is in it, and what it came to on this machine. A setting that was dropped without anybody
//! noticing is a field that changed; an empty value is printed as one, for that is what a dropped one looks
//! like.

use std::{fmt, fs::File, io};

use vitriol_profile::{Plain, Profile};
use vitriol_proto::status::v1::Field;
use vitriol_sysfs::Sysfs;

/// What the line begins with.
const PREFIX: &str = "VITRIOL-FINGERPRINT: ";

/// The binary of this process, also when another lies at its path by now.
const OWN_BINARY: &str = "/proc/self/exe";

/// Bytes of a binary's digest that tell it from others.
const BUILD_BYTES: usize = 16;

/// Names and values in a fixed order, each name once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    fields: Vec<(String, String)>,
}

/// A field that two launches have differently; `None`: one does not have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub field: String,
    pub from: Option<String>,
    pub to: Option<String>,
}

/// Why a line is no fingerprint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParseError {
    Prefix,
    /// From here on it could not be read.
    Field(String),
    Twice(String),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::Prefix => write!(f, "the line does not begin with '{PREFIX}'"),
            ParseError::Field(rest) => write!(f, "'{rest}' is no field NAME=VALUE"),
            ParseError::Twice(name) => write!(f, "field '{name}' is there twice"),
        }
    }
}

impl std::error::Error for ParseError {}

impl Fingerprint {
    /// Of this process: `version` and digest of its binary, processor and memory of the machine. What cannot
    /// be read is empty. Cost: reads the binary.
    pub fn of_process(version: &str) -> Self {
        let host = Sysfs::host();
        let cpu = host.cpu().map_or_else(|_| String::new(), |cpu| cpu.model);
        let memory = host
            .memory()
            .map_or_else(|_| String::new(), |memory| memory.total_bytes.to_string());
        Self::default()
            .with("version", version)
            .with("build", digest_of(OWN_BINARY).unwrap_or_default())
            .with("cpu", cpu)
            .with("memory_bytes", memory)
    }

    /// Adds a field, unless there is one of this name.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        if self.value(name).is_none() {
            self.fields.push((name.to_owned(), value.to_string()));
        }
        self
    }

    /// Adds every setting of `table`, e.g. `engine.main`, as `name.SETTING`.
    #[must_use]
    pub fn with_settings(self, profile: &Profile, table: &str, name: &str) -> Self {
        // By what the profile itself lists, so that a setting of a later release is in it too.
        let entries = profile.entries().into_iter().filter_map(|entry| {
            let setting = entry.key.strip_prefix(table)?.strip_prefix('.')?;
            let value = match entry.plain() {
                Plain::Text(text) => text,
                // As TOML writes numbers and the like.
                _ => entry.value.clone(),
            };
            Some((format!("{name}.{setting}"), value))
        });
        entries.fold(self, |all, (name, value)| all.with(&name, value))
    }

    /// Adds what `other` has and this one has not.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let fields = other.fields.into_iter();
        fields.fold(self, |all, (name, value)| all.with(&name, value))
    }

    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        let fields = self.fields.iter();
        fields.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub fn value(&self, name: &str) -> Option<&str> {
        let found = self.fields().find(|(known, _)| *known == name);
        found.map(|(_, value)| value)
    }

    /// Reads a line back. Errors: it is none, or damaged.
    pub fn parse(line: &str) -> Result<Self, ParseError> {
        let mut rest = line.strip_prefix(PREFIX).ok_or(ParseError::Prefix)?;
        let mut all = Self::default();
        while !rest.is_empty() {
            let damaged = || ParseError::Field(rest.to_owned());
            let (name, value, after) = read_field(rest).ok_or_else(damaged)?;
            if all.value(&name).is_some() {
                return Err(ParseError::Twice(name));
            }
            all.fields.push((name, value));
            rest = after;
        }
        Ok(all)
    }

    /// In what `other` differs from this launch, in this one's order, then what only `other` has.
    pub fn changes_to(&self, other: &Self) -> Vec<Difference> {
        let names = self.fields().map(|(name, _)| name);
        let new = other.fields().map(|(name, _)| name);
        let new = new.filter(|name| self.value(name).is_none());
        names
            .chain(new)
            .map(|name| Difference {
                field: name.to_owned(),
                from: self.value(name).map(str::to_owned),
                to: other.value(name).map(str::to_owned),
            })
            .filter(|difference| difference.from != difference.to)
            .collect()
    }

    /// As `vitriol.status.v1` has it.
    pub fn to_wire(&self) -> Vec<Field> {
        self.fields()
            .map(|(name, value)| Field {
                name: name.to_owned(),
                value: value.to_owned(),
            })
            .collect()
    }

    /// What a daemon tells of itself; of fields of one name the first.
    pub fn from_wire(fields: Vec<Field>) -> Self {
        let fields = fields.into_iter();
        fields.fold(Self::default(), |all, field| {
            all.with(&field.name, field.value)
        })
    }
}

/// Hexadecimal beginning of the BLAKE3 of a file.
fn digest_of(path: &str) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    let hex = hasher.finalize().to_hex();
    Ok(hex[..2 * BUILD_BYTES].to_owned())
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        for (place, (name, value)) in self.fields().enumerate() {
            let gap = if place == 0 { "" } else { " " };
            write!(f, "{gap}{}={}", Word(name), Word(value))?;
        }
        Ok(())
    }
}

/// A name or a value, in quotes where it would not be read back without.
struct Word<'a>(&'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.is_empty() && self.0.chars().all(is_plain) {
            return f.write_str(self.0);
        }
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                // A value of two lines would be two lines of the journal.
                '\n' => f.write_str("\\n")?,
                c => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-+/:,".contains(c)
}

/// Name and value of the first field, and what comes after it.
fn read_field(text: &str) -> Option<(String, String, &str)> {
    let (name, rest) = read_word(text)?;
    let (value, rest) = read_word(rest.strip_prefix('=')?)?;
    match rest.strip_prefix(' ') {
        Some(rest) if !rest.is_empty() => Some((name, value, rest)),
        None if rest.is_empty() => Some((name, value, rest)),
        _ => None,
    }
}

fn read_word(text: &str) -> Option<(String, &str)> {
    if let Some(quoted) = text.strip_prefix('"') {
        return read_quoted(quoted);
    }
    let end = text.find(|c| !is_plain(c)).unwrap_or(text.len());
    (end > 0).then(|| (text[..end].to_owned(), &text[end..]))
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

    fn launch(text: &str) -> Fingerprint {
        let profile = Profile::parse(Path::new("p.toml"), text, &Overrides::new()).unwrap();
        Fingerprint::default()
            .with("isa", "avx2")
            .with("cpu", "Some CPU @ 2.10GHz")
            .with("weights", "")
            .with_settings(&profile, "engine.main", "engine")
    }

    #[test]
    fn every_setting_is_in_it_the_empty_ones_too() {
        let known = launch("");
        let line = known.to_string();
        let begins = "VITRIOL-FINGERPRINT: isa=avx2 cpu=\"Some CPU @ 2.10GHz\" weights=\"\" ";
        assert!(line.starts_with(begins), "{line}");
        assert!(
            line.contains(" engine.alias=\"\" ") && line.contains(" engine.kv_keys=f16 "),
            "{line}"
        );
        let settings = Profile::default().entries();
        let settings = settings
            .iter()
            .filter_map(|entry| entry.key.strip_prefix("engine.main."));
        for setting in settings {
            let name = format!("engine.{setting}");
            assert!(known.value(&name).is_some(), "{name} is missing");
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
        let new = Fingerprint::parse("VITRIOL-FINGERPRINT: a=1 new=\"\"").unwrap();
        let changes = old.changes_to(&new);
        let named: Vec<_> = changes
            .iter()
            .map(|c| (c.field.as_str(), c.from.as_deref(), c.to.as_deref()))
            .collect();
        assert_eq!(named, [("gone", Some("2"), None), ("new", None, Some(""))]);
    }

    #[test]
    fn what_is_kept_for_tenants_is_in_it() {
        let launch = launch("[engine.main.tenants.acme]\nkv_share = 0.25\n");
        let share = launch.value("engine.tenants.acme.kv_share");
        assert_eq!(share, Some("0.25"));
    }

    #[test]
    fn a_process_tells_its_binary_and_its_machine() {
        let own = Fingerprint::of_process("0.2.0");
        assert_eq!(own.value("version"), Some("0.2.0"));
        let build = own.value("build").unwrap();
        assert_eq!(build.len(), 2 * BUILD_BYTES);
        assert_eq!(
            Fingerprint::of_process("0.2.0"),
            own,
            "and so does the next"
        );
        let wire = own.to_wire();
        let twice = [wire.clone(), wire].concat();
        assert_eq!(Fingerprint::from_wire(twice), own);
    }

    #[test]
    fn damaged_lines_are_refused() {
        let field = |rest: &str| ParseError::Field(rest.to_owned());
        for (line, expected) in [
            ("a=1", ParseError::Prefix),
            ("VITRIOL-FINGERPRINT: a=1  b=2", field(" b=2")),
            ("VITRIOL-FINGERPRINT: a=", field("a=")),
            ("VITRIOL-FINGERPRINT: a=1 ", field("a=1 ")),
            ("VITRIOL-FINGERPRINT: b=2 a=\"x", field("a=\"x")),
            ("VITRIOL-FINGERPRINT: a=\"x\"y", field("a=\"x\"y")),
            (
                "VITRIOL-FINGERPRINT: a=1 a=2",
                ParseError::Twice("a".into()),
            ),
        ] {
            assert_eq!(Fingerprint::parse(line), Err(expected), "{line}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(values in prop::collection::vec("[ -~\\n\"\\\\é]{0,12}", 1..8)) {
            let fields = values.into_iter().enumerate();
            let fields = fields.map(|(n, value)| (format!("{value}{n}"), value));
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
