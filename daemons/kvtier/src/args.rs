//! The command line.

use std::path::PathBuf;

use vitriol_chassis::{Environment, Exit, Failure, OrExit};
use vitriol_profile::{LogFormat, Overrides, Profile};

use crate::config::{Config, Places};

/// Keeps KV blocks in host memory and on disk, beyond the life of the process that computed them.
#[derive(Debug, clap::Parser)]
#[command(name = "vitriol-kvtier", version)]
pub struct Args {
    /// Profile (TOML); its [kvtier] must say that it is enabled
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Unix socket to serve on
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Unix socket that hands out the memory
    #[arg(long, value_name = "PATH")]
    arena_socket: Option<PathBuf>,
    /// Directory that has the records on disk, in mirror/, where the profile names none
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Do nothing but say by the exit code whether there is a tier to run: 1 where the profile has none
    #[arg(long)]
    check_enabled: bool,
}

impl Args {
    /// Whether the process ends with this answer, which units ask for before they start it.
    ///
    /// Errors: the profile has no tier (exit 1, without a word). A wrong profile is a reason to start: the
    /// start says what is wrong.
    pub fn check_enabled(&self) -> Result<bool, Failure> {
        let profile = Profile::load(self.profile.as_deref(), &Overrides::new());
        match profile.is_ok_and(|profile| !profile.kvtier.enabled) {
            true if self.check_enabled => Err(Failure::new(Exit::Finding, "")),
            _ => Ok(self.check_enabled),
        }
    }

    /// The settings these flags, the profile and the environment come to, and the log's form.
    ///
    /// Errors: of the profile or the directories (exit 78).
    pub fn load(self, environment: &Environment) -> Result<(Config, LogFormat), Failure> {
        let profile = Profile::load(self.profile.as_deref(), &Overrides::new())?;
        let dirs = environment.dirs_for(profile.house.listen)?;
        let places = Places {
            socket: self.socket,
            arena_socket: self.arena_socket,
            state_dir: self.state_dir,
        };
        let config = Config::new(&profile, places, &dirs).or_exit(Exit::Config)?;
        Ok((config, profile.house.log_format))
    }
}
