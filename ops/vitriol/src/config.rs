//! `vitriol config`: the settings, where each came from, and the profile in use.
//!
//! The profile in use is the one that every command and `vitriol up` take when none is named:
//! `vitriol/vitriol.toml` in the user's configuration directory, where the units of
//! `vitriol install --user` find it too. The machine's own house has its in /etc/vitriol.

mod diff;
mod load;
mod save;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use vitriol_chassis::{Environment, Exit, Failure};
use vitriol_ipc::BaseDirs;
use vitriol_profile::{
    Entry, ModelReference, Origin, Overrides, Plain, Profile, reference_markdown,
};

use crate::{
    cli::{ConfigCommand, SettingArgs},
    term,
};

/// The profile in use of the house that `vitriol install` sets up for the machine.
const SYSTEM_PROFILE: &str = "/etc/vitriol/vitriol.toml";

pub fn run(command: ConfigCommand, environment: &Environment) -> Result<(), Failure> {
    match command {
        ConfigCommand::Show {
            settings,
            origin,
            json,
        } => {
            let profile = settings.load(Overrides::new())?;
            match json {
                true => term::print(format_args!("{:#}\n", settings_json(&profile))),
                false => term::print(profile.to_toml(origin)),
            }
        }
        ConfigCommand::Check { file, json } => check(&file, json),
        ConfigCommand::Diff { a, b, json } => {
            let sides = diff::Sides::choose(a, b, in_use(&environment.base_dirs))?;
            match json {
                true => term::print(format_args!("{:#}\n", sides.to_json())),
                false => term::print(sides.describe()),
            }
        }
        ConfigCommand::Load { file, system } => {
            let place = match system {
                true => PathBuf::from(SYSTEM_PROFILE),
                false => user_profile(&environment.base_dirs).ok_or_else(no_home)?,
            };
            load::run(&file, &place, system, environment)
        }
        ConfigCommand::Save {
            file,
            settings,
            force,
        } => save::run(&settings.load(Overrides::new())?, &file, force),
        ConfigCommand::Reference => term::print(reference_markdown()),
    }
}

/// Takes the profile in use where the command line names none.
pub fn use_installed(settings: &mut SettingArgs, environment: &Environment) {
    if settings.profile.is_none() {
        settings.profile = in_use(&environment.base_dirs);
    }
}

/// Reads a profile and asks whether this release can run it: what `up` would say of it.
fn read_runnable(file: &Path) -> Result<Profile, Failure> {
    let profile = Profile::load(Some(file), &Overrides::new())?;
    match profile.check_runnable() {
        Ok(()) => Ok(profile),
        Err(error) => {
            let message = format!("profile {}: {error}", file.display());
            Err(Failure::new(Exit::Config, message))
        }
    }
}

fn check(file: &Path, json: bool) -> Result<(), Failure> {
    let checked = read_runnable(file);
    if json {
        let error = checked.as_ref().err().map(|failure| &failure.message);
        let report = json!({
            "file": file.to_string_lossy(),
            "ok": checked.is_ok(),
            "error": error,
        });
        term::print(format_args!("{report:#}\n"))?;
        // The report says it all.
        return checked
            .map(|_| ())
            .map_err(|failure| Failure::new(failure.exit, ""));
    }
    checked?;
    term::print(format_args!("{}: ok\n", file.display()))
}

/// Refuses to write a profile where a relative path of its model would start in another directory than
/// it does now.
fn check_model_stays(profile: &Profile, place: &Path) -> Result<(), Failure> {
    let directory = |path: &Path| std::path::absolute(path.join("."));
    for name in profile.engines.keys() {
        let Some(model) = profile.model(name).filter(ModelReference::is_relative) else {
            continue;
        };
        let there = place.parent().unwrap_or(Path::new(""));
        let stays = match (directory(model.relative_to), directory(there)) {
            (Ok(here), Ok(there)) => here == there,
            _ => false,
        };
        if !stays {
            let (given, place) = (model.given.display(), place.display());
            let message = format!(
                "engine.{name}.model '{given}' is a relative path and would be another file in {place}; \
                 write the whole path, or ~/…"
            );
            return Err(Failure::new(Exit::Config, message));
        }
    }
    Ok(())
}

/// Where the user's profile in use lies; `None` without a home.
fn user_profile(base: &BaseDirs) -> Option<PathBuf> {
    let absolute = |path: &Option<PathBuf>| path.clone().filter(|path| path.is_absolute());
    let config = absolute(&base.config).or_else(|| Some(absolute(&base.home)?.join(".config")))?;
    Some(config.join("vitriol/vitriol.toml"))
}

/// The user's profile in use, if there is one.
fn in_use(base: &BaseDirs) -> Option<PathBuf> {
    user_profile(base).filter(|path| path.exists())
}

fn no_home() -> Failure {
    let message = "no place for the profile: neither XDG_CONFIG_HOME nor HOME is set; set \
                   XDG_CONFIG_HOME";
    Failure::new(Exit::Config, message)
}

/// Every setting with its value and origin.
fn settings_json(profile: &Profile) -> Value {
    let settings = profile.entries();
    let settings = settings.iter().map(|entry| {
        let (value, origin) = (value_json(entry), origin_json(&entry.origin));
        json!({"key": entry.key, "value": value, "origin": origin})
    });
    json!({"settings": settings.collect::<Vec<_>>()})
}

fn value_json(entry: &Entry) -> Value {
    match entry.plain() {
        Plain::Text(text) => text.into(),
        Plain::Integer(n) => n.into(),
        Plain::Share(share) => share.as_f64().into(),
        Plain::Boolean(value) => value.into(),
    }
}

fn origin_json(origin: &Origin) -> Value {
    match origin {
        Origin::Default => json!({"kind": "default"}),
        Origin::Flag(flag) => json!({"kind": "flag", "flag": flag}),
        Origin::File { path, line } => {
            json!({"kind": "file", "path": path.to_string_lossy(), "line": line})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_for_programs() {
        let text = "[engine.main]\nthreads = 3\nmodel = '/m.gguf'\n";
        let flags = Overrides::new().set("house.listen", Some("127.0.0.1:9"), "--listen");
        let profile = Profile::parse(Path::new("p.toml"), text, &flags).unwrap();
        let shown = settings_json(&profile);
        let of = |key: &str| {
            let all = shown["settings"].as_array().unwrap();
            all.iter()
                .find(|setting| setting["key"] == key)
                .unwrap()
                .clone()
        };
        let picked: Vec<Value> = [
            "house.listen",
            "engine.main.model",
            "engine.main.threads",
            "engine.main.kv_bytes_max",
            "engine.main.share_prefixes",
        ]
        .map(of)
        .into();
        insta::assert_snapshot!(format!("{:#}", Value::from(picked)));
        assert_eq!(
            shown["settings"].as_array().unwrap().len(),
            profile.entries().len()
        );
    }

    #[test]
    fn the_profile_in_use_is_the_users_and_only_if_it_is_there() {
        let home = tempfile::tempdir().unwrap();
        let mut base = BaseDirs {
            home: Some(home.path().to_owned()),
            ..BaseDirs::default()
        };
        let place = home.path().join(".config/vitriol/vitriol.toml");
        assert_eq!(user_profile(&base), Some(place.clone()));
        assert_eq!(in_use(&base), None);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(&place, "").unwrap();
        assert_eq!(in_use(&base), Some(place));
        base.config = Some("relative".into());
        assert!(in_use(&base).is_some(), "a relative XDG path is ignored");
        base.config = Some("/c".into());
        assert_eq!(user_profile(&base), Some("/c/vitriol/vitriol.toml".into()));
        assert_eq!(user_profile(&BaseDirs::default()), None);
    }
    #[test]
    fn a_profile_is_not_written_where_its_model_would_be_another() {
        let with = |model: &str| {
            let text = format!("[engine.main]\nmodel = \"{model}\"\n");
            Profile::parse(Path::new("/a/p.toml"), &text, &Overrides::new()).unwrap()
        };
        check_model_stays(&with("m.gguf"), Path::new("/a/q.toml")).unwrap();
        let refused = check_model_stays(&with("m.gguf"), Path::new("/b/p.toml")).unwrap_err();
        assert_eq!(refused.exit, Exit::Config);
        assert!(
            refused.message.contains("write the whole path"),
            "{refused}"
        );
        for model in ["/m.gguf", "~/m.gguf", "gemma-3-270m", ""] {
            check_model_stays(&with(model), Path::new("/b/p.toml")).unwrap();
        }
    }
}
