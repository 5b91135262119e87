//! How a process of the house ends.

use std::{fmt, process::ExitCode};

use vitriol_ipc::{BindError, DirsError};
use vitriol_profile::ProfileError;

/// Exit codes of every binary (a part of sysexits.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    Ok,
    /// A check that the caller asked for found a fault (`vitriol doctor`); daemons never end so.
    Finding,
    /// The command line is wrong.
    Usage,
    /// Something needed is missing, or a port, socket or lock is held by another.
    Dependency,
    /// A fault of ours.
    Internal,
    /// The profile or a file it names is wrong.
    Config,
}

impl Exit {
    /// The number that the process ends with.
    pub const fn code(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Finding => 1,
            Exit::Usage => 64,
            Exit::Dependency => 69,
            Exit::Internal => 70,
            Exit::Config => 78,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// Why a process ends before its time: a code for whoever started it and one line for people,
/// which names operation, operand and, where there is one, the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub exit: Exit,
    /// Empty when everything was said already.
    pub message: String,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
        }
    }

    /// An error and its sources as one line, `outer: inner: innermost`.
    pub fn of(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        Self::new(exit, format!("{:#}", error.into()).replace('\n', "; "))
    }

    /// The end of a process that printed what was asked (`--help`).
    pub(crate) fn silent(exit: Exit) -> Self {
        Self::new(exit, "")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<anyhow::Error> for Failure {
    /// An error nobody classified is a fault of ours.
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<Classified>() {
            Ok(classified) => classified.0,
            Err(error) => Failure::of(Exit::Internal, error),
        }
    }
}

/// A failure on its way through `anyhow`, so that `?` in main code keeps the exit code.
#[derive(Debug)]
struct Classified(Failure);

impl fmt::Display for Classified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Classified {}

impl From<Failure> for anyhow::Error {
    fn from(failure: Failure) -> Self {
        anyhow::Error::new(Classified(failure))
    }
}

impl From<ProfileError> for Failure {
    fn from(error: ProfileError) -> Self {
        let exit = match error {
            ProfileError::Flag { .. } | ProfileError::UnknownOverride { .. } => Exit::Usage,
            _ => Exit::Config,
        };
        Failure::of(exit, error)
    }
}

impl From<BindError> for Failure {
    fn from(error: BindError) -> Self {
        let exit = match error {
            BindError::AddressHeld { .. } | BindError::Io { .. } => Exit::Dependency,
            BindError::PathTooLong { .. } | BindError::NotASocket { .. } | BindError::Dirs(_) => {
                Exit::Config
            }
        };
        Failure::of(exit, error)
    }
}

impl From<DirsError> for Failure {
    fn from(error: DirsError) -> Self {
        Failure::of(Exit::Config, error)
    }
}

/// Gives an error its exit code.
pub trait OrExit<T> {
    /// The failure with `exit` and the error's own words.
    fn or_exit(self, exit: Exit) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> OrExit<T> for Result<T, E> {
    fn or_exit(self, exit: Exit) -> Result<T, Failure> {
        self.map_err(|error| Failure::of(exit, error))
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_chain_of_causes_becomes_one_line() {
        let error = std::io::Error::other("disk\non fire");
        let result: Result<(), Failure> = Err::<(), _>(error)
            .context("state directory /s")
            .or_exit(Exit::Dependency);
        let failure = result.unwrap_err();
        assert_eq!(
            failure,
            Failure::new(Exit::Dependency, "state directory /s: disk; on fire")
        );
    }

    #[test]
    fn the_exit_code_survives_anyhow() {
        let inner = || -> anyhow::Result<()> { Err(Failure::new(Exit::Config, "no"))? };
        assert_eq!(Failure::from(inner().unwrap_err()).exit, Exit::Config);
        let wrapped = inner().context("while starting").unwrap_err();
        let failure = Failure::from(wrapped);
        assert_eq!(failure.exit, Exit::Config);
        let plain = Failure::from(anyhow::anyhow!("odd"));
        assert_eq!(plain, Failure::new(Exit::Internal, "odd"));
    }

    #[test]
    fn errors_of_the_lower_crates_have_their_codes() {
        let held = BindError::AddressHeld {
            path: "/r/main.sock".into(),
            pid: Some(7),
        };
        let failure = Failure::from(held);
        assert_eq!(failure.exit, Exit::Dependency);
        assert_eq!(
            failure.message,
            "socket /r/main.sock is held by process 7; stop that first"
        );
    }
}
