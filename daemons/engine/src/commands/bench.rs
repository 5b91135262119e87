use super::kv_codec;
use crate::{
    bench::{
        report::{Machine, Report},
        row::Row,
        run::{Plan, Setup, measure},
        side::Launch,
        worker::{Needs, Worker},
    },
    kv::KvCodecs,
};
use anyhow::{Context, bail};
use std::{ffi::OsString, io::Write, path::PathBuf, time::Instant};
use vitriol_chassis::{Environment, Exit, Failure, OrExit, init_trace};
use vitriol_kernels_core::KvCodec;
use vitriol_measure::write_whole;
use vitriol_profile::{LogFormat, ModelReference, Repack};

/// Measures this engine, alone or in turn with another one. docs/BENCHMARKS.md says what each row means.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// Model files (GGUF), or names of `vitriol model list`.
    #[arg(required = true)]
    models: Vec<PathBuf>,
    /// Compute threads, each number a run of its own; 0 = one for each usable core.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "0")]
    threads: Vec<u32>,
    /// Encodings of keys, each a run of its own: f32, f16, q8_0 or q4_0.
    #[arg(long, value_name = "CODEC,...", value_delimiter = ',', default_value = "f16", value_parser = kv_codec)]
    kv_keys: Vec<KvCodec>,
    /// Encodings of values, as many as of keys; without it those of the keys.
    #[arg(long, value_name = "CODEC,...", value_delimiter = ',', value_parser = kv_codec)]
    kv_values: Vec<KvCodec>,
    /// Lengths of prompts to compute.
    #[arg(
        long,
        value_name = "TOKENS,...",
        value_delimiter = ',',
        default_value = "512,2048"
    )]
    prompt: Vec<usize>,
    /// Depths to decode at; so many tokens are really computed first.
    #[arg(
        long,
        value_name = "TOKENS,...",
        value_delimiter = ',',
        default_value = "0,2048,8192"
    )]
    depth: Vec<usize>,
    /// Numbers of sequences to decode side by side.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,2,4,8"
    )]
    batch: Vec<usize>,
    /// Exactly these rows, for instance pp512,tg0,tg8192,batch4,copy,essay,start, instead of those of --prompt, --depth
    /// and --batch and the start of a process.
    #[arg(long, value_name = "ROW,...", value_delimiter = ',', conflicts_with_all = ["prompt", "depth", "batch"])]
    rows: Vec<Row>,
    /// Tokens generated a run; a sample of decode is the median of three runs.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=65536))]
    tokens: u32,
    /// Samples of each row.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Cores that other processes may use while a sample is taken; else it is taken again.
    #[arg(long, value_name = "CORES", default_value_t = 0.06)]
    neighbours_max: f64,
    /// Times that a disturbed sample is taken again before it is taken as it is, and marked.
    #[arg(long, default_value_t = 3)]
    retries: u32,
    /// Where panels of the weights come from: `file`, made once and kept in the cache directory, or `ram`.
    #[arg(long, value_name = "WHERE", default_value = "file")]
    repack: Repack,
    /// Another engine to measure in turn with this one: a command that speaks the worker's lines (see
    /// docs/BENCHMARKS.md), split at spaces.
    #[arg(long, value_name = "COMMAND")]
    peer: Option<String>,
    /// Write all samples as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the tables, which go to standard output otherwise.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Draw the medians.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The process that computes for `bench`.
#[derive(Debug, clap::Args)]
pub struct WorkerArgs {
    model: PathBuf,
    #[arg(long)]
    threads: u32,
    #[arg(long, value_parser = kv_codec)]
    kv_keys: KvCodec,
    #[arg(long, value_parser = kv_codec)]
    kv_values: KvCodec,
    #[arg(long)]
    context_tokens: usize,
    #[arg(long)]
    kv_tokens: usize,
    #[arg(long)]
    sequences: usize,
    #[arg(long, default_value = "file")]
    repack: Repack,
}

/// Measures what was asked; progress to standard error, tables to standard output or files.
pub fn run(args: &BenchArgs, environment: &Environment) -> Result<(), Failure> {
    init_trace(LogFormat::Text, environment)?;
    let mut models = Vec::new();
    for model in &args.models {
        let file = environment.model_file(ModelReference::argument(model))?;
        // Before minutes of measuring the others.
        std::fs::File::open(&file)
            .with_context(|| format!("model file {}", file.display()))
            .or_exit(Exit::Config)?;
        models.push(file);
    }
    let setups = args.setups(&models).or_exit(Exit::Usage)?;
    let plan = args.plan().or_exit(Exit::Usage)?;
    measure_all(args, &setups, &plan).or_exit(Exit::Internal)
}

fn measure_all(args: &BenchArgs, setups: &[Setup], plan: &Plan) -> anyhow::Result<()> {
    let mut progress = |line: &str| {
        // Nobody may be looking; the figures are what counts.
        let _ = writeln!(std::io::stderr(), "{line}");
    };
    progress("model threads keys/values row #sample: value (cores that others used)");
    let mut results = Vec::new();
    for setup in setups {
        let measured = measure(setup, plan, &mut progress);
        results.push(measured.with_context(|| format!("model file {}", setup.model.display()))?);
    }
    let report = Report {
        machine: Machine::this()?,
        plan: plan.clone(),
        results,
    };
    if let Some(path) = &args.json {
        write_whole(path, &format!("{:#}\n", report.to_json()))?;
    }
    if let Some(path) = &args.svg {
        write_whole(path, &report.chart().to_string())?;
    }
    match &args.markdown {
        Some(path) => write_whole(path, &report.markdown())?,
        None => std::io::stdout()
            .write_all(report.markdown().as_bytes())
            .context("write to standard output")?,
    }
    Ok(())
}

impl BenchArgs {
    /// Every model with every number of threads and every encoding.
    fn setups(&self, models: &[PathBuf]) -> anyhow::Result<Vec<Setup>> {
        let values = match self.kv_values.is_empty() {
            true => &self.kv_keys,
            false => &self.kv_values,
        };
        if values.len() != self.kv_keys.len() {
            bail!(
                "--kv-keys names {} encodings and --kv-values {}: give as many of each",
                self.kv_keys.len(),
                values.len()
            );
        }
        let mut setups = Vec::new();
        for model in models {
            for &threads in &self.threads {
                for (&keys, &values) in self.kv_keys.iter().zip(values) {
                    setups.push(Setup {
                        // A path that begins with a dash is no flag of the worker's.
                        model: std::path::absolute(model)?,
                        threads: super::threads(threads),
                        codecs: KvCodecs { keys, values },
                    });
                }
            }
        }
        Ok(setups)
    }

    fn plan(&self) -> anyhow::Result<Plan> {
        let rows = match self.rows.is_empty() {
            true => self.rows_of_lists()?,
            false => self.rows.clone(),
        };
        let peer = match &self.peer {
            None => None,
            Some(command) => {
                let mut words = command.split_whitespace().map(OsString::from);
                let program = words.next().context("--peer names no command")?;
                let args = words.collect();
                Some(Launch { program, args })
            }
        };
        Ok(Plan {
            rows,
            repeat: self.repeat as usize,
            tokens: self.tokens as usize,
            neighbours_cores_max: self.neighbours_max,
            retries: self.retries as usize,
            ours: Launch {
                program: std::env::current_exe()?.into(),
                args: vec![
                    "bench-worker".into(),
                    "--repack".into(),
                    self.repack.as_str().into(),
                ],
            },
            peer,
        })
    }

    fn rows_of_lists(&self) -> anyhow::Result<Vec<Row>> {
        let named = [
            ("pp", &self.prompt),
            ("tg", &self.depth),
            ("batch", &self.batch),
        ];
        let mut rows = Vec::new();
        for (name, numbers) in named {
            for number in numbers {
                let row = format!("{name}{number}");
                let parsed: Result<Row, String> = row.parse();
                rows.push(parsed.map_err(|hint| anyhow::anyhow!("{row}: {hint}"))?);
            }
        }
        rows.push(Row::Start);
        Ok(rows)
    }
}

/// Loads the model and does what standard input asks, until it ends.
pub fn work(args: &WorkerArgs, environment: &Environment) -> Result<(), Failure> {
    init_trace(LogFormat::Text, environment)?;
    let began = Instant::now();
    let (model, context) = (&args.model, args.context_tokens);
    let loaded = super::load_model(model, args.threads, context, args.repack, environment)
        .or_exit(Exit::Config)?;
    let needs = Needs {
        codecs: KvCodecs {
            keys: args.kv_keys,
            values: args.kv_values,
        },
        context_tokens: args.context_tokens,
        kv_tokens: args.kv_tokens,
        sequences: args.sequences,
    };
    let mut worker = Worker::start(loaded, needs, began).or_exit(Exit::Config)?;
    worker
        .serve(std::io::stdin().lock(), std::io::stdout().lock())
        .or_exit(Exit::Internal)
}
