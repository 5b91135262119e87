//! The command line.

use std::path::PathBuf;

use vitriol_chassis::{Environment, Exit, Failure, HouseArgs, OrExit};
use vitriol_profile::LogFormat;

use crate::config::Config;

/// Keeps KV blocks in host memory and on disk, beyond the life of the process that computed them.
#[derive(Debug, clap::Parser)]
#[command(name = "vitriol-kvtier", version)]
pub struct Args {
    #[command(flatten)]
    house: HouseArgs,
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
        match self
            .house
            .profile()
            .is_ok_and(|profile| !profile.kvtier.enabled)
        {
            true if self.check_enabled => Err(Failure::new(Exit::Finding, "")),
            _ => Ok(self.check_enabled),
        }
    }

    /// The settings these flags, the profile and the environment come to, and the log's form.
    ///
    /// Errors: of the profile or the directories (exit 78).
    pub fn load(self, environment: &Environment) -> Result<(Config, LogFormat), Failure> {
        let (profile, dirs) = self.house.house(environment)?;
        let state_dir = self.state_dir.unwrap_or_else(|| dirs.kvtier_state());
        let config = Config::new(&profile, &dirs, &state_dir).or_exit(Exit::Config)?;
        Ok((config, profile.house.log_format))
    }
}
