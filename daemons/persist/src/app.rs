//! The process: looks at every daemon, round after round, until it is told to stop.

use std::time::Instant;

use tokio::time::MissedTickBehavior;
use tonic::service::Routes;
use vitriol_chassis::{Daemon, Exit, Failure, OrExit, RpcServer, blocking};
use vitriol_ipc::{Listener, create_private_dir};
use vitriol_proto::persist::v1::persist_server::PersistServer;
use vitriol_sysfs::Sysfs;

use crate::{
    bounce::Bouncer, config::Config, journal::Journal, launches::Launches, metrics::Metrics,
    service::SharedJournal, warmer::Warmer, watch::DaemonWatch,
};

/// The record of launches, in the state directory.
const JOURNAL: &str = "launches";

/// Runs the watch until it is told to stop: bind, announce, look.
///
/// Errors: the socket is held by another (exit 69), a directory that cannot be used (78).
pub async fn run(config: Config, daemon: Daemon) -> Result<(), Failure> {
    let listener = Listener::bind(&config.socket)?;
    let metrics = Metrics::default();
    daemon.board.register(|registry| metrics.register(registry));
    create_private_dir(&config.state_dir)?;
    let path = config.state_dir.join(JOURNAL);
    let journal = blocking(move || Journal::open(path))
        .await?
        .or_exit(Exit::Config)?;
    if journal.damaged() > 0 {
        let lines = journal.damaged();
        tracing::warn!(
            lines,
            "lines of the record of launches are damaged and left out"
        );
    }
    let journal = SharedJournal::new(journal);
    let routes = Routes::new(PersistServer::new(journal.clone()));
    let mut server = RpcServer::spawn(listener, routes, daemon.board.clone());
    let mut launches = Launches::new(journal, metrics.clone());

    let watches = config.watched.iter().cloned();
    let mut watches: Vec<DaemonWatch> = watches
        .map(|watched| DaemonWatch::new(watched, &config, metrics.clone()))
        .collect();
    let bouncer = config.bounce.clone();
    let bouncer = bouncer.map(|config| Bouncer::new(config, Sysfs::host(), metrics.clone()));
    // Beside the looks, which must not wait for an engine that finishes its answers, nor for a disk.
    let mut bouncing = tokio::spawn(async {
        match bouncer {
            Some(bouncer) => bouncer.run().await,
            None => std::future::pending().await,
        }
    });
    let warmer = config.warmup.clone();
    let warmer = warmer.map(|config| Warmer::new(config, metrics));
    let mut warming = tokio::spawn(async {
        match warmer {
            Some(warmer) => warmer.run().await,
            None => std::future::pending().await,
        }
    });
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
            ended = &mut bouncing => break ended.or_exit(Exit::Internal),
            ended = &mut warming => break ended.or_exit(Exit::Internal),
            _ = beats.tick() => {}
            _ = rounds.tick() => {
                for watch in &mut watches {
                    // Every step of it has a deadline; whoever is told to stop does not wait for that.
                    tokio::select! {
                        () = daemon.shutdown.cancelled() => break,
                        () = watch.round(began.elapsed()) => {}
                    }
                    if let Some(launch) = watch.take_launch() {
                        launches.record(launch).await?;
                    }
                    daemon.heartbeat.beat();
                }
                launches.save().await?;
            }
        }
        daemon.heartbeat.beat();
    };
    bouncing.abort();
    warming.abort();
    ended?;
    server.stop().await
}
