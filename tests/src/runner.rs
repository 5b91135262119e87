use std::{collections::BTreeMap, ops::Range, path::Path, sync::Arc};

use anyhow::{Context, Result};
use vitriol_engine::{
    forward::{Activations, Batch, KvStores, forward_tapped},
    kv::{KvCodecs, NO_PAGE, PAGE_TOKENS, Window},
    model::{Model, Tap},
};
use vitriol_gguf::Gguf;
use vitriol_kernels_cpu::{Cpu, Isa};

/// A model, its KV and scratch memory; no scheduler, sampler or tokenizer.
#[derive(Debug)]
pub struct Runner {
    model: Model,
    kv: KvStores,
    activations: Activations,
    /// By KV group, pages that nobody has.
    free: Vec<Vec<u32>>,
}

/// What a [`Runner`] runs on.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    pub threads: usize,
    /// None: the best there is.
    pub isa: Option<Isa>,
    /// Encoding of keys and values.
    pub codecs: KvCodecs,
    /// Pages of each KV group.
    pub pages: usize,
    /// Context that the rotation is made for; 0: as trained.
    pub context_tokens: usize,
}

impl Default for RunnerOptions {
    /// As the records of the zoo were made: KV in f32, a context of 256 tokens.
    fn default() -> Self {
        Self {
            threads: 2,
            isa: None,
            codecs: KvCodecs::F32,
            pages: 64,
            context_tokens: 256,
        }
    }
}

/// What a forward pass did on the way to its logits, for all rows of all batches in their order.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// For each layer the residual stream after it, (rows, d_model).
    pub layer_outputs: Vec<Vec<f32>>,
    /// For each layer with a router the experts it chose, (rows, experts used).
    pub experts: BTreeMap<usize, Vec<u32>>,
}

impl Tap for Trace {
    fn layer_output(&mut self, layer: usize, hidden: &[f32], _rows: usize) {
        if self.layer_outputs.len() <= layer {
            self.layer_outputs.resize(layer + 1, Vec::new());
        }
        self.layer_outputs[layer].extend_from_slice(hidden);
    }

    fn experts(&mut self, layer: usize, chosen: &[u32], _rows: usize) {
        let of_layer = self.experts.entry(layer).or_default();
        of_layer.extend_from_slice(chosen);
    }
}

/// One sequence, and where what it was fed lies.
#[derive(Debug, Default)]
pub struct Sequence {
    /// By KV group, the pages from position 0 on; [`NO_PAGE`] where a window has passed.
    pages: Vec<Vec<u32>>,
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
    /// Loads the model at `path`, with an empty KV.
    pub fn load(path: &Path, options: &RunnerOptions) -> Result<Runner> {
        let gguf = Gguf::open(path)?;
        let device = Arc::new(Cpu::new(options.threads, options.isa)?);
        let model = Model::load(&gguf, device, |_, _| options.context_tokens, &mut |_| {})
            .with_context(|| format!("load {}", path.display()))?;
        let pages = options.pages;
        let groups = model.kv_groups.len();
        let kv = KvStores::new(&model.kv_groups, options.codecs, &vec![pages; groups])?;
        let pages = (0..u32::try_from(pages)?).rev();
        Ok(Runner {
            activations: Activations::new(&model),
            model,
            kv,
            free: vec![pages.collect(); groups],
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
        self.tapped_step(feeds, &mut ())
    }

    fn tapped_step(&mut self, feeds: &mut [Feed<'_>], tap: &mut dyn Tap) -> Result<Vec<f32>> {
        for feed in feeds.iter_mut() {
            self.make_room(feed.sequence, feed.tokens.len())?;
        }
        let mut batch = Batch::new(self.free.len());
        for feed in feeds.iter() {
            let first = batch.len();
            let pages = feed.sequence.pages.iter().map(Vec::as_slice);
            batch.push_run(feed.tokens, feed.sequence.tokens, pages);
            batch
                .logits_rows
                .extend(feed.wanted.clone().map(|row| first + row));
        }
        let (kv, activations) = (&mut self.kv, &mut self.activations);
        let logits = forward_tapped(&self.model, &batch, kv, activations, tap).to_vec();
        for feed in feeds {
            feed.sequence.tokens += feed.tokens.len();
            self.free_passed(feed.sequence);
        }
        Ok(logits)
    }

    /// Gives `sequence` pages for `more` tokens.
    fn make_room(&mut self, sequence: &mut Sequence, more: usize) -> Result<()> {
        sequence.pages.resize_with(self.free.len(), Vec::new);
        let blocks = (sequence.tokens + more).div_ceil(PAGE_TOKENS);
        for (group, (pages, free)) in sequence.pages.iter_mut().zip(&mut self.free).enumerate() {
            while pages.len() < blocks {
                let page = free.pop().context("the runner has too few pages")?;
                self.kv.prepare_page(group, page)?;
                pages.push(page);
            }
        }
        Ok(())
    }

    /// Takes back the pages that no later query of `sequence` sees, as the scheduler does.
    fn free_passed(&mut self, sequence: &mut Sequence) {
        let groups = self.model.kv_groups.iter().zip(&mut self.free);
        for ((group, free), pages) in groups.zip(&mut sequence.pages) {
            let window = Window {
                tokens: group.window,
            };
            for page in &mut pages[..window.first_block(sequence.tokens)] {
                if *page != NO_PAGE {
                    free.push(std::mem::replace(page, NO_PAGE));
                }
            }
        }
    }

    /// Feeds `tokens` to a sequence of its own, in batches of these sizes (the last takes the rest).
    /// Returns (tokens, vocab) f32: all logits.
    pub fn logits(&mut self, tokens: &[u32], sizes: &[usize]) -> Result<Vec<f32>> {
        self.tapped_logits(tokens, sizes, &mut ())
    }

    /// As [`logits`](Self::logits), as one batch, with what happened on the way.
    pub fn traced(&mut self, tokens: &[u32]) -> Result<(Vec<f32>, Trace)> {
        let mut trace = Trace::default();
        let logits = self.tapped_logits(tokens, &[], &mut trace)?;
        Ok((logits, trace))
    }

    fn tapped_logits(
        &mut self,
        tokens: &[u32],
        sizes: &[usize],
        tap: &mut dyn Tap,
    ) -> Result<Vec<f32>> {
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
            logits.extend(self.tapped_step(&mut [feed], tap)?);
            rest = later;
        }
        self.release(sequence);
        Ok(logits)
    }

    /// Gives back the pages of a sequence that ended.
    pub fn release(&mut self, sequence: Sequence) {
        for (free, pages) in self.free.iter_mut().zip(sequence.pages) {
            free.extend(pages.into_iter().filter(|&page| page != NO_PAGE));
        }
    }
}
