use super::snapshot::{SlotSnapshot, SlotState};
use crate::{
    kv::{BlockKey, BlockKeys, BlockTables, Growth},
    metrics::EngineMetrics,
    sampler::NotFinite,
    scheduler::Phase,
    sequence::{EndReason, NewSequence},
};
use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};
use vitriol_chassis::event;

/// Tokens that a sequence gets room for beyond those it has: with less, one that has just started
/// would soon take pages from another.
const ROOM_TOKENS: usize = 128;

/// A sequence, whether it waits or runs.
#[derive(Debug)]
pub struct Sequence {
    /// Its prompt is in `tokens`.
    pub new: NewSequence,
    /// Rises with each sequence that is submitted.
    pub arrival: u64,
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    pub prompt_tokens: usize,
    /// Keys of the full blocks it can take over; at least one token is left to compute.
    pub chain: Vec<BlockKey>,
    /// Of its prompt, tokens reused when it first started; `None` until then.
    pub tokens_cached: Option<usize>,
    /// How often it gave way to another.
    pub gave_way: u32,
    /// Prompt tokens of which its owner knows that they are computed.
    prefill_told: usize,
}

impl Sequence {
    pub fn new(mut new: NewSequence, arrival: u64) -> Self {
        let tokens = mem::take(&mut new.prompt);
        let chain = mem::take(&mut new.blocks.chain);
        Self {
            new,
            arrival,
            prompt_tokens: tokens.len(),
            tokens,
            chain,
            tokens_cached: None,
            gave_way: 0,
            prefill_told: 0,
        }
    }

    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_tokens
    }

    /// Whether its reader is behind by as much as it may be.
    pub fn is_paused(&self) -> bool {
        let generated = self.generated() as u64;
        let untaken = generated.saturating_sub(self.new.control.tokens_taken());
        generated > 0 && untaken >= self.new.window_tokens
    }

    /// Tokens it is to have room for before another may start.
    pub fn tokens_planned(&self) -> usize {
        (self.tokens.len() + ROOM_TOKENS).min(self.prompt_tokens + self.new.tokens_max)
    }
}

/// A sequence with a slot and pages.
#[derive(Debug)]
pub struct Running {
    pub sequence: Sequence,
    pub slot: u32,
    pub tables: BlockTables,
    /// Tokens whose KV stands.
    pub computed: usize,
    pub ended: Option<EndReason>,
    /// It must make room for another when the step is planned.
    pub gives_way: bool,
    /// Since when it waits for its next token, which nothing but the engine keeps from it.
    ready_since: Option<Instant>,
}

impl Running {
    pub fn new(sequence: Sequence, slot: u32, tables: BlockTables, computed: usize) -> Self {
        Self {
            sequence,
            slot,
            tables,
            computed,
            ended: None,
            gives_way: false,
            ready_since: None,
        }
    }

    pub fn phase(&self) -> Phase {
        if self.sequence.is_paused() {
            return Phase::Paused;
        }
        match self.sequence.tokens.len() - self.computed {
            1 if self.sequence.generated() > 0 => Phase::Decode,
            tokens_left => Phase::Prefill { tokens_left },
        }
    }

    /// Takes note at `now` whether it can decode; the time that it cannot is no stall.
    pub fn note_phase(&mut self, now: Instant) {
        match self.phase() {
            Phase::Paused => self.ready_since = None,
            Phase::Decode => self.ready_since = self.ready_since.or(Some(now)),
            Phase::Prefill { .. } => {}
        }
    }

    /// How far it is sure to grow.
    pub fn growth(&self) -> Growth {
        Growth {
            tokens_planned: self.sequence.tokens_planned(),
            blocks: self.tables.blocks(),
        }
    }

    /// The next `n` tokens without KV.
    pub fn tokens_to_compute(&self, n: usize) -> &[u32] {
        &self.sequence.tokens[self.computed..self.computed + n]
    }

    /// KV of `n` more tokens stands.
    pub fn advance(&mut self, n: usize) {
        self.computed += n;
        let computed = &self.sequence.tokens[..self.computed];
        self.tables.advance(computed);
    }

    /// Prompt tokens computed, if that is more than its owner has been told.
    pub fn prefill_to_tell(&mut self) -> Option<usize> {
        let done = self.computed.min(self.sequence.prompt_tokens);
        let told = mem::replace(&mut self.sequence.prefill_told, done);
        self.sequence.prefill_told = told.max(done);
        (done > told).then_some(done)
    }

    /// Takes a token sampled at `now` and decides whether it was the last. Returns the time since the
    /// one before, if nothing but the engine kept it so long.
    pub fn accept(&mut self, id: u32, is_eog: bool, now: Instant) -> Option<Duration> {
        self.sequence.tokens.push(id);
        if is_eog && !self.sequence.new.ignore_eog {
            self.ended = Some(EndReason::Eog);
        } else if self.sequence.generated() >= self.sequence.new.tokens_max {
            self.ended = Some(EndReason::Length);
        }
        let since = self.ready_since.replace(now);
        since.map(|since| now.saturating_duration_since(since))
    }

    /// Gives its pages back, full ones for whoever can reuse them first of all itself, and waits again.
    pub fn give_way(self) -> Sequence {
        let mut sequence = self.sequence;
        let reusable = BlockKeys::reusable(&sequence.tokens).len() / crate::kv::PAGE_TOKENS;
        let sealed = &self.tables.sealed()[..reusable.min(self.tables.sealed().len())];
        if sealed.len() > sequence.chain.len() {
            sequence.chain = sealed.to_vec();
        }
        sequence.gave_way += 1;
        sequence
    }

    /// Ends it without a token: the step gave nothing to sample from.
    pub fn fail(&mut self, error: NotFinite, metrics: &EngineMetrics) {
        metrics.sequences_not_finite.inc();
        tracing::error!(
            message_id = event::LOGITS_NOT_FINITE,
            vitriol_session = &*self.sequence.new.session_id,
            position = self.sequence.tokens.len(),
            "an answer ends in an error: {error}"
        );
        self.ended = Some(EndReason::NotFinite);
    }

    pub fn snapshot(&self) -> SlotSnapshot {
        let sequence = &self.sequence;
        SlotSnapshot {
            slot: self.slot,
            state: match self.phase() {
                Phase::Prefill { .. } => SlotState::Prefill,
                Phase::Decode => SlotState::Decode,
                Phase::Paused => SlotState::Paused,
            },
            session_id: Arc::clone(&sequence.new.session_id),
            prompt_tokens: sequence.prompt_tokens,
            prompt_tokens_done: self.computed.min(sequence.prompt_tokens),
            tokens_cached: sequence.tokens_cached.unwrap_or(0),
            tokens_generated: sequence.generated(),
        }
    }
}
