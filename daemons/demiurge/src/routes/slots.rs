//! GET /slots: what runs in the engine, in llama-server's fields and ours. No text of any prompt.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use serde_json::{Value, json};
use vitriol_proto::engine::v1::{Slot, SlotState};

use crate::api_error::{ApiError, Dialect};
use crate::app::{App, call_error};

use super::json;

/// GET /slots; with `?fail_on_no_slot=1` 503 when none is idle.
pub async fn slots(State(app): State<Arc<App>>, uri: Uri) -> Response {
    let must_be_idle = uri.query().unwrap_or_default().split('&').any(|pair| {
        pair.strip_prefix("fail_on_no_slot=")
            .is_some_and(|value| value != "0")
    });
    let slots = match app.link.list_slots().await {
        Ok(response) => response.slots,
        Err(error) => return call_error(&error).response(Dialect::LlamaServer),
    };
    let none_idle = slots.iter().all(|slot| slot.state() != SlotState::Idle);
    if none_idle && must_be_idle {
        return ApiError::unavailable("no_slot", "no slot available", 1)
            .response(Dialect::LlamaServer);
    }
    let entries: Vec<Value> = slots.iter().map(entry).collect();
    json(StatusCode::OK, &entries)
}

fn entry(slot: &Slot) -> Value {
    json!({
        "id": slot.id,
        "n_ctx": slot.context_tokens,
        "speculative": false,
        "is_processing": slot.state() != SlotState::Idle,
        "next_token": [{
            "has_next_token": matches!(slot.state(), SlotState::Decode | SlotState::Paused),
            "n_decoded": slot.completion_tokens,
        }],
        "state": state_word(slot.state()),
        "session": (!slot.session_id.is_empty()).then_some(&slot.session_id),
        "prompt_tokens": slot.prompt_tokens,
        "prompt_tokens_done": slot.prompt_tokens_done,
        "cached_tokens": slot.cached_tokens,
        "completion_tokens": slot.completion_tokens,
    })
}

fn state_word(state: SlotState) -> &'static str {
    match state {
        SlotState::Idle => "idle",
        SlotState::Prefill => "prefill",
        SlotState::Decode => "decode",
        SlotState::Paused => "paused",
    }
}
