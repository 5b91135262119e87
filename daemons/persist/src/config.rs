//! Persist's settings, typed: from the profile, the flags and the house's directories.

use std::{path::PathBuf, time::Duration};

use vitriol_chassis::IDLE_MAX;
use vitriol_ipc::HouseDirs;
use vitriol_profile::Profile;

use crate::restarts::BackOff;

/// Idle loops beat each [`IDLE_MAX`]: what stands still for less than this many of them need not hang.
const STILL_BEATS_MIN: u32 = 3;

/// Settings of the process.
#[derive(Clone, Debug)]
pub struct Config {
    pub socket: PathBuf,
    pub state_dir: PathBuf,
    /// Whether systemd sends the signals that end a daemon: this process may not where they are other users'.
    pub ask_systemd: bool,
    pub watched: Vec<Watched>,
    pub poll_interval: Duration,
    pub poll_deadline: Duration,
    pub hang_polls: u32,
    pub back_off: BackOff,
}

/// A daemon that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Of the daemon, as it stands in its status.
    pub name: String,
    pub unit: String,
    pub socket: PathBuf,
}

impl Config {
    /// Puts the settings together for the house in `dirs`; `state_dir` gets the record of launches.
    pub fn new(profile: &Profile, dirs: &HouseDirs, state_dir: PathBuf, ask_systemd: bool) -> Self {
        let settings = &profile.persist;
        let watched = |name: &str, unit: &str, socket| Watched {
            name: name.to_owned(),
            unit: format!("{unit}.service"),
            socket,
        };
        let engines = profile.engines.keys();
        let mut all: Vec<Watched> = engines
            .map(|name| {
                let unit = format!("vitriol-engine@{name}");
                watched("engine", &unit, dirs.engine_socket(name))
            })
            .collect();
        all.push(watched(
            "demiurge",
            "vitriol-demiurge",
            dirs.demiurge_socket(),
        ));
        all.push(watched(
            "oom-shield",
            "vitriol-oom-shield",
            dirs.oom_shield_socket(),
        ));
        if profile.kvtier.enabled {
            all.push(watched("kvtier", "vitriol-kvtier", dirs.kvtier_socket()));
        }
        let still_ms = u64::from(STILL_BEATS_MIN) * IDLE_MAX.as_millis() as u64;
        let still_polls_min = polls_of(still_ms, settings.poll_interval_ms);
        let longest = Duration::from_millis(settings.restart_pause_max_ms);
        Self {
            socket: dirs.persist_socket(),
            state_dir,
            ask_systemd,
            watched: all,
            poll_interval: Duration::from_millis(settings.poll_interval_ms),
            poll_deadline: Duration::from_millis(settings.poll_deadline_ms),
            hang_polls: settings.hang_polls.max(still_polls_min),
            back_off: BackOff {
                first: Duration::from_millis(settings.restart_pause_ms),
                longest,
                forgiven_after: 4 * longest,
            },
        }
    }
}

/// So many polls in a row take `lasting_ms`, or a little longer.
fn polls_of(lasting_ms: u64, interval_ms: u64) -> u32 {
    let polls = lasting_ms.div_ceil(interval_ms.max(1));
    u32::try_from(polls).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use vitriol_profile::Overrides;

    use super::*;

    #[test]
    fn what_the_profile_runs_is_watched() {
        let dirs = HouseDirs {
            runtime: "/r".into(),
            state: "/s".into(),
            cache: "/c".into(),
        };
        let units = |profile: &Profile| -> Vec<String> {
            let config = Config::new(profile, &dirs, dirs.persist_state(), false);
            config.watched.into_iter().map(|w| w.unit).collect()
        };
        let always = [
            "vitriol-engine@main.service",
            "vitriol-demiurge.service",
            "vitriol-oom-shield.service",
        ];
        assert_eq!(units(&Profile::default()), always);
        let overrides = Overrides::new().set("kvtier.enabled", Some(true), "--set");
        let profile = Profile::load(None, &overrides).unwrap();
        assert_eq!(units(&profile)[3..], ["vitriol-kvtier.service"]);
    }
}
