//! What the service manager hears: readiness, status, and signs of life.

use std::{
    ffi::OsStr,
    fmt::Write,
    io,
    os::{
        fd::BorrowedFd,
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

pub use sd_notify::NotifyState;
use vitriol_ipc::send_with_descriptor;

/// Longest that a loop without work goes without a beat, whatever its watchdog allows: who watches takes one
/// that stands still for several times as long for one that hangs.
pub const IDLE_MAX: Duration = Duration::from_secs(1);

/// The service manager's notification socket, or nothing at all.
#[derive(Clone, Debug, Default)]
pub struct Notifier {
    socket: Option<Arc<UnixDatagram>>,
}

impl Notifier {
    /// Talks to `$NOTIFY_SOCKET`, given by main; without one every notification is dropped.
    pub fn new(notify_socket: Option<&OsStr>) -> io::Result<Self> {
        let Some(address) = notify_socket else {
            return Ok(Self::default());
        };
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        // The step loop sends through this; it must not wait for a busy manager.
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: Some(Arc::new(socket)),
        })
    }

    /// Sends the states in one datagram. A manager that does not listen is not a reason to fail.
    pub fn send(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.socket else { return };
        let mut message = String::new();
        for state in states {
            let _ = writeln!(message, "{state}");
        }
        if let Err(error) = socket.send(message.as_bytes()) {
            tracing::debug!(%error, "notifying the service manager failed");
        }
    }

    /// Gives the manager a copy of `descriptor` to keep under `name`.
    ///
    /// Errors: it does not listen or is busy; nothing is kept then.
    pub fn keep(&self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let Some(socket) = &self.socket else {
            return Ok(());
        };
        // It need not watch the descriptor for its end: shared memory has none.
        let message = format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0\n");
        send_with_descriptor(socket, message.as_bytes(), descriptor)
    }

    /// Has the manager forget what it keeps under `name`.
    pub fn forget(&self, name: &str) {
        let states = format!("FDSTOREREMOVE=1\nFDNAME={name}");
        self.send(&[NotifyState::Custom(&states)]);
    }
}

/// Signs of life of the loop that can hang: one beat a round raises the progress counter of the
/// status and, at a third of the watchdog's interval, pings the service manager.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    progress: Arc<AtomicU64>,
    notifier: Notifier,
    interval: Option<Duration>,
    born: Instant,
    /// Milliseconds from `born` to the last ping, plus one; 0 = never.
    last_ping_ms: Arc<AtomicU64>,
}

impl Heartbeat {
    /// A heartbeat that nobody listens to: for loops outside a daemon.
    pub fn silent() -> Self {
        Self::new(Arc::default(), Notifier::default(), None)
    }

    pub(crate) fn new(
        progress: Arc<AtomicU64>,
        notifier: Notifier,
        watchdog: Option<Duration>,
    ) -> Self {
        let interval = watchdog.map(|watchdog| watchdog / 3);
        Self {
            progress,
            notifier,
            interval,
            born: Instant::now(),
            last_ping_ms: Arc::default(),
        }
    }

    /// Call once a round. Never blocks; allocates only when a ping is due.
    pub fn beat(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
        let Some(interval) = self.interval else {
            return;
        };
        let now_ms = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        let last = self.last_ping_ms.load(Ordering::Relaxed);
        let due_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        if last == 0 || now_ms.saturating_sub(last - 1) >= due_ms {
            self.last_ping_ms.store(now_ms + 1, Ordering::Relaxed);
            self.notifier.send(&[NotifyState::Watchdog]);
        }
    }

    /// Longest an idle loop may sleep before its next beat.
    pub fn idle_max(&self) -> Duration {
        self.interval.unwrap_or(IDLE_MAX).min(IDLE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager() -> (tempfile::TempDir, UnixDatagram, Notifier) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        (dir, manager, Notifier::new(Some(path.as_os_str())).unwrap())
    }

    fn receive(manager: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let length = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn states_arrive_in_one_datagram() {
        let (_dir, manager, notifier) = manager();
        notifier.send(&[NotifyState::Ready, NotifyState::Status("serving")]);
        assert_eq!(receive(&manager), "READY=1\nSTATUS=serving\n");
    }

    #[test]
    fn an_abstract_socket_is_reached() {
        let name = format!("vitriol-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        manager
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let notifier = Notifier::new(Some(OsStr::new(&format!("@{name}")))).unwrap();
        notifier.send(&[NotifyState::Stopping]);
        assert_eq!(receive(&manager), "STOPPING=1\n");
    }

    #[test]
    fn without_a_manager_nothing_happens() {
        Notifier::new(None).unwrap().send(&[NotifyState::Ready]);
        assert!(Notifier::new(Some(OsStr::new("/nonexistent/notify"))).is_err());
    }

    #[test]
    fn beats_count_and_ping_only_when_due() {
        let (_dir, manager, notifier) = manager();
        let progress = Arc::new(AtomicU64::new(0));
        let heartbeat = Heartbeat::new(progress.clone(), notifier, Some(Duration::from_secs(3600)));
        for _ in 0..100 {
            heartbeat.beat();
        }
        assert_eq!(progress.load(Ordering::Relaxed), 100);
        assert_eq!(receive(&manager), "WATCHDOG=1\n");
        manager.set_nonblocking(true).unwrap();
        assert!(
            manager.recv(&mut [0; 8]).is_err(),
            "one ping is enough for 20 minutes"
        );
    }

    #[test]
    fn an_idle_loop_beats_for_its_watchdog_and_for_whoever_watches() {
        let idle_max = |watchdog| {
            let heartbeat = Heartbeat::new(Arc::default(), Notifier::default(), watchdog);
            heartbeat.idle_max()
        };
        assert_eq!(idle_max(None), IDLE_MAX);
        assert_eq!(idle_max(Some(Duration::from_secs(3600))), IDLE_MAX);
        let short = Duration::from_millis(900);
        assert_eq!(idle_max(Some(short)), short / 3);
    }
}
