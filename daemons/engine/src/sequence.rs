//! A request as the step thread knows it, and what its owner hears of it.

use crate::{kv::PromptBlocks, sampler::Sampling, scheduler::Ownership};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// Number of a sequence, unique in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// What the owner of a sequence may change while it runs; looked at every step.
#[derive(Debug, Default)]
pub struct SequenceControl {
    cancelled: AtomicBool,
    tokens_taken: AtomicU64,
}

impl SequenceControl {
    /// Ends the sequence at the next step, wherever it is; its pages are given back then.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// The reader has taken `tokens` more tokens.
    pub fn take(&self, tokens: u64) {
        self.tokens_taken.fetch_add(tokens, Ordering::AcqRel);
    }

    pub fn tokens_taken(&self) -> u64 {
        self.tokens_taken.load(Ordering::Acquire)
    }
}

/// A sequence to run, its prompt already tokens.
#[derive(Debug)]
pub struct NewSequence {
    pub id: SequenceId,
    /// X-Session-Id, for /slots.
    pub session_id: Arc<str>,
    pub ownership: Ownership,
    /// Not empty, shorter than the context; every id below the vocabulary.
    pub prompt: Vec<u32>,
    /// At least 1; prompt and these together fit the context.
    pub tokens_max: usize,
    pub sampling: Sampling,
    pub ignore_eog: bool,
    /// Tokens may be drafted for it, where the engine does that; its bytes do not depend on it.
    pub may_draft: bool,
    /// Tokens sent but not taken at which the sequence pauses.
    pub window_tokens: u64,
    pub blocks: PromptBlocks,
    pub control: Arc<SequenceControl>,
    pub sink: EventSink,
    pub submitted_at: Instant,
}

/// Where a sequence's events go. Sequences with the same `id` share one message per step.
#[derive(Clone, Debug)]
pub struct EventSink {
    pub id: u64,
    pub channel: mpsc::Sender<Vec<SequenceEvent>>,
}

/// One thing that happened to a sequence.
#[derive(Clone, Copy, Debug)]
pub struct SequenceEvent {
    pub sequence: SequenceId,
    pub at: Instant,
    pub kind: EventKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Of its prompt, tokens whose KV came from kvtier, and how long it waited for them; before `Started`,
    /// which counts them too.
    Brought {
        arena_tokens: usize,
        mirror_tokens: usize,
        took: Duration,
    },
    /// It has a slot and pages; `tokens_cached` of its prompt need no computing.
    Started {
        tokens_cached: usize,
    },
    /// KV of so many prompt tokens stands.
    Prefilled {
        tokens_done: usize,
    },
    /// A step verified `tokens` drafted tokens; `accepted` of them are the next tokens.
    Drafted {
        tokens: usize,
        accepted: usize,
    },
    Token {
        id: u32,
    },
    /// The last event of a sequence.
    Ended {
        reason: EndReason,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// End-of-generation token.
    Eog,
    /// Its `tokens_max`.
    Length,
    Cancelled,
    /// The machine refused memory for its KV.
    OutOfMemory,
    /// Its logits hold a NaN or an infinity ([`crate::sampler::NotFinite`]).
    NotFinite,
}
