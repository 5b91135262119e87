//! What was measured, as JSON with every sample, as tables and as a chart. Pure.

use super::{
    protocol::{BATCH_PROMPT_TOKENS, ModelFacts, Ready},
    row::{Row, START_PROMPT_TOKENS},
    run::{Plan, Quantity, RowResult, Sample, SetupResult, quantities},
};
use serde_json::{Value, json};
use std::fmt::Write;
use vitriol_measure::{Bar, Chart, Summary, Table, rounded};
use vitriol_sysfs::{Cpu, Sysfs, SysfsError, usable_cores};

/// The machine that measured.
#[derive(Clone, Debug)]
pub struct Machine {
    pub cpu: Cpu,
    pub usable_cores: usize,
    pub memory_bytes: u64,
}

impl Machine {
    pub fn this() -> Result<Self, SysfsError> {
        let host = Sysfs::host();
        Ok(Self {
            cpu: host.cpu()?,
            usable_cores: usable_cores(),
            memory_bytes: host.memory()?.total_bytes,
        })
    }

    /// The instruction sets that kernels care for.
    fn flags(&self) -> Vec<&str> {
        let matter = |flag: &&String| {
            flag.starts_with("avx") || flag.starts_with("amx") || matches!(&***flag, "fma" | "f16c")
        };
        self.cpu
            .flags
            .iter()
            .filter(matter)
            .map(String::as_str)
            .collect()
    }
}

/// All that a run of the benchmark found.
#[derive(Clone, Debug)]
pub struct Report {
    pub machine: Machine,
    pub plan: Plan,
    pub results: Vec<SetupResult>,
}

/// What a row's median means beside what the machine gives.
#[derive(Clone, Debug, Default, PartialEq)]
struct Judged {
    bytes_per_token: Option<f64>,
    bandwidth: Option<Summary>,
    /// Of the bandwidth beside each sample.
    bandwidth_fraction: Option<Summary>,
    /// Of the int8 peak.
    int8_fraction: Option<f64>,
}

/// Bytes that a token of the row moves: weights, shared by the sequences of a batch, and KV at the
/// mean depth. Prefill moves weights once for many tokens, so that bytes do not bound it.
fn bytes_per_token(row: Row, tokens: usize, facts: &ModelFacts) -> Option<f64> {
    let work = facts.work();
    let (depth, sequences) = match row {
        Row::Decode { depth } => (depth.max(1), 1),
        Row::Batch { sequences } => (BATCH_PROMPT_TOKENS, sequences),
        Row::Prefill { .. } | Row::Speculation { .. } | Row::Start => return None,
    };
    let kv = work.kv_bytes((depth + tokens / 2) as u64);
    Some(work.weights_bytes as f64 / sequences as f64 + kv as f64)
}

fn judge(result: &RowResult, of: &SetupResult, tokens: usize) -> Judged {
    let Some(facts) = &of.ours.model else {
        return Judged::default();
    };
    let bytes_per_token = bytes_per_token(result.row, tokens, facts);
    let bandwidths: Vec<f64> = result.ours.iter().filter_map(|s| s.bandwidth).collect();
    let fractions = result
        .ours
        .iter()
        .filter_map(|sample| Some(sample.values.first()? * bytes_per_token? / sample.bandwidth?));
    let fractions: Vec<f64> = fractions.collect();
    let int8_fraction = match result.row {
        Row::Prefill { .. } => int8_fraction(result, of.int8_peak, facts),
        _ => None,
    };
    Judged {
        bytes_per_token,
        bandwidth: Summary::of(&bandwidths),
        bandwidth_fraction: Summary::of(&fractions),
        int8_fraction,
    }
}

fn int8_fraction(result: &RowResult, peak: Option<f64>, facts: &ModelFacts) -> Option<f64> {
    let rate = summary(&result.ours, 0)?.median;
    Some(rate * facts.layer_macs? as f64 / peak?)
}

/// Of one quantity of a row's samples.
fn summary(samples: &[Sample], quantity: usize) -> Option<Summary> {
    Summary::of(&values(samples, quantity))
}

fn values(samples: &[Sample], quantity: usize) -> Vec<f64> {
    let values = samples.iter().filter_map(|s| s.values.get(quantity));
    values.copied().collect()
}

/// How many times better this engine is, by pairs of samples.
fn ratio(result: &RowResult, index: usize, quantity: &Quantity) -> Option<Summary> {
    let (ours, peer) = (values(&result.ours, index), values(&result.peer, index));
    match quantity.more_is_better {
        true => Summary::of_ratios(&ours, &peer),
        false => Summary::of_ratios(&peer, &ours),
    }
}

fn neighbours(samples: &[Sample]) -> Option<f64> {
    samples.iter().map(|s| s.neighbours.cores).reduce(f64::max)
}

fn label(row: Row, quantity: &Quantity) -> String {
    match quantity.name {
        "" => row.to_string(),
        name => name.to_owned(),
    }
}

impl Report {
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        let machine = &self.machine;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{}, {} of {} cores usable, {:.1} GiB; {}\n",
            machine.cpu.model,
            machine.usable_cores,
            machine.cpu.cores,
            machine.memory_bytes as f64 / f64::from(1 << 30),
            machine.flags().join(" "),
        );
        text += &self.explained();
        for result in &self.results {
            let _ = writeln!(text, "\n### {}\n", heading(result));
            text += &self.table(result).to_string();
            for note in notes(result) {
                let _ = writeln!(text, "\n{note}");
            }
        }
        text
    }

    fn explained(&self) -> String {
        let Plan {
            repeat,
            tokens,
            neighbours_cores_max,
            ..
        } = self.plan;
        let mut text = format!(
            "Cells: median [least–most] number of samples. ppN: prefill of N tokens, at least a second a \
             sample. tgN: {tokens} greedy tokens behind N that were computed first, median of three runs \
             a sample. batchN: N sequences side by side behind {BATCH_PROMPT_TOKENS} tokens each, all \
             their tokens. load: from opening the file (in the page cache) to the first token, of a fresh \
             process; first token: of a prompt of {START_PROMPT_TOKENS} tokens in that process, and again; \
             peak RSS: of that process. Prompts are fixed pseudo-random tokens. \
             copy and essay: a chat answer that repeats its message and one that does not, without drafted \
             tokens and with them in turn. {repeat} samples a row. \
             Of the probe: bytes a token moves (weights and KV at mean depth) times tokens/s, over what \
             the same threads read of a buffer of the weights' size just before and after. Others: the \
             most cores that other processes used while a sample was taken; a sample counts up to \
             {neighbours_cores_max}.\n"
        );
        if self.plan.peer.is_some() {
            text += "Ratio: how many times better VITRIOL is, sample by sample.\n";
        }
        text
    }

    fn table(&self, of: &SetupResult) -> Table {
        let compared = of.peer.is_some();
        let mut header = vec!["row", "unit", "VITRIOL"];
        if compared {
            header.extend(["peer", "ratio"]);
        }
        header.extend([
            "MB/token",
            "GB/s",
            "probe GB/s",
            "of the probe",
            "of int8 peak",
        ]);
        header.push(if compared {
            "others (VITRIOL, peer)"
        } else {
            "others"
        });
        let mut table = Table::new(header);
        let written = |summary: Option<Summary>| summary.map_or("–".into(), |s| s.to_string());
        for result in &of.rows {
            for (index, quantity) in quantities(result.row).iter().enumerate() {
                let ours = summary(&result.ours, index);
                let mark = if result.noisy > 0 { " (disturbed)" } else { "" };
                let mut cells = vec![
                    label(result.row, quantity) + mark,
                    quantity.unit.to_owned(),
                    written(ours),
                ];
                if compared {
                    cells.push(written(summary(&result.peer, index)));
                    cells.push(written(ratio(result, index, quantity)));
                }
                cells.extend(judged_cells(&judge(result, of, self.plan.tokens), ours));
                let others = [neighbours(&result.ours), neighbours(&result.peer)];
                let others = others
                    .into_iter()
                    .flatten()
                    .map(|cores| format!("{cores:.2}"));
                cells.push(others.collect::<Vec<_>>().join(", "));
                table.push(cells);
            }
        }
        table
    }

    pub fn chart(&self) -> Chart {
        let mut bars = Vec::new();
        for of in &self.results {
            for result in &of.rows {
                for (index, quantity) in quantities(result.row).iter().enumerate() {
                    let sides = [("VITRIOL", &result.ours), ("peer", &result.peer)];
                    let sides = sides.into_iter().filter_map(|(who, samples)| {
                        Some((who.to_owned(), summary(samples, index)?))
                    });
                    let unit = quantity.unit;
                    bars.push(Bar {
                        label: format!(
                            "{}T {} {unit}",
                            of.setup.threads,
                            label(result.row, quantity)
                        ),
                        values: sides.collect(),
                    });
                }
            }
        }
        Chart {
            title: format!("{}, medians; line: least to most", self.machine.cpu.model),
            bars,
        }
    }

    /// The fields are documented in docs/cli-json.md, under `vitriol-engine bench`.
    pub fn to_json(&self) -> Value {
        let plan = &self.plan;
        json!({
            "machine": {
                "cpu": self.machine.cpu.model,
                "flags": self.machine.flags(),
                "cores": self.machine.cpu.cores,
                "usable_cores": self.machine.usable_cores,
                "memory_bytes": self.machine.memory_bytes,
            },
            "tokens_per_run": plan.tokens,
            "repeat": plan.repeat,
            "neighbours_cores_max": plan.neighbours_cores_max,
            "setups": self.results.iter().map(|of| self.setup_json(of)).collect::<Vec<_>>(),
        })
    }

    fn setup_json(&self, of: &SetupResult) -> Value {
        let rows =
            of.rows.iter().flat_map(|result| {
                let judged = judge(result, of, self.plan.tokens);
                quantities(result.row).iter().enumerate().map(move |(index, quantity)| {
                json!({
                    "row": result.row.to_string(),
                    "quantity": if quantity.name.is_empty() { "rate" } else { quantity.name },
                    "unit": quantity.unit,
                    "ours": side_json(&result.ours, index),
                    "peer": (!result.peer.is_empty()).then(|| side_json(&result.peer, index)),
                    "ratio": ratio(result, index, quantity).map(summary_json),
                    "bytes_per_token": judged.bytes_per_token,
                    "probe_bytes_per_s": judged.bandwidth.map(summary_json),
                    "probe_fraction": judged.bandwidth_fraction.map(summary_json),
                    "int8_fraction": judged.int8_fraction,
                    "disturbed": result.noisy,
                    "discarded": result.discarded,
                })
            })
            });
        json!({
            "model": of.setup.model.display().to_string(),
            "threads": of.setup.threads,
            "kv_keys": of.setup.codecs.keys.name(),
            "kv_values": of.setup.codecs.values.name(),
            "engine": of.ours.engine,
            "isa": of.ours.isa,
            "weights_bytes": of.ours.model.as_ref().map(|model| model.weights_bytes),
            "int8_peak_macs_per_s": of.int8_peak,
            "peer": of.peer.as_ref().map(|peer| &peer.engine),
            "rows": rows.collect::<Vec<_>>(),
        })
    }
}

/// MB a token, GB/s, probe, fractions.
fn judged_cells(judged: &Judged, ours: Option<Summary>) -> [String; 5] {
    let none = || "–".to_owned();
    let percent = |fraction: f64| format!("{:.0}%", 100.0 * fraction);
    let rate = ours.map(|ours| ours.median);
    let moved = judged
        .bytes_per_token
        .zip(rate)
        .map(|(bytes, rate)| bytes * rate);
    let fraction = judged.bandwidth_fraction.map(|of| {
        let [median, min, max] = [of.median, of.min, of.max].map(percent);
        format!("{median} [{min}–{max}]")
    });
    [
        judged
            .bytes_per_token
            .map_or_else(none, |bytes| rounded(bytes / 1e6)),
        moved.map_or_else(none, |moved| rounded(moved / 1e9)),
        judged
            .bandwidth
            .map_or_else(none, |of| of.scaled(1e-9).to_string()),
        fraction.unwrap_or_else(none),
        judged.int8_fraction.map_or_else(none, percent),
    ]
}

fn heading(of: &SetupResult) -> String {
    let name = of.setup.model.file_name().unwrap_or_default();
    let isa = |ready: &Ready| match &ready.isa {
        Some(isa) => format!("{} ({isa})", ready.engine),
        None => ready.engine.clone(),
    };
    let peer = of.peer.as_ref().map(|peer| format!(" and {}", isa(peer)));
    format!(
        "{}, {} threads, KV {}/{}: {}{}",
        name.display(),
        of.setup.threads,
        of.setup.codecs.keys.name(),
        of.setup.codecs.values.name(),
        isa(&of.ours),
        peer.unwrap_or_default(),
    )
}

/// What a reader of the table must know besides.
fn notes(of: &SetupResult) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(peak) = of.int8_peak {
        notes.push(format!(
            "int8 peak of {} threads: {} GMAC/s.",
            of.setup.threads,
            rounded(peak / 1e9)
        ));
    }
    let beyond: Vec<String> = of
        .ours
        .model
        .iter()
        .flat_map(|facts| {
            let trained = facts.context_tokens_trained;
            let rows = of.rows.iter().map(|result| result.row);
            rows.filter(move |row| row.context_tokens(0) > trained)
        })
        .map(|row| row.to_string())
        .collect();
    if !beyond.is_empty() {
        notes.push(format!(
            "Beyond the context that the model was trained for: {}. The work is the same, the text is not.",
            beyond.join(", ")
        ));
    }
    let disturbed: usize = of.rows.iter().map(|result| result.noisy).sum();
    if disturbed > 0 {
        notes.push(format!(
            "{disturbed} samples were taken while others computed."
        ));
    }
    notes
}

fn side_json(samples: &[Sample], index: usize) -> Value {
    json!({
        "summary": summary(samples, index).map(summary_json),
        "samples": samples.iter().map(|sample| json!({
            "value": sample.values.get(index),
            "neighbours_cores": sample.neighbours.cores,
            "stolen_cores": sample.neighbours.stolen_cores,
            "probe_bytes_per_s": sample.bandwidth,
        })).collect::<Vec<_>>(),
    })
}

fn summary_json(of: Summary) -> Value {
    json!({"median": of.median, "min": of.min, "max": of.max, "n": of.n})
}

#[cfg(test)]
mod tests;
