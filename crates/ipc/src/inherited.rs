//! Descriptors that the service manager opened or kept for this process.

use std::{
    fmt, io,
    net::TcpListener,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::Command,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use listenfd::ListenFd;
use rustix::io::{FdFlags, fcntl_setfd};

/// Has the process that `command` starts find `descriptor` as kept under `name` ([`Inherited::take_kept`]), and
/// no other process that is started meanwhile.
#[allow(unsafe_code, reason = "only the child may keep the descriptor open")]
pub fn bequeath(command: &mut Command, name: &str, descriptor: OwnedFd) {
    command
        .env_remove("LISTEN_PID")
        .env("LISTEN_FDS", "1")
        .env("LISTEN_FDNAMES", name)
        .env("LISTEN_FDS_FIRST_FD", descriptor.as_raw_fd().to_string());
    let keep_open = move || Ok(fcntl_setfd(&descriptor, FdFlags::empty())?);
    // SAFETY: between fork and exec it makes one system call on a descriptor that it owns; it allocates
    // nothing and takes no lock.
    unsafe { command.pre_exec(keep_open) };
}

/// What `$LISTEN_FDS` counts; empty when nobody opened anything. Clones share the descriptors: each can
/// be taken once.
#[derive(Clone)]
pub struct Inherited {
    passed: Arc<Mutex<Passed>>,
}

struct Passed {
    descriptors: ListenFd,
    /// One for each descriptor, where the manager names them.
    names: Vec<String>,
}

impl Inherited {
    /// Takes over the descriptors of this process and its `$LISTEN_FDS`, which its children will not see.
    /// `names` is `$LISTEN_FDNAMES`.
    pub fn from_process(names: Option<&str>) -> Self {
        let names = names.into_iter().flat_map(|names| names.split(':'));
        let passed = Passed {
            descriptors: ListenFd::from_env(),
            names: names.map(str::to_owned).collect(),
        };
        Self {
            passed: Arc::new(Mutex::new(passed)),
        }
    }

    /// Takes the listening TCP socket; `None` when there is none, or it is taken.
    ///
    /// Errors: there are several descriptors, or one of another kind.
    pub fn take_tcp_listener(&self) -> io::Result<Option<TcpListener>> {
        let descriptors = &mut self.passed().descriptors;
        match descriptors.len() {
            0 => Ok(None),
            1 => descriptors.take_tcp_listener(0),
            count => {
                let message = format!("{count} sockets; the unit must open exactly one");
                Err(io::Error::new(io::ErrorKind::InvalidInput, message))
            }
        }
    }

    /// Takes what an earlier process of the service had the manager keep under `name` (`FDSTORE=1`).
    ///
    /// Errors: what `$LISTEN_FDS` counts is not open.
    #[allow(unsafe_code, reason = "the manager passes descriptors as numbers")]
    pub fn take_kept(&self, name: &str) -> io::Result<Vec<OwnedFd>> {
        let Passed { descriptors, names } = &mut *self.passed();
        let mut kept = Vec::new();
        for index in (0..names.len()).filter(|&index| names[index] == name) {
            let Some(number) = descriptors.take_raw_fd(index)? else {
                continue;
            };
            // SAFETY: whoever started this process opened the descriptor for it, or it is not open, which
            // setting its flags tells; nothing else in the process knows it, and it is taken once.
            kept.push(unsafe {
                fcntl_setfd(BorrowedFd::borrow_raw(number), FdFlags::CLOEXEC)?;
                OwnedFd::from_raw_fd(number)
            });
        }
        Ok(kept)
    }

    fn passed(&self) -> MutexGuard<'_, Passed> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Inherited {
    fn default() -> Self {
        let passed = Passed {
            descriptors: ListenFd::empty(),
            names: Vec::new(),
        };
        Self {
            passed: Arc::new(Mutex::new(passed)),
        }
    }
}

impl fmt::Debug for Inherited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Inherited({} descriptors)",
            self.passed().descriptors.len()
        )
    }
}
