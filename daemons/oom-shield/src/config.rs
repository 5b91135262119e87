//! The shield's settings, typed: from the profile, the flags and the house's directories.

use std::{path::PathBuf, time::Duration};

use vitriol_ipc::HouseDirs;
use vitriol_profile::Profile;

use crate::decide::{Policy, Scope};

/// Time to give scores back in; it takes milliseconds.
const DRAIN: Duration = Duration::from_secs(5);

/// What flags say of places; each defaults to the house's directories.
#[derive(Clone, Debug, Default)]
pub struct Places {
    pub socket: Option<PathBuf>,
    pub state_dir: Option<PathBuf>,
}

/// Settings of the process.
#[derive(Clone, Debug)]
pub struct Config {
    pub socket: PathBuf,
    pub state_dir: PathBuf,
    pub policy: Policy,
    pub scan_interval: Duration,
    pub drain: Duration,
}

impl Config {
    /// Puts the settings together for a house of this `scope`.
    pub fn new(profile: &Profile, places: Places, dirs: &HouseDirs, scope: Scope) -> Self {
        let settings = &profile.shield;
        Self {
            socket: places.socket.unwrap_or_else(|| dirs.oom_shield_socket()),
            state_dir: places.state_dir.unwrap_or_else(|| dirs.oom_shield_state()),
            policy: Policy {
                // At most 1000 by the schema.
                raise_to: settings.raise_to as i32,
                resident_bytes_min: settings.resident_bytes_min.get(),
                scope,
                extra: settings.extra.clone(),
            },
            scan_interval: Duration::from_millis(settings.scan_interval_ms),
            drain: DRAIN,
        }
    }
}
