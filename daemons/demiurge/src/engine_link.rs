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
//! [`EngineEvent::Lost`]; nothing is sent twice.

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
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use vitriol_proto::engine::v1::{GetModelResponse, Submit};

use crate::lane::EngineView;
use crate::metrics::Metrics;

pub use calls::CallError;
pub use inbox::EngineEvent;
pub use switchboard::EngineRequest;

use switchboard::Switchboard;

/// The largest message the engine may answer with: the pieces of a long tokenised text.
const ANSWER_BYTES_MAX: usize = 1 << 30;

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

/// The session was not there, or broke before the request reached it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("submit to the engine: no session stands")]
pub struct NoSession;

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

    /// Keeps a session open until `stop`. Returns when it is told to.
    pub async fn run(&self, stop: CancellationToken) {
        session::keep(self, stop).await;
    }

    /// What is known of the engine now.
    pub fn state(&self) -> EngineState {
        self.state.borrow().clone()
    }

    /// Waits until the engine is ready, for at most `wait`.
    pub async fn until_ready(&self, wait: Duration) -> Option<Arc<GetModelResponse>> {
        let mut state = self.state.subscribe();
        let ready = state.wait_for(|state| matches!(state, EngineState::Ready(_)));
        match tokio::time::timeout(wait, ready).await {
            Ok(Ok(state)) => state.model().cloned(),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// Starts a request. `submit.request_id` and `submit.window_tokens` are set here.
    ///
    /// Dropping the returned request cancels it at the engine, wherever it stands.
    pub fn submit(&self, mut submit: Submit) -> Result<EngineRequest, NoSession> {
        submit.window_tokens = self.config.window_tokens;
        Switchboard::submit(&self.switchboard, submit)
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
