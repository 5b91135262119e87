//! `vitriol logs`: what the daemons logged, from the journal or from the files of `vitriol up`.

mod files;
mod journal;
mod line;
mod since;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use vitriol_chassis::{Environment, Exit, Failure};
use vitriol_ipc::{BaseDirs, HouseDirs};
use vitriol_profile::Overrides;

pub use self::since::{Lines, Since};
use crate::{cli::LogsArgs, house, term};

/// A daemon whose log can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Unit {
    Engine,
    Demiurge,
    OomShield,
    Kvtier,
    Persist,
}

/// Where the log is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// Wherever this house logs.
    Auto,
    /// Of the units that `vitriol install` set up for the machine.
    Journal,
    /// Of the units of `vitriol install --user`.
    UserJournal,
    /// Of `vitriol up`, in the state directory.
    Files,
}

/// What is asked for, wherever it is found.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// `None` for all.
    pub unit: Option<Unit>,
    pub session: Option<String>,
    pub lane: Option<String>,
    pub since: Option<Since>,
    pub lines: Lines,
    pub follow: bool,
}

pub async fn run(args: &LogsArgs, environment: &Environment) -> Result<(), Failure> {
    let listen = args.settings.load(Overrides::new())?.house.listen;
    let dirs = house::locate(&environment.dirs()?, listen);
    let wanted = Wanted {
        unit: args.unit,
        session: args.session.clone(),
        lane: args.lane.clone(),
        since: args.since,
        lines: args.lines,
        follow: args.follow,
    };
    let place = match args.from {
        Place::Auto => Found::look(&dirs, &environment.base_dirs, Path::new("/")).decide(),
        named => named,
    };
    let user = match place {
        Place::Journal => false,
        Place::UserJournal => true,
        Place::Files | Place::Auto if args.print_command => {
            let message = format!(
                "--print-command: this house logs to files in {}, for which there is no journalctl \
                 command; add --from journal",
                files::directory(&dirs).display()
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        Place::Files | Place::Auto => return files::show(&dirs, &wanted).await,
    };
    let arguments = journal::arguments(&wanted, user);
    match args.print_command {
        true => term::print(format_args!("{}\n", journal::command_line(&arguments))),
        false => journal::show(&arguments, environment.path.as_deref()),
    }
}

/// The facts that say where a house logs.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// `vitriol up` runs it.
    up: bool,
    system_units: bool,
    user_units: bool,
}

impl Found {
    fn look(dirs: &HouseDirs, base: &BaseDirs, root: &Path) -> Self {
        const UNIT: &str = "vitriol-demiurge.service";
        let system = [
            "etc/systemd/system",
            "usr/local/lib/systemd/system",
            "usr/lib/systemd/system",
        ];
        let under_home = |set: &Option<PathBuf>, tail: &str| {
            let home = base.home.as_ref().map(|home| home.join(tail));
            set.clone().or(home).map(|dir| dir.join("systemd/user"))
        };
        let user = [
            under_home(&base.config, ".config"),
            under_home(&base.data, ".local/share"),
            Some(root.join("etc/systemd/user")),
        ];
        Self {
            up: house::is_up(dirs),
            system_units: system.iter().any(|dir| root.join(dir).join(UNIT).exists()),
            user_units: user.iter().flatten().any(|dir| dir.join(UNIT).exists()),
        }
    }

    fn decide(self) -> Place {
        match self {
            Found { up: true, .. } => Place::Files,
            Found {
                system_units: true, ..
            } => Place::Journal,
            Found {
                user_units: true, ..
            } => Place::UserJournal,
            _ => Place::Files,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_running_house_logs_to_files_else_installed_units_to_the_journal() {
        let of = |up, system_units, user_units| {
            Found {
                up,
                system_units,
                user_units,
            }
            .decide()
        };
        assert_eq!(of(true, true, true), Place::Files);
        assert_eq!(of(false, true, true), Place::Journal);
        assert_eq!(of(false, false, true), Place::UserJournal);
        assert_eq!(of(false, false, false), Place::Files);
    }

    #[test]
    fn units_are_found_where_systemd_looks() {
        let root = tempfile::tempdir().unwrap();
        let dirs = house::tests::dirs(root.path());
        let base = BaseDirs {
            home: Some(root.path().join("home")),
            ..BaseDirs::default()
        };
        let look = || Found::look(&dirs, &base, root.path()).decide();
        assert_eq!(look(), Place::Files);
        let put = |dir: &str| {
            fs::create_dir_all(root.path().join(dir)).unwrap();
            fs::write(root.path().join(dir).join("vitriol-demiurge.service"), "").unwrap();
        };
        put("home/.config/systemd/user");
        assert_eq!(look(), Place::UserJournal);
        put("etc/systemd/system");
        assert_eq!(look(), Place::Journal);
    }
}
