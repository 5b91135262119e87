//! From flags, a file and defaults to one checked profile, with the origin of every value.

mod source;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use toml::de::{DeTable, DeValue};

use crate::{
    ModelReference, ProfileError,
    reference::{fields_of, nearest, table_of},
    schema::{Demiurge, Engine, House, KvTier, Persist, Section, Shield, Tenant},
    setting::{Raw, Setting, Share},
};
use source::{Source, read_regular};

/// Name of the engine that exists without being declared.
pub(crate) const MAIN: &str = "main";
/// Stands between an engine's table and those of its tenants.
pub(crate) const TENANTS: &str = ".tenants.";

/// Where a value came from; a flag wins over the file, the file over the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Flag(String),
    File { path: PathBuf, line: usize },
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(flag) => write!(f, "flag {flag}"),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// Settings given on a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(Vec<Override>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Override {
    key: String,
    value: String,
    flag: String,
}

impl Overrides {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `key` (`"house.listen"`) if the flag was given; `flag` is its name for messages.
    #[must_use]
    pub fn set<T: fmt::Display>(mut self, key: &str, value: Option<T>, flag: &str) -> Self {
        if let Some(value) = value {
            self.0.push(Override {
                key: key.to_owned(),
                value: value.to_string(),
                flag: flag.to_owned(),
            });
        }
        self
    }
}

/// One setting with its value and origin, as `vitriol config show` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Dotted name, `"engine.main.threads"`.
    pub key: String,
    /// The value as TOML source.
    pub value: String,
    pub origin: Origin,
}

/// A value without the clothes of TOML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plain {
    /// Texts, and whatever is written as one: sizes, addresses, choices.
    Text(String),
    Integer(i64),
    Share(Share),
    Boolean(bool),
}

impl Entry {
    /// The value as it is, for other notations than TOML.
    pub fn plain(&self) -> Plain {
        let source = format!("value = {}", self.value);
        let document = DeTable::parse(&source).ok();
        let value = document
            .as_ref()
            .and_then(|found| found.get_ref().get("value"));
        match value.map(|value| raw_of(value.get_ref())) {
            Some(Raw::Text(text)) => Plain::Text(text.to_owned()),
            Some(Raw::Integer(n)) => Plain::Integer(n),
            Some(raw @ Raw::Float(_)) => {
                Share::read(raw).map_or(Plain::Text(self.value.clone()), Plain::Share)
            }
            Some(Raw::Boolean(value)) => Plain::Boolean(value),
            // No setting writes anything else.
            _ => Plain::Text(self.value.clone()),
        }
    }
}

/// The settings of the house, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub house: House,
    /// By name; `main` is always there.
    pub engines: BTreeMap<String, Engine>,
    /// By engine and X-Tenant-Id.
    pub tenants: BTreeMap<String, BTreeMap<String, Tenant>>,
    pub demiurge: Demiurge,
    pub shield: Shield,
    pub persist: Persist,
    pub kvtier: KvTier,
    /// Of every value that is not the default, by dotted name.
    origins: BTreeMap<String, Origin>,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            house: House::default(),
            engines: BTreeMap::from([(MAIN.to_owned(), Engine::default())]),
            tenants: BTreeMap::new(),
            demiurge: Demiurge::default(),
            shield: Shield::default(),
            persist: Persist::default(),
            kvtier: KvTier::default(),
            origins: BTreeMap::new(),
        }
    }
}

impl Profile {
    /// Reads `file`, if there is one, and lays `overrides` over it.
    ///
    /// Errors: file not readable or no regular one, not TOML, a key that is not in the schema, a value of the wrong
    /// type or out of range, two values that contradict each other.
    pub fn load(file: Option<&Path>, overrides: &Overrides) -> Result<Self, ProfileError> {
        let mut profile = Self::default();
        if let Some(path) = file {
            profile.read_file(path, &read_regular(path)?)?;
        }
        for given in &overrides.0 {
            profile.apply_override(given)?;
        }
        profile.check()?;
        Ok(profile)
    }

    /// The same from TOML source; `path` is what messages call it.
    pub fn parse(path: &Path, text: &str, overrides: &Overrides) -> Result<Self, ProfileError> {
        let mut profile = Self::default();
        profile.read_file(path, text)?;
        for given in &overrides.0 {
            profile.apply_override(given)?;
        }
        profile.check()?;
        Ok(profile)
    }

    /// The defaults, with a tenant that stands for all.
    pub(crate) fn with_a_tenant() -> Self {
        let tenant = BTreeMap::from([("NAME".to_owned(), Tenant::default())]);
        Self {
            tenants: BTreeMap::from([(MAIN.to_owned(), tenant)]),
            ..Self::default()
        }
    }

    /// The engine called `name`, if the profile has one.
    pub fn engine(&self, name: &str) -> Option<&Engine> {
        self.engines.get(name)
    }

    /// What the profile says of the model of the engine called `name`, if there is such an engine. A
    /// path in a file is relative to that file, one in a flag to the current directory.
    pub fn model(&self, name: &str) -> Option<ModelReference<'_>> {
        let given = &self.engines.get(name)?.model;
        let relative_to = match self.origin(&format!("engine.{name}.model")) {
            Origin::File { path, .. } => path.parent(),
            Origin::Flag(_) | Origin::Default => None,
        };
        Some(ModelReference {
            given,
            relative_to: relative_to.unwrap_or(Path::new("")),
        })
    }

    /// Where the value of `key` (`"house.listen"`) came from.
    pub fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    /// Every setting in the schema's order.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        self.list("house", &self.house, &mut entries);
        for (name, engine) in &self.engines {
            self.list(&format!("engine.{name}"), engine, &mut entries);
            for (tenant, settings) in self.tenants.get(name).into_iter().flatten() {
                let table = format!("engine.{name}{TENANTS}{tenant}");
                self.list(&table, settings, &mut entries);
            }
        }
        self.list("demiurge", &self.demiurge, &mut entries);
        self.list("shield", &self.shield, &mut entries);
        self.list("persist", &self.persist, &mut entries);
        self.list("kvtier", &self.kvtier, &mut entries);
        entries
    }

    /// The whole profile as TOML source, which loads to the same values; with `origins`, each value
    /// has where it came from beside it.
    pub fn to_toml(&self, origins: bool) -> String {
        let mut text = String::new();
        let mut table = String::new();
        for Entry { key, value, origin } in self.entries() {
            let (section, field) = key.rsplit_once('.').unwrap_or(("", &key));
            if section != table {
                let gap = if table.is_empty() { "" } else { "\n" };
                text.push_str(&format!("{gap}[{section}]\n"));
                section.clone_into(&mut table);
            }
            text.push_str(&match origins {
                true => format!("{:<40} # {origin}\n", format!("{field} = {value}")),
                false => format!("{field} = {value}\n"),
            });
        }
        text
    }

    fn list<S: Section>(&self, table: &str, section: &S, entries: &mut Vec<Entry>) {
        for field in S::FIELDS {
            let key = format!("{table}.{}", field.name);
            let value = section.get(field.name).unwrap_or_default();
            let origin = self.origin(&key).clone();
            entries.push(Entry { key, value, origin });
        }
    }

    fn read_file(&mut self, path: &Path, text: &str) -> Result<(), ProfileError> {
        let source = Source { path, text };
        let document = DeTable::parse(text).map_err(|error| source.syntax(&error))?;
        for (name, value) in document.get_ref() {
            match name.get_ref().as_ref() {
                "engine" => {
                    for (engine, value) in source.table("engine", value)? {
                        let name = engine.get_ref();
                        let key = format!("engine.{name}");
                        check_engine_name(&key, name)?;
                        let table = source.table(&key, value).map_err(|error| match error {
                            // `[engine] threads = 4` forgets the engine's name.
                            ProfileError::NotATable { .. } => source.unknown(
                                engine,
                                "engine",
                                &key,
                                format!("engine.{MAIN}.{name}"),
                            ),
                            other => other,
                        })?;
                        self.read_table(&source, &key, table)?;
                    }
                }
                table @ ("house" | "demiurge" | "shield" | "persist" | "kvtier") => {
                    self.read_table(&source, table, source.table(table, value)?)?;
                }
                other => {
                    let nearest = nearest(
                        other,
                        ["house", "engine", "demiurge", "shield", "persist", "kvtier"],
                    );
                    return Err(source.unknown(name, "table", other, nearest));
                }
            }
        }
        Ok(())
    }

    fn read_table(
        &mut self,
        source: &Source<'_>,
        table: &str,
        values: &DeTable<'_>,
    ) -> Result<(), ProfileError> {
        // An empty `[engine.NAME]` declares an engine of defaults, a tenant's table likewise.
        let name = table.strip_prefix("engine.");
        let tenant = name.and_then(|name| name.split_once(TENANTS));
        if let Some((engine, tenant)) = tenant {
            let tenants = self.tenants.entry(engine.to_owned()).or_default();
            tenants.entry(tenant.to_owned()).or_default();
        } else if let Some(name) = name {
            self.engines.entry(name.to_owned()).or_default();
        }
        for (field, value) in values {
            let key = format!("{table}.{}", field.get_ref());
            if name.is_some() && tenant.is_none() && field.get_ref() == "tenants" {
                for (tenant, value) in source.table(&key, value)? {
                    let key = format!("{table}{TENANTS}{}", tenant.get_ref());
                    check_tenant_name(&key, tenant.get_ref())?;
                    self.read_table(source, &key, source.table(&key, value)?)?;
                }
                continue;
            }
            let line = source.line(value.span().start);
            match self.set(&key, raw_of(value.get_ref())) {
                Ok(()) => {
                    let origin = Origin::File {
                        path: source.path.to_owned(),
                        line,
                    };
                    self.origins.insert(key, origin);
                }
                Err(SetError::Unknown { nearest }) => {
                    return Err(source.unknown(field, "setting", &key, nearest));
                }
                Err(SetError::Value(error)) => {
                    let path = source.path.to_owned();
                    return Err(ProfileError::Value {
                        path,
                        line,
                        key,
                        source: error,
                    });
                }
            }
        }
        Ok(())
    }

    fn apply_override(&mut self, given: &Override) -> Result<(), ProfileError> {
        let Override { key, value, flag } = given;
        match self.set(key, Raw::Flag(value)) {
            Ok(()) => {
                self.origins.insert(key.clone(), Origin::Flag(flag.clone()));
                Ok(())
            }
            Err(SetError::Value(source)) => Err(ProfileError::Flag {
                flag: flag.clone(),
                source,
            }),
            Err(SetError::Unknown { nearest }) => Err(ProfileError::UnknownOverride {
                flag: flag.clone(),
                key: key.clone(),
                nearest,
            }),
        }
    }

    fn set(&mut self, key: &str, raw: Raw<'_>) -> Result<(), SetError> {
        let unknown = |nearest| SetError::Unknown { nearest };
        let (table, field) = key.rsplit_once('.').unwrap_or(("", key));
        let outcome = match table.split_once('.') {
            None if table == "house" => self.house.set(field, raw),
            None if table == "demiurge" => self.demiurge.set(field, raw),
            None if table == "shield" => self.shield.set(field, raw),
            None if table == "persist" => self.persist.set(field, raw),
            None if table == "kvtier" => self.kvtier.set(field, raw),
            Some(("engine", name)) => {
                let tenant = name.split_once(TENANTS);
                let settings = tenant.and_then(|(engine, tenant)| {
                    let tenants = self.tenants.get_mut(engine)?;
                    tenants.get_mut(tenant)
                });
                match (settings, self.engines.get_mut(name)) {
                    (Some(settings), _) => settings.set(field, raw),
                    (None, Some(engine)) => engine.set(field, raw),
                    (None, None) => {
                        let name = tenant.map_or(name, |(engine, _)| engine);
                        let known = nearest(name, self.engines.keys().map(String::as_str));
                        return Err(unknown(format!("engine.{known}.{field}")));
                    }
                }
            }
            _ => {
                let known = table_of(field).unwrap_or("house");
                return Err(unknown(format!("{known}.{field}")));
            }
        };
        match outcome {
            Some(result) => result.map_err(SetError::Value),
            None => Err(unknown(match table_of(field) {
                // The right name in the wrong table is likelier than a misspelt one.
                Some(known) if known != table && !table.starts_with("engine.") => {
                    format!("{known}.{field}")
                }
                _ => format!("{table}.{}", nearest(field, field_names(table))),
            })),
        }
    }

    fn check(&self) -> Result<(), ProfileError> {
        for (engine, tenants) in &self.tenants {
            if !Share::fit(tenants.values().map(|tenant| tenant.kv_share)) {
                return Err(ProfileError::Shares {
                    key: format!("engine.{engine}.tenants"),
                });
            }
        }
        Ok(())
    }
}

/// What a bare key of TOML can name, so that a dotted name is one.
fn check_tenant_name(key: &str, name: &str) -> Result<(), ProfileError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match (1..=64).contains(&name.len()) && name.chars().all(fits) {
        true => Ok(()),
        false => Err(ProfileError::TenantName {
            key: key.to_owned(),
        }),
    }
}

enum SetError {
    Unknown { nearest: String },
    Value(crate::ValueError),
}

fn field_names(table: &str) -> impl Iterator<Item = &'static str> {
    fields_of(table).iter().map(|field| field.name)
}

/// The name becomes part of a socket's path and of a unit's name.
fn check_engine_name(key: &str, name: &str) -> Result<(), ProfileError> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if (1..=32).contains(&name.len()) && name.chars().all(fits) {
        return Ok(());
    }
    Err(ProfileError::EngineName {
        key: key.to_owned(),
        name: name.to_owned(),
    })
}

fn raw_of<'a>(value: &'a DeValue<'_>) -> Raw<'a> {
    match value {
        DeValue::String(text) => Raw::Text(text),
        DeValue::Boolean(value) => Raw::Boolean(*value),
        DeValue::Float(float) => match float.as_str().parse() {
            Ok(x) => Raw::Float(x),
            Err(_) => Raw::Other("float"),
        },
        DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(n) => Raw::Integer(n),
            Err(_) => Raw::Other("integer beyond 64 bits"),
        },
        other => Raw::Other(other.type_str()),
    }
}

#[cfg(test)]
#[path = "load/tests.rs"]
mod tests;
