//! What engines of tests may take.

use std::time::Duration;
use vitriol_engine::{
    engine::EngineLimits,
    kv::KvCodecs,
    scheduler::{Share, StepBounds, Work, measured_ms},
};
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
        step_ms: measured_ms,
        kv_shares: Default::default(),
        share_prefixes: true,
        window_tokens: 256,
        tier: None,
    }
}

/// Whether a draft pays is decided by what steps take: here a sequence costs 1 ms beside 5 ms for the step,
/// a drafted token 0.5, whatever else this machine does.
pub fn steady_ms(shares: &[Share], _: Duration) -> f64 {
    let of = |share: &Share| match share.work {
        Work::Prefill => share.tokens as f64,
        Work::Decode => 1.0 + 0.5 * share.drafted() as f64,
    };
    5.0 + shares.iter().map(of).sum::<f64>()
}
