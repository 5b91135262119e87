//! One Session stream: requests in, events out, all requests of one Demiurge side by side.

use crate::{
    answer::Answer,
    engine::Engine,
    kv::PromptBlocks,
    request::{Prepared, Refusal, prepare},
    sequence::{EventSink, NewSequence, SequenceControl, SequenceEvent, SequenceId},
    step::SubmitError,
};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::{Stream, StreamExt};
use tonic::Status;
use vitriol_proto::engine::v1::{
    Accepted, Event, FailureKind, FinishReason, Finished, SessionRequest, StepEvents, Submit,
    Usage, event::Kind, session_request,
};

/// Step messages on their way from the step thread; one that finds the channel full waits in the
/// step thread's outbox.
const STEPS_IN_FLIGHT: usize = 4;
/// Events kept for a peer that does not read before steps are left waiting in turn.
const EVENTS_HELD_MAX: usize = 4096;
/// What a refused request is told to wait.
const RETRY_AFTER_MS: u32 = 1000;

/// Serves `requests` until the stream ends, the peer is gone or `replies` is closed; then every
/// request of the stream is cancelled.
pub async fn run(
    engine: Arc<Engine>,
    tokenising: Arc<Semaphore>,
    mut requests: impl Stream<Item = Result<SessionRequest, Status>> + Unpin,
    replies: mpsc::Sender<Result<StepEvents, Status>>,
) {
    let (events_in, mut events) = mpsc::channel(STEPS_IN_FLIGHT);
    let (prepared_in, mut prepared) = mpsc::channel(STEPS_IN_FLIGHT);
    let sink = EventSink {
        id: engine.next_sequence(),
        channel: events_in,
    };
    let mut session = Session {
        engine,
        sink,
        tokenising,
        prepared: prepared_in,
        live: HashMap::new(),
        by_sequence: HashMap::new(),
        outgoing: Vec::new(),
        ended: 0,
        steps: 0,
    };
    let engine = Arc::clone(&session.engine);
    loop {
        let held = session.outgoing.len();
        tokio::select! {
            // A peer that sends and does not read is not listened to for long either.
            request = requests.next(), if held < 2 * EVENTS_HELD_MAX => match request {
                Some(Ok(request)) => {
                    if let Err(status) = session.take(request) {
                        // The stream ends all the same: a peer that does not read is not waited for.
                        let _ = replies.try_send(Err(status));
                        break;
                    }
                }
                // The peer is gone; tonic has the cause in its own log.
                Some(Err(_)) | None => break,
            },
            Some(ready) = prepared.recv() => session.start(ready),
            Some(step) = events.recv(), if held < EVENTS_HELD_MAX => {
                session.tell(step);
                while let Ok(step) = events.try_recv() {
                    session.tell(step);
                }
            }
            permit = replies.reserve(), if held > 0 => match permit {
                Ok(permit) => permit.send(Ok(session.message())),
                Err(_) => break,
            },
            () = engine.draining(), if held == 0 && session.live.is_empty() => break,
        }
    }
}

struct Session {
    engine: Arc<Engine>,
    sink: EventSink,
    tokenising: Arc<Semaphore>,
    prepared: mpsc::Sender<ReadyRequest>,
    live: HashMap<u64, LiveRequest>,
    by_sequence: HashMap<SequenceId, u64>,
    outgoing: Vec<Event>,
    /// Requests whose last event is in `outgoing`.
    ended: usize,
    steps: u64,
}

/// A request between its Submit and its end.
struct LiveRequest {
    control: Arc<SequenceControl>,
    session_id: Arc<str>,
    submitted_at: Instant,
    /// `None` until the step thread has it.
    answer: Option<Answer>,
}

struct ReadyRequest {
    request_id: u64,
    /// `None`: cancelled before any work was done for it.
    prepared: Option<Result<Prepared, Refusal>>,
}

impl Session {
    /// Errors: a request_id that is in use, which leaves no way to tell two requests apart.
    fn take(&mut self, request: SessionRequest) -> Result<(), Status> {
        match request.kind {
            Some(session_request::Kind::Submit(submit)) => return self.submit(submit),
            Some(session_request::Kind::Cancel(cancel)) => {
                if let Some(live) = self.live.get(&cancel.request_id) {
                    live.control.cancel();
                    self.engine.step.wake();
                }
            }
            Some(session_request::Kind::Credit(credit)) => {
                if let Some(live) = self.live.get(&credit.request_id) {
                    live.control.take(credit.tokens.into());
                    self.engine.step.wake();
                }
            }
            None => tracing::warn!("a session request of a kind this engine does not know"),
        }
        Ok(())
    }

    /// Sends the request to a request thread for rendering and tokenising.
    fn submit(&mut self, submit: Submit) -> Result<(), Status> {
        let request_id = submit.request_id;
        if self.live.contains_key(&request_id) {
            let message = format!("request_id {request_id} is in use");
            return Err(Status::invalid_argument(message));
        }
        let limits = &self.engine.limits;
        if let Some(left) = self.engine.shedding.left(Instant::now()) {
            self.engine.metrics.requests_shed.inc();
            self.push(request_id, Kind::Failed(shed(left).0));
            return Ok(());
        }
        if self.live.len() >= limits.sequences_max + limits.queue_max {
            self.push(request_id, Kind::Failed(busy(self.live.len()).0));
            return Ok(());
        }
        self.engine.count_requests(1);
        let control = Arc::<SequenceControl>::default();
        self.live.insert(
            request_id,
            LiveRequest {
                control: Arc::clone(&control),
                session_id: submit.session_id.as_str().into(),
                submitted_at: Instant::now(),
                answer: None,
            },
        );
        let engine = Arc::clone(&self.engine);
        let tokenising = Arc::clone(&self.tokenising);
        let done = self.prepared.clone();
        tokio::spawn(async move {
            let Ok(_turn) = tokenising.acquire_owned().await else {
                return;
            };
            let prepared = match control.is_cancelled() {
                true => None,
                false => Some(prepare_on_request_thread(engine, submit).await),
            };
            // A session that has ended meanwhile wants no answer.
            let _ = done
                .send(ReadyRequest {
                    request_id,
                    prepared,
                })
                .await;
        });
        Ok(())
    }

    /// Hands a prepared request to the step thread.
    fn start(&mut self, ready: ReadyRequest) {
        let request_id = ready.request_id;
        let Some(live) = self.live.get_mut(&request_id) else {
            return;
        };
        let prepared = match ready.prepared {
            Some(Ok(prepared)) => prepared,
            None => {
                self.end(request_id);
                let mut finished = Finished::default();
                finished.set_reason(FinishReason::Cancelled);
                finished.usage = Some(Usage::default());
                return self.push(request_id, Kind::Finished(finished));
            }
            Some(Err(refusal)) => {
                self.end(request_id);
                return self.push(request_id, Kind::Failed(refusal.0));
            }
        };
        let id = prepared.id;
        let prompt_tokens = prepared.prompt.len();
        let salt = match (
            self.engine.limits.share_prefixes,
            live.session_id.is_empty(),
        ) {
            (true, _) => Vec::new(),
            (false, true) => id.0.to_le_bytes().to_vec(),
            (false, false) => live.session_id.as_bytes().to_vec(),
        };
        let identity = &self.engine.model.identity;
        let blocks = PromptBlocks::new(identity, &salt, &prepared.prompt);
        let submitted = self.engine.step.submit(NewSequence {
            id,
            session_id: Arc::clone(&live.session_id),
            ownership: prepared.ownership,
            prompt: prepared.prompt,
            tokens_max: prepared.tokens_max,
            sampling: prepared.sampling,
            ignore_eog: prepared.ignore_eog,
            may_draft: true,
            window_tokens: prepared.window_tokens,
            blocks,
            control: Arc::clone(&live.control),
            sink: self.sink.clone(),
            submitted_at: live.submitted_at,
        });
        if let Err(error) = submitted {
            self.end(request_id);
            let refusal = match error {
                SubmitError::Busy { waiting } => busy(waiting),
                SubmitError::Stopped => Refusal::new(FailureKind::Draining, error.to_string()),
            };
            return self.push(request_id, Kind::Failed(refusal.0));
        }
        live.answer = Some(Answer::new(
            prepared.stop,
            prompt_tokens,
            prepared.divergence,
            live.submitted_at,
        ));
        self.by_sequence.insert(id, request_id);
        self.engine
            .metrics
            .prompt_tokens
            .inc_by(prompt_tokens as u64);
        self.push(
            request_id,
            Kind::Accepted(Accepted {
                prompt_tokens: prompt_tokens as u32,
            }),
        );
    }

    /// Turns a step's events into events of the requests.
    fn tell(&mut self, step: Vec<SequenceEvent>) {
        let engine = Arc::clone(&self.engine);
        let tokenizer = engine.language.as_ref().map(|l| &l.tokenizer);
        for event in step {
            // Events of a sequence that a stop string ended are no longer wanted.
            let Some(&request_id) = self.by_sequence.get(&event.sequence) else {
                continue;
            };
            let Some(live) = self.live.get_mut(&request_id) else {
                continue;
            };
            let Some(answer) = &mut live.answer else {
                continue;
            };
            let told = answer.tell(tokenizer, event.kind, event.at);
            let kinds = told.kinds.into_iter();
            self.outgoing.extend(kinds.map(|kind| Event {
                request_id,
                kind: Some(kind),
            }));
            if told.tokens_without_text > 0 {
                live.control.take(told.tokens_without_text);
                self.engine.step.wake();
            }
            if told.end_sequence {
                live.control.cancel();
                self.engine.step.wake();
            }
            if told.over {
                let times = answer.times();
                self.engine
                    .metrics
                    .prefill_seconds
                    .inc_by(times.prefill.as_secs_f64());
                self.engine
                    .metrics
                    .decode_seconds
                    .inc_by(times.decode.as_secs_f64());
                if answer.divergence().is_some() {
                    self.engine.metrics.prompts_diverged.inc();
                }
                self.end(request_id);
                self.by_sequence.remove(&event.sequence);
            }
        }
    }

    fn push(&mut self, request_id: u64, kind: Kind) {
        self.outgoing.push(Event {
            request_id,
            kind: Some(kind),
        });
    }

    /// The request has had its last event; it counts until that is on its way.
    fn end(&mut self, request_id: u64) {
        if self.live.remove(&request_id).is_some() {
            self.ended += 1;
        }
    }

    fn message(&mut self) -> StepEvents {
        self.steps += 1;
        self.engine
            .count_requests(-(std::mem::take(&mut self.ended) as isize));
        StepEvents {
            step: self.steps,
            events: std::mem::take(&mut self.outgoing),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for live in self.live.values() {
            live.control.cancel();
        }
        let open = self.live.len() + self.ended;
        self.engine.count_requests(-(open as isize));
        self.engine.step.wake();
    }
}

async fn prepare_on_request_thread(
    engine: Arc<Engine>,
    submit: Submit,
) -> Result<Prepared, Refusal> {
    let work = tokio::task::spawn_blocking(move || prepare(&engine, &submit));
    work.await.unwrap_or_else(|panic| {
        tracing::error!(%panic, "preparing a request failed");
        Err(Refusal::new(
            FailureKind::Internal,
            "preparing the request failed",
        ))
    })
}

fn shed(left: Duration) -> Refusal {
    let message =
        "the machine is short of memory and takes nothing new for a while; try again later";
    let mut refusal = Refusal::new(FailureKind::Busy, message.to_owned());
    refusal.0.retry_after_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
    refusal
}

fn busy(waiting: usize) -> Refusal {
    let mut refusal = Refusal::new(
        FailureKind::Busy,
        format!("{waiting} requests wait already; try again later"),
    );
    refusal.0.retry_after_ms = RETRY_AFTER_MS;
    refusal
}
