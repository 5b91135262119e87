//! The command line.

use std::path::PathBuf;

use vitriol_chassis::{Environment, Failure};
use vitriol_profile::{LogFormat, Overrides, Profile};

use crate::config::{Config, Places};

/// Serves the OpenAI API on loopback and passes requests on to the engine.
#[derive(Debug, clap::Parser)]
#[command(name = "vitriol-demiurge", version)]
pub struct Args {
    /// Profile (TOML); without it every setting has its default
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Address to listen on; port 0 takes a free one [profile: house.listen]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Unix socket of the engine
    #[arg(long, value_name = "PATH")]
    engine_socket: Option<PathBuf>,
    /// Unix socket on which the status is served
    #[arg(long, value_name = "PATH")]
    status_socket: Option<PathBuf>,
    /// Directory of decisions.jsonl
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl Args {
    /// The settings these flags, the profile and the environment come to, and the log's form.
    ///
    /// Errors: of the flags (exit 64), of the profile or the directories (78).
    pub fn load(self, environment: &Environment) -> Result<(Config, LogFormat), Failure> {
        let overrides = Overrides::new().set("house.listen", self.listen, "--listen");
        let profile = Profile::load(self.profile.as_deref(), &overrides)?;
        let dirs = environment
            .dirs()?
            .for_listen(profile.house.listen, std::process::id());
        let places = Places {
            engine_socket: self.engine_socket,
            status_socket: self.status_socket,
            state_dir: self.state_dir,
        };
        Ok((
            Config::new(&profile, places, &dirs)?,
            profile.house.log_format,
        ))
    }
}
