//! The one stream between Demiurge and the engine, shared by all requests.
//!
//! ```text
//!  HTTP requests                     Switchboard                       engine
//!  EngineRequest ──submit/credit──▶  outbox  ──poll──▶ Outgoing ─────▶ Session
//!        ▲   └────────drop: cancel──▶   │
//!        └──────────next()───────── inboxes ◀──dispatch── StepEvents ◀─┘
//! ```
//!
//! The outbox is not a queue of messages but the set of what the engine has yet to be told: at most
//! one Submit, one Cancel and one sum of credits for each request. So it is bounded by the requests
//! in flight, a Cancel never waits for room, and it overtakes everything else. An inbox is bounded
//! by the request's window, because text that waits there is text without credit.
//!
//! The link reconnects for ever with backoff. When the stream breaks, all its requests end with
//! [`EngineEvent::Lost`]; whether one is submitted again is its owner's to decide.

mod backoff;
mod calls;
mod inbox;
mod outgoing;
mod session;
mod switchboard;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prost::Message;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use vitriol_proto::engine::v1::{GetModelResponse, Submit};

use crate::lane::EngineView;
use crate::metrics::Metrics;

pub use calls::{CallError, get_status};
pub use inbox::EngineEvent;
pub use switchboard::EngineRequest;

use switchboard::Switchboard;

/// The largest message the engine may answer with. The ids and pieces of the longest text that may
/// be tokenised, 4 MiB, take less than 12 bytes for each of its bytes; the text of the most ids that
/// may be detokenised, a million, has less than 64 bytes for each unless it is made up of long runs
/// of one character.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The largest Submit, bytes. The engine reads messages of 256 MiB and ends the whole session with a
/// larger one, so one request must not reach that.
const SUBMIT_BYTES_MAX: usize = 250 << 20;

/// Bounds of the link; all from the profile.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Deadline of control calls: model, slots, status.
    pub control_deadline: Duration,
    /// Tokens a request may be ahead of its reader.
    pub window_tokens: u32,
}

/// What is known of the engine.
#[derive(Clone, Debug)]
pub enum EngineState {
    /// Not there, or there and not ready.
    Absent {
        /// The model it had when it was last ready, if it ever was.
        last_model: Option<Arc<GetModelResponse>>,
        /// Why it will not become ready, with the remedy, when it says so.
        failure: Option<String>,
    },
    /// The session stands.
    Ready(Arc<GetModelResponse>),
}

impl EngineState {
    /// The engine as the lane decision sees it.
    pub fn view(&self) -> EngineView {
        match self {
            EngineState::Ready(_) => EngineView::Ready,
            EngineState::Absent {
                failure: Some(_), ..
            } => EngineView::Failed,
            EngineState::Absent {
                last_model: Some(_),
                ..
            } => EngineView::Restarting,
            EngineState::Absent {
                last_model: None, ..
            } => EngineView::Loading,
        }
    }

    /// The model there is, or was when the engine was last ready.
    pub fn model(&self) -> Option<&Arc<GetModelResponse>> {
        match self {
            EngineState::Ready(model) => Some(model),
            EngineState::Absent { last_model, .. } => last_model.as_ref(),
        }
    }
}

/// Handle to the link; cheap to clone.
#[derive(Clone)]
pub struct EngineLink {
    channel: Channel,
    config: Arc<LinkConfig>,
    switchboard: Arc<Switchboard>,
    state: watch::Sender<EngineState>,
    metrics: Metrics,
}

/// Why a request was not started.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    #[error("submit to the engine: it did not become ready in time")]
    NotReady,
    /// The engine has another model than the request wants.
    #[error("submit to the engine: its model is '{}'", .0.alias)]
    OtherModel(Arc<GetModelResponse>),
    #[error("submit to the engine: {bytes} bytes are more than {SUBMIT_BYTES_MAX}")]
    TooLarge { bytes: usize },
}

impl EngineLink {
    /// A link that is not connected yet; [`EngineLink::run`] connects it.
    pub fn new(channel: Channel, config: LinkConfig, metrics: Metrics) -> EngineLink {
        let absent = EngineState::Absent {
            last_model: None,
            failure: None,
        };
        EngineLink {
            channel,
            config: Arc::new(config),
            switchboard: Arc::new(Switchboard::default()),
            state: watch::Sender::new(absent),
            metrics,
        }
    }

    /// Ends when the first try to reach the engine has, well or not, or `within` later. To be asked
    /// for before [`EngineLink::run`] begins.
    pub fn first_try(&self, within: Duration) -> impl Future<Output = ()> + use<> {
        let mut changes = self.state.subscribe();
        async move {
            // Late: requests are then answered by what is known, which is nothing.
            let _ = tokio::time::timeout(within, changes.changed()).await;
        }
    }

    /// Keeps a session open until `stop`. Returns when it is told to.
    pub async fn run(&self, stop: CancellationToken) {
        session::keep(self, stop).await;
    }

    /// What is known of the engine now.
    pub fn state(&self) -> EngineState {
        self.state.borrow().clone()
    }

    /// Waits until the engine is ready, until `deadline` at most.
    async fn until_ready(&self, deadline: Instant) -> Option<Arc<GetModelResponse>> {
        let mut state = self.state.subscribe();
        let ready = state.wait_for(|state| matches!(state, EngineState::Ready(_)));
        match tokio::time::timeout_at(deadline, ready).await {
            Ok(Ok(state)) => state.model().cloned(),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// Starts a request once the engine is ready, for which it waits until `deadline`; a session
    /// that is lost meanwhile is waited for again. The engine gets a copy, with a `request_id` and
    /// `window_tokens` of the link's. `is_wanted` says whether the model will do.
    ///
    /// Dropping the returned request cancels it at the engine, wherever it stands. Cancel-safe.
    pub async fn submit(
        &self,
        submit: &Submit,
        deadline: Instant,
        is_wanted: impl Fn(&GetModelResponse) -> bool,
    ) -> Result<(EngineRequest, Arc<GetModelResponse>), SubmitError> {
        let bytes = submit.encoded_len();
        if bytes > SUBMIT_BYTES_MAX {
            return Err(SubmitError::TooLarge { bytes });
        }
        loop {
            let ready = self.until_ready(deadline).await;
            let model = ready.ok_or(SubmitError::NotReady)?;
            if !is_wanted(&model) {
                return Err(SubmitError::OtherModel(model));
            }
            let copy = Submit {
                window_tokens: self.config.window_tokens,
                ..submit.clone()
            };
            // The state says that it is gone before the session closes, so this waits and does not spin.
            if let Some(request) = Switchboard::submit(&self.switchboard, copy) {
                return Ok((request, model));
            }
        }
    }

    /// The link's own figure, read when somebody asks: requests in its book.
    pub fn collector(&self) -> Box<dyn Collector> {
        Box::new(BookSize(Arc::clone(&self.switchboard)))
    }
}

/// Requests in the link's book, as a metric. When no client is connected it is 0, or something
/// leaks.
struct BookSize(Arc<Switchboard>);

impl fmt::Debug for BookSize {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "BookSize({})", self.0.len())
    }
}

impl Collector for BookSize {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let gauge = ConstGauge::new(self.0.len() as i64);
        let help = "Requests that the engine works on for this process";
        let metric =
            encoder.encode_descriptor("engine_requests", help, None, gauge.metric_type())?;
        gauge.encode(metric)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;

    use vitriol_proto::engine::v1::{TextPrompt, submit};

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn link() -> EngineLink {
        let config = LinkConfig {
            control_deadline: SOON,
            window_tokens: 8,
        };
        let nowhere = vitriol_ipc::connect(Path::new("/nowhere/engine.sock"));
        EngineLink::new(nowhere, config, Metrics::default())
    }

    fn open(link: &EngineLink) {
        link.switchboard.open();
        link.state
            .send_replace(EngineState::Ready(Arc::new(GetModelResponse::default())));
    }

    fn lose(link: &EngineLink) {
        link.state.send_replace(EngineState::Absent {
            last_model: None,
            failure: None,
        });
        link.switchboard.close();
    }

    #[tokio::test]
    async fn a_submit_too_large_for_the_engine_is_refused_before_the_switchboard() {
        let link = link();
        open(&link);
        let of = |bytes: usize| Submit {
            prompt: Some(submit::Prompt::Text(TextPrompt {
                text: "x".repeat(bytes),
                ..TextPrompt::default()
            })),
            ..Submit::default()
        };
        let deadline = Instant::now() + SOON;
        let refused = link.submit(&of(SUBMIT_BYTES_MAX), deadline, |_| true).await;
        assert!(matches!(refused, Err(SubmitError::TooLarge { .. })));
        assert_eq!(link.switchboard.len(), 0);
        let _taken = link.submit(&of(8), deadline, |_| true).await.unwrap();
        assert_eq!(link.switchboard.len(), 1);
    }

    #[tokio::test]
    async fn a_session_lost_before_the_submit_is_waited_for_again() {
        let link = link();
        open(&link);
        let looked = Cell::new(0);
        let deadline = Instant::now() + SOON;
        let submit = Submit::default();
        let submitted = link.submit(&submit, deadline, |_| {
            looked.set(looked.get() + 1);
            if looked.get() == 1 {
                lose(&link);
                let link = link.clone();
                tokio::spawn(async move { open(&link) });
            }
            true
        });
        submitted.await.unwrap();
        assert_eq!(looked.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_stays_lost_is_waited_for_until_the_deadline() {
        let link = link();
        open(&link);
        let begun = Instant::now();
        let submit = Submit::default();
        let submitted = link.submit(&submit, begun + SOON, |_| {
            lose(&link);
            true
        });
        assert_eq!(submitted.await.err(), Some(SubmitError::NotReady));
        assert_eq!(begun.elapsed(), SOON);
    }
}
