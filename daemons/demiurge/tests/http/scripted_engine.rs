//! An engine that says what a test tells it to, keeps to the wire's contract, and notices when its
//! peer does not.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};
use vitriol_proto::engine::v1::engine_server::{Engine, EngineServer};
use vitriol_proto::engine::v1::event::Kind;
use vitriol_proto::engine::v1::{
    Accepted, Delta, DetokenizeRequest, DetokenizeResponse, Event, Failed, FinishReason, Finished,
    GetModelRequest, GetModelResponse, ListSlotsRequest, ListSlotsResponse, Prefill,
    SessionRequest, ShedRequest, ShedResponse, Slot, SlotState, StepEvents, Submit,
    TokenizeRequest, TokenizeResponse, Usage, session_request,
};
use vitriol_proto::status::v1::status_server::{Status as StatusRpc, StatusServer};
use vitriol_proto::status::v1::{GetRequest, GetResponse, Health};
use vitriol_testkit::eventually;

/// Longest wait of a test for anything that should come at once.
pub const SOON: Duration = Duration::from_secs(20);

/// Prompt tokens of every scripted prompt, and how many of them are reused.
pub const PROMPT_TOKENS: u32 = 12;
pub const CACHED_TOKENS: u32 = 4;

/// One thing the engine does for a request.
#[derive(Clone, Debug)]
pub enum Act {
    Accept,
    /// Says how far the prompt is.
    Prefill(u32),
    /// A token of text.
    Say(&'static str),
    /// This many tokens of [`flood_text`].
    Flood(u32),
    /// Nothing more until it is cancelled.
    Hold,
    /// Nothing more until the test opens the gate.
    Gate,
    /// Says every 20 ms how far the prompt is, until the test opens the gate.
    LongPrefill,
    Finish(FinishReason),
    Fail(Failed),
    /// Sends text without waiting for credit.
    Overrun(u32),
}

/// Text of the `number`th token of a flood: 64 bytes that begin with its number.
pub fn flood_text(number: u32) -> String {
    format!("{number:07} {:.>55} ", "")
}

/// What the engine does for a Submit.
pub type Script = dyn Fn(&Submit) -> Vec<Act> + Send + Sync;

/// How it answers whoever asks about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Ready,
    Loading,
    Failed,
    /// Takes connections and calls, answers none.
    Hung,
}

/// What it was told.
#[derive(Clone, Debug, Default)]
pub struct Record {
    pub submits: Vec<Submit>,
    pub cancels: Vec<u64>,
    /// Tokens sent and credited, by request.
    pub sent: HashMap<u64, u64>,
    pub credited: HashMap<u64, u64>,
    pub sessions_ended: u32,
    /// How often it was asked for its slots.
    pub slot_lists: u32,
    /// Breaches of the wire's contract by the peer.
    pub breaches: Vec<String>,
}

struct Shared {
    script: Box<Script>,
    record: Mutex<Record>,
    mood: Mutex<Mood>,
    /// Sessions whose last turn kvtier does not know of yet.
    untold: Mutex<Vec<String>>,
    gate: Semaphore,
}

/// The engine; killed when dropped.
pub struct ScriptedEngine {
    socket: PathBuf,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

impl ScriptedEngine {
    /// An engine at `<dir>/engine.sock`, ready.
    pub fn start(
        dir: &Path,
        script: impl Fn(&Submit) -> Vec<Act> + Send + Sync + 'static,
    ) -> ScriptedEngine {
        let shared = Shared {
            script: Box::new(script),
            record: Mutex::default(),
            mood: Mutex::new(Mood::Ready),
            untold: Mutex::default(),
            gate: Semaphore::new(0),
        };
        let socket = dir.join("engine.sock");
        let mut engine = ScriptedEngine {
            socket,
            shared: Arc::new(shared),
            runtime: None,
        };
        engine.restart();
        engine
    }

    /// Starts it (again).
    pub fn restart(&mut self) {
        self.kill();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let service = Service(Arc::clone(&self.shared));
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(&self.socket).unwrap()
        };
        runtime.spawn(
            Server::builder()
                .add_service(
                    EngineServer::new(service.clone()).max_decoding_message_size(256 << 20),
                )
                .add_service(StatusServer::new(service))
                .serve_with_incoming(UnixListenerStream::new(listener)),
        );
        self.runtime = Some(runtime);
    }

    /// Ends it as `kill -9` does: connections break, nothing is said.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        let _ = std::fs::remove_file(&self.socket);
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn set_mood(&self, mood: Mood) {
        *self.shared.mood.lock().unwrap() = mood;
    }

    pub fn set_untold(&self, sessions: &[&str]) {
        let sessions = sessions.iter().map(|&session| session.to_owned());
        *self.shared.untold.lock().unwrap() = sessions.collect();
    }

    /// Lets one request that waits at a gate go on.
    pub fn open_gate(&self) {
        self.shared.gate.add_permits(1);
    }

    pub fn record(&self) -> Record {
        self.shared.record.lock().unwrap().clone()
    }

    /// Waits until the record is as `condition` wants it.
    pub fn until(&self, what: &str, condition: impl Fn(&Record) -> bool) -> Record {
        eventually(SOON, what, || Some(self.record()).filter(&condition)).unwrap()
    }

    /// The peer kept to the contract so far.
    pub fn assert_no_breach(&self) {
        let record = self.record();
        assert!(record.breaches.is_empty(), "{:?}", record.breaches);
    }
}

impl Drop for ScriptedEngine {
    fn drop(&mut self) {
        self.kill();
    }
}

#[derive(Clone)]
struct Service(Arc<Shared>);

/// A request between its Submit and its end.
struct Ticket {
    cancelled: CancellationToken,
    window_tokens: usize,
    window: Semaphore,
}

type Replies = mpsc::Sender<Result<StepEvents, Status>>;

impl Shared {
    fn mood(&self) -> Mood {
        *self.mood.lock().unwrap()
    }

    fn note(&self, change: impl FnOnce(&mut Record)) {
        change(&mut self.record.lock().unwrap());
    }

    /// Calls wait for ever while it hangs and fail while it is not ready.
    async fn may_answer(&self) -> Result<(), Status> {
        match self.mood() {
            Mood::Ready => Ok(()),
            Mood::Hung => std::future::pending().await,
            Mood::Loading | Mood::Failed => Err(Status::unavailable("loading")),
        }
    }

    async fn read_requests(
        self: Arc<Self>,
        mut requests: Streaming<SessionRequest>,
        replies: Replies,
    ) {
        let mut tickets: HashMap<u64, Arc<Ticket>> = HashMap::new();
        while let Ok(Some(request)) = requests.message().await {
            match request.kind.unwrap() {
                session_request::Kind::Submit(submit) => {
                    let ticket = Arc::new(Ticket {
                        cancelled: CancellationToken::new(),
                        window_tokens: submit.window_tokens as usize,
                        window: Semaphore::new(submit.window_tokens as usize),
                    });
                    if tickets
                        .insert(submit.request_id, Arc::clone(&ticket))
                        .is_some()
                    {
                        self.note(|record| record.breaches.push("request_id twice".into()));
                    }
                    self.note(|record| record.submits.push(submit.clone()));
                    let shared = Arc::clone(&self);
                    tokio::spawn(shared.play(submit, ticket, replies.clone()));
                }
                session_request::Kind::Cancel(cancel) => {
                    self.note(|record| record.cancels.push(cancel.request_id));
                    match tickets.get(&cancel.request_id) {
                        Some(ticket) => ticket.cancelled.cancel(),
                        None => self.note(|record| {
                            record.breaches.push("cancel of an unknown request".into());
                        }),
                    }
                }
                session_request::Kind::Credit(credit) => {
                    let tokens = u64::from(credit.tokens);
                    self.note(|record| {
                        *record.credited.entry(credit.request_id).or_default() += tokens;
                        if record.credited.get(&credit.request_id)
                            > record.sent.get(&credit.request_id)
                        {
                            record.breaches.push("credit for tokens never sent".into());
                        }
                    });
                    if let Some(ticket) = tickets.get(&credit.request_id) {
                        ticket.window.add_permits(credit.tokens as usize);
                        if ticket.window.available_permits() > ticket.window_tokens {
                            self.note(|record| record.breaches.push("window overfull".into()));
                        }
                    }
                }
            }
        }
        for ticket in tickets.values() {
            ticket.cancelled.cancel();
        }
        self.note(|record| record.sessions_ended += 1);
    }

    async fn play(self: Arc<Self>, submit: Submit, ticket: Arc<Ticket>, replies: Replies) {
        let id = submit.request_id;
        let acts = (self.script)(&submit);
        let playing = async {
            let mut said = 0;
            for act in acts {
                self.act(id, act, &ticket, &replies, &mut said).await;
            }
        };
        tokio::select! {
            () = playing => {}
            () = ticket.cancelled.cancelled() => {
                tell(&replies, id, finished(FinishReason::Cancelled, 0)).await;
            }
        }
    }

    async fn act(&self, id: u64, act: Act, ticket: &Ticket, replies: &Replies, said: &mut u32) {
        match act {
            Act::Accept => {
                tell(
                    replies,
                    id,
                    Kind::Accepted(Accepted {
                        prompt_tokens: PROMPT_TOKENS,
                    }),
                )
                .await;
            }
            Act::Prefill(tokens_done) => {
                let prefill = Prefill {
                    tokens_done,
                    tokens_all: PROMPT_TOKENS,
                    tokens_cached: CACHED_TOKENS,
                };
                tell(replies, id, Kind::Prefill(prefill)).await;
            }
            Act::Say(text) => {
                self.say(id, text.to_owned(), ticket, replies).await;
                *said += 1;
            }
            Act::Flood(tokens) => {
                for number in 0..tokens {
                    self.say(id, flood_text(number), ticket, replies).await;
                }
                *said += tokens;
            }
            Act::Hold => std::future::pending().await,
            Act::Gate => self.gate.acquire().await.unwrap().forget(),
            Act::LongPrefill => {
                let mut steps = tokio::time::interval(Duration::from_millis(20));
                loop {
                    tokio::select! {
                        biased;
                        place = self.gate.acquire() => return place.unwrap().forget(),
                        _ = steps.tick() => {}
                    }
                    let prefill = Prefill {
                        tokens_done: 1,
                        tokens_all: PROMPT_TOKENS,
                        tokens_cached: CACHED_TOKENS,
                    };
                    tell(replies, id, Kind::Prefill(prefill)).await;
                }
            }
            Act::Finish(reason) => tell(replies, id, finished(reason, *said)).await,
            Act::Fail(failed) => tell(replies, id, Kind::Failed(failed)).await,
            Act::Overrun(tokens) => {
                let delta = Delta {
                    text: "x".repeat(tokens as usize),
                    tokens,
                };
                tell(replies, id, Kind::Delta(delta)).await;
            }
        }
    }

    /// Sends a token of text once the window has room for it.
    async fn say(&self, id: u64, text: String, ticket: &Ticket, replies: &Replies) {
        ticket.window.acquire().await.unwrap().forget();
        self.note(|record| *record.sent.entry(id).or_default() += 1);
        tell(replies, id, Kind::Delta(Delta { text, tokens: 1 })).await;
    }
}

fn finished(reason: FinishReason, completion_tokens: u32) -> Kind {
    Kind::Finished(Finished {
        reason: reason as i32,
        stopping_string: String::new(),
        usage: Some(Usage {
            prompt_tokens: PROMPT_TOKENS,
            cached_tokens: CACHED_TOKENS,
            completion_tokens,
            queue_ms: 1.5,
            prefill_ms: 40.0,
            decode_ms: 100.0,
            drafted_tokens: 12,
            accepted_tokens: 9,
            arena_tokens: 2,
            mirror_tokens: 1,
            tier_ms: 3.0,
            diverged_token: Some(9),
            diverged_message: Some(1),
        }),
    })
}

/// Sends an event; a peer that has gone hears nothing.
async fn tell(replies: &Replies, request_id: u64, kind: Kind) {
    let event = Event {
        request_id,
        kind: Some(kind),
    };
    let _ = replies
        .send(Ok(StepEvents {
            step: 1,
            events: vec![event],
        }))
        .await;
}

#[tonic::async_trait]
impl Engine for Service {
    type SessionStream = ReceiverStream<Result<StepEvents, Status>>;

    async fn session(
        &self,
        requests: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        self.0.may_answer().await?;
        let (replies, stream) = mpsc::channel(16);
        tokio::spawn(Arc::clone(&self.0).read_requests(requests.into_inner(), replies));
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn get_model(
        &self,
        _: Request<GetModelRequest>,
    ) -> Result<Response<GetModelResponse>, Status> {
        self.0.may_answer().await?;
        Ok(Response::new(GetModelResponse {
            alias: "smol".into(),
            architecture: "llama".into(),
            file: "/models/SmolLM2-135M.Q4_1.gguf".into(),
            file_bytes: 98_362_432,
            parameters: 134_515_008,
            vocab: 49_152,
            d_model: 576,
            n_layers: 30,
            context_tokens_trained: 8192,
            context_tokens: 4096,
            kv_bytes_per_token: 46_080,
            sequences_max: 2,
            isa: "avx2".into(),
            threads: 2,
            batch_invariant: "full".into(),
            chat_template: "a template".into(),
            ready_at: 1_700_000_000,
        }))
    }

    async fn list_slots(
        &self,
        _: Request<ListSlotsRequest>,
    ) -> Result<Response<ListSlotsResponse>, Status> {
        self.0.may_answer().await?;
        self.0.note(|record| record.slot_lists += 1);
        let busy = Slot {
            id: 0,
            state: SlotState::Decode as i32,
            session_id: "s-1".into(),
            prompt_tokens: PROMPT_TOKENS,
            prompt_tokens_done: PROMPT_TOKENS,
            cached_tokens: CACHED_TOKENS,
            completion_tokens: 7,
            context_tokens: 4096,
        };
        let idle = Slot {
            id: 1,
            session_id: "s-0".into(),
            context_tokens: 4096,
            ..Slot::default()
        };
        let nameless = Slot {
            id: 2,
            session_id: String::new(),
            ..idle.clone()
        };
        Ok(Response::new(ListSlotsResponse {
            slots: vec![busy, idle, nameless],
            queued: 3,
            pages_used: 1,
            pages_cached: 2,
            pages_all: 100,
            page_tokens: 64,
            sessions_untold: self.0.untold.lock().unwrap().clone(),
        }))
    }

    async fn tokenize(
        &self,
        request: Request<TokenizeRequest>,
    ) -> Result<Response<TokenizeResponse>, Status> {
        self.0.may_answer().await?;
        let request = request.into_inner();
        let bytes = request.text.as_bytes();
        let mut ids: Vec<u32> = bytes.iter().map(|byte| u32::from(*byte)).collect();
        if request.add_special {
            ids.insert(0, 1);
        }
        let pieces = ids.iter().map(|id| vec![*id as u8]).collect();
        let pieces = if request.with_pieces {
            pieces
        } else {
            Vec::new()
        };
        Ok(Response::new(TokenizeResponse { ids, pieces }))
    }

    async fn detokenize(
        &self,
        request: Request<DetokenizeRequest>,
    ) -> Result<Response<DetokenizeResponse>, Status> {
        self.0.may_answer().await?;
        let bytes: Option<Vec<u8>> = request
            .into_inner()
            .ids
            .iter()
            .map(|id| u8::try_from(*id).ok())
            .collect();
        let bytes = bytes.ok_or_else(|| Status::invalid_argument("token id out of range"))?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Response::new(DetokenizeResponse { text }))
    }

    async fn shed(&self, _: Request<ShedRequest>) -> Result<Response<ShedResponse>, Status> {
        Err(Status::unimplemented("Demiurge does not call it"))
    }
}

#[tonic::async_trait]
impl StatusRpc for Service {
    async fn get(&self, _: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let (health, detail) = match self.0.mood() {
            Mood::Hung => std::future::pending().await,
            Mood::Ready => (Health::Ready, "serving"),
            Mood::Loading => (Health::Starting, "loading weights"),
            Mood::Failed => (Health::Failed, "not enough memory; set kv_bytes_max lower"),
        };
        Ok(Response::new(GetResponse {
            daemon: "engine".into(),
            version: "0.1.0".into(),
            health: health as i32,
            detail: detail.into(),
            metrics: "# TYPE vitriol_engine_steps counter\nvitriol_engine_steps_total 7\n\
                      vitriol_engine_prompt_tokens_total 1500\n\
                      vitriol_engine_prompt_tokens_cached_total 300\n\
                      vitriol_engine_prefill_seconds_total 2.5\n"
                .into(),
            ..GetResponse::default()
        }))
    }
}
