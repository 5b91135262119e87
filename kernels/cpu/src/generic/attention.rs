//! Attention of a few (query, head) pairs over one chunk of 256 keys, and the merge of chunks.
//!
//! Pairs share a key/value head: each key and value is loaded once for all of them. What happens
//! to one pair does not depend on the others, so any grouping gives the same bits.

use super::elementwise::exp;
use crate::kv::PAGE_TOKENS;
use crate::simd::{Simd, max_lanes, sum_lanes};

/// Keys of a chunk: the absolute grid on which partial results are formed.
pub(crate) const CHUNK_KEYS: usize = 256;
/// Pages of a chunk.
pub(crate) const CHUNK_PAGES: usize = CHUNK_KEYS / PAGE_TOKENS;
/// Most pairs per call.
pub(crate) const MAX_PAIRS: usize = 6;

/// Keys of one chunk as the kernel sees them: per page of 64 tokens, the key and value tensors of
/// one key/value head.
#[derive(Clone, Copy)]
pub(crate) struct ChunkView {
    /// Keys: 4 tiles of `[head_dim padded to 16][16 keys]`.
    pub(crate) keys: [*const f32; CHUNK_PAGES],
    /// Values: `[64][head_dim padded to 16]`.
    pub(crate) values: [*const f32; CHUNK_PAGES],
    /// head_dim padded to 16.
    pub(crate) dim: usize,
}

/// Partial result of one pair over one chunk: max score, Σ exp, Σ exp·v (`dim`).
#[inline(always)]
pub(crate) const fn partial_len(dim: usize) -> usize {
    dim + 16
}

/// Runs `seen.len()` ≤ [`MAX_PAIRS`] pairs over a chunk; pair g sees its first `seen[g]` keys,
/// at least one and at most 256.
///
/// Shapes: q `[dim][MAX_PAIRS]`, scaled, padded, pair g in column g; partials: pair g at
/// `partials + g·stride`, `[dim]` output, then m, then l.
///
/// # Safety
/// Pages up to the last key any pair sees readable; `q` and `partials` sized as above.
#[inline(always)]
pub(crate) unsafe fn chunk<S: Simd>(
    s: S,
    view: &ChunkView,
    q: *const f32,
    seen: &[usize],
    partials: *mut f32,
    stride: usize,
) {
    macro_rules! by_pairs {
        ($($pairs:literal => $wide_tiles:literal $wide_columns:literal, $tiles:literal $columns:literal;)*) => {
            match *seen {
                $(_ if seen.len() == $pairs => {
                    let mut counts = [0; $pairs];
                    counts.copy_from_slice(seen);
                    // SAFETY: the caller's promise.
                    unsafe {
                        if S::WIDE {
                            pairs::<S, $pairs, $wide_tiles, $wide_columns>(s, view, q, counts, partials, stride);
                        } else {
                            pairs::<S, $pairs, $tiles, $columns>(s, view, q, counts, partials, stride);
                        }
                    }
                })*
                _ => unreachable!("{} pairs in a chunk", seen.len()),
            }
        };
    }
    // Accumulators of 16 lanes: pairs × tiles and pairs × columns, at most 24 (wide) or 6.
    by_pairs!(
        1 => 4 4, 4 4;
        2 => 4 4, 2 2;
        3 => 4 4, 2 2;
        4 => 4 4, 1 1;
        5 => 4 4, 1 1;
        6 => 4 4, 1 1;
    );
}

/// # Safety
/// As [`chunk`].
#[inline(always)]
unsafe fn pairs<S: Simd, const G: usize, const TILES: usize, const COLUMNS: usize>(
    s: S,
    view: &ChunkView,
    q: *const f32,
    seen: [usize; G],
    partials: *mut f32,
    stride: usize,
) {
    let most = seen.into_iter().max().unwrap_or(0);
    let mut weights = [[0f32; CHUNK_KEYS]; G];
    // SAFETY: the caller's promise.
    unsafe { scores::<S, G, TILES>(s, view, q, most, &mut weights) };
    for g in 0..G {
        let (m, l) = soften(s, &mut weights[g], seen[g]);
        let partial = partials.wrapping_add(g * stride);
        // SAFETY: a partial holds dim + 2 elements at least.
        unsafe {
            partial.add(view.dim).write(m);
            partial.add(view.dim + 1).write(l);
            std::ptr::write_bytes(partial, 0, view.dim);
        }
    }
    for page in 0..most.div_ceil(PAGE_TOKENS) {
        let mut column = 0;
        while column + COLUMNS * 16 <= view.dim {
            // SAFETY: columns up to dim; pages up to the last key seen.
            unsafe {
                mix::<S, G, COLUMNS>(s, view, page, column, &weights, seen, partials, stride);
            }
            column += COLUMNS * 16;
        }
        while column < view.dim {
            // SAFETY: as above; dim is a multiple of 16.
            unsafe { mix::<S, G, 1>(s, view, page, column, &weights, seen, partials, stride) };
            column += 16;
        }
    }
}

/// Scores of the first `most` keys (rounded up to a tile): one chain over ascending d per key.
///
/// # Safety
/// As [`chunk`].
#[inline(always)]
unsafe fn scores<S: Simd, const G: usize, const TILES: usize>(
    s: S,
    view: &ChunkView,
    q: *const f32,
    most: usize,
    scores: &mut [[f32; CHUNK_KEYS]; G],
) {
    let tile_len = view.dim * 16;
    // A group of tiles may reach past the last key seen, never past its page.
    for first in (0..most).step_by(16 * TILES) {
        let page = first / PAGE_TOKENS;
        let tile = first % PAGE_TOKENS / 16;
        let keys = view.keys[page].wrapping_add(tile * tile_len);
        let mut acc = [[s.splat(0.0); TILES]; G];
        for d in 0..view.dim {
            let mut k = [s.splat(0.0); TILES];
            for t in 0..TILES {
                let p = keys.wrapping_add(t * tile_len + d * 16);
                s.prefetch(p.wrapping_add(tile_len * TILES).cast());
                // SAFETY: a whole page is readable.
                k[t] = unsafe { s.load(p) };
            }
            for g in 0..G {
                // SAFETY: q holds dim rows of MAX_PAIRS.
                let x = s.splat(unsafe { *q.wrapping_add(d * MAX_PAIRS + g) });
                for t in 0..TILES {
                    acc[g][t] = s.fma(x, k[t], acc[g][t]);
                }
            }
        }
        for g in 0..G {
            for t in 0..TILES {
                let to = scores[g].as_mut_ptr().wrapping_add(first + 16 * t);
                // SAFETY: first + 16·TILES ≤ CHUNK_KEYS, as TILES divides the tiles of a page.
                unsafe { s.store(to, acc[g][t]) };
            }
        }
    }
}

/// Turns the first `seen` scores into exp(score − m), zero beyond up to the tile's end; gives
/// (m, Σ) with the sum in sixteen lanes over ascending tiles, then the lane tree.
#[inline(always)]
fn soften<S: Simd>(s: S, scores: &mut [f32; CHUNK_KEYS], seen: usize) -> (f32, f32) {
    // Only the last tile has lanes to leave out.
    let whole = seen / 16 * 16;
    let at = |first: usize| scores.as_ptr().wrapping_add(first);
    let mut max = s.splat(f32::NEG_INFINITY);
    for first in (0..whole).step_by(16) {
        // SAFETY: seen ≤ CHUNK_KEYS, a multiple of 16.
        max = s.max(unsafe { s.load(at(first)) }, max);
    }
    if whole < seen {
        // SAFETY: as above.
        let v = unsafe { s.load(at(whole)) };
        max = s.max(s.keep_first(v, seen - whole, f32::NEG_INFINITY), max);
    }
    let m = max_lanes(s, max);
    let mut sum = s.splat(0.0);
    for first in (0..seen).step_by(16) {
        let p = scores.as_mut_ptr().wrapping_add(first);
        // SAFETY: as above.
        let v = unsafe { s.load(p) };
        let mut e = exp(s, s.sub(v, s.splat(m)));
        if first == whole {
            e = s.keep_first(e, seen - whole, 0.0);
        }
        sum = s.add(sum, e);
        // SAFETY: as above.
        unsafe { s.store(p, e) };
    }
    (m, sum_lanes(s, sum))
}

/// Adds weight·value over the keys of one page to `COLUMNS`·16 output columns of each pair: one
/// chain over ascending keys per element, which rests in the partial between pages.
///
/// # Safety
/// As [`chunk`]; column + 16·COLUMNS ≤ dim.
#[inline(always)]
#[allow(
    clippy::too_many_arguments,
    reason = "inlined: a struct here would only rename them"
)]
unsafe fn mix<S: Simd, const G: usize, const COLUMNS: usize>(
    s: S,
    view: &ChunkView,
    page: usize,
    column: usize,
    weights: &[[f32; CHUNK_KEYS]; G],
    seen: [usize; G],
    partials: *mut f32,
    stride: usize,
) {
    let first = page * PAGE_TOKENS;
    let mut acc = [[s.splat(0.0); COLUMNS]; G];
    for g in 0..G {
        for u in 0..COLUMNS {
            let from = partials.wrapping_add(g * stride + column + 16 * u);
            // SAFETY: a partial holds dim columns.
            acc[g][u] = unsafe { s.load(from) };
        }
    }
    let values = view.values[page].wrapping_add(column);
    let in_page = |seen: usize| seen.saturating_sub(first).min(PAGE_TOKENS);
    let shared = seen.into_iter().map(in_page).min().unwrap_or(0);
    for key in 0..shared {
        let row = values.wrapping_add(key * view.dim);
        let mut v = [s.splat(0.0); COLUMNS];
        for u in 0..COLUMNS {
            let p = row.wrapping_add(16 * u);
            s.prefetch(p.wrapping_add(view.dim * 32).cast());
            // SAFETY: row `key` of a readable page.
            v[u] = unsafe { s.load(p) };
        }
        for g in 0..G {
            let weight = s.splat(weights[g][first + key]);
            for u in 0..COLUMNS {
                acc[g][u] = s.fma(weight, v[u], acc[g][u]);
            }
        }
    }
    // Keys that only some pairs see (the causal edge) are multiplied in for those alone.
    for g in 0..G {
        for key in shared..in_page(seen[g]) {
            let row = values.wrapping_add(key * view.dim);
            let weight = s.splat(weights[g][first + key]);
            for u in 0..COLUMNS {
                // SAFETY: row `key` of a readable page.
                let v = unsafe { s.load(row.wrapping_add(16 * u)) };
                acc[g][u] = s.fma(weight, v, acc[g][u]);
            }
        }
        for u in 0..COLUMNS {
            let to = partials.wrapping_add(g * stride + column + 16 * u);
            // SAFETY: as for the loads.
            unsafe { s.store(to, acc[g][u]) };
        }
    }
}

/// Merges `chunks` partials of one pair, in order, into the head's output (`head_dim`).
///
/// # Safety
/// `partials` holds `chunks` partials `stride` apart, dim padded to 16.
#[inline(always)]
pub(crate) unsafe fn merge<S: Simd>(
    s: S,
    partials: *const f32,
    chunks: usize,
    stride: usize,
    dim: usize,
    out: &mut [f32],
) {
    let at = |chunk: usize, i: usize| {
        // SAFETY: a partial holds dim + 2 elements at least.
        unsafe { *partials.wrapping_add(chunk * stride + i) }
    };
    let mut m = f32::NEG_INFINITY;
    for chunk in 0..chunks {
        let chunk_max = at(chunk, dim);
        m = if chunk_max > m { chunk_max } else { m };
    }
    let mut total = s.splat(0.0);
    let mut acc = [s.splat(0.0); 16];
    let columns = dim / 16;
    for chunk in 0..chunks {
        let e = exp(s, s.splat(at(chunk, dim) - m));
        total = s.fma(e, s.splat(at(chunk, dim + 1)), total);
        for u in 0..columns {
            // SAFETY: column u of a partial.
            let v = unsafe { s.load(partials.wrapping_add(chunk * stride + 16 * u)) };
            acc[u] = s.fma(e, v, acc[u]);
        }
    }
    for u in 0..columns {
        let mut lanes = [0f32; 16];
        // SAFETY: sixteen lanes.
        unsafe { s.store(lanes.as_mut_ptr(), s.div(acc[u], total)) };
        // The last lanes of a padded head have no place in `out`.
        for (value, &lane) in out.iter_mut().skip(16 * u).zip(&lanes) {
            *value = lane;
        }
    }
}
