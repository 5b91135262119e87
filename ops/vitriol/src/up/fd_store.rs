//! What a daemon has the supervisor keep beyond its death, as it would have systemd keep it (`FDSTORE=1`).

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::Context;
use tokio::{io::Interest, net::UnixDatagram};
use vitriol_chassis::{Exit, Failure, OrExit};
use vitriol_ipc::{bequeath, receive_with_descriptor};

/// Longer than anything that a daemon says; the rest of a longer one is lost.
const MESSAGE_BYTES_MAX: usize = 4096;

/// The service manager of one daemon, as far as it keeps a descriptor: the last one it was given.
#[derive(Debug)]
pub struct FdStore {
    socket: UnixDatagram,
    address: PathBuf,
    named: Option<(String, Arc<OwnedFd>)>,
}

/// What a new run of the daemon is started with.
#[derive(Clone, Debug)]
pub struct Kept {
    notify: PathBuf,
    named: Option<(String, Arc<OwnedFd>)>,
}

impl FdStore {
    /// Listens at `address`, in the place of a supervisor that has died. Must be called inside a tokio runtime.
    ///
    /// Errors: the directory cannot be written (69).
    pub fn bind(address: &Path) -> Result<Self, Failure> {
        let bind = || match fs::remove_file(address) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => UnixDatagram::bind(address),
        };
        let socket = bind()
            .with_context(|| format!("socket {}", address.display()))
            .or_exit(Exit::Dependency)?;
        Ok(Self {
            socket,
            address: address.to_owned(),
            named: None,
        })
    }

    /// Waits until the daemon has said something. Cancel-safe.
    pub async fn readable(&self) {
        // Fails only where the runtime ends, and everything with it.
        let _ = self.socket.readable().await;
    }

    /// Takes in all that the daemon has said.
    pub fn read_all(&mut self) {
        // Past the runtime first, which may not have noticed a message yet; then by it, so that it waits again.
        while let Ok(said) = self.receive() {
            self.note(said);
        }
        while let Ok(said) = self.socket.try_io(Interest::READABLE, || self.receive()) {
            self.note(said);
        }
    }

    /// Errors: there is nothing more. What else could fail is tried again with the next message.
    fn receive(&self) -> io::Result<(String, Option<OwnedFd>)> {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let (bytes, descriptor) = receive_with_descriptor(&self.socket, &mut buffer)?;
        Ok((
            String::from_utf8_lossy(&buffer[..bytes]).into_owned(),
            descriptor,
        ))
    }

    /// For the next run of the daemon.
    pub fn kept(&self) -> Kept {
        Kept {
            notify: self.address.clone(),
            named: self.named.clone(),
        }
    }

    fn note(&mut self, (message, descriptor): (String, Option<OwnedFd>)) {
        let value = |key: &str| {
            let mut values = message.lines().filter_map(|line| line.strip_prefix(key));
            values.next()
        };
        let name = value("FDNAME=").unwrap_or_default();
        if value("FDSTOREREMOVE=") == Some("1") {
            self.named.take_if(|(kept, _)| kept == name);
        } else if let (Some("1"), Some(descriptor)) = (value("FDSTORE="), descriptor) {
            self.named = Some((name.to_owned(), Arc::new(descriptor)));
        }
    }
}

impl Kept {
    /// Has `command` start the daemon with what was kept, and listen to what it wants kept.
    ///
    /// Errors: no descriptor is left to hand over.
    pub fn hand_over(&self, command: &mut Command) -> io::Result<()> {
        command.env("NOTIFY_SOCKET", &self.notify);
        if let Some((name, descriptor)) = &self.named {
            bequeath(command, name, descriptor.try_clone()?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::{fd::AsFd, unix::net::UnixDatagram as Sender};

    use vitriol_ipc::send_with_descriptor;

    use super::*;

    struct Fixture {
        directory: tempfile::TempDir,
        daemon: Sender,
        store: FdStore,
    }

    fn fixture() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let address = directory.path().join("notify");
        // What a dead supervisor left.
        fs::write(&address, "").unwrap();
        let store = FdStore::bind(&address).unwrap();
        let daemon = Sender::unbound().unwrap();
        daemon.connect(&address).unwrap();
        Fixture {
            directory,
            daemon,
            store,
        }
    }

    impl Fixture {
        fn says(&self, message: &str, text: Option<&str>) {
            let Some(text) = text else {
                self.daemon.send(message.as_bytes()).unwrap();
                return;
            };
            let path = self.directory.path().join(text);
            fs::write(&path, text).unwrap();
            let file = fs::File::open(path).unwrap();
            send_with_descriptor(&self.daemon, message.as_bytes(), file.as_fd()).unwrap();
        }

        /// What a run that is started now finds.
        fn next_run(&mut self) -> String {
            self.store.read_all();
            let mut command = Command::new("/bin/sh");
            let script = "echo $LISTEN_FDS $LISTEN_FDNAMES \
                          $(test -z $LISTEN_FDS || cat /proc/self/fd/$LISTEN_FDS_FIRST_FD)";
            command.args(["-c", script]).env_remove("LISTEN_FDS");
            self.store.kept().hand_over(&mut command).unwrap();
            let said = command.output().unwrap();
            String::from_utf8(said.stdout).unwrap().trim().to_owned()
        }
    }

    #[tokio::test]
    async fn the_next_run_finds_what_the_last_one_had_kept() {
        let mut house = fixture();
        assert_eq!(house.next_run(), "");
        house.says("READY=1\nSTATUS=FDSTORE=1\n", None);
        assert_eq!(house.next_run(), "");
        house.says("FDSTORE=1\nFDNAME=arena\nFDPOLL=0\n", Some("one"));
        assert_eq!(house.next_run(), "1 arena one");
        house.says("FDSTOREREMOVE=1\nFDNAME=other\n", None);
        house.says("WATCHDOG=1\n", Some("not to be kept"));
        assert_eq!(house.next_run(), "1 arena one");
        house.says("FDSTOREREMOVE=1\nFDNAME=arena\n", None);
        house.says("FDSTORE=1\nFDNAME=arena\n", Some("two"));
        assert_eq!(house.next_run(), "1 arena two");
        house.says("FDSTOREREMOVE=1\nFDNAME=arena\n", None);
        assert_eq!(house.next_run(), "");
    }
}
