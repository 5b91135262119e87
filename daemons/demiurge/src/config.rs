//! Demiurge's settings, typed: from the profile, the flags and the house's directories.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vitriol_chassis::Failure;
use vitriol_ipc::HouseDirs;
use vitriol_profile::{Profile, check_loopback};

/// Name of the engine that Demiurge talks to in this release.
const ENGINE: &str = "main";

/// What flags say of places; each defaults to the house's directories.
#[derive(Clone, Debug, Default)]
pub struct Places {
    pub engine_socket: Option<PathBuf>,
    pub status_socket: Option<PathBuf>,
    pub state_dir: Option<PathBuf>,
}

/// Settings of the process.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    pub engine_socket: PathBuf,
    pub status_socket: PathBuf,
    /// Where conversations are kept, if the profile has them kept.
    pub kvtier_socket: Option<PathBuf>,
    /// Of the daemons whose metrics are shown too.
    pub neighbour_sockets: Vec<PathBuf>,
    /// File that the bound address is written to.
    pub address_file: PathBuf,
    pub decisions: PathBuf,
    pub decisions_bytes_max: u64,
    pub body_bytes_max: u64,
    pub body_timeout: Duration,
    pub head_timeout: Duration,
    pub reader_stall_timeout: Duration,
    pub requests_max: usize,
    pub connections_max: usize,
    pub control_deadline: Duration,
    pub engine_wait: Duration,
    pub ping_interval: Duration,
    pub window_tokens: u32,
    pub drain: Duration,
}

impl Config {
    /// Puts the settings together.
    ///
    /// Errors: the listen address is not a loopback address (exit 78): whoever reaches the port may
    /// use the model, and keys that tell clients apart come in a later release.
    pub fn new(profile: &Profile, places: Places, dirs: &HouseDirs) -> Result<Config, Failure> {
        let listen = profile.house.listen;
        check_loopback(listen.ip())?;
        let settings = &profile.demiurge;
        let engine = profile.engine(ENGINE).cloned().unwrap_or_default();
        let milliseconds = Duration::from_millis;
        let decisions = match places.state_dir {
            Some(dir) => dir.join("decisions.jsonl"),
            None => dirs.decisions(),
        };
        // The address lies beside the status socket, where the supervisor looks for it.
        let address_file = match &places.status_socket {
            Some(socket) => socket.with_extension("addr"),
            None => dirs.demiurge_address(),
        };
        let status_socket = places
            .status_socket
            .unwrap_or_else(|| dirs.demiurge_socket());
        let beside = dirs_of(&status_socket, dirs);
        Ok(Config {
            listen,
            engine_socket: places
                .engine_socket
                .unwrap_or_else(|| dirs.engine_socket(ENGINE)),
            kvtier_socket: profile.kvtier.enabled.then(|| beside.kvtier_socket()),
            neighbour_sockets: vec![
                beside.kvtier_socket(),
                beside.persist_socket(),
                beside.oom_shield_socket(),
            ],
            status_socket,
            address_file,
            decisions,
            decisions_bytes_max: settings.decisions_bytes_max.get(),
            body_bytes_max: settings.body_bytes_max.get(),
            body_timeout: milliseconds(settings.request_body_timeout_ms),
            head_timeout: milliseconds(settings.request_head_timeout_ms),
            reader_stall_timeout: milliseconds(settings.reader_stall_timeout_ms),
            requests_max: settings.requests_max as usize,
            connections_max: settings.connections_max as usize,
            control_deadline: milliseconds(settings.engine_deadline_ms),
            engine_wait: milliseconds(settings.engine_wait_ms),
            ping_interval: milliseconds(settings.ping_interval_ms),
            window_tokens: engine.window_tokens,
            drain: milliseconds(settings.drain_ms),
        })
    }
}

/// Directories of the house of the Demiurge with this status socket.
fn dirs_of(status_socket: &Path, dirs: &HouseDirs) -> HouseDirs {
    let runtime = status_socket.parent().and_then(Path::parent);
    HouseDirs {
        runtime: runtime.unwrap_or(&dirs.runtime).to_owned(),
        ..dirs.clone()
    }
}

#[cfg(test)]
mod tests {
    use vitriol_profile::Overrides;

    use super::*;

    fn dirs() -> HouseDirs {
        HouseDirs {
            runtime: "/r".into(),
            state: "/s".into(),
            cache: "/c".into(),
        }
    }

    #[test]
    fn places_default_to_the_houses() {
        let config = Config::new(&Profile::default(), Places::default(), &dirs()).unwrap();
        assert_eq!(config.engine_socket, PathBuf::from("/r/engine/main.sock"));
        assert_eq!(
            config.status_socket,
            PathBuf::from("/r/demiurge/demiurge.sock")
        );
        assert_eq!(
            config.address_file,
            PathBuf::from("/r/demiurge/demiurge.addr")
        );
        assert_eq!(config.decisions, PathBuf::from("/s/decisions.jsonl"));
        let kvtier = PathBuf::from("/r/kvtier/kvtier.sock");
        assert_eq!(config.neighbour_sockets[0], kvtier);
        assert_eq!(config.kvtier_socket, None, "it is off by default");
    }

    #[test]
    fn an_address_others_reach_is_refused() {
        for address in ["0.0.0.0:8265", "192.168.1.2:8265", "[::]:0"] {
            let overrides = Overrides::new().set("house.listen", Some(address), "--listen");
            // The profile may refuse it first; either way it does not get through.
            let refused = match Profile::load(None, &overrides) {
                Ok(profile) => Config::new(&profile, Places::default(), &dirs()).is_err(),
                Err(_) => true,
            };
            assert!(refused, "{address}");
        }
        let overrides = Overrides::new().set("house.listen", Some("[::1]:0"), "--listen");
        let profile = Profile::load(None, &overrides).unwrap();
        Config::new(&profile, Places::default(), &dirs()).unwrap();
    }
}
