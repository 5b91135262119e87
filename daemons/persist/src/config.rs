//! Persist's settings, typed: from the profile, the flags and the house's directories.

use std::{path::PathBuf, time::Duration};

use vitriol_chassis::IDLE_MAX;
use vitriol_ipc::HouseDirs;
use vitriol_profile::Profile;

use crate::{
    bounce::BounceConfig, memory::MemoryPolicy, restarts::BackOff, warmer::WarmupConfig,
    warmup::Budget,
};

/// The engine that is restarted when memory is short.
const BOUNCED: &str = "main";

/// What the chassis gives a daemon beyond its own drain before it gives it up, and the end of its process.
const STUCK_GRACE: Duration = Duration::from_secs(8);

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
    /// `None`: the profile has no such engine.
    pub bounce: Option<BounceConfig>,
    /// `None`: nothing is to be warmed up, or from nowhere.
    pub warmup: Option<WarmupConfig>,
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
        let engine = |name: &str| {
            let unit = format!("vitriol-engine@{name}");
            watched("engine", &unit, dirs.engine_socket(name))
        };
        let mut all: Vec<Watched> = profile.engines.keys().map(|name| engine(name)).collect();
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
        let tier = &profile.kvtier;
        let kvtier = watched("kvtier", "vitriol-kvtier", dirs.kvtier_socket());
        if tier.enabled {
            all.push(kvtier.clone());
        }
        let is_warmed = tier.enabled && tier.mirror && settings.warmup_ms > 0;
        let warmup = is_warmed.then(|| WarmupConfig {
            kvtier,
            budget: Budget {
                bytes: match settings.warmup_bytes.get() {
                    0 => tier.arena_bytes.get() / 2,
                    bytes => bytes,
                },
                time: Duration::from_millis(settings.warmup_ms),
                record_bytes_max: tier.slot_bytes.get(),
            },
            deadline: Duration::from_millis(settings.poll_deadline_ms),
        });
        let bounced = profile.engine(BOUNCED).map(|own| BounceConfig {
            engine: engine(BOUNCED),
            policy: MemoryPolicy {
                warn_below_bytes: settings.memory_warn_bytes.get(),
                bounce_below_bytes: settings.memory_bounce_bytes.get(),
                polls: polls_of(settings.memory_short_ms, settings.poll_interval_ms),
                cooldown: Duration::from_millis(settings.memory_cooldown_ms),
            },
            poll_interval: Duration::from_millis(settings.poll_interval_ms),
            deadline: Duration::from_millis(settings.poll_deadline_ms),
            finish_within: Duration::from_millis(settings.memory_finish_ms),
            end_within: Duration::from_millis(own.drain_ms) + STUCK_GRACE,
            ask_systemd,
        });
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
            bounce: bounced,
            warmup,
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
        let bounce = Config::new(&profile, &dirs, dirs.persist_state(), false).bounce;
        assert_eq!(bounce.unwrap().engine.unit, always[0]);
    }

    #[test]
    fn a_tier_is_warmed_up_from_a_disk_that_it_has_within_half_of_its_memory() {
        let warmup = |keys: &[(&str, &str)]| {
            let mut overrides = Overrides::new().set("kvtier.arena_bytes", Some("6 GiB"), "--set");
            for (key, value) in keys {
                overrides = overrides.set(key, Some(value), "--set");
            }
            let profile = Profile::load(None, &overrides).unwrap();
            let dirs = HouseDirs::system();
            let config = Config::new(&profile, &dirs, dirs.persist_state(), false);
            config.warmup.map(|warmup| warmup.budget.bytes)
        };
        let enabled = ("kvtier.enabled", "true");
        assert_eq!(warmup(&[enabled]), Some(3 << 30));
        let given = ("persist.warmup_bytes", "1 GiB");
        assert_eq!(warmup(&[enabled, given]), Some(1 << 30));
        assert_eq!(warmup(&[]), None);
        assert_eq!(warmup(&[enabled, ("kvtier.mirror", "false")]), None);
        assert_eq!(warmup(&[enabled, ("persist.warmup_ms", "0")]), None);
    }

    #[test]
    fn an_idle_daemon_is_not_taken_for_one_that_hangs() {
        let polls = |interval_ms: u64, hang_polls: u32| {
            let overrides = Overrides::new()
                .set("persist.poll_interval_ms", Some(interval_ms), "--set")
                .set("persist.hang_polls", Some(hang_polls), "--set");
            let profile = Profile::load(None, &overrides).unwrap();
            let dirs = HouseDirs::system();
            Config::new(&profile, &dirs, dirs.persist_state(), false).hang_polls
        };
        assert_eq!(polls(5_000, 6), 6);
        assert_eq!(polls(100, 5), 30);
        assert_eq!(polls(100, 40), 40);
    }

    #[test]
    fn a_time_is_so_many_looks() {
        assert_eq!(polls_of(120_000, 5_000), 24);
        assert_eq!(polls_of(120_001, 5_000), 25);
        assert_eq!(polls_of(0, 5_000), 1);
    }
}
