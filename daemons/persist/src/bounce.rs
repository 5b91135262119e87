//! Restarts the engine while memory is short, before the kernel has to kill somebody.
//!
//! ```text
//! memory stays short ─▶ Shed: new requests are refused ─▶ running answers finish ─▶ SIGTERM: the engine
//! gives kvtier what it has, and ends ─▶ its supervisor starts it again, with as little memory as ever
//! ```
//! Every step has a deadline; an engine that keeps none of them is killed.

use std::{
    io,
    time::{Duration, Instant},
};

use tokio::time::MissedTickBehavior;
use tonic::{Status, transport::Channel};
use vitriol_chassis::event;
use vitriol_ipc::connect;
use vitriol_proto::{
    engine::v1::{ListSlotsRequest, ShedRequest, SlotState, engine_client::EngineClient},
    status::v1::{GetRequest, Health, status_client::StatusClient},
};
use vitriol_sysfs::Sysfs;

use crate::{
    config::Watched,
    deadline::within,
    ending::{drain_then_kill, end, hold},
    memory::{Decision, MemoryPolicy, MemoryWatch},
    metrics::{DaemonLabels, Metrics},
};

/// How often an engine that finishes is asked whether it has.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Settings of the restarts.
#[derive(Clone, Debug)]
pub struct BounceConfig {
    /// The engine that is restarted.
    pub engine: Watched,
    pub policy: MemoryPolicy,
    pub poll_interval: Duration,
    /// Of each call.
    pub deadline: Duration,
    /// Longest that running answers get to finish while new requests are refused.
    pub finish_within: Duration,
    /// Longest that the engine then takes to end by itself.
    pub end_within: Duration,
    pub ask_systemd: bool,
}

/// Looks at the memory of a machine again and again, and restarts an engine for it.
#[derive(Debug)]
pub struct Bouncer {
    config: BounceConfig,
    machine: Sysfs,
    watch: MemoryWatch,
    status: StatusClient<Channel>,
    engine: EngineClient<Channel>,
    labels: DaemonLabels,
    metrics: Metrics,
    /// The machine does not tell of its memory, and that was said.
    told: bool,
}

impl Bouncer {
    /// `machine`: whose memory counts. Must be called inside a tokio runtime.
    pub fn new(config: BounceConfig, machine: Sysfs, metrics: Metrics) -> Self {
        let channel = connect(&config.engine.socket);
        Self {
            machine,
            watch: MemoryWatch::new(config.policy),
            status: StatusClient::new(channel.clone()),
            engine: EngineClient::new(channel),
            labels: DaemonLabels {
                unit: config.engine.unit.clone(),
            },
            metrics,
            told: false,
            config,
        }
    }

    /// Looks for as long as it is let.
    pub async fn run(mut self) {
        let began = Instant::now();
        let mut rounds = tokio::time::interval(self.config.poll_interval);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            self.round(began.elapsed()).await;
        }
    }

    /// Looks once, at `now`, and sees a restart through to the engine's end.
    pub async fn round(&mut self, now: Duration) {
        let available_bytes = match self.machine.memory() {
            Ok(memory) => memory.available_bytes,
            Err(error) => {
                if !std::mem::replace(&mut self.told, true) {
                    tracing::warn!(%error, "memory is not watched");
                }
                return;
            }
        };
        self.told = false;
        let gauge = i64::try_from(available_bytes).unwrap_or(i64::MAX);
        self.metrics.memory_available.set(gauge);
        match self.watch.decide_bounce(available_bytes, now) {
            Decision::Nothing => {}
            Decision::Warn => tracing::warn!(
                message_id = event::MEMORY_SHORT,
                available_bytes,
                "little memory is available on this machine"
            ),
            Decision::Bounce => self.bounce(available_bytes, now).await,
        }
    }

    async fn bounce(&mut self, available_bytes: u64, now: Duration) {
        let mut status = self.status.clone();
        let status = within(self.config.deadline, status.get(GetRequest {})).await;
        let pid = match status.map(tonic::Response::into_inner) {
            Ok(status) if status.health() == Health::Ready => status.pid,
            // One that loads or ends already will be small; one that hangs is another's matter.
            _ => return,
        };
        self.watch.bounced(now);
        let Some(held) = hold(pid) else {
            return self.tell_failure(&io::Error::other("who answers is no process of the house"));
        };
        let unit = &self.config.engine.unit;
        tracing::warn!(
            message_id = event::MEMORY_SHORT,
            unit,
            pid,
            available_bytes,
            "memory stays short: the engine takes nothing new, finishes and is restarted"
        );
        if let Err(error) = self.shed().await {
            tracing::warn!(%error, unit, "the engine could not be asked to take nothing new");
        }
        if tokio::time::timeout(self.config.finish_within, self.until_idle())
            .await
            .is_err()
        {
            tracing::warn!(unit, "answers still run; the engine's own drain decides");
        }
        let signals = drain_then_kill(self.config.end_within);
        match end(&held, unit, self.config.ask_systemd, signals).await {
            Ok(signal) => {
                self.metrics.bounces.get_or_create_owned(&self.labels).inc();
                tracing::info!(unit, pid, signal, "ended for the memory it had");
            }
            Err(error) => self.tell_failure(&error),
        }
    }

    async fn shed(&self) -> Result<(), Status> {
        // A little longer than its answers get, so that none slips in before the end.
        let duration = self.config.finish_within + Duration::from_secs(1);
        let request = ShedRequest {
            duration_ms: u32::try_from(duration.as_millis()).unwrap_or(u32::MAX),
        };
        let mut engine = self.engine.clone();
        within(self.config.deadline, engine.shed(request))
            .await
            .map(drop)
    }

    /// Comes back once nothing runs and nothing waits, as far as the engine tells.
    async fn until_idle(&self) {
        loop {
            let mut engine = self.engine.clone();
            let call = within(self.config.deadline, engine.list_slots(ListSlotsRequest {}));
            if let Ok(slots) = call.await.map(tonic::Response::into_inner) {
                let mut states = slots.slots.iter().map(|slot| slot.state());
                if slots.queued == 0 && states.all(|state| state == SlotState::Idle) {
                    return;
                }
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    fn tell_failure(&self, error: &io::Error) {
        let failures = &self.metrics.bounce_failures;
        failures.get_or_create_owned(&self.labels).inc();
        let unit = &self.config.engine.unit;
        tracing::error!(
            message_id = event::MEMORY_SHORT,
            unit,
            %error,
            "memory is short and the engine could not be restarted; end what is large by hand"
        );
    }
}
