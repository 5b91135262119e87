//! Attention of a few (query, head) pairs over one chunk of 256 keys, and the merge of chunks.
//!
//! Pairs share a key/value head: each key and value is loaded once for all of them. What happens
//! to one pair does not depend on the others, so any grouping gives the same bits. Keys are read as
//! the page holds them, decoded in registers: a tile of 16 keys is laid out like a weight panel.

use vitriol_kernels_core::KvCodec;

use super::elementwise::{exp, softcap_lanes};
use super::formats::{F16, F32, PanelFormat, Panels, Q4_0, Q8_0, WeightSink};
use super::values::{self, ValueFormat};
use crate::kv::PAGE_TOKENS;
use crate::simd::Simd;

/// Keys of a chunk: the absolute grid on which partial results are formed.
pub(crate) const CHUNK_KEYS: usize = 256;
/// Pages of a chunk.
pub(crate) const CHUNK_PAGES: usize = CHUNK_KEYS / PAGE_TOKENS;
/// Most pairs per call.
pub(crate) const MAX_PAIRS: usize = 6;

/// Keys of one chunk as the kernel sees them: per page of 64 tokens, the key and value tensors of
/// one key/value head. A page that no pair sees may be anything.
#[derive(Clone, Copy)]
pub(crate) struct ChunkView {
    /// Keys: 4 tiles of 16 keys, each a panel of [`super::formats`] with `key_dim` columns.
    /// One more than the chunk has: what comes next, to be prefetched.
    pub(crate) keys: [*const u8; CHUNK_PAGES + 1],
    /// Values: 64 rows of `value_dim` ([`super::values`]); one more likewise.
    pub(crate) values: [*const u8; CHUNK_PAGES + 1],
    pub(crate) key_codec: KvCodec,
    pub(crate) value_codec: KvCodec,
    /// Elements of a stored key head, padding included.
    pub(crate) key_dim: usize,
    /// Elements of a stored value head, padding included.
    pub(crate) value_dim: usize,
}

/// Bytes from a page to the next one. A page is what a kv head has of 64 tokens: only for its length, some
/// KiB, is memory read in sequence, too short for the hardware to run ahead.
#[inline(always)]
fn ahead(pages: &[*const u8; CHUNK_PAGES + 1], page: usize) -> usize {
    pages[page + 1].addr().wrapping_sub(pages[page].addr())
}

/// Keys `from..to` of a chunk; at least one where a kernel gets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Seen {
    /// What of it lies in page `page` of the chunk, counted from the page's first key.
    #[inline(always)]
    fn in_page(self, page: usize) -> (usize, usize) {
        let first = page * PAGE_TOKENS;
        let at = |key: usize| key.saturating_sub(first).min(PAGE_TOKENS);
        (at(self.from), at(self.to))
    }
}

/// Partial result of one pair over one chunk: Σ exp·v (`value_dim`), max score, Σ exp.
#[inline(always)]
pub(crate) const fn partial_len(value_dim: usize) -> usize {
    value_dim + 16
}

/// Up to [`MAX_PAIRS`] pairs that go through a chunk side by side; pair g sees the keys `seen[g]`, at
/// least one, and together they see all from the first to the last that any sees.
///
/// Shapes: q `[key_dim][MAX_PAIRS]`, scaled, padded, pair g in column g; partials: pair g at
/// `partials + g·stride`, `[value_dim]` output, then m, then l.
#[derive(Clone, Copy)]
pub(crate) struct PairGroup<'a> {
    pub(crate) q: *const f32,
    pub(crate) seen: &'a [Seen],
    pub(crate) partials: *mut f32,
}

impl PairGroup<'_> {
    /// One of its pairs as a group; partials are `stride` apart.
    #[inline(always)]
    fn alone(&self, pair: usize, stride: usize) -> Self {
        Self {
            q: self.q.wrapping_add(pair),
            seen: &self.seen[pair..=pair],
            partials: self.partials.wrapping_add(pair * stride),
        }
    }

    /// Keys from the first to the last that any pair sees.
    #[inline(always)]
    fn keys(&self) -> (usize, usize) {
        let first = self.seen.iter().map(|seen| seen.from).min().unwrap_or(0);
        let last = self.seen.iter().map(|seen| seen.to).max().unwrap_or(0);
        (first, last)
    }
}

/// Most groups of a call.
pub(crate) const MAX_GROUPS: usize = 8;

/// f32 of the scratch of [`chunk`]: scores of all pairs, and a decoded page of keys or values.
pub(crate) const fn scratch_len(key_dim: usize, value_dim: usize) -> usize {
    let dim = if key_dim > value_dim {
        key_dim
    } else {
        value_dim
    };
    MAX_GROUPS * MAX_PAIRS * CHUNK_KEYS + PAGE_TOKENS * dim
}

/// `$body` with the number of pairs as the constant `$g`, and tiles of keys, or columns of 16 values, to
/// take side by side as `$t`: pairs · tiles accumulators, at most 24 (wide) or 6.
macro_rules! by_pairs {
    ($pairs:expr, $g:ident $t:ident => $body:expr) => {
        by_pairs!(@ $pairs, $g $t, $body, 1 4 4, 2 4 2, 3 4 2, 4 4 1, 5 4 1, 6 4 1)
    };
    (@ $pairs:expr, $g:ident $t:ident, $body:expr, $($count:literal $wide:literal $narrow:literal),*) => {
        match $pairs {
            $($count if S::WIDE => {
                const $g: usize = $count;
                const $t: usize = $wide;
                $body
            }
            $count => {
                const $g: usize = $count;
                const $t: usize = $narrow;
                $body
            })*
            pairs => unreachable!("{pairs} pairs in a group"),
        }
    };
}

/// Runs up to [`MAX_GROUPS`] groups of pairs over a chunk. Scores become cap·tanh(score/cap).
///
/// Several groups decode each page once, to f32; one reads it as it is. Decoding is exact: no bit
/// depends on it.
///
/// # Safety
/// Pages from the first to the last key any pair sees readable; queries and partials sized as
/// [`PairGroup`] says, `scratch` writable for [`scratch_len`] f32.
#[inline(always)]
pub(crate) unsafe fn chunk<S: Simd>(
    s: S,
    view: &ChunkView,
    groups: &[PairGroup<'_>],
    softcap: Option<f32>,
    stride: usize,
    scratch: *mut f32,
) {
    let first = groups.iter().map(|group| group.keys().0).min().unwrap_or(0);
    let last = groups.iter().map(|group| group.keys().1).max().unwrap_or(0);
    let pages = first / PAGE_TOKENS..last.div_ceil(PAGE_TOKENS);
    let decoded = scratch.wrapping_add(MAX_GROUPS * MAX_PAIRS * CHUNK_KEYS);
    let weights = |group: usize| scratch.wrapping_add(group * MAX_PAIRS * CHUNK_KEYS);
    let decode = groups.len() > 1;
    for page in pages.clone() {
        let (mut view, mut next) = (*view, ahead(&view.keys, page));
        if decode && view.key_codec != KvCodec::F32 {
            // SAFETY: a page that some pair sees; the scratch holds one.
            unsafe { decode_keys(s, &view, page, decoded) };
            (view.keys[page], view.key_codec, next) = (decoded.cast(), KvCodec::F32, 0);
        }
        for (index, group) in groups.iter().enumerate() {
            if !S::SIDE_BY_SIDE {
                for pair in 0..group.seen.len() {
                    let scores = weights(index).wrapping_add(pair * CHUNK_KEYS);
                    let group = group.alone(pair, stride);
                    // SAFETY: the caller's promise.
                    unsafe { score_page::<S, 1, 2>(s, &view, page, next, &group, scores) };
                }
                continue;
            }
            // SAFETY: the caller's promise.
            by_pairs!(group.seen.len(), G TILES => unsafe {
                score_page::<S, G, TILES>(s, &view, page, next, group, weights(index));
            });
        }
    }
    for (index, group) in groups.iter().enumerate() {
        for (pair, &seen) in group.seen.iter().enumerate() {
            let to = group.partials.wrapping_add(pair * stride);
            let scores = weights(index).wrapping_add(pair * CHUNK_KEYS);
            // SAFETY: a partial holds value_dim + 2 elements at least, the scratch the scores.
            unsafe {
                let (m, l) = soften(s, scores, seen, softcap);
                to.wrapping_add(view.value_dim).write(m);
                to.wrapping_add(view.value_dim + 1).write(l);
                std::ptr::write_bytes(to, 0, view.value_dim);
            }
        }
    }
    for page in pages {
        let (mut view, mut next) = (*view, ahead(&view.values, page));
        if decode && view.value_codec != KvCodec::F32 {
            // SAFETY: a page that some pair sees; the scratch holds one.
            unsafe { decode_values(s, &view, page, decoded) };
            (view.values[page], view.value_codec, next) = (decoded.cast(), KvCodec::F32, 0);
        }
        for (index, group) in groups.iter().enumerate() {
            if !S::SIDE_BY_SIDE {
                for pair in 0..group.seen.len() {
                    let weights = weights(index).wrapping_add(pair * CHUNK_KEYS);
                    let group = group.alone(pair, stride);
                    let partials = Partials {
                        base: group.partials,
                        stride,
                    };
                    // SAFETY: the caller's promise.
                    unsafe {
                        mix_by_codec::<S, 1, 2>(s, &view, (page, next), weights, &group, partials);
                    }
                }
                continue;
            }
            let partials = Partials {
                base: group.partials,
                stride,
            };
            // SAFETY: the caller's promise.
            by_pairs!(group.seen.len(), G COLUMNS => unsafe {
                let page = (page, next);
                mix_by_codec::<S, G, COLUMNS>(s, &view, page, weights(index), group, partials);
            });
        }
    }
}

/// Sink that stores decoded keys as an f32 tile: `[d][16]`.
struct ToTile(*mut f32);

impl<S: Simd> WeightSink<S, 1> for ToTile {
    #[inline(always)]
    fn take(&mut self, s: S, d: usize, k: [S::F; 1]) {
        // SAFETY: the scratch holds the tile, by the promise of `decode_keys`.
        unsafe { s.store(self.0.wrapping_add(16 * d), k[0]) };
    }
}

/// The keys of a page as f32, tile by tile.
///
/// # Safety
/// The page is readable, `to` writable for its 64 keys.
#[inline(always)]
unsafe fn decode_keys<S: Simd>(s: S, view: &ChunkView, page: usize, to: *mut f32) {
    let tile_bytes = 16 * view.key_codec.head_bytes(view.key_dim);
    for tile in 0..PAGE_TOKENS / 16 {
        let panel = Panels::<1> {
            first: view.keys[page].wrapping_add(tile * tile_bytes),
            stride: tile_bytes,
            cols: view.key_dim,
            ahead: ahead(&view.keys, page),
        };
        let mut sink = ToTile(to.wrapping_add(tile * 16 * view.key_dim));
        // SAFETY: a tile of a readable page; the codec says what it holds.
        unsafe {
            match view.key_codec {
                KvCodec::F32 => F32::decode::<S, 1>(s, panel, 0, view.key_dim, &mut sink),
                KvCodec::F16 => F16::decode::<S, 1>(s, panel, 0, view.key_dim, &mut sink),
                KvCodec::Q8_0 => Q8_0::decode::<S, 1>(s, panel, 0, view.key_dim, &mut sink),
                KvCodec::Q4_0 => Q4_0::decode::<S, 1>(s, panel, 0, view.key_dim, &mut sink),
            }
        }
    }
}

/// The values of a page as f32, row by row.
///
/// # Safety
/// The page is readable, `to` writable for its 64 rows.
#[inline(always)]
unsafe fn decode_values<S: Simd>(s: S, view: &ChunkView, page: usize, to: *mut f32) {
    // SAFETY: the caller's promise; the codec says what the page holds.
    unsafe {
        match view.value_codec {
            KvCodec::F32 => decode_rows::<S, values::F32>(s, view, page, to),
            KvCodec::F16 => decode_rows::<S, values::F16>(s, view, page, to),
            KvCodec::Q8_0 => decode_rows::<S, values::Q8_0>(s, view, page, to),
            KvCodec::Q4_0 => decode_rows::<S, values::Q4_0>(s, view, page, to),
        }
    }
}

/// # Safety
/// As [`decode_values`]; the values are of format `V`.
#[inline(always)]
unsafe fn decode_rows<S: Simd, V: ValueFormat>(s: S, view: &ChunkView, page: usize, to: *mut f32) {
    for column in (0..view.value_dim).step_by(16) {
        // SAFETY: 16 columns of a readable page.
        let rows = unsafe { V::rows::<S, 1>(s, view.values[page], view.value_dim, column) };
        for key in 0..PAGE_TOKENS {
            // SAFETY: as above; the scratch holds the page.
            unsafe {
                let v = V::load(s, &rows, key, 0);
                V::prefetch::<S, 1>(s, &rows, key, ahead(&view.values, page));
                s.store(to.wrapping_add(key * view.value_dim + column), v);
            }
        }
    }
}

/// Scores of a group's pairs with the keys of a page, as far as any sees them.
///
/// # Safety
/// As [`chunk`]; `scores` is writable for a row of `CHUNK_KEYS` for each pair.
#[inline(always)]
unsafe fn score_page<S: Simd, const G: usize, const TILES: usize>(
    s: S,
    view: &ChunkView,
    page: usize,
    ahead: usize,
    group: &PairGroup<'_>,
    scores: *mut f32,
) {
    let (first, last) = group.keys();
    let page_first = page * PAGE_TOKENS;
    let keys = (first.max(page_first), last.min(page_first + PAGE_TOKENS));
    // SAFETY: the caller's promise; the codec says what the page holds.
    unsafe {
        match view.key_codec {
            KvCodec::F32 => score_keys::<S, F32, G, TILES>(s, view, ahead, group.q, keys, scores),
            KvCodec::F16 => score_keys::<S, F16, G, TILES>(s, view, ahead, group.q, keys, scores),
            KvCodec::Q8_0 => score_keys::<S, Q8_0, G, TILES>(s, view, ahead, group.q, keys, scores),
            KvCodec::Q4_0 => score_keys::<S, Q4_0, G, TILES>(s, view, ahead, group.q, keys, scores),
        }
    }
}

/// # Safety
/// As [`chunk`]; `weights` is a row of `CHUNK_KEYS` for each pair.
#[inline(always)]
unsafe fn mix_by_codec<S: Simd, const G: usize, const COLUMNS: usize>(
    s: S,
    view: &ChunkView,
    page: (usize, usize),
    weights: *const f32,
    group: &PairGroup<'_>,
    partials: Partials,
) {
    let mut seen = [Seen::default(); G];
    seen.copy_from_slice(group.seen);
    // SAFETY: the caller's promise; the codec says what the page holds.
    unsafe {
        match view.value_codec {
            KvCodec::F32 => {
                mix_page::<S, values::F32, G, COLUMNS>(s, view, page, weights, seen, partials)
            }
            KvCodec::F16 => {
                mix_page::<S, values::F16, G, COLUMNS>(s, view, page, weights, seen, partials)
            }
            KvCodec::Q8_0 => {
                mix_page::<S, values::Q8_0, G, COLUMNS>(s, view, page, weights, seen, partials)
            }
            KvCodec::Q4_0 => {
                mix_page::<S, values::Q4_0, G, COLUMNS>(s, view, page, weights, seen, partials)
            }
        }
    }
}

/// Where the partials of a call's pairs lie.
#[derive(Clone, Copy)]
struct Partials {
    base: *mut f32,
    stride: usize,
}

impl Partials {
    #[inline(always)]
    fn at(self, pair: usize, element: usize) -> *mut f32 {
        self.base.wrapping_add(pair * self.stride + element)
    }
}

/// Scores of `G` pairs with the keys of `TILES` tiles, fed with key elements in ascending d.
struct Scores<S: Simd, const G: usize, const TILES: usize> {
    acc: [[S::F; TILES]; G],
    q: *const f32,
}

impl<S: Simd, const G: usize, const TILES: usize> WeightSink<S, TILES> for Scores<S, G, TILES> {
    #[inline(always)]
    fn take(&mut self, s: S, d: usize, k: [S::F; TILES]) {
        for g in 0..G {
            // SAFETY: q holds key_dim rows of MAX_PAIRS, by the promise of `score_keys`.
            let x = s.splat(unsafe { *self.q.wrapping_add(d * MAX_PAIRS + g) });
            for t in 0..TILES {
                self.acc[g][t] = s.fma(x, k[t], self.acc[g][t]);
            }
        }
    }
}

/// Scores of keys `first..last` (out to whole groups of tiles): one chain over ascending d per key.
///
/// # Safety
/// As [`chunk`]; the keys are panels of `P`.
#[inline(always)]
unsafe fn score_keys<S: Simd, P: PanelFormat, const G: usize, const TILES: usize>(
    s: S,
    view: &ChunkView,
    ahead: usize,
    q: *const f32,
    (first, last): (usize, usize),
    scores: *mut f32,
) {
    let tile_bytes = 16 * view.key_codec.head_bytes(view.key_dim);
    let step = 16 * TILES;
    // A group of tiles may reach past the first and last key seen, never past their pages.
    for key in (first / step * step..last).step_by(step) {
        let tile = key % PAGE_TOKENS / 16;
        let panels = Panels::<TILES> {
            first: view.keys[key / PAGE_TOKENS].wrapping_add(tile * tile_bytes),
            stride: tile_bytes,
            cols: view.key_dim,
            ahead,
        };
        let mut sink = Scores::<S, G, TILES> {
            acc: [[s.splat(0.0); TILES]; G],
            q,
        };
        // SAFETY: whole tiles of a readable page; the rest is the caller's promise.
        unsafe { P::decode::<S, TILES>(s, panels, 0, view.key_dim, &mut sink) };
        for g in 0..G {
            for t in 0..TILES {
                let to = scores.wrapping_add(g * CHUNK_KEYS + key + 16 * t);
                // SAFETY: key + 16·TILES ≤ CHUNK_KEYS, as TILES divides the tiles of a page.
                unsafe { s.store(to, sink.acc[g][t]) };
            }
        }
    }
}

/// Turns a row of scores of the keys seen into exp(score − m), zero beside them in their tiles; gives
/// (m, Σ) with the sum in sixteen lanes over ascending tiles, then the lane tree.
///
/// # Safety
/// `scores` is a row of `CHUNK_KEYS`.
#[inline(always)]
unsafe fn soften<S: Simd>(s: S, scores: *mut f32, seen: Seen, softcap: Option<f32>) -> (f32, f32) {
    let (start, end) = (seen.from / 16 * 16, seen.to.next_multiple_of(16));
    // Only the first and the last tile may have lanes that are not seen.
    macro_rules! seen_or {
        ($fill:expr, $tile:ident, $v:expr) => {
            match $tile < seen.from || $tile + 16 > seen.to {
                true => {
                    let (from, to) = (seen.from.saturating_sub($tile), (seen.to - $tile).min(16));
                    s.keep($v, from, to, $fill)
                }
                false => $v,
            }
        };
    }
    if let Some(cap) = softcap {
        for tile in (start..end).step_by(16) {
            let p = scores.wrapping_add(tile);
            // SAFETY: tiles of 16 below CHUNK_KEYS.
            unsafe { s.store(p, softcap_lanes(s, s.load(p), cap)) };
        }
    }
    let mut max = [s.splat(f32::NEG_INFINITY); 4];
    for four in (start..end).step_by(64) {
        for (tile, max) in (four..end).step_by(16).zip(&mut max) {
            // SAFETY: as above.
            let v = unsafe { s.load(scores.wrapping_add(tile)) };
            *max = s.max(seen_or!(f32::NEG_INFINITY, tile, v), *max);
        }
    }
    let [a, b, c, d] = max;
    let m = s.largest(s.max(s.max(a, b), s.max(c, d)));
    let mut sum = s.splat(0.0);
    for tile in (start..end).step_by(16) {
        let p = scores.wrapping_add(tile);
        // SAFETY: as above.
        let v = unsafe { s.load(p) };
        let e = exp(s, s.sub(v, s.splat(m)));
        let e = seen_or!(0.0, tile, e);
        sum = s.add(sum, e);
        // SAFETY: as above.
        unsafe { s.store(p, e) };
    }
    (m, s.sum(sum))
}

/// Adds weight·value over the keys of one page to each pair's output.
///
/// # Safety
/// As [`chunk`]; the values of `page` are readable and of format `V`.
#[inline(always)]
unsafe fn mix_page<S: Simd, V: ValueFormat, const G: usize, const COLUMNS: usize>(
    s: S,
    view: &ChunkView,
    (page, ahead): (usize, usize),
    weights: *const f32,
    seen: [Seen; G],
    partials: Partials,
) {
    let values = view.values[page];
    let ranges = seen.map(|seen| seen.in_page(page));
    let row = |g: usize| weights.wrapping_add(g * CHUNK_KEYS + page * PAGE_TOKENS);
    let weights: [*const f32; G] = std::array::from_fn(row);
    let mut column = 0;
    // SAFETY: columns up to value_dim, a multiple of 16; the rest is the caller's promise.
    unsafe {
        while column + COLUMNS * 16 <= view.value_dim {
            let rows = V::rows::<S, COLUMNS>(s, values, view.value_dim, column);
            mix::<S, V, G, COLUMNS>(s, (&rows, ahead), column, weights, ranges, partials);
            column += COLUMNS * 16;
        }
        while column < view.value_dim {
            let rows = V::rows::<S, 1>(s, values, view.value_dim, column);
            mix::<S, V, G, 1>(s, (&rows, ahead), column, weights, ranges, partials);
            column += 16;
        }
    }
}

/// Adds weight·value over the keys `ranges[g]` of a page to `COLUMNS`·16 output columns of pair g:
/// one chain over ascending keys per element, which rests in the partial between pages.
///
/// # Safety
/// `rows` allows the rows named; 64 weights each; partials have these columns.
#[inline(always)]
unsafe fn mix<S: Simd, V: ValueFormat, const G: usize, const COLUMNS: usize>(
    s: S,
    (rows, ahead): (&V::Rows, usize),
    column: usize,
    weights: [*const f32; G],
    ranges: [(usize, usize); G],
    partials: Partials,
) {
    // SAFETY: keys below 64.
    let weight = |g: usize, key: usize| s.splat(unsafe { *weights[g].wrapping_add(key) });
    let mut acc = [[s.splat(0.0); COLUMNS]; G];
    for g in 0..G {
        for u in 0..COLUMNS {
            // SAFETY: a partial holds value_dim columns.
            acc[g][u] = unsafe { s.load(partials.at(g, column + 16 * u)) };
        }
    }
    let from = ranges.iter().map(|range| range.0).max().unwrap_or(0);
    let to = ranges.iter().map(|range| range.1).min().unwrap_or(0);
    // Keys that only some pairs see (the causal edge, the window's other end) are multiplied in for
    // those alone, before and after those that all see. Where there are none of these, all keys
    // come before.
    let (from, to) = if from < to {
        (from, to)
    } else {
        (PAGE_TOKENS, PAGE_TOKENS)
    };
    macro_rules! alone {
        ($keys:expr) => {
            for g in 0..G {
                let (low, high) = ranges[g];
                for key in $keys(low, high) {
                    let w = weight(g, key);
                    for u in 0..COLUMNS {
                        // SAFETY: a row of a readable page.
                        let v = unsafe { V::load(s, rows, key, u) };
                        acc[g][u] = s.fma(w, v, acc[g][u]);
                    }
                }
            }
        };
    }
    alone!(|low: usize, high: usize| low..high.min(from));
    for key in from..to {
        let mut v = [s.splat(0.0); COLUMNS];
        for u in 0..COLUMNS {
            // SAFETY: a row of a readable page.
            v[u] = unsafe { V::load(s, rows, key, u) };
        }
        V::prefetch::<S, COLUMNS>(s, rows, key, ahead);
        for g in 0..G {
            let w = weight(g, key);
            for u in 0..COLUMNS {
                acc[g][u] = s.fma(w, v[u], acc[g][u]);
            }
        }
    }
    alone!(|low: usize, high: usize| low.max(to)..high);
    for g in 0..G {
        for u in 0..COLUMNS {
            // SAFETY: as for the loads.
            unsafe { s.store(partials.at(g, column + 16 * u), acc[g][u]) };
        }
    }
}

/// Merges `chunks` partials of one pair, in order, into the head's output (at most `value_dim`). A
/// sink is a score without a value: it takes part in the maximum and, first of all, in the sum.
///
/// # Safety
/// `partials` holds `chunks` partials `stride` apart, value_dim padded to 16.
#[inline(always)]
pub(crate) unsafe fn merge<S: Simd>(
    s: S,
    partials: *mut f32,
    chunks: usize,
    stride: usize,
    value_dim: usize,
    sink: Option<f32>,
    out: &mut [f32],
) {
    let at = |chunk: usize, element: usize| partials.wrapping_add(chunk * stride + element);
    let mut m = sink.unwrap_or(f32::NEG_INFINITY);
    for chunk in 0..chunks {
        // SAFETY: a partial holds value_dim + 2 elements at least.
        let chunk_max = unsafe { *at(chunk, value_dim) };
        m = if chunk_max > m { chunk_max } else { m };
    }
    let mut total = match sink {
        Some(sink) => exp(s, s.splat(sink - m)),
        None => s.splat(0.0),
    };
    for chunk in 0..chunks {
        // SAFETY: as above. The chunk's factor takes the place of its maximum, a vector of it, as
        // there are 16 elements beyond value_dim.
        unsafe {
            let l = s.splat(*at(chunk, value_dim + 1));
            let e = exp(s, s.splat(*at(chunk, value_dim) - m));
            total = s.fma(e, l, total);
            s.store(at(chunk, value_dim), e);
        }
    }
    for column in (0..value_dim).step_by(16) {
        let mut acc = s.splat(0.0);
        for chunk in 0..chunks {
            // SAFETY: as above; a column of a partial.
            unsafe { acc = s.fma(s.load(at(chunk, value_dim)), s.load(at(chunk, column)), acc) };
        }
        let mut lanes = [0f32; 16];
        // SAFETY: sixteen lanes.
        unsafe { s.store(lanes.as_mut_ptr(), s.div(acc, total)) };
        // The last lanes of a padded head have no place in `out`.
        for (value, &lane) in out.iter_mut().skip(column).zip(&lanes) {
            *value = lane;
        }
    }
}
