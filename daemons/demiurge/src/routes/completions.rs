//! POST /v1/chat/completions and /v1/completions.
//!
//! ```text
//! place → body → parse → lane → submit (model) → accepted ─┬─▶ stream of chunks
//!                          ▲                               ├─▶ one object
//!                          └────── once, if it is lost ────┘
//! ```
//! Everything up to "accepted" can still refuse with a status of its own; after it a streamed
//! answer has its head and can only end in an error event.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::response::Response;
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode, header};
use vitriol_proto::engine::v1::submit::Prompt;
use vitriol_proto::engine::v1::{Finished, Submit};

use crate::account::Account;
use crate::answer::{Answer, Route, finish_word};
use crate::answer_stream::AnswerStream;
use crate::api_error::{ApiError, Dialect};
use crate::app::{App, priority, session_id, shutting_down, tenant_id};
use crate::random;
use crate::request::{ChatRequest, CompletionRequest, Generation};
use crate::submission::{AnswerPart, Order, Submission};

use super::guard::RequestId;
use super::json_text;

/// POST /v1/chat/completions.
pub async fn chat(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Response {
    complete(app, Route::Chat, id, request).await
}

/// POST /v1/completions.
pub async fn text(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Response {
    complete(app, Route::Completion, id, request).await
}

async fn complete(app: Arc<App>, route: Route, id: RequestId, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let mut account = Account::open(
        route,
        id.0,
        app.lane_inputs(&head.headers),
        app.decisions.clone(),
        app.metrics.clone(),
    );
    let answered = match start(&app, route, &head, body, &mut account).await {
        Ok(started) if started.generation.stream => return stream(&app, started, account),
        Ok(started) => collect(started.submission, &mut account).await,
        Err(error) => Err(error),
    };
    let response = match answered {
        Ok(json) => json_text(StatusCode::OK, json),
        Err(error) => {
            account.failed(&error);
            error.response(Dialect::OpenAi)
        }
    };
    account.status(response.status());
    with_headers(response, &account)
}

/// A request the engine has accepted.
struct Started {
    submission: Submission,
    generation: Generation,
}

/// A body, parsed and checked.
struct Parsed {
    /// The model the client named.
    model: Option<String>,
    generation: Generation,
    prompt: Prompt,
}

async fn start(
    app: &Arc<App>,
    route: Route,
    head: &Parts,
    body: Body,
    account: &mut Account,
) -> Result<Started, ApiError> {
    let (place, body) = app.take_place(&head.headers, body)?;
    account.take_place(place);
    let session = session_id(&head.headers)?.unwrap_or_default();
    if !session.is_empty() {
        account.session(session);
    }
    let tenant = tenant_id(&head.headers)?.unwrap_or_default();
    let priority = priority(&head.headers)?;
    let body = app.bodies.read(&head.headers, body).await?;
    let (parsed, share) = body.parse(move |body| parse_body(route, body)).await?;
    account.streamed(parsed.generation.stream);
    let submit = Submit {
        session_id: session.to_owned(),
        tenant_id: tenant.to_owned(),
        priority: priority.into(),
        prompt: Some(parsed.prompt),
        sampling: Some(parsed.generation.sampling(random::bits())),
        max_tokens: parsed.generation.max_tokens,
        stop: parsed.generation.stop.clone(),
        ignore_eog: parsed.generation.ignore_eog,
        ..Submit::default()
    };
    let order = Order::new(submit, share);
    let inputs = app.lane_inputs(&head.headers);
    let mut submission = Submission::begin(app, route, inputs, parsed.model, order, account)?;
    match submission.next(account).await? {
        AnswerPart::Begins => Ok(Started {
            submission,
            generation: parsed.generation,
        }),
        AnswerPart::Text { .. } | AnswerPart::Ends(_) => Err(ApiError::internal(
            "the engine answered before it accepted the request",
        )),
    }
}

fn parse_body(route: Route, body: &[u8]) -> Result<Parsed, ApiError> {
    match route {
        Route::Chat => {
            let request = ChatRequest::parse(body)?;
            if !request.unknown.is_empty() {
                tracing::debug!(
                    fields = request.unknown.len(),
                    "ignored fields not known here"
                );
            }
            let prompt = Prompt::Chat(request.prompt());
            Ok(Parsed {
                model: request.model,
                generation: request.generation,
                prompt,
            })
        }
        Route::Completion => {
            let mut request = CompletionRequest::parse(body)?;
            let model = request.model.take();
            let generation = request.generation.clone();
            Ok(Parsed {
                model,
                generation,
                prompt: request.into_prompt(),
            })
        }
    }
}

/// The whole answer as JSON.
async fn collect(mut submission: Submission, account: &mut Account) -> Result<String, ApiError> {
    let mut text = String::new();
    loop {
        match submission.next(account).await? {
            AnswerPart::Begins => text.clear(),
            AnswerPart::Text { text: more, tokens } => {
                account.delivered(tokens);
                if !more.is_empty() {
                    account.text();
                }
                text.push_str(&more);
            }
            AnswerPart::Ends(finished) => {
                return finish(&submission.new_answer(), &text, &finished, account);
            }
        }
    }
}

fn finish(
    answer: &Answer,
    text: &str,
    finished: &Finished,
    account: &mut Account,
) -> Result<String, ApiError> {
    // We cancel only what nobody reads, so an answer cut by the engine is the engine shutting down.
    let word = finish_word(finished.reason()).ok_or_else(shutting_down)?;
    let usage = finished.usage.unwrap_or_default();
    account.finished(word, &usage);
    Ok(answer.whole(text, word, &usage))
}

fn stream(app: &App, started: Started, mut account: Account) -> Response {
    account.status(StatusCode::OK);
    let headers = account.headers();
    let frames = AnswerStream::new(
        started.submission,
        account,
        started.generation.include_usage,
        app.config.ping_interval,
    )
    .into_frames();
    let mut response = Response::new(Body::from_stream(frames));
    let head = response.headers_mut();
    head.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    head.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies must pass chunks on as they come.
    let unbuffered = HeaderName::from_static("x-accel-buffering");
    head.insert(unbuffered, HeaderValue::from_static("no"));
    for (name, value) in headers {
        head.insert(name, value);
    }
    response
}

fn with_headers(mut response: Response, account: &Account) -> Response {
    for (name, value) in account.headers() {
        response.headers_mut().insert(name, value);
    }
    response
}
