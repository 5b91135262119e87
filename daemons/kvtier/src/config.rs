//! The tier's settings, typed: from the profile, the flags and the house's directories.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use vitriol_chassis::Fingerprint;
use vitriol_ipc::HouseDirs;
use vitriol_profile::{
    Profile,
    budget::{Budget, NotClosed},
};
use vitriol_sysfs::Sysfs;
use vitriol_units::Bytes;

use crate::{
    arena::{ArenaError, plan_slots},
    mirror::segment::stored_bytes,
};

/// The engine that the arena is for.
const ENGINE: &str = "main";

/// Records on disk take as many times the memory, where the profile does not say.
const MIRROR_TO_ARENA: u64 = 8;

/// A segment is at most this part of the mirror.
const SEGMENTS_MIN: u64 = 8;

/// Settings of the process.
#[derive(Clone, Debug)]
pub struct Config {
    pub socket: PathBuf,
    pub arena_socket: PathBuf,
    pub arena_bytes: u64,
    pub slot_bytes: u64,
    pub mirror: Option<MirrorConfig>,
    pub drain: Duration,
    /// What the profile says, for the launch's fingerprint.
    pub asked: Fingerprint,
}

/// Where records lie on disk, and how much of it they may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorConfig {
    pub directory: PathBuf,
    pub bytes_max: u64,
}

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("the profile has no KV tier; set enabled = true in its [kvtier]")]
    NotEnabled,
    #[error(transparent)]
    Memory(#[from] NotClosed),
    #[error("kvtier.arena_bytes, kvtier.slot_bytes")]
    Sizes(#[source] ArenaError),
    #[error("kvtier.mirror_dir = '{0}' is no absolute path; write one that begins with '/'")]
    RelativeMirror(PathBuf),
    #[error(
        "kvtier.mirror_bytes_max of {bytes_max} is too small for records of kvtier.slot_bytes; make it \
         {least} or more"
    )]
    SmallMirror { bytes_max: Bytes, least: Bytes },
}

impl Config {
    /// Puts the settings together; records go to `state_dir`, unless the profile says where.
    ///
    /// Errors: the profile has no tier, or values that contradict each other.
    pub fn new(profile: &Profile, dirs: &HouseDirs, state_dir: &Path) -> Result<Self, ConfigError> {
        let settings = &profile.kvtier;
        if !settings.enabled {
            return Err(ConfigError::NotEnabled);
        }
        let (arena_bytes, slot_bytes) = (settings.arena_bytes.get(), settings.slot_bytes.get());
        plan_slots(arena_bytes, slot_bytes).map_err(ConfigError::Sizes)?;
        // What the model takes the engine knows; a machine that does not say what it has is not judged.
        if let Ok(limit) = Sysfs::host().memory_limit_bytes() {
            Budget::of(profile, ENGINE, 0).check(limit)?;
        }
        let mirror = match settings.mirror {
            false => None,
            true => {
                let given = settings.mirror_dir.clone();
                let directory = match given.as_os_str().is_empty() {
                    true => state_dir.join("mirror"),
                    false if given.is_absolute() => given,
                    false => return Err(ConfigError::RelativeMirror(given)),
                };
                let bytes_max = match settings.mirror_bytes_max.get() {
                    0 => arena_bytes.saturating_mul(MIRROR_TO_ARENA),
                    given => given,
                };
                let least = SEGMENTS_MIN * stored_bytes(slot_bytes);
                if bytes_max < least {
                    let (bytes_max, least) = (Bytes(bytes_max), Bytes(least));
                    return Err(ConfigError::SmallMirror { bytes_max, least });
                }
                Some(MirrorConfig {
                    directory,
                    bytes_max,
                })
            }
        };
        Ok(Self {
            socket: dirs.kvtier_socket(),
            arena_socket: dirs.kvtier_arena_socket(),
            arena_bytes,
            slot_bytes,
            mirror,
            drain: Duration::from_millis(settings.drain_ms),
            asked: Fingerprint::default().with_settings(profile, "kvtier", "kvtier"),
        })
    }
}

#[cfg(test)]
mod tests {
    use vitriol_profile::Overrides;

    use super::*;

    fn config(settings: &str) -> Result<Config, String> {
        let text = format!("[kvtier]\n{settings}");
        let profile = Profile::parse(Path::new("p.toml"), &text, &Overrides::new()).unwrap();
        let dirs = HouseDirs::system();
        Config::new(&profile, &dirs, &dirs.kvtier_state()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_mirror_has_eight_times_the_memory_and_its_place_unless_the_profile_says_more() {
        let mirror = |settings: &str| {
            let config = config(&format!("enabled = true\n{settings}")).unwrap();
            config
                .mirror
                .map(|mirror| (mirror.directory, mirror.bytes_max))
        };
        let own = HouseDirs::system().kvtier_state().join("mirror");
        assert_eq!(
            mirror("arena_bytes = '1 GiB'"),
            Some((own.clone(), 8 << 30))
        );
        assert_eq!(mirror("mirror_bytes_max = '1 GiB'"), Some((own, 1 << 30)));
        let elsewhere = mirror("mirror_dir = '/srv/kv'").unwrap().0;
        assert_eq!(elsewhere, Path::new("/srv/kv"));
        assert_eq!(mirror("mirror = false\nmirror_dir = 'kv'"), None);
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_remedy() {
        for (settings, remedy) in [
            ("", "set enabled = true"),
            ("enabled = true\nslot_bytes = 5000", "kvtier.slot_bytes"),
            (
                "enabled = true\narena_bytes = '4 MiB'\nslot_bytes = '4 MiB'",
                "kvtier.arena_bytes",
            ),
            ("enabled = true\nmirror_dir = 'kv'", "begins with '/'"),
            (
                "enabled = true\nmirror_bytes_max = '16 MiB'",
                "make it 16416 KiB or more",
            ),
        ] {
            let refused = config(settings).unwrap_err();
            assert!(refused.contains(remedy), "{refused}");
        }
    }
}
