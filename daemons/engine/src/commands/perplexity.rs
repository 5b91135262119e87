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
    let mut score = Score::default();
    for chunk in chunks.iter().take(most) {
        score_chunk(&loaded.model, args.kv.codecs(), chunk, &mut score)
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

/// Adds the predictions of the chunk's second half, positions `n/2 .. n-1`, to `score`.
/// Errors: no memory for the KV; logits that are not finite, of which there is no perplexity.
pub fn score_chunk(
    model: &Model,
    codecs: KvCodecs,
    chunk: &[u32],
    score: &mut Score,
) -> anyhow::Result<()> {
    let pages: Vec<u32> = (0..chunk.len().div_ceil(PAGE_TOKENS) as u32).collect();
    let groups = model.kv_groups.len();
    let mut kv = KvStores::new(model, codecs, &vec![pages.len(); groups])?;
    for group in 0..groups {
        for &page in &pages {
            kv.prepare_page(group, page)?;
        }
    }
    let mut act = Activations::new(model);
    let first = chunk.len() / 2;
    // In steps, so that the logits of a long chunk need not lie in memory at once.
    for (index, part) in chunk.chunks(128).enumerate() {
        let start = index * 128;
        let mut batch = Batch::new(groups);
        batch.push_run(part, start, std::iter::repeat_n(&pages[..], groups));
        let scored = (start..start + part.len()).filter(|&at| at >= first && at + 1 < chunk.len());
        batch.logits_rows = scored.clone().map(|at| at - start).collect();
        let logits = forward(model, &batch, &mut kv, &mut act);
        for (row, at) in logits.chunks_exact(model.hyper.vocab).zip(scored) {
            NotFinite::check(row).with_context(|| format!("token {at} of the chunk"))?;
            score.nll_sum -= log_probability(row, chunk[at + 1]);
            score.tokens += 1;
        }
    }
    score.chunks += 1;
    Ok(())
}

/// ln softmax(logits)[id], in f64.
pub fn log_probability(logits: &[f32], id: u32) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - max).exp()).sum();
    f64::from(logits[id as usize]) - max - sum.ln()
}
