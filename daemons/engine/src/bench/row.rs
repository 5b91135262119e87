//! The rows of a report: what is measured, in which order, in what unit.

use super::protocol::{BATCH_PROMPT_TOKENS, Task};
use std::{fmt, str::FromStr};

/// One row. Written `pp512` (prefill of 512 tokens), `tg8192` (decode at depth 8192), `batch4` (four
/// sequences decode side by side), `copy` and `essay` (an answer that repeats its prompt and one that
/// repeats nothing, without drafted tokens and with them), `start` (what a fresh process takes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    Prefill { tokens: usize },
    Decode { depth: usize },
    Batch { sequences: usize },
    Speculation { repeats: bool },
    Start,
}

/// Longest prompt and depth, most sequences: what a mistyped number must not exceed.
const TOKENS_MAX: usize = 4 << 20;
const SEQUENCES_MAX: usize = 1024;

/// Tokens of the prompt whose first token a fresh process is timed for.
pub const START_PROMPT_TOKENS: usize = 512;

/// Runs of a decode sample, from the same depth.
const DECODE_RUNS: usize = 3;

/// Shortest time that a prefill sample is measured over.
const PREFILL_SECONDS_MIN: f64 = 1.0;

/// The prompt that KV is filled with; samples share it, so that it is computed once.
const FILL_SEED: u64 = 1;

/// Tokens of an answer with and without drafts, as a multiple of those of other runs: drafts come in when
/// there is something to repeat.
const ANSWER_RUNS: usize = 4;

/// Runs of a sample, each without drafts and with them.
const SPECULATION_RUNS: usize = 3;

/// Most tokens that a tokenizer makes of [`COPY`] and a template's words.
const MESSAGE_TOKENS_MAX: usize = 512;

const COPY: &str = "Repeat the following text word for word, but write Anna wherever it says Peter.\n\n\
    Peter lives in a small house at the end of the village. Every morning Peter walks down to the river, \
    where the old boats lie in the grass. He sits on the bridge, eats an apple and counts the ducks. When \
    it rains, Peter stays at home and repairs the clocks that people bring him. There are clocks from \
    every house in the village: tall ones, round ones, and one that plays a song at noon. In the evening \
    Peter lights the lamp, opens a book about the stars and reads until the fire has gone out.";
const ESSAY: &str = "Write an essay about how bridges are built.";

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefill { tokens } => write!(f, "pp{tokens}"),
            Self::Decode { depth } => write!(f, "tg{depth}"),
            Self::Batch { sequences } => write!(f, "batch{sequences}"),
            Self::Speculation { repeats: true } => f.write_str("copy"),
            Self::Speculation { repeats: false } => f.write_str("essay"),
            Self::Start => f.write_str("start"),
        }
    }
}

impl FromStr for Row {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |digits: &str, least: usize, most: usize| {
            let number: usize = digits.parse().ok()?;
            (least..=most).contains(&number).then_some(number)
        };
        let row = if text == "start" {
            Some(Self::Start)
        } else if text == "copy" || text == "essay" {
            let repeats = text == "copy";
            Some(Self::Speculation { repeats })
        } else if let Some(digits) = text.strip_prefix("pp") {
            number(digits, 1, TOKENS_MAX).map(|tokens| Self::Prefill { tokens })
        } else if let Some(digits) = text.strip_prefix("tg") {
            number(digits, 0, TOKENS_MAX).map(|depth| Self::Decode { depth })
        } else if let Some(digits) = text.strip_prefix("batch") {
            number(digits, 1, SEQUENCES_MAX).map(|sequences| Self::Batch { sequences })
        } else {
            None
        };
        row.ok_or_else(|| {
            "rows are for instance pp512, tg0, tg8192, batch4, copy, essay and start".to_owned()
        })
    }
}

impl Row {
    /// What is asked of a worker for sample `sample` with `tokens` generated a run; [`Row::Start`] is
    /// measured on processes of its own.
    pub fn task(self, tokens: usize, sample: usize) -> Option<Task> {
        match self {
            // Prompts of one sample count up from its seed: a million of them are its own.
            Self::Prefill { tokens } => Some(Task::Prefill {
                tokens,
                seed: (sample as u64 + 2) << 20,
                seconds_min: PREFILL_SECONDS_MIN,
            }),
            Self::Decode { depth } => Some(Task::Decode {
                depth,
                tokens,
                runs: DECODE_RUNS,
                seed: FILL_SEED,
            }),
            Self::Batch { sequences } => Some(Task::Batch {
                sequences,
                tokens,
                seed: FILL_SEED + 1,
            }),
            Self::Speculation { repeats } => Some(Task::Speculation {
                message: if repeats { COPY } else { ESSAY }.to_owned(),
                // Small models run in circles when they are greedy.
                temperature: if repeats { 0.0 } else { 1.0 },
                tokens: ANSWER_RUNS * tokens,
                runs: SPECULATION_RUNS,
            }),
            Self::Start => None,
        }
    }

    /// Tokens of the longest sequence it computes.
    pub fn context_tokens(self, tokens: usize) -> usize {
        match self {
            Self::Prefill { tokens } => tokens + 1,
            Self::Decode { depth } => depth.max(1) + tokens + 1,
            Self::Batch { .. } => BATCH_PROMPT_TOKENS + tokens + 1,
            Self::Speculation { .. } => MESSAGE_TOKENS_MAX + ANSWER_RUNS * tokens + 1,
            Self::Start => START_PROMPT_TOKENS + 1,
        }
    }

    /// Tokens whose KV it holds at once.
    pub fn kv_tokens(self, tokens: usize) -> usize {
        match self {
            Self::Batch { sequences } => sequences * self.context_tokens(tokens),
            _ => self.context_tokens(tokens),
        }
    }

    /// Whether another engine cannot be asked for it.
    pub fn is_of_this_engine(self) -> bool {
        matches!(self, Self::Speculation { .. })
    }

    /// Sequences that run at once.
    pub fn sequences(self) -> usize {
        match self {
            Self::Batch { sequences } => sequences,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["pp512", "tg0", "tg8192", "batch8", "copy", "essay", "start"] {
            assert_eq!(name.parse::<Row>().unwrap().to_string(), name);
        }
        for wrong in [
            "",
            "pp",
            "pp0",
            "tg-1",
            "batch0",
            "batch9999",
            "pp99999999",
            "starts",
        ] {
            assert!(wrong.parse::<Row>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_row_says_how_much_it_holds() {
        let batch = Row::Batch { sequences: 4 };
        assert_eq!(batch.kv_tokens(64), 4 * (128 + 64 + 1));
        assert_eq!((batch.sequences(), Row::Start.sequences()), (4, 1));
        assert_eq!(Row::Decode { depth: 0 }.context_tokens(64), 66);
    }

    #[test]
    fn no_two_prefill_samples_share_a_prompt() {
        let seed = |sample| match (Row::Prefill { tokens: 8 }).task(64, sample) {
            Some(Task::Prefill { seed, .. }) => seed,
            other => panic!("{other:?}"),
        };
        assert!(seed(1) - seed(0) >= 1 << 20);
        assert!(Row::Start.task(64, 0).is_none());
    }
}
