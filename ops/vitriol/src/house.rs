//! Finding a running house and asking its daemons.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use tonic::transport::Channel;
use vitriol_ipc::{HouseDirs, connect};
use vitriol_proto::status::v1::{GetRequest, GetResponse, status_client::StatusClient};

/// What the house promises for a status call.
const STATUS_DEADLINE: Duration = Duration::from_millis(200);

/// The directories of the house that answers on `listen`.
///
/// A house started with port 0 is named by its supervisor's pid, so the address files tell which of
/// them bound this address; the installed house leaves one too, for root to read.
pub fn locate(dirs: &HouseDirs, listen: SocketAddr) -> HouseDirs {
    let named = dirs.for_listen(listen, 0);
    for house in [named.clone(), HouseDirs::system()] {
        if bound_address(&house) == Some(listen) {
            return house;
        }
    }
    let siblings = fs::read_dir(&dirs.runtime).into_iter().flatten().flatten();
    for sibling in siblings {
        let name = sibling.file_name();
        let house = HouseDirs {
            runtime: dirs.runtime.join(&name),
            state: dirs.state.join(&name),
            cache: dirs.cache.clone(),
        };
        if bound_address(&house) == Some(listen) {
            return house;
        }
    }
    named
}

/// The address Demiurge left when it bound its port.
pub fn bound_address(dirs: &HouseDirs) -> Option<SocketAddr> {
    fs::read_to_string(dirs.demiurge_address())
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// Whether a `vitriol up` that lives runs the house in these directories.
pub fn is_up(dirs: &HouseDirs) -> bool {
    let holder = fs::read_to_string(dirs.up_lock()).ok();
    let pid = holder.and_then(|text| text.trim().parse::<u32>().ok());
    // The lock itself is not tried: a house that starts at this moment would find it taken.
    pid.is_some_and(|pid| Path::new("/proc").join(pid.to_string()).exists())
}

/// A daemon's status, or nothing when it does not answer within the deadline.
pub async fn ask_status(channel: Channel) -> Option<GetResponse> {
    let mut client = StatusClient::new(channel);
    let asked = tokio::time::timeout(STATUS_DEADLINE, client.get(GetRequest {})).await;
    asked.ok()?.ok().map(tonic::Response::into_inner)
}

/// [`ask_status`] over a channel of its own.
pub async fn ask_status_at(socket: &Path) -> Option<GetResponse> {
    // A channel to a missing socket fails too; this only spares it the attempt.
    if !socket.exists() {
        return None;
    }
    ask_status(connect(socket)).await
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The directories of a house below `root`.
    pub(crate) fn dirs(root: &Path) -> HouseDirs {
        HouseDirs {
            runtime: root.join("r"),
            state: root.join("s"),
            cache: root.join("c"),
        }
    }

    #[test]
    fn a_house_is_up_while_its_supervisor_lives() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        assert!(!is_up(&dirs));
        fs::create_dir_all(&dirs.runtime).unwrap();
        fs::write(dirs.up_lock(), format!("{}\n", std::process::id())).unwrap();
        assert!(is_up(&dirs));
        // Beyond any pid the kernel gives.
        fs::write(dirs.up_lock(), "4194999\n").unwrap();
        assert!(!is_up(&dirs));
    }

    #[test]
    fn a_house_is_found_by_its_name_or_by_the_address_it_bound() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        let address: SocketAddr = "127.0.0.1:43123".parse().unwrap();
        let named = dirs.for_listen(address, 0);
        assert_eq!(
            locate(&dirs, address),
            named,
            "the named one, though it does not run"
        );

        let by_pid = dirs.for_listen("127.0.0.1:0".parse().unwrap(), 77);
        fs::create_dir_all(by_pid.demiurge_address().parent().unwrap()).unwrap();
        fs::write(by_pid.demiurge_address(), "127.0.0.1:43123\n").unwrap();
        assert_eq!(locate(&dirs, address), by_pid);

        fs::create_dir_all(named.demiurge_address().parent().unwrap()).unwrap();
        fs::write(named.demiurge_address(), "127.0.0.1:43123").unwrap();
        assert_eq!(locate(&dirs, address), named);
    }
}
