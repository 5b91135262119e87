//! The OOM shield: when memory runs out, the kernel kills the process with the highest score. The shield
//! raises the scores of large processes that are not the house's, so that one of them is chosen, and gives
//! every score back when it ends.
//!
//! Read on in `decide` (whose score is raised), `spared` (whose never is), `shield` (how it is done so
//! that no killed shield leaves a trace).

mod args;
mod config;
mod decide;
mod metrics;
mod process;
mod procfs;
mod record;
mod shield;
mod spared;

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::service::Routes;
use vitriol_chassis::{Daemon, Drained, Exit, Failure, OrExit, RpcServer};
use vitriol_ipc::{Listener, create_private_dir};

use metrics::Metrics;
use procfs::Procfs;
use record::RecordFile;
use shield::Shield;

pub use args::Args;
pub use config::{Config, Places};
pub use decide::{Policy, Scope};

/// How often a shield without a watchdog shows that it lives.
const BEAT: Duration = Duration::from_secs(5);

/// Runs the shield until it is told to stop: bind, give back what a killed one left, announce, raise, give
/// back.
///
/// Errors: the socket is held by another (exit 69), directories that cannot be used (78), no /proc (69).
pub async fn run(config: Config, daemon: Daemon) -> Result<(), Failure> {
    let listener = Listener::bind(&config.socket)?;
    create_private_dir(&config.state_dir)?;
    let mut server = RpcServer::spawn(listener, Routes::default(), daemon.board.clone());
    let metrics = Metrics::default();
    daemon.board.register(|registry| metrics.register(registry));

    let procfs = Procfs::host();
    let boot_id = procfs.boot_id().or_exit(Exit::Dependency)?;
    let record = RecordFile::new(&config.state_dir, boot_id);
    let policy = config.policy.clone();
    let mut shield = blocking(move || Shield::open(procfs, policy, record, metrics)).await?;

    let beat = daemon
        .heartbeat
        .idle_max()
        .unwrap_or(BEAT)
        .min(config.scan_interval);
    let mut beats = ticks(beat);
    let mut scans = ticks(config.scan_interval);
    let mut raised = None;
    let ended = loop {
        tokio::select! {
            () = daemon.shutdown.cancelled() => break Ok(()),
            ended = server.ended() => break ended,
            _ = beats.tick() => {}
            _ = scans.tick() => {
                shield = blocking(move || { shield.round(); shield }).await?;
                let now = shield.raised().len();
                if raised.replace(now) != Some(now) {
                    announce(&daemon, now);
                }
            }
        }
        daemon.heartbeat.beat();
    };
    let given_back = async {
        // A panic in it has been reported by the runtime; the record stands for the next one.
        let _ = blocking(move || shield.give_back()).await;
    };
    if daemon.drain(config.drain, given_back).await == Drained::DeadlinePassed {
        tracing::warn!("some scores are not given back yet; the next start goes on with it");
    }
    ended?;
    server.stop().await
}

fn announce(daemon: &Daemon, raised: usize) {
    let detail = match raised {
        1 => "1 process raised".to_owned(),
        _ => format!("{raised} processes raised"),
    };
    match daemon.board.health() {
        vitriol_chassis::Health::Ready => daemon.board.detail(detail),
        _ => daemon.board.ready(detail),
    }
}

fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .or_exit(Exit::Internal)
}
