//! Before and after every route: request ids, and the doors that are closed to web pages.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_HEADERS, ALLOW, HOST, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};

use crate::api_error::{ApiError, Dialect};
use crate::app::App;
use crate::origin::{is_own_authority, is_own_origin};
use crate::random;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest request id taken over from a client, bytes.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// The id of a request; an extension of it.
#[derive(Clone)]
pub struct RequestId(pub String);

/// Gives the request its id, refuses what comes from elsewhere than this machine, answers OPTIONS.
pub async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let mut response = match check_sender(&app, &request) {
        Err(error) => error.response(Dialect::of_path(request.uri().path())),
        Ok(()) => {
            let origin = request.headers().get(ORIGIN).cloned();
            request.extensions_mut().insert(RequestId(id.clone()));
            let mut response = match *request.method() {
                Method::OPTIONS => options(request.headers()),
                _ => next.run(request).await,
            };
            if let Some(origin) = origin {
                open_to_page(origin, response.headers_mut());
            }
            response
        }
    };
    // Ids are letters, digits and a few marks, all of which a header takes.
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(X_REQUEST_ID, value);
    }
    response
}

/// Lets a page of this machine, which has passed the check, read the answer.
fn open_to_page(origin: HeaderValue, headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(VARY, HeaderValue::from_static("origin"));
    headers.insert(
        ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static(
            "x-request-id, x-demiurge-lane, x-demiurge-cause, x-vitriol-kv, retry-after",
        ),
    );
}

/// Host and Origin must name this machine; see [`crate::origin`].
fn check_sender(app: &App, request: &Request) -> Result<(), ApiError> {
    let headers = request.headers();
    let text = |value: &HeaderValue| value.to_str().map(str::to_owned).unwrap_or_default();
    let target = request
        .uri()
        .authority()
        .map(|authority| authority.as_str().to_owned());
    let host = headers.get(HOST).map(text);
    // HTTP/1.0 has no Host; a browser, which rebinding needs, always speaks 1.1.
    let nameless = target.is_none() && host.is_none() && request.version() > Version::HTTP_10;
    let foreign = [&target, &host]
        .into_iter()
        .flatten()
        .any(|authority| !is_own_authority(authority, app.listen_ip));
    if nameless || foreign || headers.get_all(HOST).iter().count() > 1 {
        return Err(ApiError::forbidden(
            "host_not_allowed",
            "the Host header must name this machine: localhost or 127.0.0.1",
        ));
    }
    match headers.get(ORIGIN).map(text) {
        Some(origin) if !is_own_origin(&origin, app.listen_ip) => Err(ApiError::forbidden(
            "origin_not_allowed",
            "pages from other machines may not use this server",
        )),
        _ => Ok(()),
    }
}

/// Answers a preflight. The page has passed the check, so it may send whatever headers it names:
/// client libraries add some of their own.
fn options(asked: &HeaderMap) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let methods = HeaderValue::from_static("GET, HEAD, POST, OPTIONS");
    let headers = response.headers_mut();
    headers.insert(ALLOW, methods.clone());
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    let usual = HeaderValue::from_static(
        "authorization, content-type, x-priority, x-request-id, x-session-id, x-tenant-id, \
         x-vitriol-lane",
    );
    let named = asked.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, named.unwrap_or(usual));
    response
}

/// The client's X-Request-Id where it is one, else a fresh one.
fn request_id(headers: &HeaderMap) -> String {
    let is_sound = |id: &&str| {
        (1..=REQUEST_ID_BYTES_MAX).contains(&id.len())
            && id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
    };
    match headers
        .get(X_REQUEST_ID)
        .and_then(|id| id.to_str().ok())
        .filter(is_sound)
    {
        Some(id) => id.to_owned(),
        None => format!("req-{}", random::word()),
    }
}
