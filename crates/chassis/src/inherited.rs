//! Sockets that the service manager opened before it started this process.

use std::{
    fmt, io,
    net::TcpListener,
    sync::{Arc, Mutex, PoisonError},
};

use listenfd::ListenFd;

/// What `$LISTEN_FDS` counts; empty when nobody opened anything. Clones share the sockets: each can
/// be taken once.
#[derive(Clone)]
pub struct Inherited {
    sockets: Arc<Mutex<ListenFd>>,
}

impl Inherited {
    /// Takes over the sockets of this process and its `$LISTEN_FDS`, which its children will not see.
    pub(crate) fn from_process() -> Self {
        Self {
            sockets: Arc::new(Mutex::new(ListenFd::from_env())),
        }
    }

    /// Takes the listening TCP socket; `None` when there is none, or it is taken.
    ///
    /// Errors: there are several sockets, or one of another kind.
    pub fn take_tcp_listener(&self) -> io::Result<Option<TcpListener>> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        match sockets.len() {
            0 => Ok(None),
            1 => sockets.take_tcp_listener(0),
            count => {
                let message = format!("{count} sockets; the unit must open exactly one");
                Err(io::Error::new(io::ErrorKind::InvalidInput, message))
            }
        }
    }
}

impl Default for Inherited {
    fn default() -> Self {
        Self {
            sockets: Arc::new(Mutex::new(ListenFd::empty())),
        }
    }
}

impl fmt::Debug for Inherited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        write!(f, "Inherited({} sockets)", sockets.len())
    }
}
