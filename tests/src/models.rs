//! The two real models that the engine is measured with.

use std::path::PathBuf;

use anyhow::Result;
use vitriol_testkit::places;

/// A model, what llama.cpp says of it, and how far the engine may be from that.
#[derive(Clone, Copy, Debug)]
pub struct RealModel {
    /// Key in the names of the golden files.
    pub key: &'static str,
    pub path: fn() -> Result<PathBuf>,
    /// Steps of the recorded continuations, of 1280, where the first two logits are further apart than
    /// 0.6: there the argmax has to be the same.
    pub clear_steps: usize,
    /// What llama.cpp's own quantised run diverges by from the dequantised one, in nats.
    pub mean_kl_max: f64,
    /// Perplexity over tests/golden/ppl_text.txt with dequantised weights and f32 KV
    /// (ppl_results.txt, `deqf32_f32_nofa`), and the chunks of 512 tokens it has.
    pub perplexity: f64,
    pub chunks: usize,
    /// What q4_0 KV adds to the perplexity of f16 KV there, as a share.
    pub q4_0_rise: f64,
}

pub const REAL_MODELS: [RealModel; 2] = [
    RealModel {
        key: "smol",
        path: places::default_model,
        clear_steps: 982,
        mean_kl_max: 0.006,
        perplexity: 13.0495,
        chunks: 41,
        q4_0_rise: 0.071,
    },
    RealModel {
        key: "gemma",
        path: places::gemma,
        clear_steps: 1029,
        mean_kl_max: 0.012,
        perplexity: 13.1360,
        chunks: 40,
        q4_0_rise: 0.134,
    },
];
