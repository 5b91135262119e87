//! POST /v1/chat/completions and /v1/completions.
//!
//! ```text
//! place → body → parse → lane → submit (model) → accepted ─┬─▶ stream of chunks
//!                                                          └─▶ one object
//! ```
//! Everything up to "accepted" can still refuse with a status of its own; after it a streamed
//! answer has its head and can only end in an error event.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::response::Response;
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode, header};
use tokio::time::Instant;
use vitriol_proto::engine::v1::submit::Prompt;
use vitriol_proto::engine::v1::{Finished, GetModelResponse, Submit};

use crate::account::Account;
use crate::answer::{Answer, Route, finish_word};
use crate::answer_stream::AnswerStream;
use crate::api_error::{ApiError, Dialect};
use crate::app::{App, priority, session_id, shutting_down, tenant_id};
use crate::engine_link::{EngineEvent, EngineRequest, SubmitError};
use crate::lane::{Action, Cause, decide};
use crate::random;
use crate::request::{ChatRequest, CompletionRequest, Generation};

use super::guard::RequestId;
use super::json_text;
use super::models::is_named;

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
        Ok(started) if started.generation.stream => {
            return stream(&app, route, started, account);
        }
        Ok(started) => collect(&app, route, started, &mut account).await,
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
    request: EngineRequest,
    answer: Answer,
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
    app: &App,
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
    // The prompt is a copy of the body, so the body's share of the budget is kept until the engine
    // has the prompt: requests held during a restart are bounded by it too.
    let (parsed, _share) = body.parse(move |body| parse_body(route, body)).await?;
    account.streamed(parsed.generation.stream);
    let order = Submit {
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
    let asked = parsed.model.as_deref();
    let (mut request, mut model) = submit(app, head, account, order.clone(), asked).await?;
    let mut taken = accepted(app, route, &mut request).await?;
    if taken.is_none() {
        // It died before it had begun, so its successor is asked. Once: the prompt may be what killed it.
        app.metrics.requests_resubmitted.inc();
        (request, model) = submit(app, head, account, order, asked).await?;
        taken = accepted(app, route, &mut request).await?;
    }
    account.model(&model.alias);
    account.accepted(taken.ok_or_else(ApiError::engine_lost)?);
    let answer = new_answer(route, &model);
    Ok(Started {
        request,
        answer,
        generation: parsed.generation,
    })
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

/// Decides the lane and starts the request there, waiting for it where the decision says so. Returns
/// the model it has.
async fn submit(
    app: &App,
    head: &Parts,
    account: &mut Account,
    submit: Submit,
    asked: Option<&str>,
) -> Result<(EngineRequest, Arc<GetModelResponse>), ApiError> {
    let inputs = app.lane_inputs(&head.headers);
    let verdict = decide(inputs);
    account.decided(inputs, verdict);
    if verdict.action == Action::Refuse {
        return Err(app.refusal(verdict.cause));
    }
    let is_wanted = |model: &GetModelResponse| asked.is_none_or(|a| is_named(model, a));
    let deadline = Instant::now() + app.config.engine_wait;
    let submitted = tokio::select! {
        submitted = app.link.submit(submit, deadline, is_wanted) => submitted,
        () = app.drain.begun.cancelled() => return Err(shutting_down()),
    };
    submitted.map_err(|error| match error {
        SubmitError::NotReady => app.refusal(Cause::EngineRestarting),
        SubmitError::OtherModel(model) => {
            ApiError::no_model(asked.unwrap_or_default(), &model.alias)
        }
        SubmitError::TooLarge { bytes } => ApiError::prompt_too_large(bytes),
    })
}

/// Waits until the engine has taken the prompt. Returns its tokens, or nothing when the engine was lost before.
async fn accepted(
    app: &App,
    route: Route,
    request: &mut EngineRequest,
) -> Result<Option<u32>, ApiError> {
    let event = tokio::select! {
        event = request.next() => event,
        () = app.drain.expired.cancelled() => return Err(shutting_down()),
    };
    match event {
        EngineEvent::Accepted { prompt_tokens } => Ok(Some(prompt_tokens)),
        EngineEvent::Failed(failed) => Err(ApiError::from_failed(failed, route.prompt_param())),
        EngineEvent::Lost => Ok(None),
        EngineEvent::Prefill(_) | EngineEvent::Delta { .. } | EngineEvent::Finished(_) => Err(
            ApiError::internal("the engine answered before it accepted the request"),
        ),
    }
}

fn new_answer(route: Route, model: &GetModelResponse) -> Answer {
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    // What decides the bytes of an answer besides the request: release and kernels.
    let fingerprint = format!("vitriol-{}-{}", env!("CARGO_PKG_VERSION"), model.isa);
    Answer::new(
        route,
        &random::word(),
        created,
        model.alias.clone(),
        fingerprint,
    )
}

/// The whole answer as JSON.
async fn collect(
    app: &App,
    route: Route,
    mut started: Started,
    account: &mut Account,
) -> Result<String, ApiError> {
    let mut text = String::new();
    loop {
        let event = tokio::select! {
            event = started.request.next() => event,
            () = app.drain.expired.cancelled() => return Err(shutting_down()),
        };
        match event {
            EngineEvent::Accepted { .. } => {}
            EngineEvent::Prefill(prefill) => account.prefilled(prefill.tokens_cached),
            EngineEvent::Delta { text: more, tokens } => {
                account.delivered(tokens);
                if !more.is_empty() {
                    account.text();
                }
                text.push_str(&more);
            }
            EngineEvent::Finished(finished) => {
                return finish(&started.answer, &text, &finished, account);
            }
            EngineEvent::Failed(failed) => {
                return Err(ApiError::from_failed(failed, route.prompt_param()));
            }
            EngineEvent::Lost => return Err(ApiError::engine_lost()),
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

fn stream(app: &App, route: Route, started: Started, mut account: Account) -> Response {
    account.status(StatusCode::OK);
    let headers = account.headers();
    let frames = AnswerStream::new(
        started.request,
        started.answer,
        route,
        account,
        started.generation.include_usage,
        app.config.ping_interval,
        app.drain.expired.clone(),
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
