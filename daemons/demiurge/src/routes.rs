//! The HTTP routes.

mod completions;
mod guard;
mod health;
mod metrics_page;
mod models;
mod slot_actions;
mod slots;
mod tokens;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Router, middleware};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

use crate::api_error::{ApiError, Dialect};
use crate::app::App;

pub use models::is_named;

/// All routes over the shared state.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(completions::chat))
        .route("/v1/completions", post(completions::text))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{id}", get(models::one))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/health", get(health::health))
        .route("/v1/health", get(health::health))
        .route("/slots", get(slots::slots))
        .route("/slots/{id}", post(slot_actions::act))
        .route("/metrics", get(metrics_page::metrics))
        .fallback(no_route)
        .method_not_allowed_fallback(bad_method)
        .layer(middleware::from_fn_with_state(
            Arc::clone(&app),
            guard::guard,
        ))
        .with_state(app)
}

async fn no_route(request: Request) -> Response {
    let path = request.uri().path();
    ApiError::no_route(path).response(Dialect::of_path(path))
}

async fn bad_method(request: Request) -> Response {
    let path = request.uri().path();
    ApiError::bad_method(request.method().as_str(), path).response(Dialect::of_path(path))
}

/// A JSON answer.
fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("answers are always JSON");
    json_text(status, body)
}

/// An answer that is JSON text already.
fn json_text(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}
