//! GET /health: whether a completion would be served now.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde_json::json;

use crate::api_error::Dialect;
use crate::app::{App, loading};
use crate::engine_link::EngineState;
use crate::lane::Cause;

use super::json;

/// 200 `{"status":"ok"}`, else 503 with the reason. Never asks the engine, so it never waits for it.
pub async fn health(State(app): State<Arc<App>>) -> Response {
    if app.drain.begun.is_cancelled() {
        return app.refusal(Cause::Draining).response(Dialect::LlamaServer);
    }
    match app.link.state() {
        EngineState::Ready(_) => json(StatusCode::OK, &json!({ "status": "ok" })),
        EngineState::Absent {
            failure: Some(_), ..
        } => app
            .refusal(Cause::EngineFailed)
            .response(Dialect::LlamaServer),
        EngineState::Absent { .. } => loading().response(Dialect::LlamaServer),
    }
}
