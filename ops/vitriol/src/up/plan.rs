//! What `vitriol up` starts, with which files and flags.

use std::{
    ffi::OsString,
    fs, io,
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use vitriol_chassis::{Environment, Exit, Failure, OrExit};
use vitriol_ipc::{HouseDirs, create_private_dir};
use vitriol_profile::{
    Profile,
    catalog::{self, KnownModel},
    try_reading,
};

use super::{child::Launch, supervise::DaemonId};
use crate::cli::UpArgs;

/// Beyond its own drain deadline a daemon needs this long at most: the chassis gives a stuck one up
/// after five seconds and its threads another.
const STOP_GRACE: Duration = Duration::from_secs(8);

/// What the shield gives itself to give scores back in.
const SHIELD_DRAIN: Duration = Duration::from_secs(5);

/// The engine that this release runs.
const ENGINE_NAME: &str = "main";

/// A daemon of the house.
#[derive(Clone, Debug)]
pub struct Daemon {
    pub name: &'static str,
    pub binary: PathBuf,
    pub args: Vec<OsString>,
    pub status_socket: PathBuf,
    pub log: PathBuf,
    pub stop_deadline: Duration,
    /// It has memory that must outlive it (`FDSTORE=1`).
    pub keeps_memory: bool,
}

/// The house to be.
#[derive(Clone, Debug)]
pub struct Plan {
    pub dirs: HouseDirs,
    pub listen: SocketAddr,
    /// In start order: who gives something away on its way out, after who takes it.
    pub daemons: Vec<Daemon>,
    /// Demiurge's place among them.
    pub demiurge: DaemonId,
    profile: Profile,
    model: PathBuf,
    own_binary: PathBuf,
}

impl Plan {
    /// Settles settings and places; touches nothing.
    pub fn make(args: &UpArgs, environment: &Environment) -> Result<Self, Failure> {
        let profile = args.load()?;
        profile.check_runnable()?;
        let listen = profile.house.listen;
        let dirs = environment.dirs_for(listen)?;
        let own_binary = std::env::current_exe().or_exit(Exit::Internal)?;
        let bin_dir = match &args.bin_dir {
            Some(dir) => dir.clone(),
            None => own_binary.parent().map(Path::to_owned).unwrap_or_default(),
        };
        let engine = &profile.engines[ENGINE_NAME];
        let model = match profile.model(ENGINE_NAME) {
            Some(named) => environment.model_file(named)?,
            None => dirs.default_model(),
        };
        let model = std::path::absolute(&model)
            .with_context(|| format!("model file {}", model.display()))
            .or_exit(Exit::Config)?;
        let profile_file = dirs.runtime.join("profile.toml");
        let engine_socket = dirs.engine_socket(ENGINE_NAME);
        let tier = profile.kvtier.enabled.then(|| Daemon {
            name: "kvtier",
            binary: bin_dir.join("vitriol-kvtier"),
            args: arguments([
                "--profile".as_ref(),
                profile_file.as_path(),
                "--runtime-dir".as_ref(),
                &dirs.runtime,
                "--state-dir".as_ref(),
                &dirs.kvtier_state(),
            ]),
            status_socket: dirs.kvtier_socket(),
            log: dirs.log("kvtier"),
            stop_deadline: Duration::from_millis(profile.kvtier.drain_ms) + STOP_GRACE,
            keeps_memory: true,
        });
        let others = [
            Daemon {
                name: "engine",
                binary: bin_dir.join("vitriol-engine"),
                args: arguments([
                    "serve".as_ref(),
                    "--profile".as_ref(),
                    profile_file.as_path(),
                    "--name".as_ref(),
                    ENGINE_NAME.as_ref(),
                    "--socket".as_ref(),
                    &engine_socket,
                    "--runtime-dir".as_ref(),
                    &dirs.runtime,
                    "--model".as_ref(),
                    &model,
                ]),
                status_socket: engine_socket.clone(),
                log: dirs.log("engine"),
                stop_deadline: Duration::from_millis(engine.drain_ms) + STOP_GRACE,
                keeps_memory: false,
            },
            Daemon {
                name: "demiurge",
                binary: bin_dir.join("vitriol-demiurge"),
                args: arguments([
                    "--profile".as_ref(),
                    profile_file.as_path(),
                    "--engine-socket".as_ref(),
                    &engine_socket,
                    "--status-socket".as_ref(),
                    &dirs.demiurge_socket(),
                    "--state-dir".as_ref(),
                    &dirs.state,
                ]),
                status_socket: dirs.demiurge_socket(),
                log: dirs.log("demiurge"),
                stop_deadline: Duration::from_millis(profile.demiurge.drain_ms) + STOP_GRACE,
                keeps_memory: false,
            },
            Daemon {
                name: "oom-shield",
                binary: bin_dir.join("vitriol-oom-shield"),
                args: arguments([
                    "--profile".as_ref(),
                    profile_file.as_path(),
                    "--runtime-dir".as_ref(),
                    &dirs.runtime,
                    "--state-dir".as_ref(),
                    &dirs.oom_shield_state(),
                ]),
                status_socket: dirs.oom_shield_socket(),
                log: dirs.log("oom-shield"),
                stop_deadline: SHIELD_DRAIN + STOP_GRACE,
                keeps_memory: false,
            },
            Daemon {
                name: "persist",
                binary: bin_dir.join("vitriol-persist"),
                args: arguments([
                    "--profile".as_ref(),
                    profile_file.as_path(),
                    "--runtime-dir".as_ref(),
                    &dirs.runtime,
                    "--state-dir".as_ref(),
                    &dirs.persist_state(),
                ]),
                status_socket: dirs.persist_socket(),
                log: dirs.log("persist"),
                stop_deadline: STOP_GRACE,
                keeps_memory: false,
            },
        ];
        // Behind the engine.
        let demiurge = usize::from(tier.is_some()) + 1;
        let daemons = tier.into_iter().chain(others).collect();
        Ok(Self {
            demiurge,
            dirs,
            listen,
            daemons,
            profile,
            model,
            own_binary,
        })
    }

    /// The binaries and the model must be there.
    pub fn check_files(&self) -> Result<(), Failure> {
        for daemon in &self.daemons {
            if !daemon.binary.is_file() {
                let message = format!(
                    "{}: not found; build it with 'cargo build --release' or name its directory \
                     with --bin-dir",
                    daemon.binary.display()
                );
                return Err(Failure::new(Exit::Dependency, message));
            }
        }
        if let Err(error) = try_reading(&self.model) {
            let remedy = match (error.kind(), self.known_model()) {
                (io::ErrorKind::NotFound, Some(known)) if known == catalog::default_model() => {
                    "; fetch it with 'vitriol model fetch'".to_owned()
                }
                (io::ErrorKind::NotFound, Some(known)) => {
                    format!("; fetch it with 'vitriol model fetch {}'", known.name)
                }
                (io::ErrorKind::NotFound, None) => {
                    "; name another with --model (a file, or a name of \
                                                    'vitriol model list'), or leave it out for the \
                                                    default model"
                        .to_owned()
                }
                (io::ErrorKind::InvalidInput, _) => "; name another with --model".to_owned(),
                _ => String::new(),
            };
            let cause = match error.kind() {
                io::ErrorKind::NotFound => "not found".to_owned(),
                _ => error.to_string(),
            };
            let message = format!("model file {}: {cause}{remedy}", self.model.display());
            return Err(Failure::new(Exit::Dependency, message));
        }
        Ok(())
    }

    /// The model of the catalog whose place in the cache the model has.
    fn known_model(&self) -> Option<&'static KnownModel> {
        let models = self.dirs.models();
        let in_place = |known: &&KnownModel| self.model == models.join(known.file);
        catalog::KNOWN.iter().find(in_place)
    }

    /// Writes the settings in force for the daemons to read, makes room for their logs, and removes
    /// the address that a house before this one left.
    pub fn write_files(&self) -> Result<(), Failure> {
        let logs = self.dirs.log("engine");
        create_private_dir(logs.parent().unwrap_or(&self.dirs.state))?;
        let path = self.dirs.runtime.join("profile.toml");
        let write = || -> io::Result<()> {
            let mut file = fs::File::options()
                .create(true)
                .write(true)
                .truncate(true)
                .mode(0o600)
                .open(&path)?;
            io::Write::write_all(&mut file, self.profile.to_toml(false).as_bytes())?;
            match fs::remove_file(self.dirs.demiurge_address()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        };
        write()
            .with_context(|| format!("runtime file {}", path.display()))
            .or_exit(Exit::Dependency)
    }

    /// How to start a daemon now; Demiurge goes back to the address it had `bound`, which port 0
    /// would not give it again.
    pub fn launch(&self, id: DaemonId, bound: Option<SocketAddr>) -> Launch {
        let daemon = &self.daemons[id];
        let mut args = daemon.args.clone();
        if id == self.demiurge {
            args.extend([
                "--listen".into(),
                bound.unwrap_or(self.listen).to_string().into(),
            ]);
        }
        Launch {
            binary: daemon.binary.clone(),
            args,
            log: daemon.log.clone(),
            log_bytes_max: self.profile.house.log_bytes_max.get(),
            kept: None,
        }
    }

    /// The command that chats with this house, as it can be typed elsewhere.
    pub fn chat_command(&self, bound: SocketAddr) -> String {
        let binary = self.own_binary.display();
        match bound == Profile::default().house.listen {
            true => format!("{binary} chat"),
            false => format!("{binary} chat --url http://{bound}"),
        }
    }
}

fn arguments<'a>(args: impl IntoIterator<Item = &'a Path>) -> Vec<OsString> {
    args.into_iter()
        .map(|arg| arg.as_os_str().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn plan(root: &Path, flags: &[&str]) -> Result<Plan, Failure> {
        let cli = Cli::try_parse_from(["vitriol", "up"].iter().chain(flags)).unwrap();
        let Command::Up(args) = cli.command else {
            panic!("up was given")
        };
        let mut environment = Environment::default();
        environment.base_dirs.home = Some(root.to_owned());
        environment.base_dirs.runtime = Some(root.join("run"));
        Plan::make(&args, &environment)
    }

    #[test]
    fn a_restarted_demiurge_keeps_its_address() {
        let root = tempfile::tempdir().unwrap();
        let plan = plan(root.path(), &["--listen", "127.0.0.1:0"]).unwrap();
        let last_two = |launch: Launch| launch.args[launch.args.len() - 2..].to_vec();
        assert_eq!(
            last_two(plan.launch(plan.demiurge, None)),
            ["--listen", "127.0.0.1:0"]
        );
        let bound = "127.0.0.1:4242".parse().unwrap();
        assert_eq!(
            last_two(plan.launch(plan.demiurge, Some(bound))),
            ["--listen", "127.0.0.1:4242"]
        );
        assert!(
            plan.chat_command(bound)
                .ends_with("chat --url http://127.0.0.1:4242")
        );
    }

    #[test]
    fn a_tier_that_is_enabled_starts_first_and_so_ends_last() {
        let root = tempfile::tempdir().unwrap();
        let names = |flags: &[&str]| {
            let plan = plan(root.path(), flags).unwrap();
            assert_eq!(plan.daemons[plan.demiurge].name, "demiurge");
            let names = plan.daemons.iter().map(|daemon| daemon.name);
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&[]), "engine demiurge oom-shield persist");
        let enabled = names(&["--set", "kvtier.enabled=true"]);
        assert_eq!(enabled, "kvtier engine demiurge oom-shield persist");
    }

    #[test]
    fn what_is_missing_is_named_with_the_remedy() {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("bin");
        let flags = ["--bin-dir", bin.to_str().unwrap()];
        let plan = plan(root.path(), &flags).unwrap();
        let failure = plan.check_files().unwrap_err();
        assert_eq!(failure.exit, Exit::Dependency);
        assert!(
            failure.message.contains("vitriol-engine: not found"),
            "{failure}"
        );
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("vitriol-engine"), "").unwrap();
        fs::write(bin.join("vitriol-demiurge"), "").unwrap();
        fs::write(bin.join("vitriol-oom-shield"), "").unwrap();
        fs::write(bin.join("vitriol-persist"), "").unwrap();
        let failure = plan.check_files().unwrap_err();
        assert!(
            failure
                .message
                .ends_with("fetch it with 'vitriol model fetch'"),
            "{failure}"
        );
        fs::create_dir_all(plan.dirs.models()).unwrap();
        fs::create_dir(plan.dirs.default_model()).unwrap();
        let odd = plan.check_files().unwrap_err();
        assert!(odd.message.contains("is not a regular file"), "{odd}");
        fs::remove_dir(plan.dirs.default_model()).unwrap();
        fs::write(plan.dirs.default_model(), "").unwrap();
        plan.check_files().unwrap();
    }

    #[test]
    fn a_model_is_found_by_its_catalog_name_and_relative_to_its_profile() {
        let root = tempfile::tempdir().unwrap();
        let by_name = plan(root.path(), &["--model", "gemma-3-270m"]).unwrap();
        let file = by_name.dirs.models().join("gemma-3-270m-q4_k_m.gguf");
        assert_eq!(by_name.model, file);
        assert_eq!(by_name.daemons[0].args.last(), Some(&file.into_os_string()));
        let known = by_name.known_model().map(|known| known.name);
        assert_eq!(known, Some("gemma-3-270m"));

        let profile = root.path().join("p.toml");
        let with = |model: &str| {
            let text = format!("[engine.main]\nmodel = \"{model}\"\n");
            fs::write(&profile, text).unwrap();
            plan(root.path(), &["--profile", profile.to_str().unwrap()])
        };
        assert_eq!(with("m.gguf").unwrap().model, root.path().join("m.gguf"));
        assert_eq!(with("~/m.gguf").unwrap().model, root.path().join("m.gguf"));
        let refused = with("~other/m.gguf").unwrap_err();
        assert_eq!(refused.exit, Exit::Config);
        assert!(
            refused.message.contains("write the whole path"),
            "{refused}"
        );
    }

    #[test]
    fn the_daemons_read_the_settings_in_force() {
        let root = tempfile::tempdir().unwrap();
        let plan = plan(root.path(), &["--threads", "3", "--model", "/m.gguf"]).unwrap();
        create_private_dir(plan.dirs.demiurge_address().parent().unwrap()).unwrap();
        fs::write(plan.dirs.demiurge_address(), "stale").unwrap();
        plan.write_files().unwrap();
        let file = plan.dirs.runtime.join("profile.toml");
        let read = Profile::load(Some(&file), &vitriol_profile::Overrides::new()).unwrap();
        assert_eq!(read.engines[ENGINE_NAME].threads, 3);
        assert!(!plan.dirs.demiurge_address().exists());
        assert!(plan.dirs.log("engine").parent().unwrap().is_dir());
    }

    #[test]
    fn a_second_engine_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let profile = root.path().join("p.toml");
        fs::write(&profile, "[engine.big]\n").unwrap();
        let failure = plan(root.path(), &["--profile", profile.to_str().unwrap()]).unwrap_err();
        assert_eq!(failure.exit, Exit::Config);
        assert!(failure.message.contains("[engine.big]"), "{failure}");
    }
}
