//! The command line.

use std::path::PathBuf;

use vitriol_chassis::{Environment, Failure, HouseArgs};
use vitriol_profile::LogFormat;

use crate::config::Config;

/// Watches the daemons of the house and ends one that hangs, for its supervisor to start it again.
#[derive(Debug, clap::Parser)]
#[command(name = "vitriol-persist", version)]
pub struct Args {
    #[command(flatten)]
    house: HouseArgs,
    /// Directory of the record of launches
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Have systemd send the signals that end a daemon, by its unit; without it they come from this process
    #[arg(long)]
    ask_systemd: bool,
}

impl Args {
    /// The settings these flags, the profile and the environment come to, and the log's form.
    ///
    /// Errors: of the profile or the directories (exit 78).
    pub fn load(self, environment: &Environment) -> Result<(Config, LogFormat), Failure> {
        let (profile, dirs) = self.house.house(environment)?;
        let state_dir = self.state_dir.unwrap_or_else(|| dirs.persist_state());
        let config = Config::new(&profile, &dirs, state_dir, self.ask_systemd);
        Ok((config, profile.house.log_format))
    }
}
