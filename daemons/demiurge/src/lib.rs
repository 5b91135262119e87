//! Demiurge: the house's one HTTP door, on 127.0.0.1:8265.
//!
//! It speaks OpenAI's and llama-server's dialects to clients and one gRPC stream to the engine. It
//! decides where a request is answered (`lane`), passes the client's messages on as they are, and
//! turns the engine's events into answers as fast as each client reads and no faster. It never
//! writes down what was asked or answered: logs, metrics and the decision log hold counts, times
//! and ids.
//!
//! Read on in `routes/completions` (what a request goes through), `submission` (what becomes of one
//! whose engine dies), `engine_link` (how many share one stream), `answer_stream` (how a slow reader
//! slows its own sequence) and `account` (what remains of a request).

mod account;
mod answer;
mod answer_stream;
mod api_error;
mod app;
mod args;
mod body;
mod config;
mod decision_log;
mod engine_link;
mod entry;
mod kvtier;
mod lane;
mod metrics;
mod neighbours;
mod open_metrics;
mod origin;
mod random;
mod request;
mod routes;
mod server;
mod sse;
mod submission;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use vitriol_chassis::{Daemon, Drained, Exit, Failure, Inherited, OrExit, RpcServer};
use vitriol_ipc::{Listener, connect, create_private_dir};

use app::App;
use decision_log::DecisionLog;
use engine_link::{EngineLink, LinkConfig};
use metrics::Metrics;
use server::Server;

pub use config::{Config, Places};
pub use entry::main;

/// What answers cut by the end of a drain get to send their error in.
const CUT_GRACE: Duration = Duration::from_secs(1);

/// How long requests wait at the start for the first try to reach the engine. Without an engine it
/// ends at once; one that hangs is not waited for.
const FIRST_TRY_MAX: Duration = Duration::from_millis(500);

/// What the decision log gets to write its last lines in.
const FLUSH_DEADLINE: Duration = Duration::from_secs(1);

/// Runs Demiurge until it is told to stop: bind, announce, serve, drain. A socket among `inherited`
/// takes the place of the port it would bind.
///
/// Errors: port or status socket held by another (exit 69), directories that cannot be used (78).
async fn run(mut config: Config, inherited: Inherited, daemon: Daemon) -> Result<(), Failure> {
    let listener = server::listen(config.listen, &inherited)?;
    let address = listener.local_addr().or_exit(Exit::Internal)?;
    config.listen = address;
    let status_socket = Listener::bind(&config.status_socket)?;
    // What a killed process left behind must not be taken for ours.
    remove_address(&config.address_file);
    let mut status = RpcServer::spawn(status_socket, Routes::default(), daemon.board.clone());

    let (app, link, link_stop) = build(config, &daemon)?;
    let server = Server::new(Arc::clone(&app), routes::router(Arc::clone(&app)));
    let first_try = link.first_try(FIRST_TRY_MAX);
    let keeping = tokio::spawn({
        let stop = link_stop.clone();
        async move { link.run(stop).await }
    });
    // Connections that wait in the socket's queue since before a restart would else be told that no
    // engine is there, a millisecond before one is.
    first_try.await;
    write_address(&app.config.address_file, address)?;
    daemon.board.ready(format!("listening on {address}"));
    tracing::info!(%address, engine = %app.config.engine_socket.display(), "listening");

    let stop = async {
        tokio::select! {
            () = daemon.shutdown.cancelled() => Ok(()),
            ended = status.ended() => ended,
        }
    };
    let (_, stopped) = tokio::join!(server.accept(listener, daemon.heartbeat.clone()), async {
        let stopped = stop.await;
        app.drain.begun.cancel();
        stopped
    });
    drain(&app, &server, &daemon).await;

    link_stop.cancel();
    // It ends by itself; a panic of its own has been reported by the runtime.
    let _ = keeping.await;
    let decisions = app.decisions.clone();
    let flushed = tokio::task::spawn_blocking(move || decisions.flush(FLUSH_DEADLINE));
    flushed.await.or_exit(Exit::Internal)?;
    remove_address(&app.config.address_file);
    stopped?;
    status.stop().await
}

fn build(
    config: Config,
    daemon: &Daemon,
) -> Result<(Arc<App>, EngineLink, CancellationToken), Failure> {
    let metrics = Metrics::default();
    daemon.board.register(|registry| metrics.register(registry));
    if let Some(directory) = config.decisions.parent() {
        create_private_dir(directory)?;
    }
    let decisions = DecisionLog::start(
        config.decisions.clone(),
        config.decisions_bytes_max,
        metrics.clone(),
    )
    .or_exit(Exit::Internal)?;
    let link = EngineLink::new(
        connect(&config.engine_socket),
        LinkConfig {
            control_deadline: config.control_deadline,
            window_tokens: config.window_tokens,
        },
        metrics.clone(),
    );
    daemon
        .board
        .register(|registry| registry.register_collector(link.collector()));
    let app = App::new(
        config,
        link.clone(),
        decisions,
        metrics,
        daemon.board.clone(),
    );
    Ok((Arc::new(app), link, CancellationToken::new()))
}

/// Lets running answers finish, then ends them with an error, then cuts what is left.
async fn drain(app: &App, server: &Server, daemon: &Daemon) {
    let drained = daemon.drain(app.config.drain, server.finished()).await;
    if drained == Drained::DeadlinePassed {
        app.drain.expired.cancel();
        if tokio::time::timeout(CUT_GRACE, server.finished())
            .await
            .is_err()
        {
            app.drain.cut.cancel();
            server.finished().await;
        }
    }
}

/// Leaves the bound address where the supervisor finds it, whole or not at all.
fn write_address(path: &Path, address: SocketAddr) -> Result<(), Failure> {
    let write = || -> io::Result<()> {
        let draft = path.with_extension("addr.new");
        fs::write(&draft, format!("{address}\n"))?;
        fs::rename(&draft, path)
    };
    write().map_err(|error| {
        Failure::new(
            Exit::Dependency,
            format!("write address to {}: {error}", path.display()),
        )
    })
}

fn remove_address(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "address file not removed");
    }
}
