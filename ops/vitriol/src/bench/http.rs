//! `vitriol bench --via http`: what a client of the running house gets, alone and beside others.

use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use vitriol_chassis::{Environment, Exit, Failure, OrExit};
use vitriol_measure::{Summary, Table, write_whole};
use vitriol_units::Bytes;

use super::{
    Target,
    args::BenchArgs,
    client::{Answer, Client, Running},
};
use crate::term;

const STREAM_PROMPT_TOKENS: usize = 64;
const STREAM_TOKENS: usize = 128;
const STREAMS: [usize; 4] = [1, 2, 4, 8];

const FIRST_TOKEN_PROMPT: usize = 1000;
const SIBLING_PROMPT: usize = 6000;
const SHORT_PROMPT: usize = 20;
/// When the short request follows the sibling's.
const SIBLING_HEAD_START: Duration = Duration::from_millis(300);

const LONG_SIBLING_PROMPT: usize = 30_000;
const MIDDLE_PROMPT: usize = 619;

/// A measured row.
#[derive(Clone, Debug)]
struct Row {
    name: String,
    unit: &'static str,
    /// Empty where it could not be measured.
    samples: Vec<f64>,
    note: String,
}

impl Row {
    fn new(name: impl Into<String>, unit: &'static str) -> Self {
        Self {
            name: name.into(),
            unit,
            samples: Vec::new(),
            note: String::new(),
        }
    }

    fn to_json(&self) -> Value {
        let summary = Summary::of(&self.samples);
        json!({
            "row": self.name,
            "unit": self.unit,
            "median": summary.map(|s| s.median),
            "min": summary.map(|s| s.min),
            "max": summary.map(|s| s.max),
            "samples": self.samples,
            "note": self.note,
        })
    }
}

pub async fn run(args: &BenchArgs, environment: &Environment) -> Result<(), Failure> {
    let target = Target::find(&args.house, environment).await?;
    let before = target.resident_bytes()?;
    let repeat = args.repeat as usize;
    let measured = Session {
        client: &target.client,
        repeat,
        next_seed: first_seed(),
    };
    let rows = measured.measure().await.or_exit(Exit::Dependency)?;
    let memory = (before, target.resident_bytes()?);
    if let Some(path) = &args.house.json {
        let report = to_json(&target.client, &rows, &memory);
        write_whole(path, &format!("{report:#}\n")).or_exit(Exit::Dependency)?;
    }
    term::print(describe(&target.client, &rows, &memory))
}

/// Prompts of one run are not those of another: the house may still have their KV.
fn first_seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_millis() as u64)
}

/// Resident bytes of each daemon, before and after.
type Memory = (Vec<(&'static str, u64)>, Vec<(&'static str, u64)>);

fn describe(client: &Client, rows: &[Row], memory: &Memory) -> String {
    let mut table = Table::new(["row", "unit", "median [least–most] n", "note"]);
    for row in rows {
        let figures = Summary::of(&row.samples).map_or("–".to_owned(), |s| s.to_string());
        table.push([&row.name, row.unit, &figures, &row.note]);
    }
    let mut text = format!(
        "{}, context {} tokens, through HTTP on the loopback\n\n{table}\n",
        client.model, client.context_tokens
    );
    for ((name, before), (_, after)) in memory.0.iter().zip(&memory.1) {
        let (before, after) = (Bytes(*before).rounded(), Bytes(*after).rounded());
        text += &format!("resident memory of {name}: {before} before, {after} after\n");
    }
    text
}

/// The fields are documented in docs/cli-json.md.
fn to_json(client: &Client, rows: &[Row], memory: &Memory) -> Value {
    let daemons = memory.0.iter().zip(&memory.1).map(|((name, before), (_, after))| {
        json!({"daemon": name, "resident_bytes_before": before, "resident_bytes_after": after})
    });
    json!({
        "model": client.model,
        "context_tokens": client.context_tokens,
        "rows": rows.iter().map(Row::to_json).collect::<Vec<_>>(),
        "daemons": daemons.collect::<Vec<_>>(),
    })
}

struct Session<'a> {
    client: &'a Client,
    repeat: usize,
    next_seed: u64,
}

impl Session<'_> {
    async fn measure(mut self) -> anyhow::Result<Vec<Row>> {
        // Once for nothing: what is allocated with the first request is not measured.
        let warm = self.fresh_prompt(STREAM_PROMPT_TOKENS);
        self.client.complete(&warm, 8).await?;
        let mut rows = self.streams().await?;
        self.first_token(&mut rows).await?;
        self.fairness(&mut rows).await?;
        Ok(rows)
    }

    fn fresh_prompt(&mut self, tokens: usize) -> Vec<u32> {
        self.next_seed += 1;
        self.client.prompt(self.next_seed, tokens)
    }

    /// Several answers at once, each compared with the one it gets alone.
    async fn streams(&mut self) -> anyhow::Result<Vec<Row>> {
        let most = STREAMS.into_iter().max().unwrap_or(1);
        let prompts: Vec<_> = (0..most)
            .map(|_| self.fresh_prompt(STREAM_PROMPT_TOKENS))
            .collect();
        let mut alone = Vec::new();
        for prompt in &prompts {
            alone.push(self.client.complete(prompt, STREAM_TOKENS).await?.text);
        }
        let mut rows = Vec::new();
        for streams in STREAMS {
            let mut all = Row::new(format!("{streams} streams, all together"), "tokens/s");
            let mut each = Row::new(format!("{streams} streams, each"), "tokens/s");
            let mut other = 0;
            for _ in 0..self.repeat {
                let answers = self.at_once(&prompts[..streams]).await?;
                all.samples.extend(together(&answers));
                each.samples
                    .extend(answers.iter().filter_map(|a| a.timeline.rate()));
                let compared = answers.iter().zip(&alone);
                other += compared
                    .filter(|(answer, alone)| answer.text != **alone)
                    .count();
            }
            all.note = match other {
                0 => "each answer as alone, byte for byte".to_owned(),
                other => format!("{other} answers DIFFER from those alone"),
            };
            progress(&all);
            rows.extend([all, each]);
        }
        Ok(rows)
    }

    async fn at_once(&self, prompts: &[Vec<u32>]) -> anyhow::Result<Vec<Answer>> {
        let mut running = tokio::task::JoinSet::new();
        for (index, prompt) in prompts.iter().enumerate() {
            let (client, prompt) = (self.client.clone(), prompt.clone());
            running.spawn(async move { (index, client.complete(&prompt, STREAM_TOKENS).await) });
        }
        let mut answers = Vec::new();
        while let Some(ended) = running.join_next().await {
            let (index, answer) = ended?;
            answers.push((index, answer?));
        }
        answers.sort_by_key(|(index, _)| *index);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    /// A prompt that was never seen, and the same again.
    async fn first_token(&mut self, rows: &mut Vec<Row>) -> anyhow::Result<()> {
        let name = format!("first token, prompt of {FIRST_TOKEN_PROMPT}");
        let mut cold = Row::new(format!("{name}, cold"), "ms");
        let mut cached = Row::new(format!("{name}, cached"), "ms");
        if self.lacks_context(FIRST_TOKEN_PROMPT, &mut cold) {
            cached.note.clone_from(&cold.note);
        } else {
            for _ in 0..self.repeat {
                let prompt = self.fresh_prompt(FIRST_TOKEN_PROMPT);
                for row in [&mut cold, &mut cached] {
                    row.samples
                        .push(first_ms(&self.client.complete(&prompt, 8).await?)?);
                }
            }
        }
        for row in [cold, cached] {
            progress(&row);
            rows.push(row);
        }
        Ok(())
    }

    /// What a long prompt of one client does to another.
    async fn fairness(&mut self, rows: &mut Vec<Row>) -> anyhow::Result<()> {
        let mut beside = Row::new(
            format!("first token, prompt of {SHORT_PROMPT} beside a prefill of {SIBLING_PROMPT}"),
            "ms",
        );
        let mut gap = Row::new(
            format!("longest gap of a stream when a prefill of {SIBLING_PROMPT} comes"),
            "ms",
        );
        if !self.lacks_context(SIBLING_PROMPT, &mut beside) {
            for _ in 0..self.repeat {
                let (short, _) = self.beside(SIBLING_PROMPT, SHORT_PROMPT).await?;
                beside.samples.push(short);
                gap.samples.push(self.longest_gap_ms().await?);
            }
        }
        gap.note.clone_from(&beside.note);
        let mut middle = Row::new(
            format!(
                "first token, prompt of {MIDDLE_PROMPT} beside a prefill of {LONG_SIBLING_PROMPT}"
            ),
            "times alone",
        );
        if !self.lacks_context(LONG_SIBLING_PROMPT, &mut middle) {
            for _ in 0..self.repeat {
                let prompt = self.fresh_prompt(MIDDLE_PROMPT);
                let alone = first_ms(&self.client.complete(&prompt, 1).await?)?;
                let (together, _) = self.beside(LONG_SIBLING_PROMPT, MIDDLE_PROMPT).await?;
                middle.samples.push(together / alone);
            }
        }
        for row in [beside, gap, middle] {
            progress(&row);
            rows.push(row);
        }
        Ok(())
    }

    /// Time in ms to the first text of a prompt of `short` tokens that follows one of `long` tokens by
    /// [`SIBLING_HEAD_START`]; the sibling is let go afterwards.
    async fn beside(&mut self, long: usize, short: usize) -> anyhow::Result<(f64, Sibling)> {
        let prompt = self.fresh_prompt(long);
        let sibling = self.sibling(prompt);
        tokio::time::sleep(SIBLING_HEAD_START).await;
        if sibling.0.is_finished() {
            bail!("the prefill of {long} tokens ended before the short request came");
        }
        let prompt = self.fresh_prompt(short);
        let answer = self.client.complete(&prompt, 8).await?;
        Ok((first_ms(&answer)?, sibling))
    }

    async fn longest_gap_ms(&mut self) -> anyhow::Result<f64> {
        let prompt = self.fresh_prompt(STREAM_PROMPT_TOKENS);
        // Long enough to outlast the prefill on any machine that is worth the name.
        let stream: Running = self.client.send(&prompt, 4 * STREAM_TOKENS).await?;
        let reading = tokio::spawn(stream.finish());
        tokio::time::sleep(SIBLING_HEAD_START).await;
        let prompt = self.fresh_prompt(SIBLING_PROMPT);
        let sibling = self.sibling(prompt);
        let answer = reading.await??;
        drop(sibling);
        let gap = answer
            .timeline
            .longest_gap()
            .context("the stream had no two parts")?;
        Ok(gap.as_secs_f64() * 1e3)
    }

    fn sibling(&self, prompt: Vec<u32>) -> Sibling {
        let client = self.client.clone();
        Sibling(tokio::spawn(async move {
            // It is cut off in the end; what comes of it matters to nobody.
            let _ = client.complete(&prompt, 1).await;
        }))
    }

    /// Whether the house takes no such prompt, which the row then says.
    fn lacks_context(&self, prompt: usize, row: &mut Row) -> bool {
        let (needed, context) = (prompt + STREAM_TOKENS, self.client.context_tokens);
        if needed > context {
            row.note = format!(
                "not measured: the context is {context} tokens; start with --context-tokens {needed}"
            );
        }
        needed > context
    }
}

/// Another client's request; dropping it closes its connection.
struct Sibling(tokio::task::JoinHandle<()>);

impl Drop for Sibling {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn progress(row: &Row) {
    let figures = Summary::of(&row.samples).map_or_else(|| row.note.clone(), |s| s.to_string());
    term::note(format_args!("{}: {figures} {}", row.name, row.unit));
}

fn first_ms(answer: &Answer) -> anyhow::Result<f64> {
    let first = answer.timeline.first().context("the answer had no text")?;
    Ok(first.as_secs_f64() * 1e3)
}

/// Tokens/s of all answers, sent together, from the first text of any to the last of all.
fn together(answers: &[Answer]) -> Option<f64> {
    let first = answers.iter().filter_map(|a| a.timeline.first()).min()?;
    let last = answers
        .iter()
        .filter_map(|a| a.timeline.arrivals.last())
        .max()?;
    let tokens: u64 = answers
        .iter()
        .map(|a| a.timeline.counts.generated.saturating_sub(1))
        .sum();
    let seconds = last.saturating_sub(first).as_secs_f64();
    (seconds > 0.0).then(|| tokens as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::timeline::{Counts, Timeline};

    fn answer(ms: &[u64]) -> Answer {
        let arrivals = ms.iter().map(|&ms| Duration::from_millis(ms)).collect();
        let counts = Counts {
            generated: ms.len() as u64,
            cached: 0,
        };
        Answer {
            text: String::new(),
            timeline: Timeline { arrivals, counts },
        }
    }

    #[test]
    fn streams_are_counted_from_the_first_to_the_last() {
        let answers = [answer(&[100, 200, 300]), answer(&[150, 500])];
        assert_eq!(together(&answers), Some(3.0 / 0.4));
        assert_eq!(together(&[answer(&[])]), None);
    }

    #[test]
    fn a_row_without_samples_says_why() {
        let mut row = Row::new("x", "ms");
        row.note = "not measured".to_owned();
        let json = row.to_json();
        assert!(json["median"].is_null());
        assert_eq!(json["note"], "not measured");
    }
}
