//! The command line.

use std::path::PathBuf;

use vitriol_chassis::{Environment, Failure};
use vitriol_profile::{LogFormat, Overrides, Profile};

use crate::{config::Config, ending::Manager};

/// Watches the daemons of the house and ends one that hangs, for its supervisor to start it again.
#[derive(Debug, clap::Parser)]
#[command(name = "vitriol-persist", version)]
pub struct Args {
    /// Profile (TOML); without it every setting has its default
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Directory of the house's sockets, persist's own among them; without it the default place
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// Who is asked to end a daemon; without it the daemon gets the signal from this process
    #[arg(long, value_name = "MANAGER")]
    manager: Option<Manager>,
}

impl Args {
    /// The settings these flags, the profile and the environment come to, and the log's form.
    ///
    /// Errors: of the profile or the directories (exit 78).
    pub fn load(self, environment: &Environment) -> Result<(Config, LogFormat), Failure> {
        let profile = Profile::load(self.profile.as_deref(), &Overrides::new())?;
        let mut dirs = environment.dirs_for(profile.house.listen)?;
        if let Some(runtime) = self.runtime_dir {
            dirs.runtime = runtime;
        }
        let config = Config::new(&profile, self.manager, &dirs);
        Ok((config, profile.house.log_format))
    }
}
