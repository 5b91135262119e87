//! The command line.

use std::path::PathBuf;

use vitriol_chassis::{Environment, Failure, HouseArgs};
use vitriol_profile::LogFormat;

use crate::{config::Config, decide::Scope};

/// Offers the kernel's OOM killer large processes of others before the house.
#[derive(Debug, clap::Parser)]
#[command(name = "vitriol-oom-shield", version)]
pub struct Args {
    #[command(flatten)]
    house: HouseArgs,
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
        let (profile, dirs) = self.house.house(environment)?;
        let state_dir = self.state_dir.unwrap_or_else(|| dirs.oom_shield_state());
        let scope = match self.all_users {
            true => Scope::People,
            false => Scope::User(rustix::process::geteuid().as_raw()),
        };
        let config = Config::new(&profile, &dirs, state_dir, scope);
        Ok((config, profile.house.log_format))
    }
}
