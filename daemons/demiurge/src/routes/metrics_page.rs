//! GET /metrics.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderValue, header};

use crate::app::App;
use crate::open_metrics::{CONTENT_TYPE, page};

/// The metrics of all daemons, as far as they answer within the control deadline.
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    let (status, slots, others) = tokio::join!(
        app.link.status(),
        app.link.list_slots(),
        app.neighbours.metrics()
    );
    let engine = status.ok().map(|status| status.metrics);
    let own = app.board.metrics();
    let text = page(&own, engine.as_deref(), &others, slots.ok().as_ref());
    let mut response = Response::new(Body::from(text));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    response
}
