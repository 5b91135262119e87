//! A request on its way to its answer, through one engine or two.
//!
//! ```text
//!          ready: submit              lost, and nothing of the answer was shown
//! Waiting ───────────────▶ Running ─────────────────────────────────────────────▶ Waiting, once
//!    │ engine_wait_ms are over,       │ lost after that, or the second engine
//!    ▼ or the house drains            ▼
//!  error                            error
//! ```
//! Where an engine dies under a request of which the client has seen nothing, the next one computes
//! it from the beginning: same prompt, same seed, same session, tenant and priority. Nothing is
//! carried over, so the answer is as whole as if the first engine had never had it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use vitriol_proto::engine::v1::{Finished, GetModelResponse, Submit};

use crate::account::Account;
use crate::answer::{Answer, Route};
use crate::api_error::ApiError;
use crate::app::{App, shutting_down};
use crate::body::BodyShare;
use crate::engine_link::{EngineEvent, EngineRequest, SubmitError};
use crate::lane::{Action, Cause, LaneInputs, decide};
use crate::random;
use crate::routes::is_named;

/// Engines that may get one request. The prompt may be what killed the first, and every death costs
/// all who are in the middle of an answer.
const ENGINES_MAX: u32 = 2;

/// What a request is, whichever engine gets it.
pub struct Order {
    submit: Submit,
    /// The prompt is a copy of the body, so it has the body's share of the memory for bodies.
    _share: BodyShare,
}

impl Order {
    /// `request_id` and `window_tokens` of `submit` are the link's to set; `share` is that of the body
    /// it was made of.
    pub fn new(submit: Submit, share: BodyShare) -> Order {
        Order {
            submit,
            _share: share,
        }
    }
}

/// A part of an answer.
#[derive(Debug)]
pub enum AnswerPart {
    /// An engine has taken the prompt. What came before is void: it was of one that died.
    Begins,
    /// Text, maybe empty, that stands for so many tokens.
    Text { text: String, tokens: u32 },
    /// The answer is complete.
    Ends(Finished),
}

/// A request that is answered, or waits for an engine that will. Dropping it cancels the request.
pub struct Submission {
    app: Arc<App>,
    route: Route,
    inputs: LaneInputs,
    /// The model the client named.
    asked: Option<String>,
    /// Until something of the answer was shown.
    order: Option<Order>,
    state: State,
    /// Of the engine that got it last.
    model: Arc<GetModelResponse>,
    /// That got it so far.
    engines: u32,
}

enum State {
    Waiting { until: Instant },
    Running(EngineRequest),
}

impl Submission {
    /// Decides the lane of a request. No engine gets it before [`Submission::next`] is called.
    ///
    /// Errors: the decision is to refuse it.
    pub fn begin(
        app: &Arc<App>,
        route: Route,
        inputs: LaneInputs,
        asked: Option<String>,
        order: Order,
        account: &mut Account,
    ) -> Result<Submission, ApiError> {
        Ok(Submission {
            state: decide_wait(app, inputs, account)?,
            app: Arc::clone(app),
            route,
            inputs,
            asked,
            order: Some(order),
            model: Arc::default(),
            engines: 0,
        })
    }

    /// The next part of the answer. Asking for it says that the one before has been passed on, so
    /// that its tokens may be credited. Cancel-safe.
    ///
    /// Errors: all that can end a request but its answer.
    pub async fn next(&mut self, account: &mut Account) -> Result<AnswerPart, ApiError> {
        let expired = self.app.drain.expired.clone();
        tokio::select! {
            biased;
            part = self.next_part(account) => part,
            () = expired.cancelled() => Err(shutting_down()),
        }
    }

    async fn next_part(&mut self, account: &mut Account) -> Result<AnswerPart, ApiError> {
        loop {
            let request = match &mut self.state {
                State::Running(request) => request,
                State::Waiting { until } => {
                    let until = *until;
                    let (request, model) = self.submit(until).await?;
                    self.state = State::Running(request);
                    self.model = model;
                    self.engines += 1;
                    account.submitted();
                    continue;
                }
            };
            return match request.next().await {
                EngineEvent::Accepted { prompt_tokens } => {
                    account.accepted(&self.model.alias, prompt_tokens);
                    Ok(AnswerPart::Begins)
                }
                EngineEvent::Prefill(prefill) => {
                    account.prefilled(prefill.tokens_cached);
                    continue;
                }
                EngineEvent::Delta { text, tokens } => Ok(AnswerPart::Text { text, tokens }),
                EngineEvent::Finished(finished) => Ok(AnswerPart::Ends(finished)),
                EngineEvent::Failed(failed) => {
                    Err(ApiError::from_failed(failed, self.route.prompt_param()))
                }
                EngineEvent::Lost if self.order.is_some() && self.engines < ENGINES_MAX => {
                    account.engine_lost();
                    self.state = decide_wait(&self.app, self.inputs, account)?;
                    continue;
                }
                EngineEvent::Lost => Err(ApiError::engine_lost(self.engines)),
            };
        }
    }

    /// Hands the request to the engine once that is ready.
    async fn submit(
        &self,
        until: Instant,
    ) -> Result<(EngineRequest, Arc<GetModelResponse>), ApiError> {
        // Nothing waits again once something was shown.
        let order = self
            .order
            .as_ref()
            .ok_or_else(|| ApiError::engine_lost(self.engines))?;
        let asked = self.asked.as_deref();
        let is_wanted = |model: &GetModelResponse| asked.is_none_or(|name| is_named(model, name));
        let submitted = tokio::select! {
            submitted = self.app.link.submit(&order.submit, until, is_wanted) => submitted,
            () = self.app.drain.begun.cancelled() => return Err(shutting_down()),
        };
        submitted.map_err(|error| match error {
            SubmitError::NotReady => self.app.refusal(Cause::EngineRestarting),
            SubmitError::OtherModel(model) => {
                ApiError::no_model(asked.unwrap_or_default(), &model.alias)
            }
            SubmitError::TooLarge { bytes } => ApiError::prompt_too_large(bytes),
        })
    }

    /// The client gets to see something of the answer: from here on no other engine can give it, and
    /// the prompt is let go.
    pub fn shown(&mut self) {
        self.order = None;
    }

    /// An answer by the engine that got the request last.
    pub fn new_answer(&self) -> Answer {
        let created = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        // What decides the bytes of an answer besides the request: release and kernels.
        let fingerprint = format!("vitriol-{}-{}", env!("CARGO_PKG_VERSION"), self.model.isa);
        Answer::new(
            self.route,
            &random::word(),
            created,
            self.model.alias.clone(),
            fingerprint,
        )
    }
}

/// Decides the lane as of now; a request that is not refused waits for the engine, which may be ready.
fn decide_wait(app: &App, inputs: LaneInputs, account: &mut Account) -> Result<State, ApiError> {
    let inputs = app.lane_inputs_now(inputs);
    let verdict = decide(inputs);
    account.decided(inputs, verdict);
    match verdict.action {
        Action::Refuse => Err(app.refusal(verdict.cause)),
        Action::Serve | Action::Hold => Ok(State::Waiting {
            until: Instant::now() + app.config.engine_wait,
        }),
    }
}
