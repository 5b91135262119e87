//! From the guard thread to the daemons that can help: the thread leaves word, a task makes the call.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Notify;
use tonic::{Request, transport::Channel};
use vitriol_chassis::event;
use vitriol_proto::{
    engine::v1::{ShedRequest, engine_client::EngineClient},
    kvtier::v1::{TrimRequest, kv_tier_client::KvTierClient},
};

use crate::{guard::Relievers, metrics::Metrics};

/// Word that the guard has left. Word that was not yet passed on is not left twice.
#[derive(Debug, Default)]
pub struct Messages {
    trim: Notify,
    shed: Notify,
}

impl Messages {
    /// Comes back when the guard wants memory of kvtier.
    pub async fn trim_wanted(&self) {
        self.trim.notified().await;
    }

    /// Comes back when the guard wants the engine to shed.
    pub async fn shed_wanted(&self) {
        self.shed.notified().await;
    }
}

impl Relievers for Messages {
    fn trim(&self) {
        self.trim.notify_one();
    }

    fn shed(&self) {
        self.shed.notify_one();
    }
}

/// What is asked of the engine.
#[derive(Clone, Copy, Debug)]
pub struct Shedding {
    pub duration: Duration,
    /// Longest that the call may take.
    pub deadline: Duration,
}

/// What is asked of kvtier.
#[derive(Clone, Copy, Debug)]
pub struct Trimming {
    /// Memory to give back, each time.
    pub bytes: u64,
    /// Time for which it is not taken again.
    pub hold: Duration,
    /// Longest that the call may take.
    pub deadline: Duration,
}

/// How the last call went, so that pressure that lasts is one line.
#[derive(Debug)]
struct Told {
    last: Option<(Instant, bool)>,
    /// Calls further apart than this are of another pressure.
    within: Duration,
}

impl Told {
    fn new(within: Duration) -> Self {
        Self { last: None, within }
    }

    /// Notes that a call has just succeeded or failed; whether that is worth a line.
    fn is_news(&mut self, went: bool) -> bool {
        let is_same = |(at, before): (Instant, bool)| at.elapsed() < self.within && went == before;
        !self
            .last
            .replace((Instant::now(), went))
            .is_some_and(is_same)
    }
}

/// Passes on to kvtier what the guard asks of it, for ever.
pub async fn ask_kvtier(messages: Arc<Messages>, kvtier: Channel, how: Trimming, metrics: Metrics) {
    let mut kvtier = KvTierClient::new(kvtier);
    let mut told = Told::new(how.hold);
    loop {
        messages.trim_wanted().await;
        let hold_ms = u32::try_from(how.hold.as_millis()).unwrap_or(u32::MAX);
        let call = kvtier.trim(Request::new(TrimRequest {
            bytes: how.bytes,
            hold_ms,
        }));
        let outcome = match tokio::time::timeout(how.deadline, call).await {
            Ok(Ok(given)) => Ok(given.into_inner().bytes),
            Ok(Err(status)) => Err(status.message().to_owned()),
            Err(_) => Err(format!("no answer within {} ms", how.deadline.as_millis())),
        };
        match &outcome {
            Ok(bytes) => metrics.trimmed_bytes.inc_by(*bytes),
            Err(_) => metrics.trim_failures.inc(),
        };
        if !told.is_news(outcome.is_ok()) {
            continue;
        }
        let message_id = event::MEMORY_PRESSURE;
        match outcome {
            Ok(bytes) => tracing::warn!(
                message_id,
                bytes,
                "memory is short: the KV tier gave some of its own back"
            ),
            Err(error) => tracing::warn!(
                message_id,
                error,
                "memory is short, and the KV tier could not be asked for some of its own"
            ),
        }
    }
}

/// Passes on to the engine what the guard asks of it, for ever.
pub async fn ask_engine(messages: Arc<Messages>, engine: Channel, how: Shedding, metrics: Metrics) {
    let mut engine = EngineClient::new(engine);
    let mut told = Told::new(2 * how.duration);
    loop {
        messages.shed_wanted().await;
        let duration_ms = u32::try_from(how.duration.as_millis()).unwrap_or(u32::MAX);
        let call = engine.shed(Request::new(ShedRequest { duration_ms }));
        let failure = match tokio::time::timeout(how.deadline, call).await {
            Ok(Ok(_)) => None,
            Ok(Err(status)) => Some(status.message().to_owned()),
            Err(_) => Some(format!("no answer within {} ms", how.deadline.as_millis())),
        };
        if failure.is_some() {
            metrics.shed_failures.inc();
        }
        if !told.is_news(failure.is_none()) {
            continue;
        }
        let message_id = event::MEMORY_PRESSURE;
        match failure {
            None => tracing::warn!(
                message_id,
                duration_ms,
                "memory is short: the engine takes nothing new for a while"
            ),
            Some(error) => tracing::warn!(
                message_id,
                error,
                "memory is short, and the engine could not be asked to take nothing new"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
