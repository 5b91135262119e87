//! What can be wrong with a profile, in the words of whoever wrote it.

use std::{io, net::IpAddr, path::PathBuf};

/// Why a profile was refused. The daemons exit with 78 (config) on it.
///
/// A message does not repeat its source: print the whole chain.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("profile {path}: cannot be read")]
    Read { path: PathBuf, source: io::Error },
    #[error("profile {path}: is not a regular file; name one")]
    NotAFile { path: PathBuf },
    #[error("profile {path}, line {line}: {message}")]
    Syntax {
        path: PathBuf,
        line: usize,
        message: String,
    },
    #[error("profile {path}, line {line}: unknown {what} '{key}'; did you mean '{nearest}'?")]
    UnknownKey {
        path: PathBuf,
        line: usize,
        what: &'static str,
        key: String,
        nearest: String,
    },
    #[error("profile {path}, line {line}: {key}")]
    Value {
        path: PathBuf,
        line: usize,
        key: String,
        source: ValueError,
    },
    #[error("profile {path}, line {line}: '{key}' holds settings; write [{key}]")]
    NotATable {
        path: PathBuf,
        line: usize,
        key: String,
    },
    #[error("{flag}")]
    Flag { flag: String, source: ValueError },
    #[error("{flag}: no setting is called '{key}'; did you mean '{nearest}'?")]
    UnknownOverride {
        flag: String,
        key: String,
        nearest: String,
    },
    #[error("{key}: the shares of all tenants are more than 1 together; lower some of them")]
    Shares { key: String },
    #[error("{key}: a tenant with a share has a name of 1 to 64 of a-z, A-Z, 0-9, '-', '_'")]
    TenantName { key: String },
    #[error("{key}: engine name '{name}' must be 1 to 32 of a-z, 0-9, '-'")]
    EngineName { key: String, name: String },
    #[error(
        "listen address {address} can be reached from other machines, and this release has no keys to \
         keep them out; listen on 127.0.0.1 and forward the port (ssh -L) instead"
    )]
    NotLoopback { address: IpAddr },
    #[error(
        "engine '{name}' in the profile: this release runs '{runs}' only; remove [engine.{name}]"
    )]
    OtherEngine { name: String, runs: &'static str },
}

/// Why a value does not fit its setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    #[error("expected {expected}, found {found}")]
    Type {
        expected: &'static str,
        found: String,
    },
    #[error("{value} is outside {low} to {high}")]
    Range { value: i128, low: i128, high: i128 },
    #[error("'{found}' is none of {choices}")]
    Choice { found: String, choices: String },
    #[error(transparent)]
    Bytes(#[from] vitriol_units::BytesError),
    #[error("'{0}' is no address; write for instance \"127.0.0.1:8265\"")]
    Address(String),
}
