//! Which files an installed house is made of, and where each lies.

use std::path::{Path, PathBuf};

use vitriol_chassis::{Exit, Failure};
use vitriol_ipc::BaseDirs;
use vitriol_profile::catalog;

/// Whose house it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The machine's: static users, started at boot.
    System,
    /// One user's: that user's own manager runs it.
    User,
}

macro_rules! embed {
    ($directory:literal: $($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../", $directory, "/", $name)))),*]
    };
}

type Texts = &'static [(&'static str, &'static str)];

const SYSTEM_UNITS: Texts = embed!("units/system":
    "vitriol.target", "vitriol.slice", "vitriol-demiurge.socket", "vitriol-demiurge.service",
    "vitriol-engine@.service", "vitriol-oom-shield.service", "vitriol-kvtier.service", "vitriol-persist.service");
const USER_UNITS: Texts = embed!("units/user":
    "vitriol.target", "vitriol.slice", "vitriol-demiurge.socket", "vitriol-demiurge.service",
    "vitriol-engine@.service", "vitriol-oom-shield.service", "vitriol-kvtier.service", "vitriol-persist.service");
const CUDA: &str = include_str!("../../../../units/system/cuda.conf");
const SYSUSERS: &str = include_str!("../../../../units/sysusers.d/vitriol.conf");
const TMPFILES: &str = include_str!("../../../../units/tmpfiles.d/vitriol.conf");
const POLKIT: &str = include_str!("../../../../units/polkit/50-vitriol.rules");
const CATALOG: &str = include_str!("../../../../units/catalog/vitriol.catalog");
const RUNBOOKS: Texts = embed!("docs/runbooks":
    "README.md", "answers-are-slow.md", "conversations-are-computed-again.md", "daemon-hangs.md", "decisions-are-not-written.md", "engine-does-not-start.md",
    "engine-is-lost.md", "engine-was-killed-by-the-watchdog.md", "kv-is-not-on-disk.md", "launch-changed.md", "memory-is-short.md", "oom-shield-is-degraded.md", "port-is-held.md",
    "requests-are-refused.md");

/// A file of text to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub path: PathBuf,
    pub text: String,
}

/// Where everything lies on the machine that will run it; `root` is the tree in which that machine
/// stands here, if it is another one.
#[derive(Clone, Debug)]
pub struct Layout {
    pub scope: Scope,
    pub root: Option<PathBuf>,
    pub bin: PathBuf,
    pub units: PathBuf,
    /// Directory of the link that has the house started at boot.
    pub wants: PathBuf,
    pub docs: PathBuf,
    /// The profile.
    pub config: PathBuf,
    /// Where models are copied to; a user's house takes them where they are.
    pub models: Option<PathBuf>,
    pub sysusers: Option<PathBuf>,
    pub tmpfiles: Option<PathBuf>,
    pub catalog: Option<PathBuf>,
    /// What persist may ask of systemd. In /etc, for polkit looks into no directory of ours everywhere.
    pub polkit: Option<PathBuf>,
    /// Directories of sockets, which mean nothing once no daemon runs.
    pub runtime: Vec<PathBuf>,
}

impl Layout {
    /// The machine's house: what is ours below /usr/local, so that /etc holds only what its
    /// administrator wrote.
    pub fn system() -> Self {
        let ours = Path::new("/usr/local");
        Self {
            scope: Scope::System,
            root: None,
            bin: ours.join("bin"),
            units: ours.join("lib/systemd/system"),
            wants: "/etc/systemd/system/multi-user.target.wants".into(),
            docs: ours.join("share/doc/vitriol"),
            config: "/etc/vitriol/vitriol.toml".into(),
            models: Some("/var/lib/vitriol/models".into()),
            sysusers: Some(ours.join("lib/sysusers.d/vitriol.conf")),
            tmpfiles: Some(ours.join("lib/tmpfiles.d/vitriol.conf")),
            catalog: Some(ours.join("lib/systemd/catalog/vitriol.catalog")),
            polkit: Some("/etc/polkit-1/rules.d/50-vitriol.rules".into()),
            runtime: vec!["/run/vitriol".into()],
        }
    }

    /// The house of the user with these directories.
    ///
    /// Errors: HOME is not set (78).
    pub fn user(base: &BaseDirs) -> Result<Self, Failure> {
        let home = base.home.as_ref().filter(|home| home.is_absolute());
        let Some(home) = home else {
            let message = "no place for the user's units: HOME is not set; set it";
            return Err(Failure::new(Exit::Config, message));
        };
        let absolute = |path: &Option<PathBuf>| path.clone().filter(|path| path.is_absolute());
        let data = absolute(&base.data).unwrap_or_else(|| home.join(".local/share"));
        let config = absolute(&base.config).unwrap_or_else(|| home.join(".config"));
        Ok(Self {
            scope: Scope::User,
            root: None,
            bin: home.join(".local/bin"),
            units: data.join("systemd/user"),
            wants: config.join("systemd/user/default.target.wants"),
            docs: data.join("doc/vitriol"),
            config: config.join("vitriol/vitriol.toml"),
            models: None,
            sysusers: None,
            tmpfiles: None,
            catalog: None,
            polkit: None,
            runtime: Vec::new(),
        })
    }

    /// The same in the tree `root`.
    #[must_use]
    pub fn below(self, root: &Path) -> Self {
        Self {
            root: Some(root.to_owned()),
            ..self
        }
    }

    /// Every text file but the profile.
    pub fn files(&self) -> Vec<File> {
        let units = match self.scope {
            Scope::System => SYSTEM_UNITS,
            Scope::User => USER_UNITS,
        };
        let mut files: Vec<File> = units
            .iter()
            .map(|(name, text)| self.file(self.units.join(name), text))
            .collect();
        for (place, text) in [
            (&self.sysusers, SYSUSERS),
            (&self.tmpfiles, TMPFILES),
            (&self.catalog, CATALOG),
            (&self.polkit, POLKIT),
        ] {
            files.extend(place.iter().map(|path| self.file(path.clone(), text)));
        }
        if self.scope == Scope::System {
            files.push(self.file(self.docs.join("cuda.conf"), CUDA));
        }
        let runbooks = self.docs.join("runbooks");
        files.extend(
            RUNBOOKS
                .iter()
                .map(|(name, text)| self.file(runbooks.join(name), text)),
        );
        files
    }

    fn file(&self, path: PathBuf, text: &str) -> File {
        let text = text
            .replace("@bindir@", &in_quotes(&self.bin))
            .replace("@docdir@", &in_uri(&self.docs));
        File { path, text }
    }

    /// The profile of a new house.
    pub fn profile(&self, model: Option<&Path>) -> String {
        let default = self.models.as_ref();
        let default = default.map(|models| models.join(catalog::default_model().file));
        let (restart, user) = match self.scope {
            Scope::System => ("sudo systemctl", ""),
            Scope::User => ("systemctl --user", " of this user"),
        };
        let model = match model.map(Path::to_path_buf).or(default) {
            Some(model) => format!("model = {}\n", toml_string(&model.to_string_lossy())),
            None => "# model = \"/path/to/model.gguf\"\n".to_owned(),
        };
        format!(
            "# Settings of the VITRIOL house{user}. What is not named here has its default.\n\
             # Every setting: vitriol config reference. After a change:\n\
             #   vitriol config check {} && {restart} restart vitriol.target\n\
             \n\
             [engine.main]\n{model}",
            self.config.display()
        )
    }

    /// What outlives the house unless it is purged, and what it is.
    pub fn lasting(&self) -> Vec<(PathBuf, &'static str)> {
        let config = self.config.parent().unwrap_or(&self.config).to_owned();
        match self.scope {
            Scope::System => vec![
                (config, "settings"),
                ("/var/lib/vitriol".into(), "models and decisions"),
                ("/var/cache/vitriol".into(), "repacked weights"),
            ],
            // State and models are shared with `vitriol up`.
            Scope::User => vec![(config, "settings")],
        }
    }
}

/// A path as it is written between the quotes of a word in a unit, where `%` begins a specifier and
/// `\` an escape.
fn in_quotes(path: &Path) -> String {
    let mut text = String::new();
    for c in path.to_string_lossy().chars() {
        match c {
            '%' => text.push_str("%%"),
            '"' | '\\' => text.extend(['\\', c]),
            c if c.is_ascii_control() => text.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => text.push(c),
        }
    }
    text
}

/// A path as it is written in a URI in a unit, where the `%` of an escape must be doubled.
fn in_uri(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.to_string_lossy().bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => text.push(byte.into()),
            byte if byte.is_ascii_alphanumeric() => text.push(byte.into()),
            byte => text.push_str(&format!("%%{byte:02X}")),
        }
    }
    text
}

/// A TOML string with this value.
fn toml_string(value: &str) -> String {
    let mut text = String::from("\"");
    for c in value.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            c if c.is_control() => text.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => text.push(c),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use vitriol_profile::{Overrides, Profile};

    use super::*;

    fn user() -> Layout {
        Layout::user(&BaseDirs {
            home: Some("/home/u".into()),
            ..BaseDirs::default()
        })
        .unwrap()
    }

    /// What the repository has and the binary does not carry would be forgotten at every install.
    #[test]
    fn every_unit_and_runbook_is_installed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let names = |directory: &str| -> BTreeSet<String> {
            fs::read_dir(root.join(directory))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect()
        };
        let carried = |texts: Texts| -> BTreeSet<String> {
            texts.iter().map(|(name, _)| (*name).to_owned()).collect()
        };
        let mut system = carried(SYSTEM_UNITS);
        system.insert("cuda.conf".into());
        assert_eq!(names("units/system"), system);
        assert_eq!(names("units/user"), carried(USER_UNITS));
        assert_eq!(names("docs/runbooks"), carried(RUNBOOKS));
    }

    /// One unit too many could be signalled by whoever takes persist over; one too few could not be ended.
    #[test]
    fn polkit_lets_persist_signal_the_units_it_watches_and_nothing_else() {
        let (_, rest) = POLKIT.split_once("/^vitriol-(").unwrap();
        let (named, rest) = rest
            .split_once(r#")\.service$/.test(action.lookup("unit"))"#)
            .unwrap();
        let named: BTreeSet<&str> = named.split('|').collect();
        let watched = SYSTEM_UNITS.iter().filter_map(|(name, _)| {
            let unit = name.strip_prefix("vitriol-")?.strip_suffix(".service")?;
            (unit != "persist").then_some(match unit {
                "engine@" => "engine@[A-Za-z0-9_-]+",
                other => other,
            })
        });
        assert_eq!(named, watched.collect());
        let persist = SYSTEM_UNITS
            .iter()
            .find(|(name, _)| *name == "vitriol-persist.service");
        assert!(persist.unwrap().1.contains("\nUser=vitriol-persist\n"));
        assert!(rest.contains(
            r#" &&
        subject.user == "vitriol-persist")"#
        ));
        for condition in [
            r#"action.id == "org.freedesktop.systemd1.manage-units" &&"#,
            r#"action.lookup("verb") == "kill" &&"#,
        ] {
            assert!(POLKIT.contains(condition), "{condition}");
        }
        assert!(!POLKIT.contains("||"), "conditions hold together");
        assert_eq!(POLKIT.matches("polkit.Result.YES").count(), 1);
    }

    #[test]
    fn no_placeholder_and_no_foreign_path_is_left_in_an_installed_file() {
        for layout in [Layout::system(), user()] {
            for file in layout.files() {
                let bare = file.text.replace("@SYSLOG_IDENTIFIER@", "");
                assert!(!bare.contains("@bindir@") && !bare.contains("@docdir@"));
                if layout.scope == Scope::User {
                    assert!(file.path.starts_with("/home/u"), "{}", file.path.display());
                }
            }
        }
        let engine = user()
            .files()
            .into_iter()
            .find(|file| file.path.ends_with("vitriol-engine@.service"));
        let text = engine.unwrap().text;
        assert!(
            text.contains("ExecStart=\"/home/u/.local/bin/vitriol-engine\" serve"),
            "{text}"
        );
    }

    #[test]
    fn a_home_of_any_name_stands_in_units_as_itself() {
        let layout = Layout::user(&BaseDirs {
            home: Some("/home/a b%h\"\\c".into()),
            ..BaseDirs::default()
        });
        let files = layout.unwrap().files();
        let socket = files
            .iter()
            .find(|file| file.path.ends_with("vitriol-demiurge.socket"));
        let text = &socket.unwrap().text;
        for line in [
            r#"ExecStartPre="/home/a b%%h\"\\c/.local/bin/vitriol" check-port 127.0.0.1:8265"#,
            "Documentation=file:///home/a%%20b%%25h%%22%%5Cc/.local/share/doc/vitriol/runbooks/README.md",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }

    /// A user's unit that named a user, or a system directive, would not start at all.
    #[test]
    fn the_two_sets_differ_only_where_the_managers_do() {
        for ((name, system), (_, user)) in SYSTEM_UNITS.iter().zip(USER_UNITS) {
            let only_roots = [
                "User=",
                "Group=",
                "PrivateNetwork=",
                "ProtectSystem=",
                "/run/vitriol",
            ];
            for directive in only_roots {
                let found = user.lines().any(|line| line.starts_with(directive));
                assert!(!found, "{name}: {directive}");
            }
            for same in [
                "Type=",
                "Restart=",
                "RestartPreventExitStatus=",
                "WatchdogSec=",
                "ListenStream=",
            ] {
                let value = |text: &str| {
                    text.lines()
                        .find(|line| line.starts_with(same))
                        .map(str::to_owned)
                };
                assert_eq!(value(system), value(user), "{name}");
            }
        }
    }

    #[test]
    fn a_new_profile_is_valid_and_names_the_model() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("p.toml");
        let model = Path::new("/m/a \"b\" \\c.gguf");
        for (layout, model, expected) in [
            (Layout::system(), Some(model), model),
            (user(), Some(model), model),
            (user(), None, Path::new("")),
            (
                Layout::system(),
                None,
                Path::new("/var/lib/vitriol/models/SmolLM2-135M-Instruct.Q4_1.gguf"),
            ),
        ] {
            fs::write(&file, layout.profile(model)).unwrap();
            let profile = Profile::load(Some(&file), &Overrides::new()).unwrap();
            assert_eq!(profile.engine("main").unwrap().model, expected);
        }
    }

    #[test]
    fn xdg_places_are_taken_unless_relative() {
        let layout = Layout::user(&BaseDirs {
            home: Some("/home/u".into()),
            config: Some("/c".into()),
            data: Some("relative".into()),
            ..BaseDirs::default()
        })
        .unwrap();
        assert_eq!(layout.config, Path::new("/c/vitriol/vitriol.toml"));
        assert_eq!(layout.units, Path::new("/home/u/.local/share/systemd/user"));
        assert_eq!(
            Layout::user(&BaseDirs::default()).unwrap_err().exit,
            Exit::Config
        );
    }
}
