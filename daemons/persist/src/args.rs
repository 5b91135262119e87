//! The command line.

use vitriol_chassis::{Environment, Failure, HouseArgs};
use vitriol_profile::LogFormat;

use crate::config::Config;

/// Watches the daemons of the house and ends one that hangs, for its supervisor to start it again.
#[derive(Debug, clap::Parser)]
#[command(name = "vitriol-persist", version)]
pub struct Args {
    #[command(flatten)]
    house: HouseArgs,
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
        let config = Config::new(&profile, self.ask_systemd, &dirs);
        Ok((config, profile.house.log_format))
    }
}
