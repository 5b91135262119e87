//! A daemon's socket: its own services and those every daemon has.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::{service::Routes, transport::Server};
use tonic_health::ServingStatus;
use vitriol_ipc::Listener;
use vitriol_proto::{DESCRIPTORS, status::v1::status_server::StatusServer};

use crate::{Exit, Failure, Health, OrExit, StatusBoard, board::StatusService};

/// What streams still open at the end get to close in.
const CLOSE_DEADLINE: Duration = Duration::from_secs(1);

/// A peer that stopped reading a control answer is not waited for.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// A socket being served in the background.
#[derive(Debug)]
pub struct RpcServer {
    stop: CancellationToken,
    task: JoinHandle<Result<(), Failure>>,
}

impl RpcServer {
    /// Serves `routes` and the standard services on `listener` until [`stop`](Self::stop).
    pub fn spawn(listener: Listener, routes: Routes, board: StatusBoard) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(serve_uds(listener, routes, board, stop.clone()));
        Self { stop, task }
    }

    /// Waits for the server to end, which before `stop` it only does on an error. Cancel-safe.
    pub async fn ended(&mut self) -> Result<(), Failure> {
        match (&mut self.task).await {
            Ok(result) => result,
            Err(error) => Err(Failure::of(Exit::Internal, error)),
        }
    }

    /// Takes no more connections, gives open streams a second to close, and removes the socket.
    pub async fn stop(mut self) -> Result<(), Failure> {
        self.stop.cancel();
        self.ended().await
    }
}

/// Serves `routes`, `vitriol.status.v1`, `grpc.health.v1` and reflection on `listener` until `stop`.
///
/// `grpc.health.v1` says SERVING for the empty service name while the board says Ready.
pub async fn serve_uds(
    listener: Listener,
    routes: Routes,
    board: StatusBoard,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let path = listener.path().display().to_string();
    let (reporter, health) = tonic_health::server::health_reporter();
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .or_exit(Exit::Internal)?;
    let mut changes = board.watch_health();
    let follow_health = tokio::spawn(async move {
        loop {
            let status = match *changes.borrow_and_update() {
                Health::Ready => ServingStatus::Serving,
                _ => ServingStatus::NotServing,
            };
            reporter.set_service_status("", status).await;
            if changes.changed().await.is_err() {
                return;
            }
        }
    });
    let server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .add_routes(routes)
        .add_service(StatusServer::new(StatusService(board)))
        .add_service(health)
        .add_service(reflection)
        .serve_with_incoming_shutdown(listener.incoming(), stop.clone().cancelled_owned());
    let past_deadline = async {
        stop.cancelled().await;
        tokio::time::sleep(CLOSE_DEADLINE).await;
    };
    let served = tokio::select! {
        served = server => served,
        () = past_deadline => Ok(()),
    };
    follow_health.abort();
    served.map_err(|error| {
        Failure::new(
            Exit::Internal,
            format!("serving {path}: {:#}", anyhow::Error::from(error)),
        )
    })
}
