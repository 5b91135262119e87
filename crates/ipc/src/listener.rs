//! The daemon's side of a socket.

use std::{
    ffi::OsString,
    fs::{self, File, Permissions},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, PermissionsExt},
        net::UnixStream as StdUnixStream,
    },
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    net::{UnixListener, UnixStream},
    time::Sleep,
};
use tokio_stream::Stream;

use crate::{DirsError, FileLock, create_private_dir, trust::Trust};

/// `sun_path` of Linux, less the closing zero.
const SOCKET_PATH_MAX: usize = 107;

/// Rest after a failed accept (out of file descriptors, mostly), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why a socket could not be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("socket {path} is held by {}; stop that first", holder(*.pid))]
    AddressHeld { path: PathBuf, pid: Option<u32> },
    #[error(
        "socket path {path} has {length} bytes, the kernel takes {SOCKET_PATH_MAX}; set \
         XDG_RUNTIME_DIR to a shorter directory"
    )]
    PathTooLong { path: PathBuf, length: usize },
    #[error("{path} is not a socket; remove it or name another path")]
    NotASocket { path: PathBuf },
    #[error("socket {path}: cannot {operation}")]
    Io {
        path: PathBuf,
        operation: &'static str,
        source: io::Error,
    },
    #[error(transparent)]
    Dirs(#[from] DirsError),
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(
        || "another process".to_owned(),
        |pid| format!("process {pid}"),
    )
}

/// A Unix socket at a path, for this user alone, or for the group that root let into its directory
/// (see `trust`).
///
/// Beside the socket lies `<path>.lock`, locked for as long as the listener lives: whoever holds
/// it may remove a socket file that a killed process left behind. Dropping the listener removes
/// the socket.
#[derive(Debug)]
pub struct Listener {
    inner: UnixListener,
    path: PathBuf,
    trust: Trust,
    _lock: FileLock,
}

impl Listener {
    /// Listens at `path`. The directory is created with mode 0700, the socket has mode 0600 (0660
    /// where its directory is shared with the group this process runs as), a socket that nobody
    /// listens on any more is replaced.
    ///
    /// Errors: [`BindError::AddressHeld`] while another process listens there; nothing is touched.
    /// Must be called inside a tokio runtime.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let length = path.as_os_str().as_bytes().len();
        if length > SOCKET_PATH_MAX {
            return Err(BindError::PathTooLong {
                path: path.to_owned(),
                length,
            });
        }
        if let Some(directory) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            create_private_dir(directory)?;
        }
        let lock = take_lock(path)?;
        remove_stale(path)?;
        let io = |operation| {
            move |source| BindError::Io {
                path: path.to_owned(),
                operation,
                source,
            }
        };
        let trust = Trust::of_socket(path);
        let mode = match trust.shared_with() {
            Some(_) => 0o660,
            None => 0o600,
        };
        let inner = UnixListener::bind(path).map_err(io("listen"))?;
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(io("set its mode"))?;
        Ok(Self {
            inner,
            path: path.to_owned(),
            trust,
            _lock: lock,
        })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The connections of those who may call, for `serve_with_incoming`; it never ends.
    pub fn incoming(self) -> Incoming {
        Incoming {
            listener: self,
            pause: None,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Ours while we hold the lock. A failure leaves a stale socket, which the next bind removes.
        let _ = fs::remove_file(&self.path);
    }
}

fn take_lock(path: &Path) -> Result<FileLock, BindError> {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(".lock");
    let io = |operation| {
        move |source| BindError::Io {
            path: path.to_owned(),
            operation,
            source,
        }
    };
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&name)
        .map_err(io("create its lock"))?;
    FileLock::take(lock).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => BindError::AddressHeld {
            path: path.to_owned(),
            pid: listening_pid(path),
        },
        _ => io("lock it")(error),
    })
}

/// Holding the lock, removes what a killed owner left; a listener that does not lock (of another
/// program) is found by connecting.
fn remove_stale(path: &Path) -> Result<(), BindError> {
    let io = |operation| {
        move |source| BindError::Io {
            path: path.to_owned(),
            operation,
            source,
        }
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io("look at it")(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(BindError::NotASocket {
                path: path.to_owned(),
            });
        }
        Ok(_) => {}
    }
    match StdUnixStream::connect(path) {
        Ok(_) => Err(BindError::AddressHeld {
            path: path.to_owned(),
            pid: listening_pid(path),
        }),
        Err(_) => fs::remove_file(path).map_err(io("remove the stale one")),
    }
}

/// The process that listens at `path`, by the credentials the kernel kept when it did.
fn listening_pid(path: &Path) -> Option<u32> {
    let stream = StdUnixStream::connect(path).ok()?;
    let credentials = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    u32::try_from(credentials.pid.as_raw_pid()).ok()
}

/// Connections as they come, strangers dropped and logged.
#[derive(Debug)]
pub struct Incoming {
    listener: Listener,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Stream for Incoming {
    type Item = io::Result<UnixStream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            match ready!(self.listener.inner.poll_accept(cx)) {
                Ok((stream, _)) => match self.listener.trust.check_client(&stream) {
                    Ok(()) => return Poll::Ready(Some(Ok(stream))),
                    Err(error) => {
                        let socket = self.listener.path.display();
                        tracing::warn!(%socket, %error, "connection refused");
                    }
                },
                Err(error) => {
                    let socket = self.listener.path.display();
                    tracing::warn!(%socket, %error, "accepting a connection failed");
                    self.pause = Some(Box::pin(tokio::time::sleep(ACCEPT_PAUSE)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::MetadataExt, net::UnixListener as StdUnixListener};

    use tokio_stream::StreamExt;

    use super::*;

    fn temp() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("house/main.sock");
        (dir, path)
    }

    #[tokio::test]
    async fn a_socket_is_private_and_gone_after_its_listener() {
        let (_dir, path) = temp();
        let listener = Listener::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(
            fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777,
            0o700
        );
        drop(listener);
        assert!(!path.exists());
        Listener::bind(&path).unwrap();
    }

    #[tokio::test]
    async fn a_held_socket_is_refused_naming_the_process_and_left_alone() {
        let (_dir, path) = temp();
        let _listener = Listener::bind(&path).unwrap();
        let error = Listener::bind(&path).unwrap_err();
        let own = Some(std::process::id());
        assert!(
            matches!(&error, BindError::AddressHeld { pid, .. } if *pid == own),
            "{error}"
        );
        assert!(StdUnixStream::connect(&path).is_ok());
    }

    #[tokio::test]
    async fn a_listener_of_another_program_is_not_removed() {
        let (_dir, path) = temp();
        create_private_dir(path.parent().unwrap()).unwrap();
        let _other = StdUnixListener::bind(&path).unwrap();
        assert!(matches!(
            Listener::bind(&path),
            Err(BindError::AddressHeld { .. })
        ));
        assert!(StdUnixStream::connect(&path).is_ok());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_plain_file_is_not() {
        let (_dir, path) = temp();
        create_private_dir(path.parent().unwrap()).unwrap();
        drop(StdUnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(Listener::bind(&path).unwrap());

        fs::write(&path, "precious").unwrap();
        assert!(matches!(
            Listener::bind(&path),
            Err(BindError::NotASocket { .. })
        ));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[tokio::test]
    async fn a_path_the_kernel_cannot_hold_is_refused_before_anything_is_created() {
        let (dir, _) = temp();
        let path = dir.path().join("x".repeat(120)).join("main.sock");
        assert!(matches!(
            Listener::bind(&path),
            Err(BindError::PathTooLong { .. })
        ));
        assert!(!path.parent().unwrap().exists());
    }

    #[tokio::test]
    async fn connections_of_this_user_come_in() {
        let (_dir, path) = temp();
        let mut incoming = Listener::bind(&path).unwrap().incoming();
        let client = tokio::spawn({
            let path = path.clone();
            async move { UnixStream::connect(path).await }
        });
        let accepted = tokio::time::timeout(Duration::from_secs(10), incoming.next()).await;
        accepted.unwrap().unwrap().unwrap();
        client.await.unwrap().unwrap();
    }
}
