//! The command line.

use std::path::PathBuf;

use vitriol_chassis::{Environment, Failure};
use vitriol_profile::{LogFormat, Overrides, Profile};

use crate::{
    config::{Config, Places},
    decide::Scope,
};

/// Offers the kernel's OOM killer large processes of others before the house.
#[derive(Debug, clap::Parser)]
#[command(name = "vitriol-oom-shield", version)]
pub struct Args {
    /// Profile (TOML); without it every setting has its default
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Unix socket to serve on
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Unix socket of the engine
    #[arg(long, value_name = "PATH")]
    engine_socket: Option<PathBuf>,
    /// Unix socket of the KV tier, which is asked where the profile enables it
    #[arg(long, value_name = "PATH")]
    kvtier_socket: Option<PathBuf>,
    /// Directory of the record of raised scores
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Raise processes of every person (uid 1000 and above), not of this user alone; needs CAP_DAC_OVERRIDE
    #[arg(long)]
    all_users: bool,
}

impl Args {
    /// The settings these flags, the profile and the environment come to, and the log's form.
    ///
    /// Errors: of the profile or the directories (exit 78).
    pub fn load(self, environment: &Environment) -> Result<(Config, LogFormat), Failure> {
        let profile = Profile::load(self.profile.as_deref(), &Overrides::new())?;
        let dirs = environment.dirs_for(profile.house.listen)?;
        let places = Places {
            socket: self.socket,
            engine_socket: self.engine_socket,
            kvtier_socket: self.kvtier_socket,
            state_dir: self.state_dir,
        };
        let scope = match self.all_users {
            true => Scope::People,
            false => Scope::User(rustix::process::geteuid().as_raw()),
        };
        let config = Config::new(&profile, places, &dirs, scope);
        Ok((config, profile.house.log_format))
    }
}
