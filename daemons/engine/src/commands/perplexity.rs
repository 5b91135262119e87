use super::{KvArgs, load_model};
use crate::{
    forward::{Activations, Batch, KvStores, forward},
    kv::{KvCodecs, PAGE_TOKENS},
    load::Loaded,
    model::Model,
    sampler::NotFinite,
};
use anyhow::{Context, bail};
use std::{io::Write, path::PathBuf, time::Instant};
use vitriol_chassis::{Environment, Exit, Failure, OrExit, init_trace};
use vitriol_profile::{LogFormat, Repack};
use vitriol_tokens::EncodeOptions;

/// Tokens computed at once.
const STEP_TOKENS_MAX: usize = 512;

/// Logits that lie in memory at once.
const LOGITS_BYTES_MAX: usize = 128 << 20;

#[derive(Debug, clap::Args)]
pub struct PerplexityArgs {
    /// Model file (GGUF), or a name of `vitriol model list`.
    model: PathBuf,
    /// Text file; one trailing newline is dropped.
    text: PathBuf,
    /// Tokens of a chunk; each is scored on its second half, with an empty KV before it.
    #[arg(short = 'c', long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
    context: u32,
    /// Score only the first N chunks; 0 = all.
    #[arg(long, default_value_t = 0)]
    chunks: usize,
    /// Compute threads; 0 = one for each usable core.
    #[arg(long, default_value_t = 0)]
    threads: u32,
    /// Where panels of the weights come from: `file`, made once and kept in the cache directory, or `ram`.
    #[arg(long, value_name = "WHERE", default_value = "ram")]
    repack: Repack,
    #[command(flatten)]
    kv: KvArgs,
}

/// Mean negative log-likelihood of a text's scored tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Score {
    pub nll_sum: f64,
    pub tokens: usize,
    pub chunks: usize,
}

impl Score {
    pub fn perplexity(&self) -> f64 {
        (self.nll_sum / self.tokens as f64).exp()
    }
}

/// Prints the running perplexity to standard error and the final figure to standard output.
pub fn run(args: PerplexityArgs, environment: &Environment) -> Result<(), Failure> {
    init_trace(LogFormat::Text, environment)?;
    measure(&args, environment).or_exit(Exit::Config)
}

fn measure(args: &PerplexityArgs, environment: &Environment) -> anyhow::Result<()> {
    let context = args.context as usize;
    let loaded = load_model(&args.model, args.threads, context, args.repack, environment)?;
    if loaded.model.hyper.context_for(context) < context {
        bail!(
            "{}: no context of {context} tokens is computed",
            loaded.file.display()
        );
    }
    let trained = loaded.model.hyper.context_tokens_trained;
    if context > trained {
        tracing::warn!(
            context,
            trained,
            "the chunks are longer than the model was trained for; the perplexity tells of that"
        );
    }
    let text = std::fs::read(&args.text).with_context(|| args.text.display().to_string())?;
    let chunks = chunks(&loaded, &text, args.context as usize)?;
    let most = if args.chunks == 0 {
        chunks.len()
    } else {
        args.chunks
    };
    let began = Instant::now();
    let mut scorer = Scorer::new(&loaded.model, args.kv.codecs(), context)?;
    let mut score = Score::default();
    for chunk in chunks.iter().take(most) {
        scorer
            .score(chunk, &mut score)
            .with_context(|| format!("{}: chunk {}", loaded.file.display(), score.chunks + 1))?;
        let (ppl, n) = (score.perplexity(), score.chunks);
        let took = began.elapsed().as_secs_f64();
        writeln!(
            std::io::stderr(),
            "chunk {n} of {}: {ppl:.4} ({took:.1} s)",
            chunks.len().min(most)
        )?;
    }
    writeln!(
        std::io::stdout(),
        "perplexity {:.4} over {} tokens of {} chunks",
        score.perplexity(),
        score.tokens,
        score.chunks
    )?;
    Ok(())
}

/// The text as disjoint chunks of `context` tokens, the partial last one dropped; where the model
/// wants a BOS it takes the place of each chunk's first token.
pub fn chunks(loaded: &Loaded, text: &[u8], context: usize) -> anyhow::Result<Vec<Vec<u32>>> {
    let Some(language) = &loaded.language else {
        bail!("the model's tokenizer is not supported yet");
    };
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let ids = language.tokenizer.encode(text, options);
    let special = language.tokenizer.special();
    let bos = special.bos.filter(|_| special.add_bos);
    let mut chunks: Vec<Vec<u32>> = ids.chunks_exact(context).map(<[u32]>::to_vec).collect();
    if let Some(bos) = bos {
        chunks.iter_mut().for_each(|chunk| chunk[0] = bos);
    }
    if chunks.is_empty() {
        bail!(
            "the text has {} tokens, fewer than one chunk of {context}",
            ids.len()
        );
    }
    Ok(chunks)
}

/// Scores one chunk after another in the same memory.
pub struct Scorer<'a> {
    model: &'a Model,
    kv: KvStores,
    activations: Activations,
    /// Of a chunk, in every KV group.
    pages: Vec<u32>,
}

impl<'a> Scorer<'a> {
    /// For chunks of at most `context` tokens. Errors: no memory for the KV.
    pub fn new(model: &'a Model, codecs: KvCodecs, context: usize) -> anyhow::Result<Self> {
        let pages: Vec<u32> = (0..context.div_ceil(PAGE_TOKENS) as u32).collect();
        let capacity = vec![pages.len(); model.kv_groups.len()];
        Ok(Self {
            model,
            kv: KvStores::new(&model.kv_groups, codecs, &capacity)?,
            activations: Activations::new(model),
            pages,
        })
    }

    /// Adds the predictions of the chunk's second half, positions `n/2 .. n-1`, to `score`.
    /// Errors: no memory for the KV; logits that are not finite, of which there is no perplexity.
    pub fn score(&mut self, chunk: &[u32], score: &mut Score) -> anyhow::Result<()> {
        let groups = self.model.kv_groups.len();
        for group in 0..groups {
            for &page in &self.pages {
                self.kv.prepare_page(group, page)?;
            }
        }
        let vocab = self.model.hyper.vocab;
        let logits_rows_max = (LOGITS_BYTES_MAX / (vocab * size_of::<f32>())).max(1);
        let scored = chunk.len() / 2..chunk.len() - 1;
        let mut start = 0;
        while start < scored.end {
            let (until, most) = if start < scored.start {
                (scored.start, STEP_TOKENS_MAX)
            } else {
                (scored.end, STEP_TOKENS_MAX.min(logits_rows_max))
            };
            let end = until.min(start + most);
            let mut batch = Batch::new(groups);
            let pages = std::iter::repeat_n(&self.pages[..], groups);
            batch.push_run(&chunk[start..end], start, pages);
            if scored.contains(&start) {
                batch.logits_rows = (0..end - start).collect();
            }
            let logits = forward(self.model, &batch, &mut self.kv, &mut self.activations);
            for (row, at) in logits.chunks_exact(vocab).zip(start..) {
                NotFinite::check(row).with_context(|| format!("token {at} of the chunk"))?;
            }
            let next = &chunk[start + 1..=end];
            let logs = log_probabilities(logits, vocab, next, self.model.device.threads());
            score.nll_sum -= logs.iter().sum::<f64>();
            score.tokens += logs.len();
            start = end;
        }
        score.chunks += 1;
        Ok(())
    }
}

/// [`log_probability`] of `ids` in rows of `vocab` logits, over `threads`: in f64 it takes longer than the
/// logits themselves.
fn log_probabilities(logits: &[f32], vocab: usize, ids: &[u32], threads: usize) -> Vec<f64> {
    let mut logs = vec![0.0; logits.len() / vocab];
    let share = logs.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let shares = logs.chunks_mut(share).zip(ids.chunks(share));
        for ((logs, ids), logits) in shares.zip(logits.chunks(share * vocab)) {
            scope.spawn(move || {
                for ((log, &id), row) in logs.iter_mut().zip(ids).zip(logits.chunks_exact(vocab)) {
                    *log = log_probability(row, id);
                }
            });
        }
    });
    logs
}

/// ln softmax(logits)[id], in f64.
fn log_probability(logits: &[f32], id: u32) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - max).exp()).sum();
    f64::from(logits[id as usize]) - max - sum.ln()
}
