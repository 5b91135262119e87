use super::{Cpu, Shared};
use crate::generic::attention::{CHUNK_KEYS, MAX_PAIRS, partial_len};
use crate::kv::{HEAD_DIM_MAX, KvStore, PAGE_TOKENS};
use crate::table::{Chunk, KernelTable, Merge};

/// Consecutive queries of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct AttentionRun<'a> {
    /// Row of its first query in q and out.
    pub first: usize,
    /// Queries.
    pub n: usize,
    /// Position of the first query in its sequence; query i sees keys 0..=position + i.
    pub position: u32,
    /// Block table of the sequence from position 0 on; at least up to the last query's page.
    pub pages: &'a [u32],
}

/// (query, head) pairs that an item takes through each chunk before the next: the chunk (128 KiB
/// at head_dim 64) stays in L2 meanwhile.
const ITEM_PAIRS: usize = 4 * MAX_PAIRS;

/// Chunks of an item that is cut along the keys: 2048 keys.
const CUT_CHUNKS: usize = 8;

/// One call's operands and geometry.
struct Call<'a> {
    table: &'static KernelTable,
    kv: &'a KvStore,
    layer: usize,
    q: &'a [f32],
    runs: &'a [AttentionRun<'a>],
    scale: f32,
    n_heads: usize,
    heads_per_kv: usize,
    head_dim: usize,
    /// head_dim padded to 16.
    dim: usize,
}

/// Pairs `first..first + n` (query-major) of one run and kv head.
#[derive(Clone, Copy)]
struct Pairs {
    run: usize,
    kv_head: usize,
    first: usize,
    n: usize,
    /// Chunks that the last pair sees.
    chunks: usize,
}

/// Pairs over a range of chunks.
struct Item {
    pairs: Pairs,
    chunks: (usize, usize),
    /// Where the partials of pairs that several items share go, in f32 from the shared part of the
    /// workspace: `[pair][chunk][partial]`. `None`: the item has all chunks, keeps its partials in
    /// its thread's part and merges them itself.
    shared: Option<usize>,
}

impl Cpu {
    /// Causal grouped-query attention over paged keys and values.
    ///
    /// Shapes:   q, out (n, n_heads, head_dim), n_heads a multiple of the store's n_kv_heads; head
    ///           h reads kv head h / (n_heads / n_kv_heads)
    /// Cost:     keys and values of each run once per kv head and 24 pairs; partials in a workspace
    /// Numerics: chunks of 256 keys on the absolute grid, merged in order (crate docs)
    ///
    /// Runs are ascending and disjoint; rows of `out` that belong to none stay untouched.
    ///
    /// # Panics
    /// If lengths do not match, runs reach outside q, or a block table is short or names a page that
    /// is not committed.
    #[allow(
        clippy::too_many_arguments,
        reason = "an op has as many operands as it has"
    )]
    pub fn attention(
        &self,
        kv: &KvStore,
        layer: usize,
        q: &[f32],
        n_heads: usize,
        runs: &[AttentionRun<'_>],
        scale: f32,
        out: &mut [f32],
    ) {
        let shape = kv.shape();
        let row = n_heads * shape.head_dim;
        assert!(
            layer < shape.n_layers,
            "layer {layer} of {}",
            shape.n_layers
        );
        assert!(
            n_heads.is_multiple_of(shape.n_kv_heads),
            "{n_heads} heads share {}",
            shape.n_kv_heads
        );
        assert!(
            q.len().is_multiple_of(row),
            "q is (n, {n_heads}, {})",
            shape.head_dim
        );
        assert_eq!(q.len(), out.len(), "q and out have one shape");
        check_runs(kv, runs, q.len() / row);
        let call = Call {
            table: self.table,
            kv,
            layer,
            q,
            runs,
            scale,
            n_heads,
            heads_per_kv: n_heads / shape.n_kv_heads,
            head_dim: shape.head_dim,
            dim: kv.dim(),
        };
        let plan = call.plan(self.threads());
        let mut workspace = self.workspace();
        let own_len = plan.own_len.next_multiple_of(16);
        let partials = workspace
            .partials
            .at_least(own_len * self.threads() + plan.shared_len);
        let partials = Shared(partials);
        let shared_at = own_len * self.threads();
        let out = Shared(out.as_mut_ptr());
        let merge = |pairs: &Pairs, partials: *const f32| {
            for pair in 0..pairs.n {
                let to = out
                    .get()
                    .wrapping_add(call.head_of(pairs, pair) * call.head_dim);
                // SAFETY: heads are disjoint parts of `out`, each merged once.
                let out = unsafe { std::slice::from_raw_parts_mut(to, call.head_dim) };
                // SAFETY: the items of these pairs are done.
                unsafe { call.merge_pair(pairs, pair, partials, out) };
            }
        };
        self.pool.for_each_on(plan.items.len(), |thread, index| {
            // Later queries see more: the longest items first, so that threads end together.
            let item = &plan.items[plan.items.len() - 1 - index];
            let at = item.shared.map_or(thread * own_len, |at| shared_at + at);
            let partials = partials.get().wrapping_add(at);
            // SAFETY: a thread's own part is free between items; parts of shared pairs are disjoint
            // by chunk.
            unsafe { call.run_item(item, partials) };
            if item.shared.is_none() {
                merge(&item.pairs, partials);
            }
        });
        self.pool.for_each(plan.cut.len(), |index| {
            let (pairs, at) = &plan.cut[index];
            merge(pairs, partials.get().wrapping_add(shared_at + at));
        });
    }
}

impl Call<'_> {
    /// Partials of an item's pairs over its chunks.
    ///
    /// # Safety
    /// Nobody else uses these pairs' chunks of `partials`; block tables were checked.
    unsafe fn run_item(&self, item: &Item, partials: *mut f32) {
        let pairs = &item.pairs;
        let run = &self.runs[pairs.run];
        let dim = self.dim;
        // Per group of MAX_PAIRS: `[dim][MAX_PAIRS]`, one row of broadcasts per element.
        let mut scaled = [0f32; ITEM_PAIRS * HEAD_DIM_MAX];
        for pair in 0..pairs.n {
            let head = self.head_of(pairs, pair);
            let from = &self.q[head * self.head_dim..][..self.head_dim];
            let (group, column) = (pair / MAX_PAIRS, pair % MAX_PAIRS);
            let to = scaled[group * MAX_PAIRS * dim..]
                .iter_mut()
                .skip(column)
                .step_by(MAX_PAIRS);
            for (to, value) in to.zip(from) {
                *to = value * self.scale;
            }
        }
        let partial = partial_len(dim);
        let stride = pairs.chunks * partial;
        for chunk in item.chunks.0..item.chunks.1 {
            let view = self.kv.chunk(self.layer, pairs.kv_head, run.pages, chunk);
            for pair in (0..pairs.n).step_by(MAX_PAIRS) {
                let count = (pairs.n - pair).min(MAX_PAIRS);
                let mut seen = [0; MAX_PAIRS];
                for (i, seen) in seen[..count].iter_mut().enumerate() {
                    let query = (pairs.first + pair + i) / self.heads_per_kv;
                    let keys = run.position as usize + query + 1;
                    *seen = keys.saturating_sub(chunk * CHUNK_KEYS).min(CHUNK_KEYS);
                }
                // Later pairs see at least as much: those that see nothing come first.
                let blind = seen[..count].iter().take_while(|&&seen| seen == 0).count();
                if blind < count {
                    let first = pair + blind;
                    let at = first * stride + chunk * partial;
                    let arguments = Chunk {
                        view,
                        q: scaled[pair * dim + blind..].as_ptr(),
                        seen: &seen[blind..count],
                        partials: partials.wrapping_add(at),
                        stride,
                    };
                    // SAFETY: the table was chosen for this processor; the rest is the
                    // caller's promise.
                    unsafe { (self.table.chunk)(&arguments) };
                }
            }
        }
    }

    /// # Safety
    /// `partials` holds all chunks of these pairs, and nobody writes them.
    unsafe fn merge_pair(&self, pairs: &Pairs, pair: usize, partials: *const f32, out: &mut [f32]) {
        let query = (pairs.first + pair) / self.heads_per_kv;
        let keys = self.runs[pairs.run].position as usize + query + 1;
        let partial = partial_len(self.dim);
        let arguments = Merge {
            partials: partials.wrapping_add(pair * pairs.chunks * partial),
            chunks: keys.div_ceil(CHUNK_KEYS),
            stride: partial,
            dim: self.dim,
        };
        // SAFETY: the table was chosen for this processor; the rest is the
        // caller's promise.
        unsafe { (self.table.merge)(&arguments, out) };
    }

    /// Index of a pair's head in q and out.
    fn head_of(&self, pairs: &Pairs, pair: usize) -> usize {
        let index = pairs.first + pair;
        let (query, member) = (index / self.heads_per_kv, index % self.heads_per_kv);
        let row = self.runs[pairs.run].first + query;
        row * self.n_heads + pairs.kv_head * self.heads_per_kv + member
    }

    /// Cuts the runs into items, and those along the keys that would keep one thread busy alone.
    fn plan(&self, threads: usize) -> Plan {
        let n_kv_heads = self.n_heads / self.heads_per_kv;
        let mut groups = Vec::new();
        for (run, AttentionRun { n, position, .. }) in self.runs.iter().enumerate() {
            let all = n * self.heads_per_kv;
            for kv_head in 0..n_kv_heads {
                for first in (0..all).step_by(ITEM_PAIRS) {
                    let n = ITEM_PAIRS.min(all - first);
                    let last = (first + n - 1) / self.heads_per_kv;
                    let chunks = (*position as usize + last + 1).div_ceil(CHUNK_KEYS);
                    groups.push(Pairs {
                        run,
                        kv_head,
                        first,
                        n,
                        chunks,
                    });
                }
            }
        }
        cut(groups, partial_len(self.dim), threads)
    }
}

fn check_runs(kv: &KvStore, runs: &[AttentionRun<'_>], rows: usize) {
    let mut taken = 0;
    for run in runs {
        assert!(
            run.first >= taken,
            "run at row {} overlaps or precedes the one before",
            run.first
        );
        taken = run.first + run.n;
        let keys = run.position as usize + run.n;
        let pages = keys.div_ceil(PAGE_TOKENS);
        assert!(
            run.pages.len() >= pages,
            "{} pages for {keys} keys",
            run.pages.len()
        );
        for &page in &run.pages[..pages] {
            kv.check_page(page);
        }
    }
    assert!(taken <= rows, "runs reach row {taken} of {rows}");
}

/// A call cut into items.
struct Plan {
    items: Vec<Item>,
    /// Pairs whose chunks several items share, and where their partials lie.
    cut: Vec<(Pairs, usize)>,
    /// f32 that the partials of one uncut item take at most.
    own_len: usize,
    /// f32 that the partials of all cut pairs take.
    shared_len: usize,
}

/// Makes items of the groups, several along the keys of one that would keep a thread busy alone.
fn cut(groups: Vec<Pairs>, partial_len: usize, threads: usize) -> Plan {
    let total: usize = groups.iter().map(|pairs| pairs.n * pairs.chunks).sum();
    let mut plan = Plan {
        items: Vec::new(),
        cut: Vec::new(),
        own_len: 0,
        shared_len: 0,
    };
    for pairs in groups {
        let len = pairs.n * pairs.chunks * partial_len;
        let heavy = pairs.n * pairs.chunks * 4 * threads > total;
        if threads == 1 || !heavy || pairs.chunks <= CUT_CHUNKS {
            plan.items.push(Item {
                pairs,
                chunks: (0, pairs.chunks),
                shared: None,
            });
            plan.own_len = plan.own_len.max(len);
            continue;
        }
        for first in (0..pairs.chunks).step_by(CUT_CHUNKS) {
            let chunks = (first, (first + CUT_CHUNKS).min(pairs.chunks));
            plan.items.push(Item {
                pairs,
                chunks,
                shared: Some(plan.shared_len),
            });
        }
        plan.cut.push((pairs, plan.shared_len));
        plan.shared_len += len;
    }
    plan
}
