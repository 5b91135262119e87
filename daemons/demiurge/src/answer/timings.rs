//! llama-server's `timings` object.

use serde::Serialize;
use vitriol_proto::engine::v1::Usage;

/// Where the time of a request went. Tokens, ms, tokens per second; context used is
/// `prompt_n + cache_n + predicted_n`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timings {
    /// Prompt tokens whose KV was reused.
    pub cache_n: u32,
    /// Prompt tokens computed.
    pub prompt_n: u32,
    pub prompt_ms: f64,
    pub prompt_per_token_ms: f64,
    pub prompt_per_second: f64,
    pub predicted_n: u32,
    pub predicted_ms: f64,
    pub predicted_per_token_ms: f64,
    pub predicted_per_second: f64,
    /// Tokens drafted, and those of them that became part of the answer; absent when none was drafted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_n: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_n_accepted: Option<u32>,
    /// Of `cache_n`, tokens whose KV came from kvtier's memory, and from its disk; and how long that took, ms.
    /// Absent when none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_arena_n: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_mirror_n: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_tier_ms: Option<f64>,
    /// The prompt token, from 0, from which on nothing was reused because the conversation is not as it
    /// was, and the message that it lies in or follows. Absent when that was not the cause, or cannot be
    /// told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_diverged_token: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_diverged_message: Option<u32>,
}

impl From<&Usage> for Timings {
    fn from(usage: &Usage) -> Timings {
        let prompt_n = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        // The first token comes with the prefill; the decode time is that of the others.
        let drafted = usage.drafted_tokens > 0;
        let brought = usage.arena_tokens > 0 || usage.mirror_tokens > 0;
        let decoded_n = usage.completion_tokens.saturating_sub(1);
        Timings {
            cache_n: usage.cached_tokens,
            prompt_n,
            prompt_ms: usage.prefill_ms,
            prompt_per_token_ms: ratio(usage.prefill_ms, prompt_n.into()),
            prompt_per_second: ratio(1000.0 * f64::from(prompt_n), usage.prefill_ms),
            predicted_n: usage.completion_tokens,
            predicted_ms: usage.decode_ms,
            predicted_per_token_ms: ratio(usage.decode_ms, decoded_n.into()),
            predicted_per_second: ratio(1000.0 * f64::from(decoded_n), usage.decode_ms),
            draft_n: drafted.then_some(usage.drafted_tokens),
            draft_n_accepted: drafted.then_some(usage.accepted_tokens),
            cache_arena_n: brought.then_some(usage.arena_tokens),
            cache_mirror_n: brought.then_some(usage.mirror_tokens),
            cache_tier_ms: brought.then_some(usage.tier_ms),
            cache_diverged_token: usage.diverged_token,
            cache_diverged_message: usage.diverged_message,
        }
    }
}

/// The quotient, 0 where there is none: JSON has no infinity.
fn ratio(over: f64, under: f64) -> f64 {
    if under > 0.0 { over / under } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rates_are_of_what_was_computed() {
        let timings = Timings::from(&Usage {
            prompt_tokens: 110,
            cached_tokens: 10,
            completion_tokens: 11,
            queue_ms: 3.0,
            prefill_ms: 50.0,
            decode_ms: 200.0,
            drafted_tokens: 8,
            accepted_tokens: 6,
            ..Usage::default()
        });
        assert_eq!(
            (timings.draft_n, timings.draft_n_accepted),
            (Some(8), Some(6))
        );
        assert_eq!((timings.cache_n, timings.prompt_n), (10, 100));
        assert_eq!((timings.cache_arena_n, timings.cache_tier_ms), (None, None));
        assert_eq!(timings.prompt_per_token_ms, 0.5);
        assert_eq!(timings.prompt_per_second, 2000.0);
        assert_eq!(timings.predicted_per_token_ms, 20.0);
        assert_eq!(timings.predicted_per_second, 50.0);
    }

    #[test]
    fn tokens_of_the_tier_are_told_apart() {
        let timings = Timings::from(&Usage {
            cached_tokens: 200,
            arena_tokens: 128,
            tier_ms: 2.5,
            ..Usage::default()
        });
        let told = (
            timings.cache_arena_n,
            timings.cache_mirror_n,
            timings.cache_tier_ms,
        );
        assert_eq!(told, (Some(128), Some(0), Some(2.5)));
    }

    proptest! {
        #[test]
        fn every_figure_is_finite(
            prompt_tokens: u32,
            cached_tokens: u32,
            completion_tokens: u32,
            prefill_ms in 0.0..1e9f64,
            decode_ms in 0.0..1e9f64,
        ) {
            let timings = Timings::from(&Usage {
                prompt_tokens, cached_tokens, completion_tokens, queue_ms: 0.0, prefill_ms, decode_ms,
                ..Usage::default()
            });
            prop_assert!(timings.prompt_per_second.is_finite());
            prop_assert!(timings.prompt_per_token_ms.is_finite());
            prop_assert!(timings.predicted_per_second.is_finite());
            prop_assert!(timings.predicted_per_token_ms.is_finite());
        }
    }
}
