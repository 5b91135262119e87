//! What all requests share.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use http::HeaderMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use vitriol_chassis::StatusBoard;
use vitriol_proto::engine::v1::Priority;

use crate::api_error::ApiError;
use crate::body::{BodyBounds, refuse_unread};
use crate::config::Config;
use crate::decision_log::DecisionLog;
use crate::engine_link::{CallError, EngineLink, EngineState};
use crate::kvtier::KvTier;
use crate::lane::{AskedLane, Cause, LaneInputs};
use crate::metrics::Metrics;
use crate::neighbours::Neighbours;

/// Seconds after which a client may try an engine that loads or restarts again.
const RETRY_ENGINE_S: u32 = 2;

/// Seconds after which a client may try a house that is full again.
const RETRY_BUSY_S: u32 = 1;

/// Seconds after which a client may try a house that shuts down again; another may then be up.
const RETRY_DRAINING_S: u32 = 5;

/// Longest X-Session-Id and X-Tenant-Id, bytes.
const NAME_BYTES_MAX: usize = 256;

/// The stages of shutting down.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    /// Nothing new is taken.
    pub begun: CancellationToken,
    /// What still runs ends with an error.
    pub expired: CancellationToken,
    /// Connections that have not closed by themselves are cut.
    pub cut: CancellationToken,
}

/// Shared state of the HTTP side; behind an Arc.
pub struct App {
    pub config: Config,
    pub listen_ip: IpAddr,
    pub link: EngineLink,
    pub neighbours: Neighbours,
    /// `None`: the profile has none.
    pub kvtier: Option<KvTier>,
    pub decisions: DecisionLog,
    pub metrics: Metrics,
    pub board: StatusBoard,
    pub bodies: BodyBounds,
    /// Places for requests in flight.
    places: Arc<Semaphore>,
    pub drain: Drain,
}

impl App {
    /// Puts the shared state together; nothing runs yet.
    pub fn new(
        config: Config,
        link: EngineLink,
        decisions: DecisionLog,
        metrics: Metrics,
        board: StatusBoard,
    ) -> App {
        App {
            listen_ip: config.listen.ip(),
            bodies: BodyBounds::new(config.body_bytes_max, config.body_timeout),
            places: Arc::new(Semaphore::new(config.requests_max)),
            drain: Drain::default(),
            neighbours: Neighbours::new(&config.neighbour_sockets, config.control_deadline),
            kvtier: config.kvtier_socket.as_deref().map(KvTier::new),
            config,
            link,
            decisions,
            metrics,
            board,
        }
    }

    /// What the lane of a request with these headers is decided from, as of now.
    pub fn lane_inputs(&self, headers: &HeaderMap) -> LaneInputs {
        // A lane whose name is not even text is an unknown one.
        let asked = headers
            .get("x-vitriol-lane")
            .map(|lane| lane.to_str().unwrap_or("?"));
        LaneInputs {
            asked: AskedLane::parse(asked),
            session: headers.contains_key("x-session-id"),
            engine: self.link.state().view(),
            draining: self.drain.begun.is_cancelled(),
        }
    }

    /// The same for a request whose earlier inputs are these.
    pub fn lane_inputs_now(&self, earlier: LaneInputs) -> LaneInputs {
        LaneInputs {
            engine: self.link.state().view(),
            draining: self.drain.begun.is_cancelled(),
            ..earlier
        }
    }

    /// Takes a place among the requests in flight, for one with this body.
    ///
    /// Errors: 429 when there is none; the body is then read over beside the answer.
    pub fn take_place(
        &self,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<(OwnedSemaphorePermit, Body), ApiError> {
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => Ok((place, body)),
            Err(_) => {
                refuse_unread(headers, body);
                let limit = self.config.requests_max;
                let message = format!("{limit} requests are in flight; send this one again later");
                Err(ApiError::busy(message, RETRY_BUSY_S))
            }
        }
    }

    /// The error that goes with a refusal.
    pub fn refusal(&self, cause: Cause) -> ApiError {
        match cause {
            Cause::LaneUnknown => ApiError::bad_header(
                "'x-vitriol-lane' names a lane that this house does not have; it has 'local'",
            ),
            Cause::EngineRestarting => ApiError::unavailable(
                "engine_restarting",
                "the engine is restarting; send the request again",
                RETRY_ENGINE_S,
            ),
            Cause::EngineFailed => {
                let EngineState::Absent {
                    failure: Some(detail),
                    ..
                } = self.link.state()
                else {
                    return loading();
                };
                let message = format!("the engine cannot serve: {detail}");
                ApiError::unavailable("engine_failed", message, 10 * RETRY_ENGINE_S)
            }
            Cause::Draining => shutting_down(),
            Cause::EngineLoading | Cause::LocalOnly | Cause::LocalAsked => loading(),
        }
    }
}

/// 503 while the engine reads its weights; the message is llama-server's, which clients wait for.
pub fn loading() -> ApiError {
    ApiError::unavailable("engine_loading", "Loading model", RETRY_ENGINE_S)
}

/// 503 once the house shuts down.
pub fn shutting_down() -> ApiError {
    let message = "the server is shutting down; send the request again later";
    ApiError::unavailable("draining", message, RETRY_DRAINING_S)
}

/// A short question the engine did not answer.
pub fn call_error(error: &CallError) -> ApiError {
    match error {
        CallError::NotReady { .. } => loading(),
        CallError::Deadline { .. } => ApiError::engine_timeout(),
        CallError::TooLarge { .. } => ApiError::answer_too_large(),
        CallError::Invalid { message, .. } => ApiError::bad_value(message),
        CallError::Failed { call, code } => {
            ApiError::internal(format!("the engine failed to {call} ({code:?})"))
        }
    }
}

/// The client's X-Session-Id.
///
/// Errors: 400 when it is longer than 256 bytes or not visible ASCII.
pub fn session_id(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    name_in(headers, "x-session-id")
}

/// The client's X-Tenant-Id.
///
/// Errors: 400 when it is longer than 256 bytes or not visible ASCII.
pub fn tenant_id(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    name_in(headers, "x-tenant-id")
}

fn name_in<'a>(headers: &'a HeaderMap, header: &str) -> Result<Option<&'a str>, ApiError> {
    let Some(value) = headers.get(header) else {
        return Ok(None);
    };
    match value.to_str() {
        Ok("") => Ok(None),
        Ok(name) if name.len() <= NAME_BYTES_MAX => Ok(Some(name)),
        _ => Err(ApiError::bad_header(format!(
            "'{header}' must be at most {NAME_BYTES_MAX} visible ASCII characters"
        ))),
    }
}

/// The client's X-Priority; interactive when there is none.
///
/// Errors: 400 when it names no priority.
pub fn priority(headers: &HeaderMap) -> Result<Priority, ApiError> {
    let value = headers.get("x-priority").map(|value| value.to_str());
    match value {
        None | Some(Ok("" | "interactive")) => Ok(Priority::Interactive),
        Some(Ok("background")) => Ok(Priority::Background),
        Some(_) => Err(ApiError::bad_header(
            "'x-priority' names no priority; there are 'interactive' and 'background'",
        )),
    }
}
