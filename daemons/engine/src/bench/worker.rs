//! The engine as the benchmark's worker: loads a model, then does what each line of its standard
//! input asks.

use super::protocol::{
    Answer, BATCH_PROMPT_TOKENS, KvFacts, ModelFacts, Ready, Task, prompt_token,
};
use crate::{
    engine::{Engine, EngineLimits},
    generate::{Generation, GenerationRequest},
    kv::{KvCodecs, PAGE_TOKENS},
    load::{LoadError, Loaded, start},
    metrics::EngineMetrics,
    sampler::Sampling,
    scheduler::{StepBounds, measured_ms},
    sequence::{EndReason, EventKind, SequenceEvent},
};
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::{
    io::{BufRead, Write},
    time::{Duration, Instant},
};
use vitriol_chassis::Heartbeat;
use vitriol_kernels_cpu::ProbeMemory;
use vitriol_profile::Speculation;

/// Most tokens of a step: what `engine.NAME.step_tokens_max` is by default.
const STEP_TOKENS: usize = 512;

/// How often events are read. A reader that wakes for every token takes a core from those who compute
/// it; each event carries its own time.
const READ_INTERVAL: Duration = Duration::from_millis(20);

/// What the worker must be able to hold.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    pub codecs: KvCodecs,
    /// Tokens of the longest sequence.
    pub context_tokens: usize,
    /// Tokens whose KV lies in memory at once.
    pub kv_tokens: usize,
    pub sequences: usize,
}

/// A loaded model that does tasks.
#[derive(Debug)]
pub struct Worker {
    engine: Engine,
    ready: Ready,
    /// As large as the weights; there once it was asked for.
    probe: Option<ProbeMemory>,
}

impl Worker {
    /// Starts the engine over a loaded model, whose load began at `began`.
    pub fn start(loaded: Loaded, needs: Needs, began: Instant) -> Result<Self, LoadError> {
        let model = std::sync::Arc::clone(&loaded.model);
        // A page more for each sequence: none of them ends on a border.
        let pages = needs.kv_tokens.div_ceil(PAGE_TOKENS) + 2 * needs.sequences;
        let limits = EngineLimits {
            alias: String::new(),
            context_tokens: needs.context_tokens,
            codecs: needs.codecs,
            speculation: Speculation::PromptLookup,
            pages: vec![pages; model.kv_groups.len()],
            sequences_max: needs.sequences,
            queue_max: needs.sequences,
            // Nobody else waits.
            bounds: StepBounds {
                tokens_max: STEP_TOKENS,
                decode_stall_ms_max: f64::INFINITY,
                admission_ms_max: f64::INFINITY,
            },
            step_ms: measured_ms,
            kv_shares: BTreeMap::new(),
            share_prefixes: true,
            window_tokens: u64::MAX,
            tier: None,
        };
        let engine = start(
            loaded,
            limits,
            EngineMetrics::default(),
            Heartbeat::silent(),
            None,
        )?;
        let load_s = began.elapsed().as_secs_f64();
        let work = model.work(needs.codecs);
        let group = |&(window_tokens, bytes_per_token): &(Option<u32>, u64)| KvFacts {
            window_tokens,
            bytes_per_token,
        };
        let facts = ModelFacts {
            weights_bytes: model.totals.weights_bytes,
            weights_bytes_per_token: work.weights_bytes,
            layer_macs: work.layer_macs,
            logits_macs: work.logits_macs,
            kv: work.kv.iter().map(group).collect(),
            context_tokens_trained: model.hyper.context_tokens_trained,
        };
        let ready = Ready {
            engine: concat!("vitriol ", env!("CARGO_PKG_VERSION")).to_owned(),
            isa: Some(model.device.isa().to_string()),
            threads: model.device.threads(),
            load_s,
            model: Some(facts),
        };
        Ok(Self {
            engine,
            ready,
            probe: None,
        })
    }

    /// Answers lines of `input` on `output` until the input ends.
    pub fn serve(&mut self, input: impl BufRead, mut output: impl Write) -> anyhow::Result<()> {
        let mut say = |answer: &Answer| -> anyhow::Result<()> {
            let line = serde_json::to_string(answer)?;
            writeln!(output, "{line}").context("write an answer")?;
            output.flush().context("write an answer")
        };
        say(&Answer::Ready(Box::new(self.ready.clone())))?;
        for line in input.lines() {
            let line = line.context("read a task")?;
            let answer = match serde_json::from_str(&line) {
                Ok(task) => self.run(&task),
                Err(error) => Err(error.into()),
            };
            say(&answer.unwrap_or_else(|error| Answer::Failed(format!("{error:#}"))))?;
        }
        Ok(())
    }

    /// Does one task.
    pub fn run(&mut self, task: &Task) -> anyhow::Result<Answer> {
        match *task {
            Task::Prefill {
                tokens,
                seed,
                seconds_min,
            } => self.prefill(tokens, seed, seconds_min),
            Task::Decode {
                depth,
                tokens,
                runs,
                seed,
            } => {
                let rates = (0..runs).map(|_| self.decode(depth, tokens, seed));
                Ok(Answer::Rates(rates.collect::<anyhow::Result<_>>()?))
            }
            Task::Batch {
                sequences,
                tokens,
                seed,
            } => self.batch(sequences, tokens, seed),
            Task::FirstToken { tokens, seed } => {
                Ok(Answer::Seconds(self.time_to_first_token(tokens, seed)?))
            }
            Task::Speculation {
                ref message,
                temperature,
                tokens,
                runs,
            } => self.speculation(message, temperature, tokens, runs),
            Task::ReadBandwidth => self.read_bandwidth(),
            Task::Int8Peak => Ok(Answer::MacsPerSecond(self.engine.model.device.int8_peak())),
        }
    }

    fn prefill(&self, tokens: usize, seed: u64, seconds_min: f64) -> anyhow::Result<Answer> {
        let (mut computed, mut seconds) = (0, 0.0);
        // By the clock: a tiny model computes for far less of the time than its events are waited for.
        let began = Instant::now();
        for seed in seed.. {
            seconds += self.time_to_first_token(tokens, seed)?;
            computed += tokens;
            if began.elapsed().as_secs_f64() >= seconds_min {
                break;
            }
        }
        Ok(Answer::Rates(vec![computed as f64 / seconds]))
    }

    /// Tokens/s of `tokens` generated after the first one behind a prompt of `depth` tokens.
    fn decode(&self, depth: usize, tokens: usize, seed: u64) -> anyhow::Result<f64> {
        let generation = self.generate(depth.max(1), tokens + 1, seed)?;
        let times = token_times(generation)?;
        let [first, .., last] = times[..] else {
            bail!("{} tokens are too few for a rate", times.len());
        };
        Ok((times.len() - 1) as f64 / (last - first).as_secs_f64())
    }

    fn batch(&self, sequences: usize, tokens: usize, seed: u64) -> anyhow::Result<Answer> {
        let running: Vec<Generation> = (0..sequences as u64)
            .map(|of| self.generate(BATCH_PROMPT_TOKENS, tokens + 1, seed + of))
            .collect::<anyhow::Result<_>>()?;
        let times: Vec<Vec<Instant>> = running
            .into_iter()
            .map(token_times)
            .collect::<anyhow::Result<_>>()?;
        let rate = rate_together(&times).context("the sequences never ran side by side")?;
        Ok(Answer::Rates(vec![rate]))
    }

    /// Seconds from handing over the prompt to its first token.
    fn time_to_first_token(&self, tokens: usize, seed: u64) -> anyhow::Result<f64> {
        let prompt = self.prompt(tokens, seed);
        let began = Instant::now();
        let times = token_times(self.generate_from(prompt, 1)?)?;
        let first = times.first().context("no token came")?;
        Ok((*first - began).as_secs_f64())
    }

    fn speculation(
        &self,
        message: &str,
        temperature: f32,
        tokens: usize,
        runs: usize,
    ) -> anyhow::Result<Answer> {
        let language = self.engine.language.as_ref();
        let language = language.context("the model's tokenizer is not supported")?;
        let messages = serde_json::json!([{"role": "user", "content": message}]);
        let rendered = language
            .template
            .render(messages.to_string().as_bytes(), b"", b"", true)?;
        let prompt = rendered.encode(&language.tokenizer);
        let (mut rates, mut answers) = ([Vec::new(), Vec::new()], Vec::new());
        for _ in 0..runs {
            for (may_draft, rates) in [false, true].into_iter().zip(&mut rates) {
                let request = GenerationRequest {
                    session_id: "".into(),
                    sampling: Sampling {
                        temperature,
                        ..Sampling::GREEDY
                    },
                    ignore_eog: false,
                    may_draft,
                    ..self.request(prompt.clone(), tokens)?
                };
                let (answer, rate) = timed_answer(self.engine.generate(request)?)?;
                rates.push(rate);
                answers.push(answer);
            }
        }
        if answers.iter().any(|answer| *answer != answers[0]) {
            bail!("drafted tokens changed the answer");
        }
        let medians = rates.iter().map(|of| vitriol_measure::Summary::of(of));
        let medians = medians.map(|of| of.map(|of| of.median));
        let medians: Option<Vec<f64>> = medians.collect();
        Ok(Answer::Rates(medians.context("no run was timed")?))
    }

    /// Median of a few passes over a buffer of the weights' size, after one that is not counted.
    fn read_bandwidth(&mut self) -> anyhow::Result<Answer> {
        let model = &self.engine.model;
        let probe = match &self.probe {
            Some(probe) => probe,
            None => {
                let bytes = usize::try_from(model.totals.weights_bytes)?;
                self.probe.insert(ProbeMemory::new(bytes)?)
            }
        };
        let passes: Vec<f64> = (0..6)
            .map(|_| model.device.read_bandwidth(probe))
            .skip(1)
            .collect();
        let summary = vitriol_measure::Summary::of(&passes).context("no pass was timed")?;
        Ok(Answer::Bandwidth(summary.median))
    }

    fn prompt(&self, tokens: usize, seed: u64) -> Vec<u32> {
        let vocab = self.engine.model.hyper.vocab;
        (0..tokens)
            .map(|at| prompt_token(seed, at, vocab))
            .collect()
    }

    fn generate(&self, prompt: usize, tokens: usize, seed: u64) -> anyhow::Result<Generation> {
        self.generate_from(self.prompt(prompt, seed), tokens)
    }

    fn generate_from(&self, prompt: Vec<u32>, tokens_max: usize) -> anyhow::Result<Generation> {
        Ok(self.engine.generate(self.request(prompt, tokens_max)?)?)
    }

    /// A greedy one without drafts: what is measured is what a token takes.
    fn request(&self, prompt: Vec<u32>, tokens_max: usize) -> anyhow::Result<GenerationRequest> {
        let context = self.engine.limits.context_tokens;
        if prompt.len() + tokens_max > context {
            bail!(
                "{} tokens exceed the context of {context} that the worker was started with",
                prompt.len() + tokens_max
            );
        }
        Ok(GenerationRequest {
            session_id: "".into(),
            prompt,
            tokens_max,
            sampling: Sampling::GREEDY,
            ignore_eog: true,
            may_draft: false,
        })
    }
}

/// The tokens of an answer, and tokens/s from the first to the last. Errors: it has no two tokens, or was
/// cut off.
fn timed_answer(generation: Generation) -> anyhow::Result<(Vec<u32>, f64)> {
    let (mut tokens, mut times) = (Vec::new(), Vec::new());
    for event in generation.events_read_every(READ_INTERVAL) {
        match event.kind {
            EventKind::Token { id } => {
                tokens.push(id);
                times.push(event.at);
            }
            EventKind::Ended {
                reason: EndReason::Length | EndReason::Eog,
            } => {}
            EventKind::Ended { reason } => bail!("the answer ended with {reason:?}"),
            EventKind::Brought { .. }
            | EventKind::Started { .. }
            | EventKind::Prefilled { .. }
            | EventKind::Drafted { .. } => {}
        }
    }
    let [first, .., last] = times[..] else {
        bail!("an answer of {} tokens has no rate", tokens.len());
    };
    let seconds = (last - first).as_secs_f64();
    Ok((tokens, (times.len() - 1) as f64 / seconds.max(1e-9)))
}

/// When each token of a sequence came. Errors: it did not reach its length.
fn token_times(generation: Generation) -> anyhow::Result<Vec<Instant>> {
    let events = generation.events_read_every(READ_INTERVAL);
    match events.last().map(|event| event.kind) {
        Some(EventKind::Ended {
            reason: EndReason::Length,
        }) => {}
        other => bail!("the sequence did not reach its length: {other:?}"),
    }
    let is_token = |event: &&SequenceEvent| matches!(event.kind, EventKind::Token { .. });
    Ok(events
        .iter()
        .filter(is_token)
        .map(|event| event.at)
        .collect())
}

/// Tokens/s of all sequences while all of them decode: between the first token of the last that began
/// and the last token of the first that ended. `None` where no such time is.
fn rate_together(times: &[Vec<Instant>]) -> Option<f64> {
    let begin = times.iter().map(|of| of.first()).max()??;
    let end = times.iter().map(|of| of.last()).min()??;
    let tokens = times.iter().flatten();
    let tokens = tokens.filter(|&at| at > begin && at <= end).count();
    let seconds = end.checked_duration_since(*begin)?.as_secs_f64();
    (seconds > 0.0).then(|| tokens as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_side_by_side_counts() {
        let base = Instant::now();
        let at = |ms: &[u64]| -> Vec<Instant> {
            ms.iter()
                .map(|&ms| base + Duration::from_millis(ms))
                .collect()
        };
        // Together from 100 to 300: two tokens of the first, three of the second.
        let times = [at(&[0, 100, 200, 300]), at(&[100, 150, 250, 300, 400])];
        let rate = rate_together(&times).unwrap();
        assert!((rate - 5.0 / 0.2).abs() < 1e-9, "{rate}");
        assert_eq!(rate_together(&[at(&[0, 10]), at(&[20, 30])]), None);
        assert_eq!(rate_together(&[at(&[5])]), None);
        assert_eq!(rate_together(&[at(&[]), at(&[5])]), None);
    }
}
