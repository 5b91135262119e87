//! The forward pass, in the paper's order: embed, every stage's layers, final norm, logits.

use crate::{
    kv::{KvCodecs, NO_PAGE, PAGE_TOKENS},
    model::{KvGroup, KvLayer, Latent, LayerInputRows, Model, Routed, Tap},
};
use vitriol_kernels_cpu::{
    AttentionRun, Cpu, KvError, KvPlace, KvStore, PageFill, PageRead, RopeAngles,
};
use vitriol_shm::EXTENT_BYTES;

/// Memory of pages that an idle engine keeps ready: a page's has to be found for every layer, which takes as
/// long as some tokens.
const READY_BYTES: usize = 32 << 20;

/// KV of all layers, one store for each of the model's KV groups.
#[derive(Debug)]
pub struct KvStores {
    groups: Vec<GroupStore>,
}

#[derive(Debug)]
struct GroupStore {
    store: KvStore,
    /// Pages below this index have memory.
    committed: usize,
    /// Pages from this index on are as they came, zero.
    fresh: usize,
    pages: usize,
}

impl KvStores {
    /// Address space for `pages` pages of each of a model's `groups`; memory comes with
    /// [`Self::prepare_page`].
    pub fn new(groups: &[KvGroup], codecs: KvCodecs, pages: &[usize]) -> Result<Self, KvError> {
        let store = |(group, &pages): (&KvGroup, &usize)| {
            Ok(GroupStore {
                store: KvStore::new(group.shape(codecs, pages))?,
                committed: 0,
                fresh: 0,
                pages,
            })
        };
        let groups = groups.iter().zip(pages).map(store);
        Ok(Self {
            groups: groups.collect::<Result<_, KvError>>()?,
        })
    }

    /// Makes a page that was just allocated usable: memory for it, all zero. No kernel lets a masked key's
    /// bytes into a result; the zeros keep anybody's KV from lying about in a page of somebody else.
    pub fn prepare_page(&mut self, group: usize, page: u32) -> Result<(), KvError> {
        let group = &mut self.groups[group];
        let index = page as usize;
        assert!(index < group.pages, "page {page} of {}", group.pages);
        if index < group.fresh {
            group.store.zero_page(page);
            return Ok(());
        }
        if index >= group.committed {
            group.store.commit(index + 1)?;
            group.committed = index + 1;
        }
        group.fresh = index + 1;
        Ok(())
    }

    /// Finds some memory for one page more in a group that has little ready beyond its `used` pages (held or
    /// cached, by group), a part so small that who comes meanwhile need not mind; false where no group lacks
    /// any, or the system has none: whoever needs the page hears of that.
    pub fn commit_ahead(&mut self, used: impl IntoIterator<Item = usize>) -> bool {
        self.groups.iter_mut().zip(used).any(|(group, used)| {
            let ready = group.committed.saturating_sub(used);
            let wanted = (READY_BYTES / group.store.bytes_per_page()).max(1);
            let lacks = group.committed < group.pages && ready < wanted;
            match lacks.then(|| group.store.commit_part(group.committed + 1)) {
                Some(Ok(is_whole)) => {
                    group.committed += usize::from(is_whole);
                    true
                }
                Some(Err(_)) | None => false,
            }
        })
    }

    /// Finds some memory for the first `pages` of each group, no more than an extent of a tensor or two; false
    /// where all have theirs, or the system has none: whoever needs a page hears of that.
    pub fn commit_part(&mut self, pages: &[usize]) -> bool {
        self.groups.iter_mut().zip(pages).any(|(group, &pages)| {
            if group.committed >= pages {
                return false;
            }
            let of_tensor = group.store.bytes_per_page() / group.store.tensors();
            let next = group.committed + (EXTENT_BYTES / of_tensor).max(1);
            let next = next.min(pages);
            match group.store.commit_part(next) {
                Ok(is_whole) => {
                    if is_whole {
                        group.committed = next;
                    }
                    true
                }
                Err(_) => false,
            }
        })
    }

    /// Finds memory for pages that are about to be filled, those of a group up to `last`, on all threads of
    /// `device`. Errors: the system has none; each page can still be tried for.
    pub fn commit_on(&mut self, device: &Cpu, group: usize, last: u32) -> Result<(), KvError> {
        let (group, pages) = (&mut self.groups[group], last as usize + 1);
        if pages > group.committed {
            group.store.commit_on(device, pages)?;
            group.committed = pages;
        }
        Ok(())
    }

    /// Makes a page that was just allocated usable, with the content of another.
    pub fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<(), KvError> {
        self.prepare_page(group, to)?;
        self.groups[group].store.copy_page(from, to);
        Ok(())
    }

    /// Lends a page to be read by another thread.
    pub fn lend(&mut self, group: usize, page: u32) -> PageRead {
        self.groups[group].store.lend(page)
    }

    /// Makes a page that was just allocated usable and lends it to be filled by another thread.
    pub fn lend_to_fill(&mut self, group: usize, page: u32) -> Result<PageFill, KvError> {
        self.prepare_page(group, page)?;
        Ok(self.groups[group].store.lend_to_fill(page))
    }

    pub fn is_lent(&self, group: usize, page: u32) -> bool {
        self.groups[group].store.is_lent(page)
    }

    /// The store that has a layer's KV.
    pub fn store_mut(&mut self, layer: KvLayer) -> &mut KvStore {
        &mut self.groups[layer.group].store
    }

    pub fn bytes_committed(&self) -> usize {
        let committed = |group: &GroupStore| group.store.bytes_committed();
        self.groups.iter().map(committed).sum()
    }
}

/// The rows of one step: for each its token and position, and by KV group its place in the KV and the
/// runs of rows that belong to one sequence.
#[derive(Debug)]
pub struct Batch<'a> {
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    pub groups: Vec<GroupBatch<'a>>,
    /// Rows whose logits are wanted.
    pub logits_rows: Vec<usize>,
}

/// A step's rows in one KV group.
#[derive(Debug, Default)]
pub struct GroupBatch<'a> {
    pub places: Vec<KvPlace>,
    pub runs: Vec<AttentionRun<'a>>,
}

impl<'a> Batch<'a> {
    /// An empty batch for a model with this many KV groups.
    pub fn new(groups: usize) -> Self {
        Self {
            tokens: Vec::new(),
            positions: Vec::new(),
            groups: (0..groups).map(|_| GroupBatch::default()).collect(),
            logits_rows: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Adds `tokens` of one sequence at `position..`; `pages`: by group, its pages from position 0 on,
    /// [`NO_PAGE`] where a window has passed.
    pub fn push_run(
        &mut self,
        tokens: &[u32],
        position: usize,
        pages: impl IntoIterator<Item = &'a [u32]>,
    ) {
        let first = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        let positions = position..position + tokens.len();
        self.positions.extend(positions.clone().map(|at| at as u32));
        for (group, pages) in self.groups.iter_mut().zip(pages) {
            for at in positions.clone() {
                let page = pages[at / PAGE_TOKENS];
                debug_assert_ne!(page, NO_PAGE, "a row's own page is held");
                let row = (at % PAGE_TOKENS) as u32;
                group.places.push(KvPlace { page, row });
            }
            group.runs.push(AttentionRun {
                first,
                n: tokens.len(),
                position: position as u32,
                pages,
            });
        }
    }

    /// The last `n` rows added give logits.
    pub fn want_logits(&mut self, n: usize) {
        let rows = self.tokens.len();
        self.logits_rows.extend(rows - n..rows);
    }
}

/// Intermediate results of a step, allocated once for the largest batch and reused; row-major f32.
/// Widths are those of the widest layer; a narrower one uses the beginning.
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
    /// (n, n_kv_heads · value_dim)
    pub v: Vec<f32>,
    /// (n, n_heads · value_dim)
    pub attended: Vec<f32>,
    /// (n, d_ff)
    pub gate: Vec<f32>,
    /// (n, d_ff)
    pub up: Vec<f32>,
    /// (n, d_model): what a block adds to `x`.
    pub delta: Vec<f32>,
    /// (n, d_model): what a network beside the experts adds.
    pub beside: Vec<f32>,
    pub routed: Routed,
    pub latent: Latent,
    pub layer_inputs: LayerInputRows,
    /// By rotation.
    pub angles: Vec<RopeAngles>,
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
            delta: empty(),
            beside: empty(),
            routed: Routed::default(),
            latent: Latent::default(),
            layer_inputs: LayerInputRows::default(),
            angles: model.ropes.iter().map(|rope| rope.empty_angles()).collect(),
            last: empty(),
            logits: empty(),
        }
    }

    fn resize(&mut self, model: &Model, n: usize, n_logits: usize) {
        let h = &model.hyper;
        let q = h.widest(|layer| h.n_heads * layer.head_dim);
        let k = h.widest(|layer| layer.n_kv_heads * layer.head_dim);
        let v = h.widest(|layer| layer.n_kv_heads * layer.value_dim);
        let attended = h.widest(|layer| h.n_heads * layer.value_dim);
        let ff = model.widest_ffn();
        self.x.resize(n * h.d_model, 0.0);
        self.normed.resize(n * h.d_model, 0.0);
        self.q.resize(n * q, 0.0);
        self.k.resize(n * k, 0.0);
        self.v.resize(n * v, 0.0);
        self.attended.resize(n * attended, 0.0);
        self.gate.resize(n * ff, 0.0);
        self.up.resize(n * ff, 0.0);
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
    forward_tapped(model, batch, kv, act, &mut ())
}

/// As [`forward`], with somebody listening.
pub fn forward_tapped<'a>(
    model: &Model,
    batch: &Batch<'_>,
    kv: &mut KvStores,
    act: &'a mut Activations,
    tap: &mut dyn Tap,
) -> &'a [f32] {
    let (device, hyper) = (&model.device, &model.hyper);
    let d_model = hyper.d_model;
    act.resize(model, batch.len(), batch.logits_rows.len());

    device.embed(&model.token_embd, &batch.tokens, &mut act.x);
    if hyper.embedding_scale != 1.0 {
        device.scale(&mut act.x, hyper.embedding_scale);
    }
    if let Some(inputs) = &model.layer_inputs {
        inputs.prepare(model, &batch.tokens, act);
    }
    for (rope, angles) in model.ropes.iter().zip(&mut act.angles) {
        rope.angles(&batch.positions, angles);
    }
    for stage in &model.stages {
        for (layer, weights) in (stage.first..).zip(&stage.layers) {
            weights.forward(model, layer, batch, kv, act, tap);
        }
    }

    for (out, &row) in act.last.chunks_exact_mut(d_model).zip(&batch.logits_rows) {
        out.copy_from_slice(&act.x[row * d_model..][..d_model]);
    }
    let n = batch.logits_rows.len();
    if n > 0 {
        let normed = &mut act.normed;
        normed.resize(n * d_model, 0.0);
        let eps = hyper.rms_eps;
        device.rms_norm(&act.last, &model.output_norm, eps, n, d_model, normed);
        device.matmul(model.output_matrix(), normed, n, &mut act.logits);
        if hyper.logit_scale != 1.0 {
            device.scale(&mut act.logits, hyper.logit_scale);
        }
        if let Some(cap) = hyper.logit_cap {
            device.softcap(&mut act.logits, cap);
        }
    }
    &act.logits
}
