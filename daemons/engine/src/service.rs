//! `vitriol.engine.v1` over the engine: the Session stream, and calls that answer from snapshots.

use crate::{
    engine::Engine,
    session,
    shedding::SHED_MAX,
    step::{SlotSnapshot, SlotState as State},
};
use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use vitriol_proto::engine::v1::{
    DetokenizeRequest, DetokenizeResponse, GetModelRequest, GetModelResponse, ListSlotsRequest,
    ListSlotsResponse, SessionRequest, ShedRequest, ShedResponse, Slot, SlotState, StepEvents,
    TokenizeRequest, TokenizeResponse, engine_server,
};
use vitriol_tokens::{EncodeOptions, Tokenizer};

/// Largest message a peer may send: Demiurge's largest body and its framing fit.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;
/// Most ids of one Detokenize.
const DETOKENIZE_IDS_MAX: usize = 1 << 20;
/// Step messages that wait for the peer to read.
const REPLIES_IN_FLIGHT: usize = 4;

/// The gRPC service of one engine: UNAVAILABLE until the model is loaded, then what it serves.
#[derive(Clone, Debug, Default)]
pub struct EngineService {
    serving: Arc<OnceLock<Serving>>,
}

/// A loaded engine and what GetModel says of its file.
#[derive(Debug)]
pub struct Serving {
    engine: Arc<Engine>,
    /// Bounds the request threads that tokenise at once.
    tokenising: Arc<Semaphore>,
    file: PathBuf,
    file_bytes: u64,
    chat_template: String,
    ready_at: u64,
}

impl Serving {
    /// `file`: the model file, its size and the template it carries.
    pub fn new(engine: Arc<Engine>, file: PathBuf, file_bytes: u64, chat_template: String) -> Self {
        let ready_at = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        let tokenising = Arc::new(Semaphore::new(engine.model.device.threads().max(2)));
        Self {
            engine,
            tokenising,
            file,
            file_bytes,
            chat_template,
            ready_at,
        }
    }

    pub fn engine(&self) -> Arc<Engine> {
        Arc::clone(&self.engine)
    }

    /// Runs `work` where the tokeniser's time delays no other call, a bounded number at once.
    async fn on_request_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tokenizer) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let turn = Arc::clone(&self.tokenising).acquire_owned().await;
        let _turn = turn.map_err(|_| Status::unavailable("the engine is shutting down"))?;
        let engine = Arc::clone(&self.engine);
        let task = tokio::task::spawn_blocking(move || {
            let language = engine.language.as_ref();
            language.map(|language| work(&language.tokenizer))
        });
        let done = task
            .await
            .map_err(|_| Status::internal("tokenising failed"))?;
        done.ok_or_else(|| Status::failed_precondition("this model has no tokenizer"))
    }

    fn tokenizer(&self) -> Result<&Tokenizer, Status> {
        let missing = || Status::failed_precondition("this model's tokenizer is not supported yet");
        Ok(&self.engine.language.as_ref().ok_or_else(missing)?.tokenizer)
    }
}

impl EngineService {
    /// From now on calls are answered; a second call changes nothing.
    pub fn serve(&self, serving: Serving) {
        // Only the task that loads the model calls this, once.
        let _ = self.serving.set(serving);
    }

    fn serving(&self) -> Result<&Serving, Status> {
        self.serving
            .get()
            .ok_or_else(|| Status::unavailable("loading the model"))
    }
}

#[tonic::async_trait]
impl engine_server::Engine for EngineService {
    type SessionStream = ReceiverStream<Result<StepEvents, Status>>;

    async fn session(
        &self,
        requests: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (replies, stream) = mpsc::channel(REPLIES_IN_FLIGHT);
        let serving = self.serving()?;
        let engine = Arc::clone(&serving.engine);
        let tokenising = Arc::clone(&serving.tokenising);
        tokio::spawn(session::run(
            engine,
            tokenising,
            requests.into_inner(),
            replies,
        ));
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn get_model(
        &self,
        _: Request<GetModelRequest>,
    ) -> Result<Response<GetModelResponse>, Status> {
        let serving = self.serving()?;
        let (engine, model) = (&serving.engine, &serving.engine.model);
        let hyper = &model.hyper;
        Ok(Response::new(GetModelResponse {
            alias: engine.limits.alias.clone(),
            architecture: hyper.architecture.name().to_owned(),
            file: serving.file.display().to_string(),
            file_bytes: serving.file_bytes,
            parameters: model.totals.parameters,
            vocab: hyper.vocab as u32,
            d_model: hyper.d_model as u32,
            n_layers: hyper.layers.len() as u32,
            context_tokens_trained: hyper.context_tokens_trained as u32,
            context_tokens: engine.limits.context_tokens as u32,
            kv_bytes_per_token: model.kv_bytes_per_token(engine.limits.codecs) as u64,
            sequences_max: engine.limits.sequences_max as u32,
            isa: model.device.isa().to_string(),
            threads: model.device.threads() as u32,
            batch_invariant: "full".to_owned(),
            chat_template: serving.chat_template.clone(),
            ready_at: serving.ready_at,
        }))
    }

    async fn list_slots(
        &self,
        _: Request<ListSlotsRequest>,
    ) -> Result<Response<ListSlotsResponse>, Status> {
        let engine = &self.serving()?.engine;
        // Slots first: whose turn has ended is untold by then, or was told.
        let snapshot = engine.step.snapshot();
        let untold = engine.sessions_untold();
        let context = engine.limits.context_tokens as u32;
        let mut slots: Vec<Slot> = (0..)
            .zip(&snapshot.last_sessions)
            .map(|(id, session_id)| Slot {
                id,
                session_id: session_id.to_string(),
                context_tokens: context,
                ..Slot::default()
            })
            .collect();
        for busy in &snapshot.slots {
            if let Some(slot) = slots.get_mut(busy.slot as usize) {
                *slot = wire_slot(busy, context);
            }
        }
        Ok(Response::new(ListSlotsResponse {
            slots,
            queued: snapshot.waiting as u32,
            pages_used: snapshot.pool.held as u64,
            pages_cached: snapshot.pool.cached as u64,
            pages_all: snapshot.pool.all as u64,
            page_tokens: crate::kv::PAGE_TOKENS as u32,
            sessions_untold: untold.iter().map(|id| id.to_string()).collect(),
        }))
    }

    async fn tokenize(
        &self,
        request: Request<TokenizeRequest>,
    ) -> Result<Response<TokenizeResponse>, Status> {
        let serving = self.serving()?;
        serving.tokenizer()?;
        let TokenizeRequest {
            text,
            add_special,
            parse_special,
            with_pieces,
        } = request.into_inner();
        let response = serving
            .on_request_thread(move |tokenizer| {
                let options = EncodeOptions {
                    add_special,
                    parse_special,
                };
                let ids = tokenizer.encode(text.as_bytes(), options);
                let piece = |&id: &u32| tokenizer.decode(&[id], true);
                let pieces = match with_pieces {
                    true => ids.iter().map(piece).collect(),
                    false => Vec::new(),
                };
                TokenizeResponse { ids, pieces }
            })
            .await?;
        Ok(Response::new(response))
    }

    async fn detokenize(
        &self,
        request: Request<DetokenizeRequest>,
    ) -> Result<Response<DetokenizeResponse>, Status> {
        let serving = self.serving()?;
        serving.tokenizer()?;
        let ids = request.into_inner().ids;
        if ids.len() > DETOKENIZE_IDS_MAX {
            let message = format!("at most {DETOKENIZE_IDS_MAX} tokens at once");
            return Err(Status::invalid_argument(message));
        }
        let vocab = serving.engine.model.hyper.vocab;
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
            let message = format!("token id {id} is outside the vocabulary of {vocab}");
            return Err(Status::invalid_argument(message));
        }
        let text = serving
            .on_request_thread(move |tokenizer| {
                String::from_utf8_lossy(&tokenizer.decode(&ids, true)).into_owned()
            })
            .await?;
        Ok(Response::new(DetokenizeResponse { text }))
    }

    async fn shed(&self, request: Request<ShedRequest>) -> Result<Response<ShedResponse>, Status> {
        let engine = &self.serving()?.engine;
        let duration = Duration::from_millis(request.into_inner().duration_ms.into());
        if duration.is_zero() || duration > SHED_MAX {
            let message = format!("duration_ms must be 1 to {}", SHED_MAX.as_millis());
            return Err(Status::invalid_argument(message));
        }
        engine.shedding.begin(Instant::now(), duration);
        Ok(Response::new(ShedResponse {}))
    }
}

fn wire_slot(busy: &SlotSnapshot, context_tokens: u32) -> Slot {
    let state = match busy.state {
        State::Prefill => SlotState::Prefill,
        State::Decode => SlotState::Decode,
        State::Paused => SlotState::Paused,
    };
    Slot {
        id: busy.slot,
        state: state.into(),
        session_id: busy.session_id.to_string(),
        prompt_tokens: busy.prompt_tokens as u32,
        prompt_tokens_done: busy.prompt_tokens_done as u32,
        cached_tokens: busy.tokens_cached as u32,
        completion_tokens: busy.tokens_generated as u32,
        context_tokens,
    }
}
