//! One request's answer as its reader sees it: tokens become text, stop strings end it, and the
//! usage is counted.

use crate::{
    divergence::Divergence,
    request::Refusal,
    sampler::NotFinite,
    sequence::{EndReason, EventKind},
    stop::StopMatcher,
};
use std::time::{Duration, Instant};
use vitriol_proto::engine::v1::{
    Delta, FailureKind, FinishReason, Finished, Prefill, Usage, event::Kind,
};
use vitriol_tokens::{Tokenizer, Utf8Stream};

/// Times and counts of one answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerTimes {
    pub prefill: Duration,
    pub decode: Duration,
}

/// Turns a sequence's events into wire events.
#[derive(Debug)]
pub struct Answer {
    utf8: Utf8Stream,
    stop: StopMatcher,
    prompt_tokens: usize,
    divergence: Option<Divergence>,
    cached_tokens: usize,
    arena_tokens: usize,
    mirror_tokens: usize,
    tier: Duration,
    completion_tokens: usize,
    drafted_tokens: usize,
    accepted_tokens: usize,
    /// Of the tokens to come next, those that were drafted.
    accepted_to_come: usize,
    submitted_at: Instant,
    started_at: Option<Instant>,
    first_token_at: Option<Instant>,
    last_token_at: Option<Instant>,
}

/// What an event means for the request.
#[derive(Debug, Default)]
pub struct Told {
    pub kinds: Vec<Kind>,
    /// The request is over: forget it.
    pub over: bool,
    /// The sequence must be ended: a stop string was found.
    pub end_sequence: bool,
    /// Tokens that gave no text to take: they must not count against the reader's window.
    pub tokens_without_text: u64,
}

impl Answer {
    /// `divergence`: where the prompt parts from its conversation's last request.
    pub fn new(
        stop: Vec<String>,
        prompt_tokens: usize,
        divergence: Option<Divergence>,
        submitted_at: Instant,
    ) -> Self {
        Self {
            utf8: Utf8Stream::default(),
            stop: StopMatcher::new(stop),
            prompt_tokens,
            divergence,
            cached_tokens: 0,
            arena_tokens: 0,
            mirror_tokens: 0,
            tier: Duration::ZERO,
            completion_tokens: 0,
            drafted_tokens: 0,
            accepted_tokens: 0,
            accepted_to_come: 0,
            submitted_at,
            started_at: None,
            first_token_at: None,
            last_token_at: None,
        }
    }

    /// Takes one event that happened at `at`. `tokenizer`: `None` for a model without text.
    pub fn tell(&mut self, tokenizer: Option<&Tokenizer>, kind: EventKind, at: Instant) -> Told {
        match kind {
            EventKind::Brought {
                arena_tokens,
                mirror_tokens,
                took,
            } => {
                (self.arena_tokens, self.mirror_tokens) = (arena_tokens, mirror_tokens);
                self.tier = took;
                Told::default()
            }
            EventKind::Started { tokens_cached } => {
                self.started_at = Some(at);
                self.cached_tokens = tokens_cached;
                // Where more was reused than is common, it cost nothing.
                self.divergence = self.divergence.filter(|of| tokens_cached <= of.token);
                self.prefilled(tokens_cached)
            }
            EventKind::Prefilled { tokens_done } => self.prefilled(tokens_done),
            EventKind::Drafted { tokens, accepted } => {
                self.drafted_tokens += tokens;
                self.accepted_to_come = accepted;
                Told::default()
            }
            EventKind::Token { id } => self.token(tokenizer, id, at),
            EventKind::Ended { reason } => self.ended(reason),
        }
    }

    /// Where the prompt parts from its conversation's last request and so was not reused any further; once
    /// it has started.
    pub fn divergence(&self) -> Option<Divergence> {
        self.divergence.filter(|_| self.started_at.is_some())
    }

    pub fn times(&self) -> AnswerTimes {
        let between = |a: Option<Instant>, b: Option<Instant>| match (a, b) {
            (Some(a), Some(b)) => b.saturating_duration_since(a),
            _ => Duration::ZERO,
        };
        AnswerTimes {
            prefill: between(self.started_at, self.first_token_at),
            decode: between(self.first_token_at, self.last_token_at),
        }
    }

    fn prefilled(&self, tokens_done: usize) -> Told {
        let prefill = Prefill {
            tokens_done: tokens_done as u32,
            tokens_all: self.prompt_tokens as u32,
            tokens_cached: self.cached_tokens as u32,
        };
        Told {
            kinds: vec![Kind::Prefill(prefill)],
            ..Told::default()
        }
    }

    fn token(&mut self, tokenizer: Option<&Tokenizer>, id: u32, at: Instant) -> Told {
        self.completion_tokens += 1;
        if self.accepted_to_come > 0 {
            self.accepted_to_come -= 1;
            self.accepted_tokens += 1;
        }
        self.first_token_at.get_or_insert(at);
        self.last_token_at = Some(at);
        let Some(tokenizer) = tokenizer else {
            return Told {
                tokens_without_text: 1,
                ..Told::default()
            };
        };
        let mut bytes = Vec::new();
        tokenizer.piece(id, &mut bytes, false);
        let mut text = String::new();
        self.utf8.push(&bytes, &mut text);
        let passed = self.stop.push(&text);
        let kinds = delta(passed.text, 1);
        let tokens_without_text = u64::from(kinds.is_empty());
        let mut told = Told {
            kinds,
            tokens_without_text,
            ..Told::default()
        };
        if let Some(index) = passed.stopped_by {
            let stopping_string = self.stop.stop(index).to_owned();
            told.kinds
                .push(self.finished(FinishReason::Stop, stopping_string));
            told.end_sequence = true;
            told.over = true;
        }
        told
    }

    fn ended(&mut self, reason: EndReason) -> Told {
        let reason = match reason {
            EndReason::Eog => FinishReason::Stop,
            EndReason::Length => FinishReason::Length,
            EndReason::Cancelled => FinishReason::Cancelled,
            EndReason::OutOfMemory => {
                let message = "the machine has no memory left for this answer; lower kv_bytes_max";
                return failed(message);
            }
            EndReason::NotFinite => return failed(NotFinite.to_string()),
        };
        let mut text = String::new();
        self.utf8.finish(&mut text);
        let mut rest = self.stop.push(&text);
        let (mut reason, mut stopping_string) = (reason, String::new());
        match rest.stopped_by {
            Some(index) => {
                reason = FinishReason::Stop;
                stopping_string = self.stop.stop(index).to_owned();
            }
            None => rest.text.push_str(&self.stop.finish()),
        }
        let mut kinds = delta(rest.text, 0);
        kinds.push(self.finished(reason, stopping_string));
        Told {
            kinds,
            over: true,
            ..Told::default()
        }
    }

    fn finished(&self, reason: FinishReason, stopping_string: String) -> Kind {
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let started = self.started_at.unwrap_or(self.submitted_at);
        let times = self.times();
        let divergence = self.divergence();
        let message = divergence.and_then(|of| of.message);
        let usage = Usage {
            prompt_tokens: self.prompt_tokens as u32,
            cached_tokens: self.cached_tokens as u32,
            completion_tokens: self.completion_tokens as u32,
            queue_ms: ms(started.saturating_duration_since(self.submitted_at)),
            prefill_ms: ms(times.prefill),
            decode_ms: ms(times.decode),
            drafted_tokens: self.drafted_tokens as u32,
            accepted_tokens: self.accepted_tokens as u32,
            arena_tokens: self.arena_tokens as u32,
            mirror_tokens: self.mirror_tokens as u32,
            tier_ms: ms(self.tier),
            diverged_token: divergence.map(|of| of.token as u32),
            diverged_message: message.map(|index| index as u32),
        };
        Kind::Finished(Finished {
            reason: reason.into(),
            stopping_string,
            usage: Some(usage),
        })
    }
}

fn failed(message: impl Into<String>) -> Told {
    let refusal = Refusal::new(FailureKind::Internal, message);
    Told {
        kinds: vec![Kind::Failed(refusal.0)],
        over: true,
        ..Told::default()
    }
}

fn delta(text: String, tokens: u32) -> Vec<Kind> {
    match text.is_empty() {
        true => Vec::new(),
        false => vec![Kind::Delta(Delta { text, tokens })],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_whose_logits_are_not_finite_fails_instead_of_stopping() {
        let mut answer = Answer::new(Vec::new(), 3, None, Instant::now());
        let reason = EndReason::NotFinite;
        let told = answer.tell(None, EventKind::Ended { reason }, Instant::now());
        assert!(told.over);
        let [Kind::Failed(failed)] = &told.kinds[..] else {
            panic!("{told:?}");
        };
        assert_eq!(failed.kind(), FailureKind::Internal);
        assert!(failed.message.contains("not finite"), "{}", failed.message);
    }
}
