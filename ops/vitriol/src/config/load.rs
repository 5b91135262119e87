//! `vitriol config load`: a checked profile becomes the one in use.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use vitriol_chassis::{Environment, Exit, Failure};
use vitriol_profile::{Change, Overrides, Profile};

use super::{check_model_stays, diff, read_runnable};
use crate::{house, term};

/// Others may read it: the daemons of an installed house are users of their own, and a profile holds
/// no secret.
const MODE: u32 = 0o644;

/// Installs `file` at `place` and says what it changes.
///
/// Errors: a profile that is wrong or that this release cannot run (78; what is in use stays), a
/// place that cannot be written (69).
pub fn run(
    file: &Path,
    place: &Path,
    system: bool,
    environment: &Environment,
) -> Result<(), Failure> {
    let profile = read_runnable(file)?;
    check_model_stays(&profile, place)?;
    let before = Before::find(place, system, environment);
    let text = fs::read(file).map_err(|error| unwritten("read", file, &error))?;
    let backup = install(place, &text)?;

    let mut said = format!("{}: in use with the next start\n", place.display());
    if let Some(backup) = backup {
        said += &format!("{}: what was in use before\n", backup.display());
    }
    said += &report(&before, &profile, system);
    term::print(said)
}

/// What the new settings are compared with.
#[derive(Debug)]
struct Before {
    profile: Profile,
    /// In the words of the report.
    what: &'static str,
}

impl Before {
    /// The settings in force of a house that `vitriol up` runs, else those in use so far.
    fn find(place: &Path, system: bool, environment: &Environment) -> Self {
        let read = |path: &Path| Profile::load(Some(path), &Overrides::new()).ok();
        let in_use = read(place);
        let listen = in_use
            .as_ref()
            .map_or(Profile::default().house.listen, |p| p.house.listen);
        let running = environment
            .dirs()
            .ok()
            .filter(|_| !system)
            .map(|dirs| house::locate(&dirs, listen))
            .filter(house::is_up)
            .and_then(|dirs| read(&dirs.runtime.join("profile.toml")));
        match (running, in_use) {
            (Some(profile), _) => Self {
                profile,
                what: "the settings that the house runs with",
            },
            (None, Some(profile)) => Self {
                profile,
                what: "the profile in use before",
            },
            (None, None) => Self {
                profile: Profile::default(),
                what: "the defaults",
            },
        }
    }
}

/// What a restart changes, and which daemons it takes.
fn report(before: &Before, profile: &Profile, system: bool) -> String {
    let changes = before.profile.changes_to(profile);
    if changes.is_empty() {
        return format!("a restart changes nothing: these are {}\n", before.what);
    }
    let mut text = format!("a restart changes, against {}:\n", before.what);
    text += &diff::describe(&changes);
    let has_tier = before.profile.kvtier.enabled || profile.kvtier.enabled;
    let runs = |table: &str| table != "kvtier" || has_tier;
    let daemons: Vec<&str> = daemons_of(&changes).filter(|table| runs(table)).collect();
    if daemons.is_empty() {
        return text + "to restart: none, as none that runs reads them\n";
    }
    let moves = changes.iter().any(|change| change.key == "house.listen");
    text += &match system {
        true if moves => move_port(&profile.house.listen.to_string()),
        true => {
            let units = daemons.into_iter().map(|daemon| match daemon {
                "engine" => "vitriol-engine@main.service",
                "shield" => "vitriol-oom-shield.service",
                "kvtier" => "vitriol-kvtier.service",
                "persist" => "vitriol-persist.service",
                _ => "vitriol-demiurge.service",
            });
            format!(
                "restart with: systemctl restart {}\n",
                units.collect::<Vec<_>>().join(" ")
            )
        }
        false => {
            let daemons = daemons.into_iter().map(|table| match table {
                "shield" => "oom-shield",
                other => other,
            });
            let daemons = daemons.collect::<Vec<_>>().join(" and ");
            format!("to restart: {daemons}\n")
        }
    };
    text
}

/// How the port of an installed house moves to `listen`, which its socket unit decides.
fn move_port(listen: &str) -> String {
    format!(
        "the address is vitriol-demiurge.socket's: systemctl edit vitriol-demiurge.socket, with\n\
         [Socket]\n\
         ListenStream=\n\
         ListenStream={listen}\n\
         ExecStartPre=\n\
         ExecStartPre=/usr/local/bin/vitriol check-port {listen}\n\
         restart with: systemctl restart vitriol.target\n\
         (a restart of the socket restarts the engine as well, which loads its model again)\n"
    )
}

/// The daemons that read the changed settings, by their tables.
fn daemons_of(changes: &[Change]) -> impl Iterator<Item = &'static str> {
    let reads = |daemon: &'static str| {
        let table = format!("{daemon}.");
        let own =
            |change: &Change| change.key.starts_with("house.") || change.key.starts_with(&table);
        changes.iter().any(own).then_some(daemon)
    };
    let tables = ["engine", "demiurge", "shield", "kvtier", "persist"];
    tables.map(reads).into_iter().flatten()
}

/// Puts `text` in `place`; what was there, if it was something else, is kept beside it. Returns
/// where.
fn install(place: &Path, text: &[u8]) -> Result<Option<PathBuf>, Failure> {
    let kept = match fs::read(place) {
        Ok(old) if old == text => None,
        Ok(old) => {
            let backup = place.with_extension("toml.bak");
            write_whole(&backup, &old)?;
            Some(backup)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(unwritten("read", place, &error)),
    };
    write_whole(place, text)?;
    Ok(kept)
}

/// Writes a file so that at any moment its name stands for all of the old or all of the new, and a
/// crash afterwards does not bring the old one back. Its directory is made where it is missing.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let write = || -> io::Result<()> {
        fs::create_dir_all(parent)?;
        let mut draft = tempfile::NamedTempFile::new_in(parent)?;
        draft.write_all(bytes)?;
        draft
            .as_file()
            .set_permissions(Permissions::from_mode(MODE))?;
        draft.as_file().sync_all()?;
        draft.persist(path).map_err(|error| error.error)?;
        File::open(parent)?.sync_all()
    };
    write().map_err(|error| unwritten("write", path, &error))
}

fn unwritten(operation: &str, path: &Path, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => "; run this as a user who may, for /etc as root",
        io::ErrorKind::StorageFull => "; free some space",
        io::ErrorKind::ReadOnlyFilesystem => "; name a place that can be written",
        _ => "",
    };
    let message = format!("{operation} {}: {error}{remedy}", path.display());
    Failure::new(Exit::Dependency, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(text: &str) -> Profile {
        Profile::parse(Path::new("p.toml"), text, &Overrides::new()).unwrap()
    }

    fn reported(text: &str, system: bool) -> String {
        let before = Before {
            profile: Profile::default(),
            what: "the defaults",
        };
        report(&before, &profile(text), system)
    }

    #[test]
    fn the_report_names_what_changes_and_whom_it_takes() {
        assert_eq!(
            reported("[engine.main]\nthreads = 3\n", false),
            "a restart changes, against the defaults:\n\
             engine.main.threads  0 (default) -> 3 (p.toml:2)\n\
             to restart: engine\n"
        );
        let both = reported("[house]\nlisten = '127.0.0.1:9'\n", true);
        assert!(
            both.contains("ListenStream=\nListenStream=127.0.0.1:9\nExecStartPre=\n"),
            "{both}"
        );
        assert!(both.contains("restart vitriol.target\n"), "{both}");
        let both = reported("[house]\nlog_format = 'json'\n", true);
        assert!(
            both.ends_with(
                "systemctl restart vitriol-engine@main.service vitriol-demiurge.service \
                 vitriol-oom-shield.service vitriol-persist.service\n"
            ),
            "{both}"
        );
        let demiurge = reported("[demiurge]\nrequests_max = 3\n", true);
        assert!(
            demiurge.ends_with("systemctl restart vitriol-demiurge.service\n"),
            "{demiurge}"
        );
        let shield = reported("[shield]\nraise_to = 500\n", false);
        assert!(shield.ends_with("to restart: oom-shield\n"), "{shield}");
        let kvtier = reported("[kvtier]\nenabled = true\n", true);
        assert!(
            kvtier.ends_with("systemctl restart vitriol-kvtier.service\n"),
            "{kvtier}"
        );
        let unused = reported("[kvtier]\narena_bytes = '2 GiB'\n", true);
        assert!(unused.contains("to restart: none, as "), "{unused}");
        assert!(reported("", false).starts_with("a restart changes nothing"));
    }

    #[test]
    fn what_was_in_use_is_kept_and_nothing_is_half_written() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("vitriol/vitriol.toml");
        let backup = dir.path().join("vitriol/vitriol.toml.bak");
        assert_eq!(install(&place, b"# 1\n").unwrap(), None);
        assert_eq!(install(&place, b"# 1\n").unwrap(), None, "the same again");
        assert_eq!(install(&place, b"# 2\n").unwrap(), Some(backup.clone()));
        assert_eq!(fs::read(&place).unwrap(), b"# 2\n");
        assert_eq!(fs::read(&backup).unwrap(), b"# 1\n");
        let mode = fs::metadata(&place).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        let names = fs::read_dir(place.parent().unwrap()).unwrap();
        assert_eq!(names.count(), 2, "no draft is left");
        // A place that cannot be written names itself.
        let failure = install(&place.join("below/a/file"), b"").unwrap_err();
        assert_eq!(failure.exit, Exit::Dependency);
        assert!(failure.message.contains("below/a/file"), "{failure}");
    }
}
