//! The shield's settings, typed: from the profile, the flags and the house's directories.

use std::{path::PathBuf, time::Duration};

use vitriol_ipc::HouseDirs;
use vitriol_profile::Profile;

use crate::{
    decide::{Policy, Scope},
    pressure::Thresholds,
    relief::{Shedding, Trimming},
};

/// The engine that is asked to take nothing new.
const ENGINE: &str = "main";

/// What kvtier is asked for at a time is this part of its arena: two seconds of pressure cost an eighth of
/// what is there, and pressure that lasts 16 s all of it.
const TRIM_PARTS: u64 = 8;

/// Time for which it does not take it again: several times what pressure may pause for.
const TRIM_HOLD: Duration = Duration::from_secs(30);

/// Time to give scores back in; it takes milliseconds.
const DRAIN: Duration = Duration::from_secs(5);

/// Settings of the process.
#[derive(Clone, Debug)]
pub struct Config {
    pub socket: PathBuf,
    pub engine_socket: PathBuf,
    pub kvtier_socket: PathBuf,
    pub state_dir: PathBuf,
    pub policy: Policy,
    pub scan_interval: Duration,
    pub thresholds: Thresholds,
    pub shedding: Shedding,
    /// Where the profile has a tier.
    pub trimming: Option<Trimming>,
    pub drain: Duration,
}

impl Config {
    /// Puts the settings together for a house of this `scope`; `state_dir` gets the record of raised scores.
    pub fn new(profile: &Profile, dirs: &HouseDirs, state_dir: PathBuf, scope: Scope) -> Self {
        let settings = &profile.shield;
        let deadline = Duration::from_millis(settings.shed_deadline_ms);
        let milliseconds = |ms: u32| Duration::from_millis(ms.into());
        Self {
            socket: dirs.oom_shield_socket(),
            engine_socket: dirs.engine_socket(ENGINE),
            kvtier_socket: dirs.kvtier_socket(),
            state_dir,
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
                deadline,
            },
            trimming: profile.kvtier.enabled.then(|| Trimming {
                bytes: profile.kvtier.arena_bytes.get() / TRIM_PARTS,
                hold: TRIM_HOLD,
                deadline,
            }),
            drain: DRAIN,
        }
    }
}
