//! The OOM shield: when memory runs out, the kernel kills the process with the highest score. The shield
//! raises the scores of large processes that are not the house's, so that one of them is chosen, and gives
//! every score back when it ends.
//!
//! Before it comes to that, a guard hears of memory pressure and has the house take less.
//!
//! Read on in `decide` (whose score is raised), `spared` (whose never is), `shield` (how it is done so
//! that no killed shield leaves a trace), `guard` and `pressure` (what happens when memory gets short).

mod args;
mod config;
mod decide;
mod entry;
mod guard;
mod look;
mod metrics;
mod pressure;
mod process;
mod procfs;
mod record;
mod relief;
mod service;
mod shield;
mod spared;

use std::{path::Path, sync::Arc, time::Duration};

use tokio::{
    task::JoinHandle,
    time::{Interval, MissedTickBehavior, interval},
};
use tonic::service::Routes;
use vitriol_chassis::{Daemon, Drained, Exit, Failure, OrExit, RpcServer, blocking, event};
use vitriol_ipc::{Listener, connect, create_private_dir};
use vitriol_proto::oom_shield::v1::{PressureWatch, oom_shield_server::OomShieldServer};

use guard::{Guard, lock_memory};
use metrics::Metrics;
use pressure::Watch;
use procfs::Procfs;
use record::RecordFile;
use relief::{Messages, ask_engine, ask_kvtier};
use service::ShieldService;
use shield::Shield;

pub use config::Config;
pub use decide::{Policy, Scope};
pub use entry::main;

/// Runs the shield until it is told to stop: bind, give back what a killed one left, announce, raise, give
/// back.
///
/// Errors: the socket is held by another (exit 69), directories that cannot be used (78), no /proc (69).
async fn run(config: Config, daemon: Daemon) -> Result<(), Failure> {
    let listener = Listener::bind(&config.socket)?;
    create_private_dir(&config.state_dir)?;
    let metrics = Metrics::default();
    daemon.board.register(|registry| metrics.register(registry));

    let messages = Arc::new(Messages::default());
    let engine = connect(&config.engine_socket);
    let told = Arc::clone(&messages);
    let asking_engine = ask_engine(told, engine, config.shedding, metrics.clone());
    let mut asking = vec![tokio::spawn(asking_engine)];
    if let Some(trimming) = config.trimming {
        let kvtier = connect(&config.kvtier_socket);
        let told = Arc::clone(&messages);
        let asking_kvtier = ask_kvtier(told, kvtier, trimming, metrics.clone());
        asking.push(tokio::spawn(asking_kvtier));
    }
    let (guard, watch) = start_guard(&config, messages, &metrics)?;
    let service = ShieldService::new(watch, metrics.clone());
    let routes = Routes::new(OomShieldServer::new(service.clone()));
    let mut server = RpcServer::spawn(listener, routes, daemon.board.clone());

    let procfs = Procfs::host();
    let boot_id = procfs.boot_id().or_exit(Exit::Dependency)?;
    let record = RecordFile::new(&config.state_dir, boot_id);
    let policy = config.policy.clone();
    let shield_metrics = metrics.clone();
    let mut shield = blocking(move || Shield::open(procfs, policy, record, shield_metrics)).await?;

    let beat = daemon.heartbeat.idle_max().min(config.scan_interval);
    let mut beats = ticks(beat);
    let mut scans = ticks(config.scan_interval);
    let mut raised = None;
    let ended = loop {
        tokio::select! {
            () = daemon.shutdown.cancelled() => break Ok(()),
            ended = server.ended() => break ended,
            _ = beats.tick() => {}
            _ = scans.tick() => {
                let look;
                (shield, look) = blocking(move || { let look = shield.round(); (shield, look) }).await?;
                service.show(look);
                let now = shield.raised().len();
                if raised.replace(now) != Some(now) {
                    announce(&daemon, now);
                }
            }
        }
        daemon.heartbeat.beat();
    };
    drop(guard);
    asking.iter().for_each(JoinHandle::abort);
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

/// The path of the kernel's word on memory pressure.
const PRESSURE: &str = "/proc/pressure/memory";

/// Starts the guard and locks memory; where the kernel does not do the one or the other, says so.
///
/// Errors: no thread can be started (exit 70).
fn start_guard(
    config: &Config,
    messages: Arc<Messages>,
    metrics: &Metrics,
) -> Result<(Option<Guard>, PressureWatch), Failure> {
    let watch = match Watch::open(Path::new(PRESSURE), config.thresholds) {
        Ok(watch) => watch,
        Err(error) => {
            tracing::warn!(
                message_id = event::SHIELD_DEGRADED,
                %error,
                "the kernel tells nothing of memory pressure (psi=1 on its command line); the shield \
                 only raises scores"
            );
            return Ok((None, PressureWatch::None));
        }
    };
    let (by, kind) = match &watch {
        Watch::Triggers { .. } => ("triggers", PressureWatch::Triggers),
        Watch::Samples { .. } => ("samples", PressureWatch::Samples),
    };
    metrics.guarded.set(1);
    let guard = Guard::start(watch, messages, metrics.clone()).or_exit(Exit::Internal)?;
    let locked = lock_memory();
    metrics.memory_locked.set(locked.is_ok().into());
    match locked {
        Ok(()) => tracing::info!(by, "memory pressure is watched"),
        Err(error) => tracing::info!(
            by,
            %error,
            "memory pressure is watched; the shield's own memory cannot be locked (LimitMEMLOCK=)"
        ),
    }
    Ok((Some(guard), kind))
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
