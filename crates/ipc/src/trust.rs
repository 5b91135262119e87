//! Who may be at the other end of a socket, by the kernel's word (SO_PEERCRED).
//!
//! ```text
//! socket in a directory of ...                    may call it            may serve on it
//! this user's own making (0700)                   this user, root        this user, root
//! root's making, handed to USER:GROUP, e.g.       USER, root, and who    USER, root
//!   /run/vitriol/engine  USER:GROUP 0750          runs as GROUP
//! ```
//! "Runs as" means the primary group of the process: the daemons of an installed house have one user
//! each and the group `vitriol` in common. That root made the directory for a house is known by where
//! it lies: below /run, in a directory that is root's and closed to others' writing. Elsewhere a
//! directory in one of root's may just be somebody's home.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use tokio::net::UnixStream;

/// Write permission for group and others.
const WRITE_BY_OTHERS: u32 = 0o022;

/// Permission of the group to pass through a directory.
const ENTER_BY_GROUP: u32 = 0o010;

/// Owner and permissions of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Directory {
    uid: u32,
    gid: u32,
    mode: u32,
}

impl Directory {
    fn look(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self {
            uid: found.uid(),
            gid: found.gid(),
            mode: found.mode(),
        })
    }
}

/// The peers that one socket has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trust {
    own: u32,
    /// The user that root handed the socket's directory to.
    appointed: Option<u32>,
    /// The group that root let into it.
    group: Option<u32>,
}

impl Trust {
    /// For the socket at `path`, whose directory should stand; without one only this user and root
    /// are trusted.
    pub fn of_socket(path: &Path) -> Self {
        let own = rustix::process::geteuid().as_raw();
        // Where links lead, not where they lie: the parent of the directory decides.
        let directory = path
            .parent()
            .and_then(|directory| fs::canonicalize(directory).ok());
        let below_run = |above: &&Path| above.starts_with("/run");
        let above = directory
            .as_deref()
            .and_then(Path::parent)
            .filter(below_run);
        let directory = directory.as_deref().and_then(Directory::look);
        decide(own, directory, above.and_then(Directory::look))
    }

    /// The group that may open the socket, if this process runs as it.
    pub fn shared_with(&self) -> Option<u32> {
        self.group
            .filter(|&group| group == rustix::process::getegid().as_raw())
    }

    /// Errors: the client is a stranger.
    pub fn check_client(&self, stream: &UnixStream) -> io::Result<()> {
        let peer = stream.peer_cred()?;
        let known = self.takes_client(peer.uid(), peer.gid());
        known.then_some(()).ok_or_else(|| stranger(&peer))
    }

    /// Errors: the server is a stranger.
    pub fn check_server(&self, stream: &UnixStream) -> io::Result<()> {
        let peer = stream.peer_cred()?;
        let known = self.takes_server(peer.uid());
        known.then_some(()).ok_or_else(|| stranger(&peer))
    }

    fn takes_client(&self, uid: u32, gid: u32) -> bool {
        self.takes_server(uid) || self.group == Some(gid)
    }

    fn takes_server(&self, uid: u32) -> bool {
        uid == self.own || uid == 0 || self.appointed == Some(uid)
    }
}

fn decide(own: u32, directory: Option<Directory>, above: Option<Directory>) -> Trust {
    let by_root = above.is_some_and(|above| above.uid == 0 && above.mode & WRITE_BY_OTHERS == 0);
    let handed = directory.filter(|it| by_root && it.mode & WRITE_BY_OTHERS == 0);
    Trust {
        own,
        appointed: handed.map(|it| it.uid),
        group: handed
            .filter(|it| it.mode & ENTER_BY_GROUP != 0)
            .map(|it| it.gid),
    }
}

fn stranger(peer: &tokio::net::unix::UCred) -> io::Error {
    let message = format!(
        "peer is user {}, group {} (process {:?})",
        peer.uid(),
        peer.gid(),
        peer.pid()
    );
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(uid: u32, gid: u32, mode: u32) -> Option<Directory> {
        Some(Directory { uid, gid, mode })
    }

    #[test]
    fn in_a_users_own_directory_only_the_user_and_root_are_trusted() {
        let trust = decide(
            1000,
            directory(1000, 100, 0o40700),
            directory(1000, 100, 0o40700),
        );
        assert!(trust.takes_client(1000, 5) && trust.takes_client(0, 0));
        assert!(!trust.takes_client(1001, 100) && !trust.takes_server(1001));
        // As root too: root's sockets are not for everybody.
        let trust = decide(0, None, None);
        assert!(!trust.takes_client(1000, 0) && !trust.takes_server(1000));
    }

    #[test]
    fn an_installed_house_has_a_user_each_and_a_group_in_common() {
        let (engine, demiurge, group) = (901, 902, 900);
        let root = directory(0, 0, 0o40755);
        let engines = directory(engine, group, 0o40750);
        let trust = decide(engine, engines, root);
        assert!(
            trust.takes_client(demiurge, group),
            "demiurge calls the engine"
        );
        assert!(!trust.takes_client(1000, 1000), "a stranger does not");
        let trust = decide(demiurge, engines, root);
        assert!(trust.takes_server(engine) && !trust.takes_server(1000));
        // Root's own tools ask every daemon.
        assert!(decide(0, engines, root).takes_server(engine));
    }

    #[test]
    fn a_directory_closed_to_its_group_shares_nothing() {
        let trust = decide(901, directory(901, 900, 0o40700), directory(0, 0, 0o40755));
        assert!(!trust.takes_client(902, 900));
    }

    #[test]
    fn what_a_stranger_planted_is_not_trusted() {
        let planted = directory(4711, 100, 0o40750);
        // In a directory open to all, in one of the stranger's own, in one its group may write to.
        for above in [
            directory(0, 0, 0o41777),
            directory(4711, 100, 0o40755),
            directory(0, 100, 0o40775),
        ] {
            let trust = decide(1000, planted, above);
            assert!(!trust.takes_server(4711), "{above:?}");
            assert!(!trust.takes_client(4711, 100), "{above:?}");
        }
        // Root handed it over, but others may put a socket of their own there.
        let trust = decide(1000, directory(901, 100, 0o40770), directory(0, 0, 0o40755));
        assert!(!trust.takes_server(901) && !trust.takes_client(5, 100));
    }
}
