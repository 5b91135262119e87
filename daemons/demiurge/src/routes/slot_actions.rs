//! POST /slots/{id}?action=save|restore|erase, as llama-server has it: conversations kept by kvtier.
//!
//! A slot stands for the conversation that ran there last, where its requests named one; header or body may
//! name another. What is saved gets a name of its own in kvtier's catalogue, so that it outlives the
//! conversation; what is restored is found by whatever request begins with it, in any slot.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};
use tonic::{Code, Status};
use vitriol_proto::engine::v1::{ListSlotsResponse, SlotState};

use crate::api_error::{ApiError, Dialect};
use crate::app::{App, call_error, session_id, shutting_down};
use crate::kvtier::KvTier;
use crate::request::SlotBody;

use super::json;

/// How long the engine may take to tell kvtier how a conversation's last turn ended.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// Time between two looks at that.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Seconds after which it may be tried again.
const RETRY_S: u32 = 1;

#[derive(Clone, Copy)]
enum Action {
    Save,
    Restore,
    Erase,
}

impl Action {
    fn of(query: Option<&str>) -> Result<Action, ApiError> {
        let mut pairs = query.unwrap_or_default().split('&');
        match pairs.find_map(|pair| pair.strip_prefix("action=")) {
            Some("save") => Ok(Action::Save),
            Some("restore") => Ok(Action::Restore),
            Some("erase") => Ok(Action::Erase),
            _ => Err(ApiError::invalid(
                "action",
                "Invalid action: '?action=' is save, restore or erase",
            )),
        }
    }
}

/// POST /slots/{id}.
pub async fn act(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let id = id.map_or_else(|_| String::new(), |Path(id)| id);
    let acted = tokio::select! {
        acted = act_on(&app, &id, request) => acted,
        () = app.drain.expired.cancelled() => Err(shutting_down()),
    };
    match acted {
        Ok(answer) => json(StatusCode::OK, &answer),
        Err(error) => error.response(Dialect::LlamaServer),
    }
}

async fn act_on(app: &App, id: &str, request: Request) -> Result<Value, ApiError> {
    let (head, body) = request.into_parts();
    let (_place, body) = app.take_place(&head.headers, body)?;
    let body = app.bodies.read(&head.headers, body).await?;
    let action = Action::of(head.uri.query())?;
    let (body, _share) = body.parse(SlotBody::parse).await?;
    let id: u32 = id
        .parse()
        .map_err(|_| ApiError::invalid("id", "Invalid slot ID: it is a number of GET /slots"))?;
    let kvtier = app.kvtier.as_ref().ok_or_else(ApiError::no_kvtier)?;
    let listed = list_slots(app).await?;
    let slot = listed.slots.iter().find(|slot| slot.id == id);
    let slot = slot.ok_or_else(|| ApiError::no_such_slot(id, listed.slots.len()))?;
    let named = match body.session_id {
        Some(session) => Some(session),
        None => session_id(&head.headers)?.map(str::to_owned),
    };
    let of_slot = Some(&slot.session_id).filter(|session| !session.is_empty());
    let session = named.or_else(|| of_slot.cloned());
    let session = session.ok_or_else(|| ApiError::slot_without_session(id));
    let filename = body.filename.ok_or_else(|| ApiError::missing("filename"));
    let tokens = |blocks: u64| blocks * u64::from(listed.page_tokens);
    let begun = Instant::now();
    let ms = || begun.elapsed().as_secs_f64() * 1e3;
    match action {
        Action::Save => {
            let (filename, session) = (filename?, session?);
            until_told(app, &session).await?;
            let saved = kvtier.save(&session, &filename).await;
            let saved = saved.map_err(|status| kvtier_error(&status, nothing_stored(&session)))?;
            if !saved.cause.is_empty() {
                return Err(not_saved(
                    &session,
                    saved.on_mirror,
                    saved.records,
                    &saved.cause,
                ));
            }
            Ok(json!({
                "id_slot": id,
                "filename": filename,
                "n_saved": tokens(saved.blocks),
                "n_written": saved.bytes,
                "timings": { "save_ms": ms() },
            }))
        }
        Action::Restore => {
            let filename = filename?;
            let restored = kvtier.restore(&filename).await;
            let restored = restored.map_err(|status| kvtier_error(&status, no_file(&filename)))?;
            let mut answer = json!({
                "id_slot": id,
                "filename": filename,
                "n_restored": tokens(restored.blocks),
                "n_read": restored.brought_bytes,
                "timings": { "restore_ms": ms() },
            });
            if !restored.cause.is_empty() {
                answer["cause"] = json!(restored.cause);
            }
            Ok(answer)
        }
        Action::Erase => {
            let session = session?;
            until_told(app, &session).await?;
            let erased = erase(kvtier, &session).await?;
            Ok(json!({ "id_slot": id, "n_erased": tokens(erased) }))
        }
    }
}

/// Full blocks that the conversation had.
async fn erase(kvtier: &KvTier, session: &str) -> Result<u64, ApiError> {
    let erased = kvtier.erase(session).await;
    let erased = erased.map_err(|status| kvtier_error(&status, nothing_stored(session)))?;
    match erased.cause.as_str() {
        "" => Ok(erased.blocks),
        cause => {
            let message = format!("session '{session}' is not erased yet: {cause}; call again");
            Err(ApiError::unavailable("not_erased", message, RETRY_S))
        }
    }
}

/// Waits until no request of the conversation runs, and kvtier knows how the last one ended: an answer is
/// read before that is told.
async fn until_told(app: &App, session: &str) -> Result<(), ApiError> {
    let until = Instant::now() + TOLD_WITHIN;
    loop {
        let listed = list_slots(app).await?;
        let runs = |slot: &_| is_running(slot, session);
        let is_told = !listed.sessions_untold.iter().any(|id| id == session);
        if is_told && !listed.slots.iter().any(runs) {
            return Ok(());
        }
        if Instant::now() >= until {
            let message = match is_told {
                true => {
                    format!("a request of session '{session}' runs; call again when it has ended")
                }
                false => format!(
                    "kvtier does not know yet how the last turn of session '{session}' ended; call again"
                ),
            };
            return Err(ApiError::unavailable("session_busy", message, RETRY_S));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn is_running(slot: &vitriol_proto::engine::v1::Slot, session: &str) -> bool {
    slot.state() != SlotState::Idle && slot.session_id == session
}

async fn list_slots(app: &App) -> Result<ListSlotsResponse, ApiError> {
    let listed = app.link.list_slots().await;
    listed.map_err(|error| call_error(&error))
}

/// `unknown`: what is said where there is no such conversation.
fn kvtier_error(status: &Status, unknown: ApiError) -> ApiError {
    match status.code() {
        Code::NotFound => unknown,
        Code::FailedPrecondition => ApiError::not_supported(status.message()),
        Code::InvalidArgument => ApiError::bad_value(status.message()),
        Code::DeadlineExceeded | Code::Cancelled => ApiError::kvtier_timeout(),
        // Unknown: the connection broke under the call.
        Code::Unavailable | Code::Unknown => ApiError::unavailable(
            "kvtier_unavailable",
            "kvtier is not there now; call again when 'vitriol status' shows it ready",
            RETRY_S,
        ),
        code => ApiError::internal(format!("kvtier failed ({code:?})")),
    }
}

fn nothing_stored(session: &str) -> ApiError {
    ApiError::no_conversation(format!(
        "nothing is stored of session '{session}': it has no full block of tokens yet, or was never here; \
         'vitriol session list' has all"
    ))
}

fn no_file(filename: &str) -> ApiError {
    ApiError::no_conversation(format!(
        "nothing was saved as '{filename}'; 'vitriol session list' shows what was as slots/NAME"
    ))
}

fn not_saved(session: &str, on_disk: u64, records: u64, cause: &str) -> ApiError {
    let message = format!(
        "{on_disk} of {records} records of session '{session}' are on disk: {cause}; call again, after its next turn if \
         they were not stored"
    );
    ApiError::unavailable("not_saved", message, RETRY_S)
}
