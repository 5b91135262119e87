//! The shield's settings, typed: from the profile, the flags and the house's directories.

use std::{path::PathBuf, time::Duration};

use vitriol_ipc::HouseDirs;
use vitriol_profile::Profile;

use crate::{
    decide::{Policy, Scope},
    pressure::Thresholds,
    relief::Shedding,
};

/// The engine that is asked to take nothing new.
const ENGINE: &str = "main";

/// Time to give scores back in; it takes milliseconds.
const DRAIN: Duration = Duration::from_secs(5);

/// What flags say of places; each defaults to the house's directories.
#[derive(Clone, Debug, Default)]
pub struct Places {
    pub socket: Option<PathBuf>,
    pub engine_socket: Option<PathBuf>,
    pub state_dir: Option<PathBuf>,
}

/// Settings of the process.
#[derive(Clone, Debug)]
pub struct Config {
    pub socket: PathBuf,
    pub engine_socket: PathBuf,
    pub state_dir: PathBuf,
    pub policy: Policy,
    pub scan_interval: Duration,
    pub thresholds: Thresholds,
    pub shedding: Shedding,
    pub drain: Duration,
}

impl Config {
    /// Puts the settings together for a house of this `scope`.
    pub fn new(profile: &Profile, places: Places, dirs: &HouseDirs, scope: Scope) -> Self {
        let settings = &profile.shield;
        let milliseconds = |ms: u32| Duration::from_millis(ms.into());
        Self {
            socket: places.socket.unwrap_or_else(|| dirs.oom_shield_socket()),
            engine_socket: places
                .engine_socket
                .unwrap_or_else(|| dirs.engine_socket(ENGINE)),
            state_dir: places.state_dir.unwrap_or_else(|| dirs.oom_shield_state()),
            policy: Policy {
                // At most 1000 by the schema.
                raise_to: settings.raise_to as i32,
                resident_bytes_min: settings.resident_bytes_min.get(),
                scope,
                extra: settings.extra.clone(),
            },
            scan_interval: Duration::from_millis(settings.scan_interval_ms),
            thresholds: Thresholds {
                some: milliseconds(settings.pressure_some_ms),
                full: milliseconds(settings.pressure_full_ms),
            },
            shedding: Shedding {
                duration: milliseconds(settings.shed_ms),
                deadline: Duration::from_millis(settings.shed_deadline_ms),
            },
            drain: DRAIN,
        }
    }
}
