//! What a benchmark asks of the process that computes, and what it hears: one JSON value a line, a
//! task on standard input, its answer on standard output. The first line out is [`Answer::Ready`].

use crate::model::Work;
use serde::{Deserialize, Serialize};

/// Tokens of a prompt before which sequences decode side by side.
pub const BATCH_PROMPT_TOKENS: usize = 128;

/// Something to measure. Prompts are [`prompt_token`]s of the seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Task {
    /// Compute prompts of `tokens`, none of which was seen before, until `seconds_min` have passed: one
    /// rate for all of them. The prompts' seeds are `seed`, `seed` + 1 and so on.
    Prefill {
        tokens: usize,
        seed: u64,
        seconds_min: f64,
    },
    /// Fill the KV with a prompt of `depth` tokens (1 where it is 0), then generate `tokens` greedily;
    /// again from the same depth `runs` times: one rate each.
    Decode {
        depth: usize,
        tokens: usize,
        runs: usize,
        seed: u64,
    },
    /// Generate `tokens` greedily in each of `sequences` with prompts of their own, side by side: tokens
    /// of all of them a second while all of them decode; one rate.
    Batch {
        sequences: usize,
        tokens: usize,
        seed: u64,
    },
    /// Time from a prompt of `tokens` to its first token.
    FirstToken { tokens: usize, seed: u64 },
    /// Answer a chat message with up to `tokens` tokens, drawn at a temperature (0: greedy), `runs` times without drafted tokens and with
    /// them, in turn: the median rate without, then that with them. Asked of this engine only.
    Speculation {
        message: String,
        temperature: f32,
        tokens: usize,
        runs: usize,
    },
    /// Read a buffer as large as the model once more. Asked of this engine only.
    ReadBandwidth,
    /// The int8 multiplications this processor does at most. Asked of this engine only.
    Int8Peak,
}

/// What came of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The model is loaded and has computed a token.
    Ready(Box<Ready>),
    /// Tokens/s.
    Rates(Vec<f64>),
    Seconds(f64),
    /// Bytes/s.
    Bandwidth(f64),
    /// MAC/s; nothing where the processor has no such instructions.
    MacsPerSecond(Option<f64>),
    /// It could not be done, and why.
    Failed(String),
}

/// What a worker says of itself once it can compute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// Name and version.
    pub engine: String,
    /// Kernels in use, where they have a name.
    pub isa: Option<String>,
    pub threads: usize,
    /// From opening the file to the first token.
    pub load_s: f64,
    /// What the model is in memory and reads a token; other engines leave it out.
    pub model: Option<ModelFacts>,
}

/// What this engine knows of the work that a token is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelFacts {
    pub weights_bytes: u64,
    pub weights_bytes_per_token: u64,
    pub layer_macs: Option<u64>,
    pub logits_macs: u64,
    pub kv: Vec<KvFacts>,
    pub context_tokens_trained: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KvFacts {
    pub window_tokens: Option<u32>,
    pub bytes_per_token: u64,
}

impl ModelFacts {
    pub fn work(&self) -> Work {
        let group = |group: &KvFacts| (group.window_tokens, group.bytes_per_token);
        Work {
            weights_bytes: self.weights_bytes_per_token,
            layer_macs: self.layer_macs,
            logits_macs: self.logits_macs,
            kv: self.kv.iter().map(group).collect(),
        }
    }
}

/// Token `index` of the prompt of `seed` for a vocabulary of `vocab`: fixed pseudo-random (splitmix64),
/// the same in every engine.
pub fn prompt_token(seed: u64, index: usize, vocab: usize) -> u32 {
    let mut z = (seed << 32)
        .wrapping_add(index as u64)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) % vocab as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_what_other_engines_read_and_write() {
        let task = Task::Decode {
            depth: 8192,
            tokens: 64,
            runs: 3,
            seed: 1,
        };
        let line = serde_json::to_string(&task).unwrap();
        assert_eq!(
            line,
            r#"{"do":"decode","depth":8192,"tokens":64,"runs":3,"seed":1}"#
        );
        assert_eq!(serde_json::from_str::<Task>(&line).unwrap(), task);
        let answers = [
            (r#"{"rates":[1.5]}"#, Answer::Rates(vec![1.5])),
            (r#"{"seconds":0.5}"#, Answer::Seconds(0.5)),
            (r#"{"failed":"no"}"#, Answer::Failed("no".into())),
        ];
        for (line, answer) in answers {
            assert_eq!(serde_json::from_str::<Answer>(line).unwrap(), answer);
        }
        let ready =
            r#"{"ready":{"engine":"x 1","isa":null,"threads":2,"load_s":0.2,"model":null}}"#;
        let Answer::Ready(ready) = serde_json::from_str(ready).unwrap() else {
            panic!("it is ready");
        };
        assert_eq!((ready.threads, ready.model), (2, None));
    }

    #[test]
    fn prompts_are_the_same_everywhere_and_differ_by_seed() {
        // The peer's driver has the same function; these are its values too.
        let of = |seed| (0..4).map(move |at| prompt_token(seed, at, 49_152));
        assert_eq!(of(1).collect::<Vec<_>>(), PROMPT_OF_SEED_1);
        assert_ne!(of(1).collect::<Vec<_>>(), of(2).collect::<Vec<_>>());
        assert!((0..10_000).all(|at| prompt_token(3, at, 400) < 400));
    }

    const PROMPT_OF_SEED_1: [u32; 4] = [740, 25_611, 6_677, 12_261];
}
