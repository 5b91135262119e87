//! Where the house keeps its sockets, its state and its models.

use std::{
    fs::{self, DirBuilder},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};
use vitriol_profile::{ModelFile, catalog};

/// The address that needs no sub directory of its own.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8265);

/// What the environment says of base directories, as main read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BaseDirs {
    /// `$HOME`.
    pub home: Option<PathBuf>,
    /// `$XDG_RUNTIME_DIR`.
    pub runtime: Option<PathBuf>,
    /// `$XDG_STATE_HOME`.
    pub state: Option<PathBuf>,
    /// `$XDG_CACHE_HOME`.
    pub cache: Option<PathBuf>,
    /// `$XDG_CONFIG_HOME`.
    pub config: Option<PathBuf>,
    /// `$XDG_DATA_HOME`.
    pub data: Option<PathBuf>,
}

/// Why no directory could be settled on.
#[derive(Debug, thiserror::Error)]
pub enum DirsError {
    #[error("no place for {what}: neither {variable} nor HOME is set; set {variable}")]
    NoHome {
        what: &'static str,
        variable: &'static str,
    },
    #[error("directory {path}: cannot be created")]
    Create { path: PathBuf, source: io::Error },
    #[error(
        "directory {path} is open to others (owner {owner}, mode {mode:o}); remove it or make it \
         yours with mode 700"
    )]
    NotPrivate {
        path: PathBuf,
        owner: u32,
        mode: u32,
    },
}

/// The directories of one house. Several houses on one machine differ by their listen address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HouseDirs {
    /// Sockets and the lock; gone after a reboot.
    pub runtime: PathBuf,
    /// Decisions and logs.
    pub state: PathBuf,
    /// Models and their panels; the same for every house of the user.
    pub cache: PathBuf,
}

impl HouseDirs {
    /// The directories of the house that listens on the default address.
    ///
    /// Relative XDG paths are ignored, as the XDG specification asks. Without XDG_RUNTIME_DIR the
    /// sockets go to `/tmp/vitriol-<uid>`.
    pub fn resolve(base: &BaseDirs) -> Result<Self, DirsError> {
        let absolute = |path: &Option<PathBuf>| path.clone().filter(|p| p.is_absolute());
        let home = absolute(&base.home);
        let under_home = |xdg: &Option<PathBuf>, tail: &str, what, variable| {
            absolute(xdg)
                .or_else(|| home.as_ref().map(|home| home.join(tail)))
                .map(|dir| dir.join("vitriol"))
                .ok_or(DirsError::NoHome { what, variable })
        };
        let uid = rustix::process::getuid().as_raw();
        Ok(Self {
            runtime: absolute(&base.runtime).map_or_else(
                || PathBuf::from(format!("/tmp/vitriol-{uid}")),
                |dir| dir.join("vitriol"),
            ),
            state: under_home(&base.state, ".local/state", "state", "XDG_STATE_HOME")?,
            cache: under_home(&base.cache, ".cache", "models", "XDG_CACHE_HOME")?,
        })
    }

    /// The directories of the house that `vitriol install` sets up for the machine: every daemon has
    /// a directory of its own below `runtime`, made by root at boot.
    pub fn system() -> Self {
        Self {
            runtime: "/run/vitriol".into(),
            state: "/var/lib/vitriol/demiurge".into(),
            cache: "/var/lib/vitriol".into(),
        }
    }

    /// The directories of the house that listens on `listen`: the same for the default address, a
    /// sub directory named by the address for another. With port 0 the bound port is not known
    /// beforehand, so `pid`, the supervisor's, tells such houses apart.
    #[must_use]
    pub fn for_listen(&self, listen: SocketAddr, pid: u32) -> Self {
        if listen == DEFAULT_LISTEN {
            return self.clone();
        }
        let house = match listen.port() {
            0 => format!("pid-{pid}"),
            // The colons of an IPv6 address would be in the way of PATH-like lists.
            _ => listen
                .to_string()
                .replace(['[', ']'], "")
                .replace("::", "--")
                .replace(':', "-"),
        };
        Self {
            runtime: self.runtime.join(&house),
            state: self.state.join(&house),
            cache: self.cache.clone(),
        }
    }

    /// Socket of the engine called `name`.
    pub fn engine_socket(&self, name: &str) -> PathBuf {
        self.runtime.join("engine").join(format!("{name}.sock"))
    }

    /// Status socket of Demiurge.
    pub fn demiurge_socket(&self) -> PathBuf {
        self.runtime.join("demiurge").join("demiurge.sock")
    }

    /// File in which Demiurge leaves the address it bound.
    pub fn demiurge_address(&self) -> PathBuf {
        self.runtime.join("demiurge").join("demiurge.addr")
    }

    /// Socket of the OOM shield.
    pub fn oom_shield_socket(&self) -> PathBuf {
        self.runtime.join("oom-shield").join("oom-shield.sock")
    }

    /// Where the OOM shield keeps whose score it raised.
    pub fn oom_shield_state(&self) -> PathBuf {
        self.state.join("oom-shield")
    }

    /// Socket of the watch over the daemons.
    pub fn persist_socket(&self) -> PathBuf {
        self.runtime.join("persist").join("persist.sock")
    }

    /// Where the watch over the daemons keeps what they were launched with.
    pub fn persist_state(&self) -> PathBuf {
        self.state.join("persist")
    }

    /// Socket of the KV tier.
    pub fn kvtier_socket(&self) -> PathBuf {
        self.runtime.join("kvtier").join("kvtier.sock")
    }

    /// Socket that hands out the KV tier's memory.
    pub fn kvtier_arena_socket(&self) -> PathBuf {
        self.runtime.join("kvtier").join("arena.sock")
    }

    /// Where the KV tier keeps records on disk, in a directory of their own, unless the profile says where.
    pub fn kvtier_state(&self) -> PathBuf {
        self.state.join("kvtier")
    }

    /// Lock of `vitriol up`, holding its pid.
    pub fn up_lock(&self) -> PathBuf {
        self.runtime.join("up.lock")
    }

    /// Socket on which `vitriol up` hears what a daemon wants kept.
    pub fn up_notify(&self) -> PathBuf {
        self.runtime.join("up.notify")
    }

    /// Demiurge's decisions, one JSON object a line.
    pub fn decisions(&self) -> PathBuf {
        self.state.join("decisions.jsonl")
    }

    /// Log of a daemon that `vitriol up` runs.
    pub fn log(&self, daemon: &str) -> PathBuf {
        self.state.join("log").join(format!("{daemon}.log"))
    }

    /// Where fetched models lie.
    pub fn models(&self) -> PathBuf {
        self.cache.join("models")
    }

    /// Where engines keep weights as their kernels read them.
    pub fn panels(&self) -> PathBuf {
        self.cache.join("panels")
    }

    /// Where a model lies.
    pub fn model_file(&self, model: ModelFile) -> PathBuf {
        match model {
            ModelFile::Known(known) => self.models().join(known.file),
            ModelFile::Path(path) => path,
        }
    }

    /// The model that is used when the profile names none.
    pub fn default_model(&self) -> PathBuf {
        self.models().join(catalog::default_model().file)
    }
}

/// Creates `path` and its parents for this user alone (mode 0700).
///
/// A directory that stands already must be this user's or root's and closed to others, because
/// whoever can write to it can put a socket of their own there. So must every directory and link on
/// the way that lies where others may write (`/tmp`), because its owner can put another in its place.
pub fn create_private_dir(path: &Path) -> Result<(), DirsError> {
    check_way(path)?;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .and_then(|()| fs::metadata(path))
        .map_err(|source| DirsError::Create {
            path: path.to_owned(),
            source,
        })
        .and_then(|found| {
            let (owner, mode) = (found.uid(), found.mode() & 0o7777);
            if is_trusted_owner(owner) && mode & 0o022 == 0 {
                Ok(())
            } else {
                Err(DirsError::NotPrivate {
                    path: path.to_owned(),
                    owner,
                    mode,
                })
            }
        })
}

/// Refuses a path that leads through what another user put into a directory open to all.
fn check_way(path: &Path) -> Result<(), DirsError> {
    for part in path.ancestors() {
        let open_to_all = part
            .parent()
            .and_then(|parent| fs::metadata(parent).ok())
            .is_some_and(|parent| parent.mode() & 0o002 != 0);
        // The part itself, not what a link leads to; what is not there yet will be ours.
        let Some(found) = open_to_all
            .then(|| fs::symlink_metadata(part).ok())
            .flatten()
        else {
            continue;
        };
        if !is_trusted_owner(found.uid()) {
            return Err(DirsError::NotPrivate {
                path: part.to_owned(),
                owner: found.uid(),
                mode: found.mode() & 0o7777,
            });
        }
    }
    Ok(())
}

fn is_trusted_owner(uid: u32) -> bool {
    uid == rustix::process::getuid().as_raw() || uid == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn base() -> BaseDirs {
        BaseDirs {
            home: Some("/home/u".into()),
            ..BaseDirs::default()
        }
    }

    #[test]
    fn xdg_wins_over_home_unless_relative() {
        let dirs = HouseDirs::resolve(&BaseDirs {
            runtime: Some("/run/user/7".into()),
            state: Some("relative".into()),
            cache: Some("/c".into()),
            ..base()
        })
        .unwrap();
        assert_eq!(dirs.runtime, Path::new("/run/user/7/vitriol"));
        assert_eq!(dirs.state, Path::new("/home/u/.local/state/vitriol"));
        assert_eq!(dirs.cache, Path::new("/c/vitriol"));
    }

    #[test]
    fn without_a_runtime_dir_the_fallback_carries_the_uid() {
        let dirs = HouseDirs::resolve(&base()).unwrap();
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(dirs.runtime, PathBuf::from(format!("/tmp/vitriol-{uid}")));
    }

    #[test]
    fn without_home_the_missing_variable_is_named() {
        let error = HouseDirs::resolve(&BaseDirs::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("set XDG_STATE_HOME"), "{error}");
    }

    #[test]
    fn houses_are_told_apart_by_address() {
        let dirs = HouseDirs::resolve(&base()).unwrap();
        let at = |address: &str| dirs.for_listen(address.parse().unwrap(), 42);
        assert_eq!(at("127.0.0.1:8265"), dirs);
        assert_eq!(
            at("127.0.0.1:9000").runtime,
            dirs.runtime.join("127.0.0.1-9000")
        );
        assert_eq!(at("127.0.0.1:0").state, dirs.state.join("pid-42"));
        assert_eq!(at("[::1]:9000").runtime, dirs.runtime.join("--1-9000"));
        assert_eq!(at("127.0.0.1:9000").models(), dirs.models());
    }

    #[test]
    fn a_private_dir_is_created_closed_and_an_open_one_refused() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("a/b");
        create_private_dir(&dir).unwrap();
        create_private_dir(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(
            create_private_dir(&dir),
            Err(DirsError::NotPrivate { .. })
        ));
    }

    /// Needs another user's file in a directory open to all, which only root can make.
    #[test]
    fn a_way_through_what_a_stranger_put_into_an_open_directory_is_refused() {
        if !rustix::process::getuid().is_root() {
            // Straight to the terminal: what a passing test prints is captured.
            let line = "NOT RUN: a_way_through_what_a_stranger_put_into_an_open_directory_is_refused: \
                        run it as root\n";
            io::Write::write_all(&mut io::stderr(), line.as_bytes()).unwrap();
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let open = temp.path().join("tmp");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
        let (planted, ours) = (open.join("vitriol-0"), temp.path().join("ours"));
        create_private_dir(&ours).unwrap();

        // A directory of the stranger's, in which ours would lie.
        fs::create_dir(&planted).unwrap();
        std::os::unix::fs::chown(&planted, Some(4711), None).unwrap();
        let refused = create_private_dir(&planted.join("127.0.0.1-9000"));
        assert!(
            matches!(refused, Err(DirsError::NotPrivate { owner: 4711, .. })),
            "{refused:?}"
        );
        fs::remove_dir(&planted).unwrap();

        // A link of the stranger's to a directory of ours.
        std::os::unix::fs::symlink(&ours, &planted).unwrap();
        std::os::unix::fs::lchown(&planted, Some(4711), None).unwrap();
        let refused = create_private_dir(&planted);
        assert!(
            matches!(refused, Err(DirsError::NotPrivate { owner: 4711, .. })),
            "{refused:?}"
        );
        fs::remove_file(&planted).unwrap();

        // A link of our own is our own affair.
        std::os::unix::fs::symlink(&ours, &planted).unwrap();
        create_private_dir(&planted.join("engine")).unwrap();
    }
}
