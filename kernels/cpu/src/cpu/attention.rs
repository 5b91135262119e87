use vitriol_kernels_core::kv::Rotation;
use vitriol_kernels_core::reference::AttentionOptions;

use super::{Cpu, Shared};
use crate::generic::attention::{
    CHUNK_KEYS, MAX_GROUPS, MAX_PAIRS, PairGroup, Seen, partial_len, scratch_len,
};
use crate::kv::{HEAD_DIM_MAX, KvStore, PAGE_TOKENS};
use crate::pool::dealt;
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
    /// Block table of the sequence from position 0 on; at least up to the last query's page. Pages
    /// that end before the first query's window are not looked at: any number may stand there.
    pub pages: &'a [u32],
}

/// (query, head) pairs that an item takes through each chunk before the next: the chunk (128 KiB
/// at head_dim 64) stays in L2 meanwhile.
const ITEM_PAIRS: usize = MAX_GROUPS * MAX_PAIRS;

/// Chunks of an item that is cut along the keys: 1024 keys, some 10 µs of them at head_dim 64.
const CUT_CHUNKS: usize = 4;

/// One call's operands and geometry.
struct Call<'a> {
    table: &'static KernelTable,
    kv: &'a KvStore,
    layer: usize,
    q: &'a [f32],
    runs: &'a [AttentionRun<'a>],
    options: AttentionOptions<'a>,
    n_heads: usize,
    heads_per_kv: usize,
    key_dim: usize,
    value_dim: usize,
    /// Both as stored, padding included.
    stored_key_dim: usize,
    stored_value_dim: usize,
    key_rotation: Rotation,
    value_rotation: Rotation,
}

/// Pairs `first..first + n` (query-major) of one run and kv head.
#[derive(Clone, Copy)]
struct Pairs {
    run: usize,
    kv_head: usize,
    first: usize,
    n: usize,
    /// Chunks that any of them sees.
    first_chunk: usize,
    end_chunk: usize,
}

impl Pairs {
    fn chunks(&self) -> usize {
        self.end_chunk - self.first_chunk
    }
}

/// Pairs over a range of chunks, absolute ones.
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
    /// Shapes:   q (n, n_heads, key_dim), out (n, n_heads, value_dim); n_heads a multiple of the
    ///           store's n_kv_heads; head h reads kv head h / (n_heads / n_kv_heads); sinks (n_heads)
    /// Cost:     keys and values that each run sees once per kv head and 24 pairs; partials in a
    ///           workspace
    /// Numerics: chunks of 256 keys on the absolute grid, merged in order (crate docs)
    ///
    /// Runs are ascending and disjoint; rows of `out` that belong to none stay untouched.
    ///
    /// # Panics
    /// If lengths do not match, runs reach outside q, a block table is short or names a page that is
    /// not committed and not wholly before the window, or the window is 0.
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
        options: AttentionOptions<'_>,
        out: &mut [f32],
    ) {
        let call = self.attention_call(kv, layer, q, n_heads, runs, options, out.len());
        let plan = call.plan(self.threads());
        let mut workspace = self.workspace();
        let working_len = call.scratch_len() + ITEM_PAIRS * call.stored_key_dim;
        let own_len = (working_len + plan.own_len).next_multiple_of(16);
        let memory = workspace
            .partials
            .at_least(own_len * self.threads() + plan.shared_len);
        let memory = Shared(memory);
        let shared_at = own_len * self.threads();
        let out = Shared(out.as_mut_ptr());
        let merge = |pairs: &Pairs, partials: *mut f32| {
            for pair in 0..pairs.n {
                let to = out
                    .get()
                    .wrapping_add(call.head_of(pairs, pair) * call.value_dim);
                // SAFETY: heads are disjoint parts of `out`, each merged once.
                let out = unsafe { std::slice::from_raw_parts_mut(to, call.value_dim) };
                // SAFETY: the items of these pairs are done.
                unsafe { call.merge_pair(pairs, pair, partials, out) };
            }
        };
        self.pool.for_each_on(plan.items.len(), |thread, index| {
            // Later queries see more: every thread begins with the longest items, so that all end together.
            let place = dealt(index, plan.items.len(), self.threads());
            let item = &plan.items[plan.items.len() - 1 - place];
            let own = memory.get().wrapping_add(thread * own_len);
            let partials = match item.shared {
                Some(at) => memory.get().wrapping_add(shared_at + at),
                None => own.wrapping_add(working_len),
            };
            // SAFETY: a thread's own part is free between items; parts of shared pairs are disjoint
            // by chunk.
            unsafe { call.run_item(item, own, partials) };
            if item.shared.is_none() {
                merge(&item.pairs, partials);
            }
        });
        self.pool.for_each(plan.cut.len(), |index| {
            let (pairs, at) = &plan.cut[index];
            merge(pairs, memory.get().wrapping_add(shared_at + at));
        });
    }

    /// The operands, checked against each other.
    #[allow(
        clippy::too_many_arguments,
        reason = "an op has as many operands as it has"
    )]
    fn attention_call<'a>(
        &self,
        kv: &'a KvStore,
        layer: usize,
        q: &'a [f32],
        n_heads: usize,
        runs: &'a [AttentionRun<'a>],
        options: AttentionOptions<'a>,
        out_len: usize,
    ) -> Call<'a> {
        let shape = kv.shape();
        let (key_dim, value_dim) = (shape.key_dim, shape.value_dim);
        assert!(
            layer < shape.n_layers,
            "layer {layer} of {}",
            shape.n_layers
        );
        assert!(
            n_heads > 0 && n_heads.is_multiple_of(shape.n_kv_heads),
            "{n_heads} heads share {}",
            shape.n_kv_heads
        );
        let row = n_heads * key_dim;
        assert!(
            q.len().is_multiple_of(row),
            "q is (n, {n_heads}, {key_dim})"
        );
        let n = q.len() / row;
        assert_eq!(
            out_len,
            n * n_heads * value_dim,
            "out is (n {n}, {n_heads}, {value_dim})"
        );
        if let Some(sinks) = options.sinks {
            assert_eq!(sinks.len(), n_heads, "one sink per head");
        }
        assert_ne!(options.window, Some(0), "a query sees itself at least");
        check_runs(kv, runs, n, options.window);
        Call {
            table: self.table,
            kv,
            layer,
            q,
            runs,
            options,
            n_heads,
            heads_per_kv: n_heads / shape.n_kv_heads,
            key_dim,
            value_dim,
            stored_key_dim: kv.stored_key_dim(),
            stored_value_dim: kv.stored_value_dim(),
            key_rotation: kv.key_rotation(),
            value_rotation: kv.value_rotation(),
        }
    }
}

/// Keys that the query at a position sees, absolute: from the first to one past its own.
fn keys_seen(position: usize, window: Option<u32>) -> Seen {
    let to = position + 1;
    let from = window.map_or(0, |window| to.saturating_sub(window as usize));
    Seen { from, to }
}

impl Call<'_> {
    fn scratch_len(&self) -> usize {
        scratch_len(self.stored_key_dim, self.stored_value_dim)
    }

    /// Keys that pair `pair` sees, absolute.
    fn seen(&self, pairs: &Pairs, pair: usize) -> Seen {
        let query = (pairs.first + pair) / self.heads_per_kv;
        let position = self.runs[pairs.run].position as usize + query;
        keys_seen(position, self.options.window)
    }

    /// What of it lies in a chunk, counted from the chunk's first key; empty ranges are possible.
    fn seen_in(&self, pairs: &Pairs, pair: usize, chunk: usize) -> Seen {
        let Seen { from, to } = self.seen(pairs, pair);
        let at = |key: usize| key.saturating_sub(chunk * CHUNK_KEYS).min(CHUNK_KEYS);
        Seen {
            from: at(from),
            to: at(to),
        }
    }

    /// Writes the queries of an item's pairs to `queries`: per group of MAX_PAIRS
    /// `[stored_key_dim][MAX_PAIRS]`, one row of broadcasts per element, rotated, scaled, padded.
    ///
    /// # Safety
    /// `queries` is writable for ITEM_PAIRS heads.
    unsafe fn prepare_queries(&self, pairs: &Pairs, queries: *mut f32) {
        let mut rotated = [0f32; HEAD_DIM_MAX];
        for pair in 0..pairs.n {
            let head = self.head_of(pairs, pair);
            let from = &self.q[head * self.key_dim..][..self.key_dim];
            let query = &mut rotated[..self.key_dim];
            query.copy_from_slice(from);
            self.key_rotation.apply(query);
            let (group, column) = (pair / MAX_PAIRS, pair % MAX_PAIRS);
            let to = queries.wrapping_add(group * MAX_PAIRS * self.stored_key_dim + column);
            for d in 0..self.stored_key_dim {
                let value = query.get(d).map_or(0.0, |value| value * self.options.scale);
                // SAFETY: row d of the group's queries.
                unsafe { to.wrapping_add(d * MAX_PAIRS).write(value) };
            }
        }
    }

    /// Partials of an item's pairs over its chunks.
    ///
    /// # Safety
    /// Nobody else uses `own` (the scratch of a chunk, then ITEM_PAIRS heads) or these pairs' chunks of
    /// `partials`; block tables were checked.
    unsafe fn run_item(&self, item: &Item, own: *mut f32, partials: *mut f32) {
        let scratch = own;
        let queries = own.wrapping_add(self.scratch_len());
        let pairs = &item.pairs;
        let run = &self.runs[pairs.run];
        // SAFETY: the caller's promise.
        unsafe { self.prepare_queries(pairs, queries) };
        let partial = partial_len(self.stored_value_dim);
        let stride = pairs.chunks() * partial;
        for chunk in item.chunks.0..item.chunks.1 {
            let view = self.kv.chunk(self.layer, pairs.kv_head, run.pages, chunk);
            let mut seen = [[Seen::default(); MAX_PAIRS]; MAX_GROUPS];
            for pair in 0..pairs.n {
                seen[pair / MAX_PAIRS][pair % MAX_PAIRS] = self.seen_in(pairs, pair, chunk);
            }
            let group = |index: usize| {
                let first = index * MAX_PAIRS;
                let count = MAX_PAIRS.min(pairs.n.saturating_sub(first));
                // Early pairs end before the chunk, late ones have their window after it: those that
                // see some of it follow each other.
                let seen = &seen[index][..count];
                let is_blind = |seen: &&Seen| seen.from >= seen.to;
                let blind = seen.iter().take_while(is_blind).count();
                let seen = &seen[blind..];
                let seen = &seen[..seen.iter().take_while(|seen| !is_blind(seen)).count()];
                let at = (first + blind) * stride + (chunk - pairs.first_chunk) * partial;
                PairGroup {
                    q: queries.wrapping_add(first * self.stored_key_dim + blind),
                    seen,
                    partials: partials.wrapping_add(at),
                }
            };
            let mut groups: [PairGroup<'_>; MAX_GROUPS] = std::array::from_fn(group);
            let mut count = 0;
            for index in 0..MAX_GROUPS {
                if !groups[index].seen.is_empty() {
                    groups[count] = groups[index];
                    count += 1;
                }
            }
            if count == 0 {
                continue;
            }
            let arguments = Chunk {
                view,
                groups: &groups[..count],
                softcap: self.options.softcap,
                stride,
                scratch,
            };
            // SAFETY: the table was chosen for this processor; the rest is the caller's promise.
            unsafe { (self.table.chunk)(&arguments) };
        }
    }

    /// # Safety
    /// `partials` holds all chunks of these pairs, and nobody else uses them.
    unsafe fn merge_pair(&self, pairs: &Pairs, pair: usize, partials: *mut f32, out: &mut [f32]) {
        let Seen { from, to } = self.seen(pairs, pair);
        let first = from / CHUNK_KEYS;
        let partial = partial_len(self.stored_value_dim);
        let at = pair * pairs.chunks() + first - pairs.first_chunk;
        let head = self.head_of(pairs, pair) % self.n_heads;
        let arguments = Merge {
            partials: partials.wrapping_add(at * partial),
            chunks: to.div_ceil(CHUNK_KEYS) - first,
            stride: partial,
            value_dim: self.stored_value_dim,
            sink: self.options.sinks.map(|sinks| sinks[head]),
        };
        // SAFETY: the table was chosen for this processor; the rest is the
        // caller's promise.
        unsafe { (self.table.merge)(&arguments, out) };
        self.value_rotation.apply(out);
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
        for (run, AttentionRun { n, .. }) in self.runs.iter().enumerate() {
            let all = n * self.heads_per_kv;
            for kv_head in 0..n_kv_heads {
                for first in (0..all).step_by(ITEM_PAIRS) {
                    let mut pairs = Pairs {
                        run,
                        kv_head,
                        first,
                        n: ITEM_PAIRS.min(all - first),
                        first_chunk: 0,
                        end_chunk: 0,
                    };
                    pairs.first_chunk = self.seen(&pairs, 0).from / CHUNK_KEYS;
                    pairs.end_chunk = self.seen(&pairs, pairs.n - 1).to.div_ceil(CHUNK_KEYS);
                    groups.push(pairs);
                }
            }
        }
        cut(groups, partial_len(self.stored_value_dim), threads)
    }
}

fn check_runs(kv: &KvStore, runs: &[AttentionRun<'_>], rows: usize, window: Option<u32>) {
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
        let first = keys_seen(run.position as usize, window).from / PAGE_TOKENS;
        for &page in run.pages[..pages].iter().skip(first) {
            kv.check_readable(page);
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
    let total: usize = groups.iter().map(|pairs| pairs.n * pairs.chunks()).sum();
    let mut plan = Plan {
        items: Vec::new(),
        cut: Vec::new(),
        own_len: 0,
        shared_len: 0,
    };
    for pairs in groups {
        let len = pairs.n * pairs.chunks() * partial_len;
        let heavy = pairs.n * pairs.chunks() * 4 * threads > total;
        let (start, end) = (pairs.first_chunk, pairs.end_chunk);
        if threads == 1 || !heavy || pairs.chunks() <= CUT_CHUNKS {
            plan.items.push(Item {
                pairs,
                chunks: (start, end),
                shared: None,
            });
            plan.own_len = plan.own_len.max(len);
            continue;
        }
        for first in (start..end).step_by(CUT_CHUNKS) {
            plan.items.push(Item {
                pairs,
                chunks: (first, (first + CUT_CHUNKS).min(end)),
                shared: Some(plan.shared_len),
            });
        }
        plan.cut.push((pairs, plan.shared_len));
        plan.shared_len += len;
    }
    plan
}
