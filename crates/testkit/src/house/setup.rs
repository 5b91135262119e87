//! What a test's house is started with.

use std::{
    fs::{self, DirBuilder, File},
    net::TcpListener,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result};

use crate::places;

/// Model, profile and flags of a house; the default is the default model with a profile of defaults.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    model: Option<PathBuf>,
    profile: String,
    listen: Option<String>,
    stdout_full: bool,
    environment: Vec<(&'static str, PathBuf)>,
}

impl Setup {
    /// Serves this model file.
    #[must_use]
    pub fn model(mut self, path: PathBuf) -> Setup {
        self.model = Some(path);
        self
    }

    /// Adds lines to the profile (TOML).
    #[must_use]
    pub fn profile(mut self, toml: &str) -> Setup {
        self.profile.push_str(toml);
        self.profile.push('\n');
        self
    }

    /// Listens on a port that is free now and known before the start. With port 0 a house keeps its
    /// sockets under its supervisor's pid; with a port that is named, other commands find them by it.
    /// Errors: no port is free.
    pub fn named_port(mut self) -> Result<Setup> {
        let probe = TcpListener::bind("127.0.0.1:0").context("look for a free port")?;
        self.listen = Some(probe.local_addr()?.to_string());
        Ok(self)
    }

    /// Lets every write to its standard output fail, as on a full disk.
    #[must_use]
    pub fn stdout_full(mut self) -> Setup {
        self.stdout_full = true;
        self
    }

    /// Sets a variable of its environment, which its daemons inherit, to a path.
    #[must_use]
    pub fn variable(mut self, name: &'static str, path: &Path) -> Setup {
        self.environment.push((name, path.to_owned()));
        self
    }

    /// The address that it will be told to listen on.
    pub fn listen(&self) -> &str {
        self.listen.as_deref().unwrap_or("127.0.0.1:0")
    }

    /// The command `vitriol ARGS` of this build, with every directory of the house below `directory`
    /// and nothing inherited that could point elsewhere.
    pub fn vitriol(directory: &Path) -> Result<Command> {
        let mut command = Command::new(places::binary("vitriol")?);
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin");
        command.env("HOME", directory).env("NO_COLOR", "1");
        for (variable, below) in [
            ("XDG_RUNTIME_DIR", "run"),
            ("XDG_STATE_HOME", "state"),
            ("XDG_CACHE_HOME", "cache"),
        ] {
            command.env(variable, directory.join(below));
        }
        Ok(command)
    }

    /// Starts `vitriol up` below `directory`; its output goes to `up.log` there.
    pub fn spawn_up(&self, directory: &Path) -> Result<Child> {
        for below in ["run", "state", "cache"] {
            let path = directory.join(below);
            DirBuilder::new()
                .mode(0o700)
                .recursive(true)
                .create(&path)
                .with_context(|| format!("make {}", path.display()))?;
        }
        let profile = directory.join("profile.toml");
        fs::write(&profile, &self.profile)
            .with_context(|| format!("write {}", profile.display()))?;
        let model = self.model.clone().map_or_else(places::default_model, Ok)?;
        let log = directory.join("up.log");
        let out = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("open {}", log.display()))?;
        let stdout = match self.stdout_full {
            true => File::options()
                .write(true)
                .open("/dev/full")
                .context("open /dev/full")?,
            false => out.try_clone().context("share the log")?,
        };
        Setup::vitriol(directory)?
            .envs(self.environment.iter().map(|(name, path)| (name, path)))
            .arg("up")
            .args(["--listen", self.listen()])
            .arg("--model")
            .arg(model)
            .arg("--profile")
            .arg(profile)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(out)
            .spawn()
            .context("start vitriol up")
    }
}
