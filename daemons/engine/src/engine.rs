//! The engine as its services see it: model, tokenizer, template and the step thread behind them.

use crate::{
    divergence::LastRequests,
    forward::KvStores,
    kv::{KvCodecs, PAGE_TOKENS, tokens_within},
    kv_ahead::KvAhead,
    metrics::EngineMetrics,
    model::{KvGroup, Model},
    scheduler::{Ownership, Reservations, StepBounds, StepMs},
    shedding::Shedding,
    step::{StartError, StepLimits, StepThread},
    template::ChatTemplate,
    tier::{Tier, TierPlace},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use vitriol_chassis::{CancellationToken, Heartbeat};
use vitriol_profile::Speculation;
use vitriol_tokens::Tokenizer;

/// Settings of one engine, every default resolved.
#[derive(Clone, Debug)]
pub struct EngineLimits {
    /// Name clients use for the model.
    pub alias: String,
    /// Context window of a request; 0 = what the model was trained for.
    pub context_tokens: usize,
    pub codecs: KvCodecs,
    pub speculation: Speculation,
    /// Pages of each KV group, see [`crate::kv::PagePlan`].
    pub pages: Vec<usize>,
    pub sequences_max: usize,
    pub queue_max: usize,
    pub bounds: StepBounds,
    /// [`crate::scheduler::measured_ms`], except in tests whose plans must not depend on the machine's speed.
    pub step_ms: StepMs,
    /// By X-Tenant-Id, the share of the pages that is kept for a tenant; together no more than 1.
    pub kv_shares: BTreeMap<String, f64>,
    pub share_prefixes: bool,
    pub window_tokens: u64,
    /// Where KV goes and comes from that is to outlive the engine; `None`: nowhere.
    pub tier: Option<TierPlace>,
}

impl EngineLimits {
    /// Most tokens of a step: every running sequence gets its token.
    pub fn step_tokens(&self) -> usize {
        self.bounds.tokens_max.max(self.sequences_max)
    }
}

/// What turns text into tokens for a model; absent when its tokenizer is of a kind not supported yet
/// (such a model takes token ids only).
#[derive(Debug)]
pub struct Language {
    pub tokenizer: Tokenizer,
    pub template: ChatTemplate,
    /// Bytes of the longest token: a text has at least as many tokens as it has stretches this long.
    pub longest_piece: usize,
}

impl Language {
    pub fn new(tokenizer: Tokenizer, template: ChatTemplate) -> Self {
        let mut piece = Vec::new();
        let mut length = |id| {
            piece.clear();
            tokenizer.piece(id, &mut piece, true);
            piece.len()
        };
        let longest_piece = (0..tokenizer.n_vocab() as u32).map(&mut length).max();
        Self {
            longest_piece: longest_piece.unwrap_or(1).max(1),
            tokenizer,
            template,
        }
    }
}

/// One loaded model and its step thread.
#[derive(Debug)]
pub struct Engine {
    pub model: Arc<Model>,
    pub language: Option<Language>,
    pub limits: EngineLimits,
    pub step: StepThread,
    pub metrics: EngineMetrics,
    /// Whether requests are taken: the machine may be short of memory.
    pub shedding: Shedding,
    /// With what a conversation's next prompt is compared.
    pub last_requests: Arc<LastRequests>,
    /// Ends after the step thread, whose last pages it stores.
    tier: Option<Tier>,
    reservations: Reservations,
    sequences: AtomicU64,
    /// Requests of all sessions that have not heard their end yet.
    requests: AtomicUsize,
    draining: CancellationToken,
}

/// Why a model cannot be served with these limits.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(
        "kv_bytes_max holds no page of {PAGE_TOKENS} tokens of this model; give it at least \
         {bytes_min} bytes"
    )]
    NoPage { bytes_min: usize },
    #[error("the tokenizer has {tokens} tokens and the embedding only {rows} rows: a damaged file")]
    Vocabulary { tokens: usize, rows: usize },
    #[error(transparent)]
    Start(#[from] StartError),
}

impl Engine {
    /// Sets up KV and starts the step thread. `limits.context_tokens` becomes what one request can
    /// really use: no more than the pool holds. `kv`: for these limits' codecs and pages, where memory for them
    /// has been looked for before.
    pub fn start(
        model: Arc<Model>,
        language: Option<Language>,
        mut limits: EngineLimits,
        metrics: EngineMetrics,
        heartbeat: Heartbeat,
        kv: Option<KvAhead>,
    ) -> Result<Self, EngineError> {
        let pages = limits.pages.clone();
        if pages.contains(&0) {
            let bytes_min = bytes_of_one_block(&model, limits.codecs);
            return Err(EngineError::NoPage { bytes_min });
        }
        if let Some(language) = &language {
            let (tokens, rows) = (language.tokenizer.n_vocab(), model.hyper.vocab);
            if tokens > rows {
                return Err(EngineError::Vocabulary { tokens, rows });
            }
        }
        let trained = model.hyper.context_tokens_trained;
        if limits.context_tokens > trained {
            tracing::warn!(
                context_tokens = limits.context_tokens,
                trained,
                "the context is longer than the model was trained for; answers may degrade"
            );
        }
        let wanted = match limits.context_tokens {
            0 => trained,
            asked => asked,
        };
        limits.context_tokens = model.hyper.context_for(wanted);
        if limits.context_tokens < wanted {
            tracing::warn!(
                context_tokens = limits.context_tokens,
                wanted,
                "the model's attention beyond this context is not computed yet"
            );
        }
        let bounds = StepBounds {
            tokens_max: limits.step_tokens(),
            ..limits.bounds
        };
        let pool_tokens = tokens_within(&model.kv_groups, &pages, bounds.tokens_max);
        if limits.context_tokens > pool_tokens {
            tracing::warn!(
                context_tokens = pool_tokens,
                wanted = limits.context_tokens,
                "kv_bytes_max holds fewer tokens than the context; a request may use what it holds"
            );
            limits.context_tokens = pool_tokens;
        }
        let eog = language
            .as_ref()
            .map_or_else(Vec::new, |l| l.tokenizer.special().eog().to_vec());
        let shares = limits.kv_shares.iter();
        let shares = shares.map(|(tenant, &share)| (tenant.as_str(), share));
        let reservations = Reservations::new(shares, &pages);
        let kv = match kv {
            Some(ahead) => ahead.finish(),
            None => {
                KvStores::new(&model.kv_groups, limits.codecs, &pages).map_err(StartError::from)?
            }
        };
        let step_limits = StepLimits {
            sequences_max: limits.sequences_max,
            queue_max: limits.queue_max,
            bounds,
            step_ms: limits.step_ms,
            reservations: reservations.clone(),
            eog,
            speculation: limits.speculation,
            pages,
        };
        let tier = limits.tier.clone().map(|place| {
            let metrics = metrics.tier.clone();
            Tier::start(place, &model, limits.codecs, metrics)
        });
        let tier = tier.transpose().map_err(StartError::Thread)?;
        let last_requests = Arc::<LastRequests>::default();
        let step = StepThread::start(
            Arc::clone(&model),
            kv,
            step_limits,
            metrics.clone(),
            heartbeat,
            tier.as_ref().map(|tier| Arc::clone(tier.desk())),
            Arc::clone(&last_requests),
        )?;
        Ok(Self {
            model,
            language,
            limits,
            step,
            metrics,
            shedding: Shedding::default(),
            last_requests,
            tier,
            reservations,
            sequences: AtomicU64::new(0),
            requests: AtomicUsize::new(0),
            draining: CancellationToken::new(),
        })
    }

    /// Waits until the KV tier, if there is to be one, can be asked, so long at most; whether it can. Blocks.
    pub fn wait_for_tier(&self, within: Duration) -> bool {
        let tier = self.tier.as_ref();
        tier.is_none_or(|tier| tier.desk().wait_attached(within))
    }

    /// Conversations of which kvtier has not been told yet how their last turn ended.
    pub fn sessions_untold(&self) -> Vec<Arc<str>> {
        let tier = self.tier.as_ref();
        tier.map_or_else(Vec::new, |tier| tier.desk().sessions_untold())
    }

    /// Context window of a request of this owner: pages that are kept for others are not for it.
    pub fn context_tokens(&self, ownership: &Ownership) -> usize {
        let limits = &self.limits;
        let pages = self
            .reservations
            .pages_for(&ownership.tenant, &limits.pages);
        let held = tokens_within(&self.model.kv_groups, &pages, limits.step_tokens());
        limits.context_tokens.min(held)
    }

    /// A number no other sequence of this process has.
    pub fn next_sequence(&self) -> u64 {
        self.sequences.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes no new requests from now on; sessions end when their last request has.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Comes back once the engine drains.
    pub async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// A request was taken (`change` 1) or has heard its end (-1).
    pub fn count_requests(&self, change: isize) {
        self.requests.fetch_add(change as usize, Ordering::AcqRel);
    }

    /// Whether no request is being prepared, waits, runs or has an answer on its way.
    pub fn is_idle(&self) -> bool {
        let snapshot = self.step.snapshot();
        self.requests.load(Ordering::Acquire) == 0
            && snapshot.slots.is_empty()
            && snapshot.waiting == 0
    }
}

/// Memory of the least KV that holds a token: a page in each group.
fn bytes_of_one_block(model: &Model, codecs: KvCodecs) -> usize {
    let one = |group: &KvGroup| group.shape(codecs, 1).bytes_committed(1);
    model.kv_groups.iter().map(one).sum()
}
