//! The client that loads a house: prompts of an exact number of tokens, streamed answers with the
//! times of their parts.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::json;

use super::timeline::{Event, Timeline};
use crate::http::{Api, EventStream};

/// Longest that one request may take.
const REQUEST_DEADLINE: Duration = Duration::from_secs(600);

/// Tokens that tell prompts apart: no block of 64 is shared by two seeds.
const DISTINCT_TOKENS: usize = 16;

/// What prompts are made of, again and again.
const TEXT: &str = "The old harbour lay quiet under a grey sky, and the boats rocked on their ropes. \
    A woman with a basket of bread walked along the wall and counted the masts, as she had done every \
    morning since the war. Somewhere a door opened, a dog barked twice, and the first cart of the day \
    rolled over the stones towards the market, where people would soon talk about the price of fish.";

/// An answer that came whole.
#[derive(Clone, Debug)]
pub struct Answer {
    pub text: String,
    pub timeline: Timeline,
}

/// One house's API and what is known of its model.
#[derive(Clone, Debug)]
pub struct Client {
    api: Api,
    pub model: String,
    /// Most tokens of a request, prompt and answer together.
    pub context_tokens: usize,
    /// [`TEXT`] in the model's tokens.
    words: Vec<u32>,
}

impl Client {
    pub async fn open(api: Api) -> anyhow::Result<Self> {
        let models = api.get_json("/v1/models").await?;
        let model = &models["data"][0];
        let name = model["id"].as_str().context("the house names no model")?;
        let context = model["meta"]["n_ctx"].as_u64();
        let tokenised = api
            .post_json("/tokenize", &json!({"content": TEXT}))
            .await?;
        let ids = tokenised["tokens"].as_array().into_iter().flatten();
        let words: Vec<u32> = ids
            .filter_map(|id| u32::try_from(id.as_u64()?).ok())
            .collect();
        if words.is_empty() {
            bail!("the model {name} turns text into no tokens");
        }
        Ok(Self {
            model: name.to_owned(),
            context_tokens: usize::try_from(context.context("the house states no context")?)?,
            api,
            words,
        })
    }

    /// A prompt of exactly `tokens`, its own for every seed from its beginning on.
    pub fn prompt(&self, seed: u64, tokens: usize) -> Vec<u32> {
        prompt(&self.words, seed, tokens)
    }

    /// Sends a prompt for a greedy answer of exactly `tokens`; its parts come by [`Running::finish`].
    pub async fn send(&self, prompt: &[u32], tokens: usize) -> anyhow::Result<Running> {
        let body = json!({
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": true,
            "stream": true,
        });
        let began = Instant::now();
        let sending = self.api.post_stream("/v1/completions", &[], &body);
        let stream = tokio::time::timeout(REQUEST_DEADLINE, sending).await;
        Ok(Running {
            began,
            stream: stream.context("no answer within ten minutes")??,
        })
    }

    /// [`Self::send`], to its end.
    pub async fn complete(&self, prompt: &[u32], tokens: usize) -> anyhow::Result<Answer> {
        self.send(prompt, tokens).await?.finish().await
    }
}

/// An answer on its way. Dropping it ends the generation.
#[derive(Debug)]
pub struct Running {
    began: Instant,
    stream: EventStream,
}

impl Running {
    /// Reads the answer to its end. Errors: it broke off, or took too long.
    pub async fn finish(mut self) -> anyhow::Result<Answer> {
        let reading = tokio::time::timeout(REQUEST_DEADLINE, self.read());
        reading
            .await
            .context("the answer did not end within ten minutes")?
    }

    async fn read(&mut self) -> anyhow::Result<Answer> {
        let (mut text, mut timeline) = (String::new(), Timeline::default());
        let mut finished = false;
        while let Some(data) = self.stream.next().await? {
            if data == "[DONE]" {
                if !finished {
                    bail!("the stream ended without saying why");
                }
                return Ok(Answer { text, timeline });
            }
            let event = Event::read(&data).map_err(anyhow::Error::msg)?;
            if !event.text.is_empty() {
                timeline.arrivals.push(self.began.elapsed());
                text += &event.text;
            }
            finished |= event.finish_reason.is_some();
            timeline.counts = event.counts.unwrap_or(timeline.counts);
        }
        bail!("the answer broke off before its end")
    }
}

fn prompt(words: &[u32], seed: u64, tokens: usize) -> Vec<u32> {
    let word = |at: u64| words[(at % words.len() as u64) as usize];
    // Digits of the seed in a base that has a word for each digit; then the text from some place on.
    let base = words.len().clamp(2, 64) as u64;
    let mut rest = seed;
    let distinct = (0..DISTINCT_TOKENS).map(|_| {
        let digit = rest % base;
        rest /= base;
        word(digit)
    });
    let text = (0..).map(|at: u64| word(seed.wrapping_add(at)));
    distinct.chain(text).take(tokens).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_have_their_length_and_differ_from_the_first_block_on() {
        let words: Vec<u32> = (100..180).collect();
        for tokens in [1, 16, 20, 6000] {
            assert_eq!(prompt(&words, 7, tokens).len(), tokens);
        }
        for (a, b) in [(0, 1), (1, 65), (3, 1 << 40), (5, 5 + 64 * 80)] {
            assert_ne!(prompt(&words, a, 64), prompt(&words, b, 64), "{a} and {b}");
        }
        assert_eq!(prompt(&[9], 3, 4), [9, 9, 9, 9]);
    }
}
