//! From the guard thread to the daemons that can help: the thread leaves word, a task makes the call.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Notify;
use tonic::{Request, transport::Channel};
use vitriol_chassis::event;
use vitriol_proto::engine::v1::{ShedRequest, engine_client::EngineClient};

use crate::{guard::Relievers, metrics::Metrics};

/// Word that the guard has left. Word that was not yet passed on is not left twice.
#[derive(Debug, Default)]
pub struct Messages {
    shed: Notify,
}

impl Messages {
    /// Comes back when the guard wants the engine to shed.
    pub async fn shed_wanted(&self) {
        self.shed.notified().await;
    }
}

impl Relievers for Messages {
    /// No daemon of this release keeps memory that it could give back; the guard has counted it.
    fn trim(&self) {}

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

/// Passes on to the engine what the guard asks of it, for ever.
pub async fn pass_on(messages: Arc<Messages>, engine: Channel, how: Shedding, metrics: Metrics) {
    let mut engine = EngineClient::new(engine);
    // When and how it last went, so that pressure that lasts is one line.
    let mut last: Option<(Instant, bool)> = None;
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
        let heard = failure.is_none();
        let is_same =
            |(at, went): (Instant, bool)| at.elapsed() < 2 * how.duration && went == heard;
        if last.replace((Instant::now(), heard)).is_some_and(is_same) {
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
