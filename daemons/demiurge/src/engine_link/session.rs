//! Keeps one session with the engine open: connect, read, notice the end, again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use vitriol_chassis::event;
use vitriol_proto::engine::v1::engine_client::EngineClient;
use vitriol_proto::engine::v1::{GetModelResponse, StepEvents};
use vitriol_proto::status::v1::Health;

use super::backoff::wait_after;
use super::calls::CallError;
use super::outgoing::Outgoing;
use super::switchboard::Switchboard;
use super::{ANSWER_BYTES_MAX, EngineLink, EngineState};

/// How long the engine may take to open a stream.
const OPEN_DEADLINE: Duration = Duration::from_secs(5);

/// How often a session without events is probed, in deadlines of such a probe.
const PROBE_INTERVAL: u32 = 10;

/// Probes in a row that may go unanswered before the engine counts as hung: long enough for a
/// machine that swaps, short enough that a client learns of it.
const PROBES_MISSED_MAX: u32 = 5;

/// Keeps a session open until `stop`.
pub(super) async fn keep(link: &EngineLink, stop: CancellationToken) {
    let mut absent_since = Instant::now();
    loop {
        let attempt = tokio::select! {
            attempt = attempt(link) => attempt,
            () = stop.cancelled() => {
                become_absent(link, None);
                link.switchboard.close();
                return;
            }
        };
        if matches!(attempt, Attempt::Stood(_)) {
            // Before the session closes: whoever finds it closed then waits for the next one.
            become_absent(link, None);
        }
        let lost = link.switchboard.close();
        link.metrics.engine_up.set(0);
        link.metrics.requests_lost.inc_by(lost as u64);
        match attempt {
            Attempt::Stood(why) => {
                absent_since = Instant::now();
                if stop.is_cancelled() {
                    tracing::info!(why, requests_lost = lost, "engine session ended");
                } else {
                    tracing::warn!(
                        message_id = event::ENGINE_LOST,
                        why,
                        requests_lost = lost,
                        "engine session ended"
                    );
                }
            }
            Attempt::Refused(error) => {
                tracing::debug!(%error, "engine not ready");
                become_absent(link, failure(link).await);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(wait_after(absent_since.elapsed())) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// How one try ended.
enum Attempt {
    /// A session stood and ended.
    Stood(&'static str),
    /// None came to stand.
    Refused(CallError),
}

async fn attempt(link: &EngineLink) -> Attempt {
    let model = match link.get_model().await {
        Ok(model) => Arc::new(model),
        Err(error) => return Attempt::Refused(error),
    };
    let session = link.switchboard.open();
    let mut client =
        EngineClient::new(link.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
    let outgoing = Outgoing::new(Arc::clone(&link.switchboard), session);
    let events = match tokio::time::timeout(OPEN_DEADLINE, client.session(outgoing)).await {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => {
            return Attempt::Refused(CallError::Failed {
                call: "open session",
                code: status.code(),
            });
        }
        Err(_) => {
            return Attempt::Refused(CallError::Deadline {
                call: "open session",
                deadline_ms: OPEN_DEADLINE.as_millis(),
            });
        }
    };
    become_ready(link, model);
    let messages = AtomicU64::new(0);
    Attempt::Stood(tokio::select! {
        why = read_events(&link.switchboard, events, &messages) => why,
        () = notice_silence(link, &messages) => "it stopped answering",
    })
}

async fn read_events(
    switchboard: &Switchboard,
    mut events: Streaming<StepEvents>,
    messages: &AtomicU64,
) -> &'static str {
    loop {
        match events.message().await {
            Ok(Some(step)) => {
                messages.fetch_add(1, Ordering::Relaxed);
                for event in step.events {
                    let request_id = event.request_id;
                    if !switchboard.dispatch(event) {
                        // Normal for a step or two after a cancel.
                        tracing::trace!(request_id, "event for a request that has ended");
                    }
                }
            }
            Ok(None) => return "it closed the stream",
            Err(status) => {
                tracing::debug!(code = ?status.code(), "engine stream broke");
                return "the stream broke";
            }
        }
    }
}

/// Returns when the engine has neither sent an event nor answered a probe for too long: a stopped
/// process keeps its sockets open, so the stream alone would never tell.
async fn notice_silence(link: &EngineLink, messages: &AtomicU64) {
    let interval = PROBE_INTERVAL * link.config.control_deadline;
    let mut missed = 0;
    while missed < PROBES_MISSED_MAX {
        let before = messages.load(Ordering::Relaxed);
        tokio::time::sleep(interval).await;
        if messages.load(Ordering::Relaxed) != before {
            missed = 0;
            continue;
        }
        // Any answer, a refusal too, is a sign of life.
        missed = match link.get_model().await {
            Err(CallError::Deadline { .. }) => missed + 1,
            _ => 0,
        };
    }
}

fn become_ready(link: &EngineLink, model: Arc<GetModelResponse>) {
    tracing::info!(
        message_id = event::ENGINE_REACHED,
        model = model.alias,
        context_tokens = model.context_tokens,
        "engine session stands"
    );
    link.metrics.engine_up.set(1);
    link.metrics.engine_sessions.inc();
    link.state.send_replace(EngineState::Ready(model));
}

fn become_absent(link: &EngineLink, failure: Option<String>) {
    let last_model = link.state.borrow().model().cloned();
    link.state.send_replace(EngineState::Absent {
        last_model,
        failure,
    });
}

/// Why an engine says it will not become ready; None when it does not say so.
async fn failure(link: &EngineLink) -> Option<String> {
    let status = link.status().await.ok()?;
    (status.health() == Health::Failed).then_some(status.detail)
}
