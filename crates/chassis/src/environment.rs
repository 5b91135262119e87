//! The one place where a process of the house reads its environment.

use std::{ffi::OsString, io::IsTerminal, path::PathBuf, time::Duration};

use vitriol_ipc::{BaseDirs, DirsError, HouseDirs};

/// What a process learns from its environment, read once by main and handed down.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// HOME and the XDG base directories.
    pub base_dirs: BaseDirs,
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
    /// `$JOURNAL_STREAM` is set: the journal stamps each line itself.
    pub journal: bool,
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
            },
            notify_socket: value("NOTIFY_SOCKET"),
            watchdog: watchdog_us.filter(|&us| us > 0).map(Duration::from_micros),
            supervised: text(SUPERVISED.0).is_some_and(|value| value == SUPERVISED.1),
            log_filter: text("VITRIOL_LOG"),
            isa: text("VITRIOL_ISA"),
            journal: value("JOURNAL_STREAM").is_some(),
            color: value("NO_COLOR").is_none() && std::io::stderr().is_terminal(),
            path: value("PATH"),
        }
    }

    /// The directories of the house on the default address.
    pub fn dirs(&self) -> Result<HouseDirs, DirsError> {
        HouseDirs::resolve(&self.base_dirs)
    }
}
