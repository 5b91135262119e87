//! The one place where a process of the house reads its environment.

use std::{
    ffi::OsString, io::IsTerminal, net::SocketAddr, os::fd::AsFd, path::PathBuf, time::Duration,
};

use vitriol_ipc::{BaseDirs, DirsError, HouseDirs, Inherited};
use vitriol_profile::{ModelFile, ModelReference};

use crate::{Exit, Failure};

/// What a process learns from its environment, read once by main and handed down.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// HOME and the XDG base directories.
    pub base_dirs: BaseDirs,
    /// `$CACHE_DIRECTORY`: the directory that systemd made for what this service keeps (`CacheDirectory=`).
    pub cache_directory: Option<PathBuf>,
    /// `$NOTIFY_SOCKET`: where systemd wants to hear of readiness.
    pub notify_socket: Option<OsString>,
    /// `$WATCHDOG_USEC`, when it is meant for this process.
    pub watchdog: Option<Duration>,
    /// `$VITRIOL_SUPERVISED=stdin`: `vitriol up` started this process and holds its standard input
    /// open; when that ends, so must the process.
    pub supervised: bool,
    /// `$VITRIOL_LOG`: tracing filter directives, `info` when unset.
    pub log_filter: Option<String>,
    /// `$VITRIOL_ISA`: overrides the profile's `engine.NAME.isa`.
    pub isa: Option<String>,
    /// Standard error is the stream that `$JOURNAL_STREAM` names: the log belongs in the journal.
    pub journal: bool,
    /// `$LISTEN_FDS`: what the service manager opened or kept for this process.
    pub inherited: Inherited,
    /// Standard error is a terminal and `$NO_COLOR` is unset.
    pub color: bool,
    /// `$PATH`.
    pub path: Option<OsString>,
}

/// Name and value of the variable that tells a daemon to watch its standard input.
pub const SUPERVISED: (&str, &str) = ("VITRIOL_SUPERVISED", "stdin");

impl Environment {
    /// Reads the environment of this process. Only mains call it, by way of [`crate::main`].
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the environment"
    )]
    pub fn from_process() -> Self {
        let value = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let text = |name: &str| value(name).and_then(|value| value.into_string().ok());
        let path = |name: &str| value(name).map(PathBuf::from);
        // The supervisor's own watchdog must not be taken for ours.
        let for_us = text("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let watchdog_us = text("WATCHDOG_USEC")
            .filter(|_| for_us)
            .and_then(|us| us.parse().ok());
        Self {
            base_dirs: BaseDirs {
                home: path("HOME"),
                runtime: path("XDG_RUNTIME_DIR"),
                state: path("XDG_STATE_HOME"),
                cache: path("XDG_CACHE_HOME"),
                config: path("XDG_CONFIG_HOME"),
                data: path("XDG_DATA_HOME"),
            },
            cache_directory: path("CACHE_DIRECTORY").filter(|path| path.is_absolute()),
            notify_socket: value("NOTIFY_SOCKET"),
            watchdog: watchdog_us.filter(|&us| us > 0).map(Duration::from_micros),
            supervised: text(SUPERVISED.0).is_some_and(|value| value == SUPERVISED.1),
            log_filter: text("VITRIOL_LOG"),
            isa: text("VITRIOL_ISA"),
            journal: text("JOURNAL_STREAM").is_some_and(|stream| is_stderr(&stream)),
            inherited: Inherited::from_process(text("LISTEN_FDNAMES").as_deref()),
            color: value("NO_COLOR").is_none() && std::io::stderr().is_terminal(),
            path: value("PATH"),
        }
    }

    /// The file that is meant by `model`; whether it is there is not looked at.
    ///
    /// Errors: a `~` that stands for no directory; no cache to look for a model of the catalog in.
    pub fn model_file(&self, model: ModelReference<'_>) -> Result<PathBuf, Failure> {
        match model.resolve(self.base_dirs.home.as_deref()) {
            Ok(ModelFile::Path(path)) => Ok(path),
            Ok(known) => Ok(self.dirs()?.model_file(known)),
            Err(error) => Err(Failure::of(Exit::Config, error)),
        }
    }

    /// Where the panels of models' weights are kept. Errors: no variable says where.
    pub fn panels_dir(&self) -> Result<PathBuf, DirsError> {
        match &self.cache_directory {
            Some(own) => Ok(own.join("panels")),
            None => Ok(self.dirs()?.panels()),
        }
    }

    /// The directories of this user's house on the default address.
    pub fn dirs(&self) -> Result<HouseDirs, DirsError> {
        HouseDirs::resolve(&self.base_dirs)
    }

    /// The directories of this user's house on `listen`, of which this process is one.
    pub fn dirs_for(&self, listen: SocketAddr) -> Result<HouseDirs, DirsError> {
        Ok(self.dirs()?.for_listen(listen, std::process::id()))
    }
}

/// Whether `stream`, device and inode as systemd writes them, is this process's standard error. The
/// variable alone says little: whatever a unit starts inherits it, with its own standard error.
fn is_stderr(stream: &str) -> bool {
    let Ok(found) = rustix::fs::fstat(std::io::stderr().as_fd()) else {
        return false;
    };
    stream == format!("{}:{}", found.st_dev, found.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_keeps_panels_in_its_own_cache() {
        let mut environment = Environment::default();
        assert!(environment.panels_dir().is_err());
        environment.base_dirs.home = Some("/home/u".into());
        let of_user = environment.panels_dir().unwrap();
        assert_eq!(of_user.to_str(), Some("/home/u/.cache/vitriol/panels"));
        environment.cache_directory = Some("/var/cache/vitriol".into());
        let of_service = environment.panels_dir().unwrap();
        assert_eq!(of_service.to_str(), Some("/var/cache/vitriol/panels"));
    }

    #[test]
    fn the_journal_is_known_by_device_and_inode() {
        let found = rustix::fs::fstat(std::io::stderr().as_fd()).unwrap();
        let (device, inode) = (found.st_dev, found.st_ino);
        assert!(is_stderr(&format!("{device}:{inode}")));
        assert!(!is_stderr(&format!("{device}:{}", inode + 1)));
        assert!(!is_stderr("8:42:1") && !is_stderr(""));
    }
}
