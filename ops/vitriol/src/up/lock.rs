//! One supervisor a house, and nobody else on its port.

use std::{
    fs::{self, File},
    io::{self, Seek, Write},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use anyhow::Context;
use vitriol_chassis::{Exit, Failure, OrExit};
use vitriol_ipc::{FileLock, HouseDirs, create_private_dir};
use vitriol_sysfs::Sysfs;

use super::units;

/// Held for as long as the house runs; the kernel lets go of it when the process dies.
#[derive(Debug)]
pub struct HouseLock {
    _lock: FileLock,
    /// A runtime directory that goes with the lock.
    remove: Option<PathBuf>,
}

impl HouseLock {
    /// Takes the lock of the house in `dirs` and leaves this process's pid in it. A house that is
    /// named by its pid (`by_pid`) will never be looked for again, so its runtime directory goes
    /// when the lock does. Its logs and decisions stay until the next such house begins, which
    /// removes what the dead ones left, be it under its own pid.
    ///
    /// Errors: another supervisor has it (69, naming its pid).
    pub fn take(dirs: &HouseDirs, by_pid: bool) -> Result<Self, Failure> {
        create_private_dir(&dirs.runtime)?;
        let path = dirs.up_lock();
        let taken = open(&path).and_then(FileLock::take);
        if matches!(&taken, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            return Err(held(&path));
        }
        let mut lock = taken
            .with_context(|| format!("lock file {}", path.display()))
            .or_exit(Exit::Dependency)?;
        write_pid(lock.file())
            .with_context(|| format!("lock file {}", path.display()))
            .or_exit(Exit::Dependency)?;
        if by_pid {
            remove_dead_houses(dirs);
        }
        Ok(Self {
            _lock: lock,
            remove: by_pid.then(|| dirs.runtime.clone()),
        })
    }
}

impl Drop for HouseLock {
    fn drop(&mut self) {
        if let Some(runtime) = &self.remove {
            // What cannot be removed is small and goes with the next boot.
            let _ = fs::remove_dir_all(runtime);
        }
    }
}

/// Removes the runtime and state directories of `pid-N` houses whose supervisor is gone: nobody has
/// that pid, and the lock is nobody's, which tells of supervisors that run where their pid is not
/// seen. The lock of `own` is ours, so a state directory under our own pid is a dead one's too.
fn remove_dead_houses(own: &HouseDirs) {
    // What cannot be removed is small; the next house tries again.
    let _ = fs::remove_dir_all(&own.state);
    let (Some(runtimes), Some(states)) = (own.runtime.parent(), own.state.parent()) else {
        return;
    };
    // State first: the lock that guards both lies in the runtime directory.
    for beside in [states, runtimes] {
        for house in fs::read_dir(beside).into_iter().flatten().flatten() {
            let name = house.file_name();
            let pid = name
                .to_str()
                .and_then(|name| name.strip_prefix("pid-")?.parse::<u32>().ok());
            let gone = |pid: u32| !Path::new("/proc").join(pid.to_string()).exists();
            if pid.is_some_and(gone) && !is_locked(&runtimes.join(&name).join("up.lock")) {
                // As above.
                let _ = fs::remove_dir_all(house.path());
            }
        }
    }
}

fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| FileLock::take(file).is_err())
}

fn open(path: &Path) -> io::Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn held(path: &Path) -> Failure {
    // A holder that has not written its pid yet is named without it.
    let text = fs::read_to_string(path).unwrap_or_default();
    let holder = match text.trim() {
        "" => String::new(),
        pid => format!(" (process {pid})"),
    };
    let message = format!(
        "'vitriol up'{holder} runs this house already; stop it with ctrl-C there, or start another \
         with --listen 127.0.0.1:0"
    );
    Failure::new(Exit::Dependency, message)
}

/// Fails with 69, naming the unit or the process, when `listen` is taken. Port 0 is always free.
pub fn check_port(listen: SocketAddr, sysfs: &Sysfs) -> Result<(), Failure> {
    match TcpListener::bind(listen) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if let Some(manager) = units::holder_of(listen) {
                let message = format!(
                    "address {listen} is held by {manager}: the house runs as units; use that one, \
                     stop it with '{}', or start another with --listen 127.0.0.1:0",
                    manager.stop_command()
                );
                return Err(Failure::new(Exit::Dependency, message));
            }
            let holder = sysfs.port_holder(listen.port()).map_or_else(
                || "a process that this user may not see".to_owned(),
                |holder| holder.to_string(),
            );
            let message = format!(
                "address {listen} is held by {holder}; stop it, or choose another with --listen"
            );
            Err(Failure::new(Exit::Dependency, message))
        }
        Err(error) => {
            let message = format!("address {listen} cannot be listened on: {error}");
            Err(Failure::new(Exit::Config, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::house::tests::dirs;

    #[test]
    fn the_second_supervisor_is_refused_naming_the_first() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        let lock = HouseLock::take(&dirs, false).unwrap();
        let failure = HouseLock::take(&dirs, false).unwrap_err();
        assert_eq!(failure.exit, Exit::Dependency);
        let own = format!("process {}", std::process::id());
        assert!(failure.message.contains(&own), "{failure}");
        drop(lock);
        HouseLock::take(&dirs, false).unwrap();
    }

    #[test]
    fn houses_named_by_pid_leave_nothing() {
        let root = tempfile::tempdir().unwrap();
        let house = |pid| dirs(root.path()).for_listen("127.0.0.1:0".parse().unwrap(), pid);
        let (own, dead) = (house(std::process::id()), house(u32::MAX));
        create_private_dir(&dead.runtime).unwrap();
        let lock = HouseLock::take(&own, true).unwrap();
        assert!(own.runtime.exists() && !dead.runtime.exists());
        drop(lock);
        assert!(!own.runtime.exists());
    }

    #[test]
    fn a_house_named_by_pid_inherits_no_log_and_no_decision() {
        let root = tempfile::tempdir().unwrap();
        let house = |pid| dirs(root.path()).for_listen("127.0.0.1:0".parse().unwrap(), pid);
        // One of a reused pid, one of a dead pid, and one that is somebody's by name.
        let own = house(std::process::id());
        let named = dirs(root.path()).for_listen("127.0.0.1:9".parse().unwrap(), 0);
        for left in [&own, &house(u32::MAX), &named] {
            create_private_dir(&left.state).unwrap();
            fs::write(left.decisions(), "{}\n").unwrap();
        }
        drop(HouseLock::take(&own, true).unwrap());
        assert!(!own.state.exists() && !house(u32::MAX).state.exists());
        assert!(named.decisions().exists());
    }

    #[test]
    fn a_house_whose_pid_is_not_seen_here_is_left_alone_while_its_lock_is_held() {
        let root = tempfile::tempdir().unwrap();
        let house = |pid| dirs(root.path()).for_listen("127.0.0.1:0".parse().unwrap(), pid);
        let (own, elsewhere) = (house(std::process::id()), house(u32::MAX));
        let held = HouseLock::take(&elsewhere, false).unwrap();
        create_private_dir(&elsewhere.state).unwrap();
        drop(HouseLock::take(&own, true).unwrap());
        assert!(elsewhere.up_lock().exists() && elsewhere.state.exists());
        drop(held);
        drop(HouseLock::take(&own, true).unwrap());
        assert!(!elsewhere.runtime.exists());
    }

    #[test]
    fn a_held_port_is_refused_naming_the_holder() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let failure = check_port(address, &Sysfs::host()).unwrap_err();
        assert_eq!(failure.exit, Exit::Dependency);
        assert!(
            failure.message.contains(&std::process::id().to_string()),
            "{failure}"
        );
        drop(listener);
        // A process that another test is just starting may hold a copy of it for a moment yet.
        let deadline = Instant::now() + Duration::from_secs(20);
        while let Err(failure) = check_port(address, &Sysfs::host()) {
            assert!(Instant::now() < deadline, "{failure}");
            std::thread::yield_now();
        }
        check_port("127.0.0.1:0".parse().unwrap(), &Sysfs::host()).unwrap();
    }

    #[test]
    fn an_address_of_no_interface_is_a_config_error() {
        let failure = check_port("203.0.113.7:80".parse().unwrap(), &Sysfs::host()).unwrap_err();
        assert_eq!(failure.exit, Exit::Config);
    }
}
