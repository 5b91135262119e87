//! The client's side of a socket.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::trust::Trust;

/// A Unix socket connects at once or not at all; only a stopped peer with a full queue waits.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A channel to the daemon that listens at `path`.
///
/// Connects on first use and again after a break; until the daemon listens, calls fail with
/// `Unavailable`. A socket that somebody serves who may not (see `trust`) is not talked to.
/// Cancel-safe and cheap to clone. Must be called inside a tokio runtime.
pub fn connect(path: &Path) -> Channel {
    let path: PathBuf = path.to_owned();
    // The address only fills the `:authority` of requests; the connector knows where to go.
    Endpoint::from_static("http://vitriol.invalid")
        .connect_timeout(CONNECT_TIMEOUT)
        .connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { connect_stream(&path).await.map(TokioIo::new) }
        }))
}

/// The socket at `path` itself, for what is not gRPC. Errors: nobody listens, or somebody who may not.
pub async fn connect_stream(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path).await?;
    Trust::of_socket(path).check_server(&stream)?;
    Ok(stream)
}
