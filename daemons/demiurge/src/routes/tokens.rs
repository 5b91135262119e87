//! POST /tokenize and /detokenize, llama-server's forms.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use vitriol_proto::engine::v1::TokenizeRequest;

use crate::api_error::{ApiError, Dialect};
use crate::app::{App, call_error};
use crate::body::BoundedBody;
use crate::request::{DetokenizeBody, TokenizeBody};

use super::json;

/// POST /tokenize.
pub async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    answer(tokens_of(&app, request).await)
}

/// POST /detokenize.
pub async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    answer(text_of(&app, request).await)
}

fn answer(result: Result<Value, ApiError>) -> Response {
    match result {
        Ok(value) => json(StatusCode::OK, &value),
        Err(error) => error.response(Dialect::LlamaServer),
    }
}

async fn tokens_of(app: &App, request: Request) -> Result<Value, ApiError> {
    let _place = app.take_place()?;
    let (head, body) = request.into_parts();
    let wanted = TokenizeBody::parse(read(app, &head.headers, body).await?.as_ref())?;
    let call = TokenizeRequest {
        text: wanted.content,
        add_special: wanted.add_special,
        parse_special: wanted.parse_special,
        with_pieces: wanted.with_pieces,
    };
    let (ids, pieces) = app
        .link
        .tokenize(call)
        .await
        .map_err(|error| call_error(&error))?;
    if !wanted.with_pieces {
        return Ok(json!({ "tokens": ids }));
    }
    let tokens: Vec<Value> = ids
        .iter()
        .zip(pieces)
        .map(|(id, piece)| json!({ "id": id, "piece": piece_json(piece) }))
        .collect();
    Ok(json!({ "tokens": tokens }))
}

async fn text_of(app: &App, request: Request) -> Result<Value, ApiError> {
    let _place = app.take_place()?;
    let (head, body) = request.into_parts();
    let wanted = DetokenizeBody::parse(read(app, &head.headers, body).await?.as_ref())?;
    let text = app
        .link
        .detokenize(wanted.tokens)
        .await
        .map_err(|error| call_error(&error))?;
    Ok(json!({ "content": text }))
}

/// A piece as text, or as numbers where its bytes are no whole characters.
fn piece_json(piece: Vec<u8>) -> Value {
    match String::from_utf8(piece) {
        Ok(text) => text.into(),
        Err(error) => error.into_bytes().into(),
    }
}

async fn read(app: &App, headers: &HeaderMap, body: Body) -> Result<BoundedBody, ApiError> {
    app.bodies.read(headers, body).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_part_characters_are_numbers() {
        assert_eq!(piece_json(b"hi".to_vec()), json!("hi"));
        assert_eq!(piece_json(vec![0xf4, 0x90]), json!([0xf4, 0x90]));
    }
}
