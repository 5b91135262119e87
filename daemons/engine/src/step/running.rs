use super::snapshot::{SlotSnapshot, SlotState};
use crate::{
    kv::{BlockTables, Growth},
    metrics::EngineMetrics,
    sampler::NotFinite,
    scheduler::Phase,
    sequence::{EndReason, NewSequence},
};
use std::sync::Arc;
use vitriol_chassis::event;

/// A sequence with a slot and pages.
#[derive(Debug)]
pub struct Running {
    pub new: NewSequence,
    pub slot: u32,
    pub tables: BlockTables,
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    /// Tokens whose KV stands.
    pub computed: usize,
    pub tokens_cached: usize,
    pub ended: Option<EndReason>,
}

impl Running {
    pub fn new(new: NewSequence, slot: u32, tables: BlockTables, tokens_cached: usize) -> Self {
        let mut tokens = Vec::with_capacity(new.prompt.len() + new.tokens_max);
        tokens.extend_from_slice(&new.prompt);
        Self {
            new,
            slot,
            tables,
            tokens,
            computed: tokens_cached,
            tokens_cached,
            ended: None,
        }
    }

    pub fn generated(&self) -> usize {
        self.tokens.len() - self.new.prompt.len()
    }

    pub fn phase(&self) -> Phase {
        if self.generated() == 0 {
            return Phase::Prefill {
                tokens_left: self.tokens.len() - self.computed,
            };
        }
        let untaken = (self.generated() as u64).saturating_sub(self.new.control.tokens_taken());
        if untaken >= self.new.window_tokens {
            Phase::Paused
        } else {
            Phase::Decode
        }
    }

    /// How far it may still grow.
    pub fn growth(&self) -> Growth {
        Growth {
            tokens_max: self.new.prompt.len() + self.new.tokens_max,
            blocks: self.tables.blocks(),
        }
    }

    /// The next `n` tokens without KV.
    pub fn tokens_to_compute(&self, n: usize) -> &[u32] {
        &self.tokens[self.computed..self.computed + n]
    }

    /// KV of `n` more tokens stands.
    pub fn advance(&mut self, n: usize) {
        self.computed += n;
        self.tables.advance(&self.tokens[..self.computed]);
    }

    /// Takes a sampled token and decides whether it was the last.
    pub fn accept(&mut self, id: u32, is_eog: bool) {
        self.tokens.push(id);
        if is_eog && !self.new.ignore_eog {
            self.ended = Some(EndReason::Eog);
        } else if self.generated() >= self.new.tokens_max {
            self.ended = Some(EndReason::Length);
        }
    }

    /// Ends it without a token: the step gave nothing to sample from.
    pub fn fail(&mut self, error: NotFinite, metrics: &EngineMetrics) {
        metrics.sequences_not_finite.inc();
        tracing::error!(
            message_id = event::LOGITS_NOT_FINITE,
            vitriol_session = &*self.new.session_id,
            position = self.tokens.len(),
            "an answer ends in an error: {error}"
        );
        self.ended = Some(EndReason::NotFinite);
    }

    pub fn snapshot(&self) -> SlotSnapshot {
        SlotSnapshot {
            slot: self.slot,
            state: match self.phase() {
                Phase::Prefill { .. } => SlotState::Prefill,
                Phase::Decode => SlotState::Decode,
                Phase::Paused => SlotState::Paused,
            },
            session_id: Arc::clone(&self.new.session_id),
            prompt_tokens: self.new.prompt.len(),
            prompt_tokens_done: self.computed.min(self.new.prompt.len()),
            tokens_cached: self.tokens_cached,
            tokens_generated: self.generated(),
        }
    }
}
