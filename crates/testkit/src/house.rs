//! The house as a user runs it: `vitriol up` of this build, in a directory of its own, on a free port.

mod setup;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ExitStatus},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tempfile::TempDir;

pub use self::setup::Setup;
use crate::{eventually, http::Client, process};

/// Weights of the default model from a cold disk, on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// Longer than the profile's `drain_ms` of both daemons.
const ENDED_WITHIN: Duration = Duration::from_secs(40);

/// Where Demiurge writes the address it is bound to, below the runtime directory.
const PORT_FILE: &str = "demiurge/demiurge.addr";

/// Executable of the engine.
pub const ENGINE: &str = "vitriol-engine";
/// Executable of Demiurge.
pub const DEMIURGE: &str = "vitriol-demiurge";
/// Executable of the OOM shield.
pub const OOM_SHIELD: &str = "vitriol-oom-shield";
/// Executable of the KV tier, where the profile enables it.
pub const KVTIER: &str = "vitriol-kvtier";
/// Executable of the watch over the others.
pub const PERSIST: &str = "vitriol-persist";

/// A running house. Dropping it ends every process of it and removes its directory; when the test
/// that drops it is failing, its logs are printed first.
#[derive(Debug)]
pub struct House {
    directory: TempDir,
    up: Mutex<Child>,
    up_pid: u32,
    address: SocketAddr,
}

impl House {
    /// Starts a house and waits until it answers /health with 200.
    /// Errors: a binary or the model is missing, `up` ends, or it is not ready in time; what `up` and
    /// the daemons said is in the error.
    pub fn start(setup: &Setup) -> Result<House> {
        let directory = tempfile::Builder::new()
            .prefix("vt-")
            .tempdir()
            .context("make a temp dir")?;
        let mut up = setup.spawn_up(directory.path())?;
        let up_pid = up.id();
        match ready(directory.path(), &mut up) {
            Ok(address) => Ok(House {
                directory,
                up: Mutex::new(up),
                up_pid,
                address,
            }),
            Err(error) => {
                let said = said(directory.path());
                end(&mut up);
                Err(error.context(said))
            }
        }
    }

    /// Kills `up` (SIGKILL), waits until its daemons have ended, and starts it again in the same directory:
    /// what only memory had is gone. `setup` should name its port, by which a house finds its state.
    /// Errors: as of [`House::start`]; a daemon does not end.
    pub fn restart(&mut self, setup: &Setup) -> Result<()> {
        let up = self.up.get_mut().unwrap_or_else(PoisonError::into_inner);
        let daemons = daemons_of(up.id());
        up.kill().context("kill up")?;
        up.wait().context("wait for the end of up")?;
        for pid in daemons {
            process::gone(pid, ENDED_WITHIN)?;
        }
        *up = setup.spawn_up(self.directory.path())?;
        self.up_pid = up.id();
        self.address = ready(self.directory.path(), up)?;
        Ok(())
    }

    /// The house with the default model that tests of one binary share; it ends with its last user.
    pub fn shared() -> Result<Arc<House>> {
        static SHARED: Mutex<Weak<House>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(house) = shared.upgrade() {
            return Ok(house);
        }
        let house = Arc::new(House::start(&Setup::default())?);
        *shared = Arc::downgrade(&house);
        Ok(house)
    }

    /// A client of its HTTP port.
    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// The address Demiurge listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The directory that holds all it writes: `run`, `state`, `cache`.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Process id of `vitriol up`.
    pub fn up_pid(&self) -> u32 {
        self.up_pid
    }

    /// Process id of the daemon with this executable now. Errors: none runs, or more than one.
    pub fn daemon_pid(&self, executable: &str) -> Result<u32> {
        let running: Vec<u32> = process::children(self.up_pid, executable)?
            .into_iter()
            .filter(|p| p.state != 'Z')
            .map(|p| p.pid)
            .collect();
        match running[..] {
            [pid] => Ok(pid),
            _ => bail!("{} processes {executable} under up", running.len()),
        }
    }

    /// Sends `signal` to `up` alone.
    pub fn signal_up(&self, signal: Signal) -> Result<()> {
        process::signal(self.up_pid, signal)
    }

    /// Waits until `up` has ended by itself.
    pub fn wait_up(&self, within: Duration) -> Result<ExitStatus> {
        let mut up = self.up.lock().unwrap_or_else(PoisonError::into_inner);
        eventually(within, "end of vitriol up", || up.try_wait().ok().flatten())
    }

    /// All files below its directory called `name`, e.g. `decisions.jsonl`.
    pub fn files_named(&self, name: &str) -> Vec<PathBuf> {
        files(self.directory.path())
            .into_iter()
            .filter(|p| p.ends_with(name))
            .collect()
    }

    /// What `up` printed and the daemons logged so far.
    pub fn said(&self) -> String {
        said(self.directory.path())
    }
}

impl Drop for House {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.said());
        }
        end(self.up.get_mut().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Waits for the port file and for /health; gives the address.
fn ready(directory: &Path, up: &mut Child) -> Result<SocketAddr> {
    let mut ended = None;
    let address = eventually(READY_WITHIN, "readiness of the house", || {
        ended = up.try_wait().ok().flatten();
        if ended.is_some() {
            return Some(None);
        }
        let file = files(&directory.join("run"))
            .into_iter()
            .find(|f| f.ends_with(PORT_FILE))?;
        let address: SocketAddr = fs::read_to_string(file).ok()?.trim().parse().ok()?;
        let health = Client::new(address).get("/health").ok()?;
        (health.status() == 200).then_some(Some(address))
    })?;
    match (address, ended) {
        (Some(address), _) => Ok(address),
        (None, status) => bail!("vitriol up ended with {status:?}"),
    }
}

/// Process ids of the daemons under this `up`.
fn daemons_of(up: u32) -> Vec<u32> {
    let names = [ENGINE, DEMIURGE, OOM_SHIELD, KVTIER, PERSIST];
    names
        .iter()
        .flat_map(|name| process::children(up, name).unwrap_or_default())
        .map(|process| process.pid)
        .collect()
}

/// SIGTERM, a deadline, SIGKILL; then the daemons must be gone too, and are ended if they are not.
fn end(up: &mut Child) {
    let daemons = daemons_of(up.id());
    if up.try_wait().ok().flatten().is_none() {
        process::signal(up.id(), Signal::TERM).ok();
        if eventually(ENDED_WITHIN, "end of up", || up.try_wait().ok().flatten()).is_err() {
            eprintln!(
                "vitriol up (pid {}) ignored SIGTERM for {ENDED_WITHIN:?}: killed",
                up.id()
            );
            up.kill().ok();
            up.wait().ok();
        }
    }
    for pid in daemons {
        if process::gone(pid, Duration::from_secs(10)).is_err() {
            eprintln!("a daemon (pid {pid}) outlived vitriol up: killed");
            process::signal(pid, Signal::KILL).ok();
        }
    }
}

/// `up`'s output and every log, each under its name.
fn said(directory: &Path) -> String {
    files(directory)
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| e == "log"))
        .map(|path| {
            let text = fs::read(&path).unwrap_or_default();
            let tail = &text[text.len().saturating_sub(8 << 10)..];
            format!("--- {}\n{}", path.display(), String::from_utf8_lossy(tail))
        })
        .collect::<Vec<_>>()
        .join("\n")
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}
