//! The TCP side: listening, connections with bounds, draining.

mod stall_guard;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use vitriol_chassis::{Exit, Failure, Heartbeat, Inherited};
use vitriol_profile::check_loopback;
use vitriol_sysfs::Sysfs;

use crate::app::App;

use stall_guard::StallGuard;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 1024;

/// Send buffer of a connection, bytes. Fixed, because a buffer that the kernel lets grow to some
/// megabytes would hide a slow reader for thousands of tokens.
const SEND_BUFFER_BYTES: u32 = 128 << 10;

/// Largest request head, and most bytes of an answer held in this process, for each connection.
const CONNECTION_BUFFER_BYTES: usize = 64 << 10;

/// Rest after a failed accept (out of file descriptors, mostly), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a connection on which no request came yet gets to send one, once the drain has begun.
const UNUSED_GRACE: Duration = Duration::from_millis(250);

/// Takes the socket that the service manager opened (socket activation: clients that come while
/// Demiurge restarts wait in its queue), or else listens on `address`.
///
/// Errors: exit 69 naming the holder when the port is taken; 78 when the address is not this
/// machine's or the port not for this user, or when the inherited socket is not one of loopback TCP.
pub fn listen(address: SocketAddr, inherited: &Inherited) -> Result<TcpListener, Failure> {
    let unfit = |error: io::Error| {
        let message = format!(
            "socket from the service manager: {error}; give vitriol-demiurge.socket one \
             ListenStream= with a loopback address"
        );
        Failure::new(Exit::Config, message)
    };
    let Some(socket) = inherited.take_tcp_listener().map_err(unfit)? else {
        return open(address);
    };
    let listener = adopt(socket).map_err(unfit)?;
    let bound = listener.local_addr().map_err(unfit)?;
    check_loopback(bound.ip())?;
    if bound != address {
        tracing::warn!(
            socket = %bound,
            profile = %address,
            "the service manager's socket has another address than house.listen; it decides"
        );
    }
    Ok(listener)
}

fn adopt(socket: std::net::TcpListener) -> io::Result<TcpListener> {
    socket.set_nonblocking(true)?;
    // Accepted connections inherit it.
    set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES as usize)?;
    TcpListener::from_std(socket)
}

fn open(address: SocketAddr) -> Result<TcpListener, Failure> {
    bind(address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            let holder = match Sysfs::host().port_holder(address.port()) {
                Some(holder) => holder.to_string(),
                None => "another process".to_owned(),
            };
            let message = format!(
                "port {address} is held by {holder}; stop that, or choose another with --listen"
            );
            Failure::new(Exit::Dependency, message)
        }
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::PermissionDenied => {
            let message = format!("listen on {address}: {error}; choose another with --listen");
            Failure::new(Exit::Config, message)
        }
        _ => Failure::new(Exit::Internal, format!("listen on {address}: {error}")),
    })
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Connections of a process that ended a moment ago do not keep the port.
    socket.set_reuseaddr(true)?;
    // Accepted connections inherit it.
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Connections being served.
pub struct Server {
    app: Arc<App>,
    router: Router,
    connections: TaskTracker,
    places: Arc<Semaphore>,
}

impl Server {
    /// A server of `router`, with the bounds of the app's configuration.
    pub fn new(app: Arc<App>, router: Router) -> Server {
        let places = Arc::new(Semaphore::new(app.config.connections_max));
        Server {
            app,
            router,
            connections: TaskTracker::new(),
            places,
        }
    }

    /// Accepts connections until the drain begins. With every place taken the next ones wait in the
    /// kernel.
    pub async fn accept(&self, listener: TcpListener, heartbeat: Heartbeat) {
        let mut beats = tokio::time::interval(heartbeat.idle_max());
        let mut place = None;
        loop {
            tokio::select! {
                () = self.app.drain.begun.cancelled() => break,
                _ = beats.tick() => heartbeat.beat(),
                free = Arc::clone(&self.places).acquire_owned(), if place.is_none() => {
                    place = free.ok();
                }
                accepted = listener.accept(), if place.is_some() => match accepted {
                    Ok((stream, _)) => self.spawn(stream, place.take()),
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        self.connections.close();
    }

    /// Waits until every connection has closed, which they begin to when the drain does.
    pub async fn finished(&self) {
        self.connections.close();
        self.connections.wait().await;
    }

    fn spawn(&self, stream: TcpStream, place: Option<tokio::sync::OwnedSemaphorePermit>) {
        let app = Arc::clone(&self.app);
        let router = self.router.clone();
        self.connections.spawn(async move {
            app.metrics.connections.inc();
            serve(&app, router, stream).await;
            app.metrics.connections.dec();
            drop(place);
        });
    }
}

/// Serves one connection to its end.
async fn serve(app: &App, router: Router, stream: TcpStream) {
    // Tokens are small and must not wait for one another. A socket that refuses still works.
    let _ = stream.set_nodelay(true);
    let io = TokioIo::new(StallGuard::new(stream, app.config.reader_stall_timeout));
    let used = AtomicBool::new(false);
    let service = service_fn(|request: http::Request<Incoming>| {
        used.store(true, Ordering::Relaxed);
        router.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.config.head_timeout)
        .max_buf_size(CONNECTION_BUFFER_BYTES)
        .serve_connection(io, service);
    let mut connection = pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = app.drain.begun.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let unused = async {
                tokio::time::sleep(UNUSED_GRACE).await;
                if used.load(Ordering::Relaxed) {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                served = connection.as_mut() => served,
                () = unused => return,
                () = app.drain.cut.cancelled() => return,
            }
        }
    };
    if let Err(error) = served {
        // Clients that leave in the middle are everyday; the error has no content of theirs.
        tracing::debug!(%error, "connection ended");
    }
}
