//! POST /tokenize and /detokenize, llama-server's forms.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use serde::Serialize;
use vitriol_proto::engine::v1::TokenizeRequest;

use crate::api_error::{ApiError, Dialect};
use crate::app::{App, call_error};
use crate::request::{DetokenizeBody, TokenizeBody};

use super::json;

/// Answers of more tokens than this are written on a thread of their own: that many take about a
/// millisecond, and the runtime's threads carry everybody's tokens.
const WRITE_INLINE_TOKENS_MAX: usize = 16 << 10;

/// What /tokenize answers. Written straight to text: a tree of JSON values would take some hundred
/// times the memory of a large body's tokens.
#[derive(Serialize)]
#[serde(untagged)]
enum Tokens {
    Ids { tokens: Vec<u32> },
    Pieces { tokens: Vec<Token> },
}

#[derive(Serialize)]
struct Token {
    id: u32,
    piece: Piece,
}

/// A piece as text, or as numbers where its bytes are no whole characters.
#[derive(Serialize)]
#[serde(untagged)]
enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

/// What /detokenize answers.
#[derive(Serialize)]
struct Content {
    content: String,
}

/// POST /tokenize.
pub async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    answer(tokens_of(&app, request).await)
}

/// POST /detokenize.
pub async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    answer(text_of(&app, request).await)
}

fn answer(answered: Result<Response, ApiError>) -> Response {
    answered.unwrap_or_else(|error| error.response(Dialect::LlamaServer))
}

async fn tokens_of(app: &App, request: Request) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let (_place, body) = app.take_place(&head.headers, body)?;
    let body = app.bodies.read(&head.headers, body).await?;
    let (wanted, _share) = body.parse(TokenizeBody::parse).await?;
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
    let count = ids.len();
    write(count, move || match wanted.with_pieces {
        true => Tokens::Pieces {
            tokens: ids.into_iter().zip(pieces).map(token).collect(),
        },
        false => Tokens::Ids { tokens: ids },
    })
    .await
}

async fn text_of(app: &App, request: Request) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let (_place, body) = app.take_place(&head.headers, body)?;
    let body = app.bodies.read(&head.headers, body).await?;
    let (wanted, _share) = body.parse(DetokenizeBody::parse).await?;
    let count = wanted.tokens.len();
    let content = app
        .link
        .detokenize(wanted.tokens)
        .await
        .map_err(|error| call_error(&error))?;
    write(count, move || Content { content }).await
}

/// The answer as JSON, made on a thread of its own where it is of many tokens.
async fn write<T: Serialize>(
    tokens: usize,
    value: impl FnOnce() -> T + Send + 'static,
) -> Result<Response, ApiError> {
    if tokens <= WRITE_INLINE_TOKENS_MAX {
        return Ok(json(StatusCode::OK, &value()));
    }
    tokio::task::spawn_blocking(move || json(StatusCode::OK, &value()))
        .await
        .map_err(|_| ApiError::internal("writing the answer failed"))
}

fn token((id, piece): (u32, Vec<u8>)) -> Token {
    let piece = piece_of(piece);
    Token { id, piece }
}

fn piece_of(piece: Vec<u8>) -> Piece {
    match String::from_utf8(piece) {
        Ok(text) => Piece::Text(text),
        Err(error) => Piece::Bytes(error.into_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_part_characters_are_numbers() {
        let written = |piece: &[u8]| serde_json::to_string(&piece_of(piece.to_vec())).unwrap();
        assert_eq!(written(b"hi"), "\"hi\"");
        assert_eq!(written(&[0xf4, 0x90]), "[244,144]");
    }
    #[tokio::test]
    async fn long_answers_are_written_off_the_runtime_threads() {
        let writer = async |tokens| {
            let (told, writer) = std::sync::mpsc::sync_channel(1);
            let value = move || {
                told.send(std::thread::current().id()).unwrap();
                Content {
                    content: String::new(),
                }
            };
            assert!(write(tokens, value).await.is_ok());
            writer.recv().unwrap()
        };
        let own = std::thread::current().id();
        assert_eq!(writer(WRITE_INLINE_TOKENS_MAX).await, own);
        assert_ne!(writer(WRITE_INLINE_TOKENS_MAX + 1).await, own);
    }
}
