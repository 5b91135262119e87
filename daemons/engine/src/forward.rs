//! The forward pass, in the paper's order: embed, every stage's layers, final norm, logits.

use crate::{kv::PAGE_TOKENS, model::Model};
use vitriol_kernels_cpu::{AttentionRun, KvError, KvPlace, KvStore, RopeAngles};

/// KV of all stages; one page index names the same page in each.
#[derive(Debug)]
pub struct KvStores {
    stages: Vec<KvStore>,
    /// Pages below this index have memory.
    committed: usize,
    pages: usize,
}

impl KvStores {
    /// Address space for `pages` pages of every layer; memory comes with [`Self::prepare_page`].
    pub fn new(model: &Model, pages: usize) -> Result<Self, KvError> {
        let stages = model
            .stages
            .iter()
            .map(|stage| KvStore::new(model.kv_shape(stage.layers.len(), pages)))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            stages,
            committed: 0,
            pages,
        })
    }

    /// Pages of all layers whose memory stays within `kv_bytes`.
    pub fn pages_within(model: &Model, kv_bytes: u64) -> usize {
        model
            .kv_shape(model.hyper.n_layers, 1)
            .pages_within(kv_bytes)
    }

    /// Least `kv_bytes` that holds a page.
    pub fn bytes_of_one_page(model: &Model) -> usize {
        model.kv_shape(model.hyper.n_layers, 1).bytes_committed(1)
    }

    /// Makes a page that was just allocated usable: memory for it, all zero. No kernel of today lets a
    /// masked key's bytes into a result; codecs whose scales could be NaN will rely on the zeros, and
    /// nobody's KV lies about in a page of somebody else.
    pub fn prepare_page(&mut self, page: u32) -> Result<(), KvError> {
        let index = page as usize;
        assert!(index < self.pages, "page {page} of {}", self.pages);
        if index >= self.committed {
            for stage in &mut self.stages {
                stage.commit(index + 1)?;
            }
            self.committed = index + 1;
        }
        for stage in &mut self.stages {
            stage.zero_page(page);
        }
        Ok(())
    }

    pub fn bytes_committed(&self) -> usize {
        self.stages.iter().map(KvStore::bytes_committed).sum()
    }
}

/// The rows of one step: for each its token, position and place in the KV, and the runs of rows
/// that belong to one sequence.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    pub places: Vec<KvPlace>,
    pub runs: Vec<AttentionRun<'a>>,
    /// Rows whose logits are wanted.
    pub logits_rows: Vec<usize>,
}

impl<'a> Batch<'a> {
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Adds `tokens` of one sequence at `position..`, whose pages from position 0 on are `pages`.
    pub fn push_run(&mut self, tokens: &[u32], position: usize, pages: &'a [u32]) {
        let first = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        for at in position..position + tokens.len() {
            self.positions.push(at as u32);
            let page = pages[at / PAGE_TOKENS];
            self.places.push(KvPlace {
                page,
                row: (at % PAGE_TOKENS) as u32,
            });
        }
        let position = position as u32;
        self.runs.push(AttentionRun {
            first,
            n: tokens.len(),
            position,
            pages,
        });
    }

    /// The last row added gives logits.
    pub fn want_logits(&mut self) {
        self.logits_rows.push(self.tokens.len() - 1);
    }
}

/// Intermediate results of a step, allocated once for the largest batch and reused; row-major f32.
#[derive(Debug)]
pub struct Activations {
    /// (n, d_model): the residual stream.
    pub x: Vec<f32>,
    /// (n, d_model)
    pub normed: Vec<f32>,
    /// (n, n_heads · head_dim)
    pub q: Vec<f32>,
    /// (n, n_kv_heads · head_dim)
    pub k: Vec<f32>,
    /// (n, n_kv_heads · head_dim)
    pub v: Vec<f32>,
    /// (n, n_heads · head_dim)
    pub attended: Vec<f32>,
    /// (n, d_ff)
    pub gate: Vec<f32>,
    /// (n, d_ff)
    pub up: Vec<f32>,
    /// (n, d_ff): silu(gate) · up
    pub hidden: Vec<f32>,
    /// (n, d_model): what a block adds to `x`.
    pub delta: Vec<f32>,
    pub angles: RopeAngles,
    /// (rows wanted, d_model)
    last: Vec<f32>,
    /// (rows wanted, vocab)
    logits: Vec<f32>,
}

impl Activations {
    /// Buffers for `model`, empty until the first step.
    pub fn new(model: &Model) -> Self {
        let empty = Vec::new;
        Self {
            x: empty(),
            normed: empty(),
            q: empty(),
            k: empty(),
            v: empty(),
            attended: empty(),
            gate: empty(),
            up: empty(),
            hidden: empty(),
            delta: empty(),
            angles: model.rope.empty_angles(),
            last: empty(),
            logits: empty(),
        }
    }

    fn resize(&mut self, model: &Model, n: usize, n_logits: usize) {
        let h = &model.hyper;
        self.x.resize(n * h.d_model, 0.0);
        self.normed.resize(n * h.d_model, 0.0);
        self.q.resize(n * h.n_heads * h.head_dim, 0.0);
        self.k.resize(n * h.n_kv_heads * h.head_dim, 0.0);
        self.v.resize(n * h.n_kv_heads * h.head_dim, 0.0);
        self.attended.resize(n * h.n_heads * h.head_dim, 0.0);
        self.gate.resize(n * h.d_ff, 0.0);
        self.up.resize(n * h.d_ff, 0.0);
        self.hidden.resize(n * h.d_ff, 0.0);
        self.delta.resize(n * h.d_model, 0.0);
        self.last.resize(n_logits * h.d_model, 0.0);
        self.logits.resize(n_logits * h.vocab, 0.0);
    }
}

/// Computes the batch, leaving its K and V in `kv`.
/// Returns (rows wanted, vocab) f32 logits, row-major, in the order of `batch.logits_rows`.
pub fn forward<'a>(
    model: &Model,
    batch: &Batch<'_>,
    kv: &mut KvStores,
    act: &'a mut Activations,
) -> &'a [f32] {
    let (device, d_model) = (&model.device, model.hyper.d_model);
    act.resize(model, batch.len(), batch.logits_rows.len());

    for (row, &token) in act.x.chunks_exact_mut(d_model).zip(&batch.tokens) {
        model.token_embd.dequantise_row(token as usize, row);
    }
    model.rope.angles(&batch.positions, &mut act.angles);
    for (stage, kv) in model.stages.iter().zip(&mut kv.stages) {
        for (layer, weights) in stage.layers.iter().enumerate() {
            weights.forward(model, layer, batch, kv, act);
        }
    }

    for (out, &row) in act.last.chunks_exact_mut(d_model).zip(&batch.logits_rows) {
        out.copy_from_slice(&act.x[row * d_model..][..d_model]);
    }
    let n = batch.logits_rows.len();
    if n > 0 {
        act.normed.resize(n * d_model, 0.0);
        let eps = model.hyper.rms_eps;
        device.rms_norm(
            &act.last,
            &model.output_norm,
            eps,
            n,
            d_model,
            &mut act.normed,
        );
        device.matmul(model.output_matrix(), &act.normed, n, &mut act.logits);
    }
    &act.logits
}
