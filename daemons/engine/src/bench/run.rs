//! Taking samples: this engine and its peer in turn, each judged by what else the machine did.

use super::{
    protocol::{Answer, Ready, Task},
    row::{Row, START_PROMPT_TOKENS},
    side::{Launch, Neighbours, Side},
};
use crate::kv::KvCodecs;
use anyhow::{Context, bail};
use std::{ffi::OsString, path::PathBuf};
use vitriol_measure::Summary;

/// What is measured with one model, one number of threads and one encoding of KV.
#[derive(Clone, Debug)]
pub struct Setup {
    pub model: PathBuf,
    pub threads: usize,
    pub codecs: KvCodecs,
}

/// How it is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    pub rows: Vec<Row>,
    /// Samples of each row.
    pub repeat: usize,
    /// Tokens generated a run.
    pub tokens: usize,
    /// A sample counts where others used no more cores.
    pub neighbours_cores_max: f64,
    /// Times a sample is taken again that does not count.
    pub retries: usize,
    pub ours: Launch,
    /// Another engine to measure in turn with this one.
    pub peer: Option<Launch>,
}

/// One sample of one engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// By quantity; a row has one or more (see [`Quantity`]).
    pub values: Vec<f64>,
    pub neighbours: Neighbours,
    /// Read bandwidth just before and after, bytes/s; of this engine's samples only.
    pub bandwidth: Option<f64>,
}

/// What a row measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantity {
    pub name: &'static str,
    pub unit: &'static str,
    pub more_is_better: bool,
}

const RATE: &[Quantity] = &[rate("")];

const COPY: &[Quantity] = &[rate("copy, no drafts"), rate("copy, drafts")];
const ESSAY: &[Quantity] = &[rate("essay, no drafts"), rate("essay, drafts")];

const START: &[Quantity] = &[
    less("load", "s"),
    less("first token, cold", "s"),
    less("first token, cached", "s"),
    less("peak RSS", "MiB"),
];

const fn rate(name: &'static str) -> Quantity {
    Quantity {
        name,
        unit: "tokens/s",
        more_is_better: true,
    }
}

const fn less(name: &'static str, unit: &'static str) -> Quantity {
    Quantity {
        name,
        unit,
        more_is_better: false,
    }
}

/// What is measured in a row, in the order of [`Sample::values`].
pub fn quantities(row: Row) -> &'static [Quantity] {
    match row {
        Row::Start => START,
        Row::Speculation { repeats: true } => COPY,
        Row::Speculation { repeats: false } => ESSAY,
        Row::Prefill { .. } | Row::Decode { .. } | Row::Batch { .. } => RATE,
    }
}

/// A row's samples; where there is a peer, `peer[i]` was taken beside `ours[i]`.
#[derive(Clone, Debug)]
pub struct RowResult {
    pub row: Row,
    pub ours: Vec<Sample>,
    pub peer: Vec<Sample>,
    /// Samples (or pairs) that were taken although others computed, for want of a quiet moment.
    pub noisy: usize,
    /// Samples (or pairs) thrown away.
    pub discarded: usize,
}

/// All rows of one setup.
#[derive(Clone, Debug)]
pub struct SetupResult {
    pub setup: Setup,
    pub ours: Ready,
    pub peer: Option<Ready>,
    pub rows: Vec<RowResult>,
    /// int8 MAC/s, the more of before and after all rows, where the processor has such instructions.
    pub int8_peak: Option<f64>,
}

/// Measures every row of `plan` for `setup`, telling `progress` what it is at.
pub fn measure(
    setup: &Setup,
    plan: &Plan,
    progress: &mut dyn FnMut(&str),
) -> anyhow::Result<SetupResult> {
    let most = |of: fn(Row, usize) -> usize| {
        let rows = plan.rows.iter().map(|row| of(*row, plan.tokens));
        rows.max().unwrap_or(1)
    };
    let sequences = plan.rows.iter().map(|row| row.sequences()).max();
    let settings = settings(
        setup,
        most(Row::context_tokens),
        most(Row::kv_tokens),
        sequences.unwrap_or(1),
    );
    let mut ours = Side::start(&plan.ours, &settings)?;
    let mut peer = match &plan.peer {
        Some(launch) => Some(Side::start(launch, &settings)?),
        None => None,
    };
    let peak_before = int8_peak(&mut ours)?;
    let mut rows = Vec::new();
    for &row in &plan.rows {
        let mut result = RowResult {
            row,
            ours: Vec::new(),
            peer: Vec::new(),
            noisy: 0,
            discarded: 0,
        };
        // Once for nothing: KV filled, buffers allocated, caches warm.
        if let Some(task) = row.task(plan.tokens, plan.repeat * (plan.retries + 1)) {
            ours.ask(&task)?;
            if let Some(peer) = peer.as_mut().filter(|_| !row.is_of_this_engine()) {
                peer.ask(&task)?;
            }
        }
        for index in 0..plan.repeat {
            take_quiet(setup, plan, &mut ours, &mut peer, index, &mut result)?;
            progress(&described(setup, &result));
        }
        rows.push(result);
    }
    let peak_after = int8_peak(&mut ours)?;
    Ok(SetupResult {
        setup: setup.clone(),
        ours: ours.ready().clone(),
        peer: peer.as_ref().map(|peer| peer.ready().clone()),
        rows,
        int8_peak: peak_before.zip(peak_after).map(|(a, b)| a.max(b)),
    })
}

/// Takes sample `index` of a row, again until nobody disturbed it or the retries are used up.
fn take_quiet(
    setup: &Setup,
    plan: &Plan,
    ours: &mut Side,
    peer: &mut Option<Side>,
    index: usize,
    result: &mut RowResult,
) -> anyhow::Result<()> {
    for attempt in 0..=plan.retries {
        let number = index * (plan.retries + 1) + attempt;
        // By turns the first: whatever the first one does to the second evens out.
        let first = number.is_multiple_of(2);
        let take_peer = |peer: &mut Option<Side>| -> anyhow::Result<Option<Sample>> {
            let (Some(side), Some(launch)) = (peer, &plan.peer) else {
                return Ok(None);
            };
            if result.row.is_of_this_engine() {
                return Ok(None);
            }
            sample(setup, plan, side, launch, result.row, number).map(Some)
        };
        let before = if first { None } else { take_peer(peer)? };
        let own = with_bandwidth(ours, |ours| {
            sample(setup, plan, ours, &plan.ours, result.row, number)
        })?;
        let theirs = match before {
            None => take_peer(peer)?,
            taken => taken,
        };
        let quiet = |sample: &Sample| sample.neighbours.cores <= plan.neighbours_cores_max;
        let both_quiet = quiet(&own) && theirs.as_ref().is_none_or(quiet);
        if !both_quiet && attempt < plan.retries {
            result.discarded += 1;
            continue;
        }
        result.noisy += usize::from(!both_quiet);
        result.ours.push(own);
        result.peer.extend(theirs);
        return Ok(());
    }
    Ok(())
}

/// A sample between two looks at the memory's bandwidth.
fn with_bandwidth(
    ours: &mut Side,
    take: impl FnOnce(&mut Side) -> anyhow::Result<Sample>,
) -> anyhow::Result<Sample> {
    let read = |ours: &mut Side| match ours.ask(&Task::ReadBandwidth)? {
        Answer::Bandwidth(bytes_per_s) => Ok(bytes_per_s),
        other => bail!("asked for the bandwidth, the worker said {other:?}"),
    };
    let before = read(ours)?;
    let mut sample = take(ours)?;
    sample.bandwidth = Some(f64::midpoint(before, read(ours)?));
    Ok(sample)
}

fn sample(
    setup: &Setup,
    plan: &Plan,
    side: &mut Side,
    launch: &Launch,
    row: Row,
    number: usize,
) -> anyhow::Result<Sample> {
    let Some(task) = row.task(plan.tokens, number) else {
        return fresh_process(setup, launch);
    };
    let (answer, neighbours) = side.ask_observed(&task)?;
    let Answer::Rates(rates) = answer else {
        bail!("asked for rates, the worker said {answer:?}");
    };
    let values = match quantities(row).len() {
        1 => {
            let summary = Summary::of(&rates).context("the worker gave no rate")?;
            vec![summary.median]
        }
        _ => rates,
    };
    Ok(Sample {
        values,
        neighbours,
        bandwidth: None,
    })
}

/// What a process takes that does nothing else: load, the first token of a prompt, the same again,
/// and the most memory.
fn fresh_process(setup: &Setup, launch: &Launch) -> anyhow::Result<Sample> {
    let tokens = Row::Start.context_tokens(0);
    let mut side = Side::start(launch, &settings(setup, tokens, tokens, 1))?;
    let task = Task::FirstToken {
        tokens: START_PROMPT_TOKENS,
        seed: 1,
    };
    let (cold, neighbours) = side.ask_observed(&task)?;
    let cached = side.ask(&task)?;
    let [Answer::Seconds(cold), Answer::Seconds(cached)] = [cold, cached] else {
        bail!("asked for the first token, the worker said something else");
    };
    let peak_mib = side.peak_bytes()? as f64 / f64::from(1 << 20);
    Ok(Sample {
        values: vec![side.ready().load_s, cold, cached, peak_mib],
        neighbours,
        bandwidth: None,
    })
}

/// A worker's command line: what to load and how much it must hold.
fn settings(setup: &Setup, context: usize, kv: usize, sequences: usize) -> Vec<OsString> {
    let pairs = [
        ("--threads", setup.threads.to_string()),
        ("--kv-keys", setup.codecs.keys.name().to_owned()),
        ("--kv-values", setup.codecs.values.name().to_owned()),
        ("--context-tokens", context.to_string()),
        ("--kv-tokens", kv.to_string()),
        ("--sequences", sequences.to_string()),
    ];
    let mut settings = vec![setup.model.clone().into_os_string()];
    for (name, value) in pairs {
        settings.extend([name.into(), value.into()]);
    }
    settings
}

fn int8_peak(ours: &mut Side) -> anyhow::Result<Option<f64>> {
    match ours.ask(&Task::Int8Peak)? {
        Answer::MacsPerSecond(peak) => Ok(peak),
        other => bail!("asked for the int8 peak, the worker said {other:?}"),
    }
}

/// The latest sample in a line.
fn described(setup: &Setup, result: &RowResult) -> String {
    let model = setup.model.file_stem().unwrap_or_default();
    let values = |samples: &[Sample]| match samples.last() {
        Some(sample) => {
            let values = sample.values.iter().map(|v| vitriol_measure::rounded(*v));
            let cores = sample.neighbours.cores;
            format!("{} ({cores:.2})", values.collect::<Vec<_>>().join(", "))
        }
        None => String::new(),
    };
    let peer = match result.peer.is_empty() {
        true => String::new(),
        false => format!(", peer {}", values(&result.peer)),
    };
    format!(
        "{} {}T {}/{} {} #{}: {}{peer}",
        model.display(),
        setup.threads,
        setup.codecs.keys.name(),
        setup.codecs.values.name(),
        result.row,
        result.ours.len(),
        values(&result.ours),
    )
}
