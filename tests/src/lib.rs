//! Tests of the house as a whole, one file below `tests/` for each kind. This library holds what the
//! golden tests share: a model in this process, and sequences fed to its forward pass by hand.

pub mod golden;

use std::{ops::Range, path::Path, sync::Arc};

use anyhow::{Context, Result};
use vitriol_engine::{
    forward::{Activations, Batch, KvStores, forward},
    kv::PAGE_TOKENS,
    model::Model,
};
use vitriol_gguf::Gguf;
use vitriol_kernels_cpu::{Cpu, Isa};

/// A model, its KV and scratch memory; no scheduler, sampler or tokenizer.
#[derive(Debug)]
pub struct Runner {
    model: Model,
    kv: KvStores,
    activations: Activations,
    free: Vec<u32>,
}

/// One sequence: what it was fed lies in these pages.
#[derive(Debug, Default)]
pub struct Sequence {
    pages: Vec<u32>,
    tokens: usize,
}

/// Tokens that one sequence contributes to a batch.
#[derive(Debug)]
pub struct Feed<'a> {
    pub sequence: &'a mut Sequence,
    pub tokens: &'a [u32],
    /// Which of `tokens` give logits.
    pub wanted: Range<usize>,
}

impl Runner {
    /// Loads `path` for `threads` threads and `isa` (none: the best there is), with KV for `pages`
    /// pages of every layer.
    pub fn load(path: &Path, threads: usize, isa: Option<Isa>, pages: usize) -> Result<Runner> {
        let gguf = Gguf::open(path)?;
        let device = Arc::new(Cpu::new(threads, isa)?);
        let model = Model::load(&gguf, device, &mut |_| {})
            .with_context(|| format!("load {}", path.display()))?;
        let kv = KvStores::new(&model, pages)?;
        let free = (0..u32::try_from(pages)?).rev().collect();
        Ok(Runner {
            activations: Activations::new(&model),
            model,
            kv,
            free,
        })
    }

    /// Logits in a row.
    pub fn vocab(&self) -> usize {
        self.model.hyper.vocab
    }

    /// Computes one batch of all `feeds`.
    /// Returns (rows wanted, vocab) f32, in the order of the feeds and of their tokens.
    /// Errors: no page is left.
    pub fn step(&mut self, feeds: &mut [Feed<'_>]) -> Result<Vec<f32>> {
        for feed in feeds.iter_mut() {
            let tokens = feed.sequence.tokens + feed.tokens.len();
            while feed.sequence.pages.len() * PAGE_TOKENS < tokens {
                let page = self.free.pop().context("the runner has too few pages")?;
                self.kv.prepare_page(page)?;
                feed.sequence.pages.push(page);
            }
        }
        let mut batch = Batch::default();
        for feed in feeds.iter() {
            let first = batch.len();
            batch.push_run(feed.tokens, feed.sequence.tokens, &feed.sequence.pages);
            batch
                .logits_rows
                .extend(feed.wanted.clone().map(|row| first + row));
        }
        let logits = forward(&self.model, &batch, &mut self.kv, &mut self.activations).to_vec();
        for feed in feeds {
            feed.sequence.tokens += feed.tokens.len();
        }
        Ok(logits)
    }

    /// Feeds `tokens` to a sequence of its own, in batches of these sizes (the last takes the rest).
    /// Returns (tokens, vocab) f32: all logits.
    pub fn logits(&mut self, tokens: &[u32], sizes: &[usize]) -> Result<Vec<f32>> {
        let mut sequence = Sequence::default();
        let mut logits = Vec::with_capacity(tokens.len() * self.vocab());
        let mut rest = tokens;
        let mut sizes = sizes.iter();
        while !rest.is_empty() {
            let size = sizes
                .next()
                .map_or(rest.len(), |size| (*size).clamp(1, rest.len()));
            let (now, later) = rest.split_at(size);
            let feed = Feed {
                sequence: &mut sequence,
                tokens: now,
                wanted: 0..now.len(),
            };
            logits.extend(self.step(&mut [feed])?);
            rest = later;
        }
        self.release(sequence);
        Ok(logits)
    }

    /// Gives back the pages of a sequence that ended.
    pub fn release(&mut self, sequence: Sequence) {
        self.free.extend(sequence.pages);
    }
}
