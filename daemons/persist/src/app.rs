//! The process: looks at every daemon, round after round, until it is told to stop.

use std::time::Instant;

use tokio::time::MissedTickBehavior;
use tonic::service::Routes;
use vitriol_chassis::{Daemon, Failure, RpcServer};
use vitriol_ipc::Listener;

use crate::{config::Config, metrics::Metrics, watch::DaemonWatch};

/// Runs the watch until it is told to stop: bind, announce, look.
///
/// Errors: the socket is held by another (exit 69), a directory that cannot be used (78).
pub async fn run(config: Config, daemon: Daemon) -> Result<(), Failure> {
    let listener = Listener::bind(&config.socket)?;
    let metrics = Metrics::default();
    daemon.board.register(|registry| metrics.register(registry));
    let mut server = RpcServer::spawn(listener, Routes::default(), daemon.board.clone());

    let watches = config.watched.iter().cloned();
    let mut watches: Vec<DaemonWatch> = watches
        .map(|watched| DaemonWatch::new(watched, &config, metrics.clone()))
        .collect();
    daemon
        .board
        .ready(format!("watching {} daemons", watches.len()));
    let mut beats = tokio::time::interval(daemon.heartbeat.idle_max());
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rounds = tokio::time::interval(config.poll_interval);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let began = Instant::now();
    let ended = loop {
        tokio::select! {
            () = daemon.shutdown.cancelled() => break Ok(()),
            ended = server.ended() => break ended,
            _ = beats.tick() => {}
            _ = rounds.tick() => {
                for watch in &mut watches {
                    // Every step of it has a deadline; whoever is told to stop does not wait for that.
                    tokio::select! {
                        () = daemon.shutdown.cancelled() => break,
                        () = watch.round(began.elapsed()) => {}
                    }
                    daemon.heartbeat.beat();
                }
            }
        }
        daemon.heartbeat.beat();
    };
    ended?;
    server.stop().await
}
