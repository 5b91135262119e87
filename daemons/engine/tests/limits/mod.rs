//! What engines of tests may take.

use vitriol_engine::{engine::EngineLimits, kv::KvCodecs, scheduler::StepBounds};
use vitriol_profile::Speculation;

/// Limits of an engine over a tiny model, with so many pages in each KV group; `..limits(pages)` in a test
/// that needs others.
pub fn limits(pages: &[usize]) -> EngineLimits {
    EngineLimits {
        alias: "zoo".to_owned(),
        context_tokens: 0,
        codecs: KvCodecs::F32,
        speculation: Speculation::PromptLookup,
        pages: pages.to_vec(),
        sequences_max: 16,
        queue_max: 64,
        bounds: StepBounds {
            tokens_max: 128,
            decode_stall_ms_max: 80.0,
            admission_ms_max: 120.0,
        },
        kv_shares: Default::default(),
        share_prefixes: true,
        window_tokens: 256,
    }
}
