//! out[t][row] = Σ over blocks of 32 columns, ascending, of
//! `acc = fma(d·dx, Σ byte·byte, acc)`, where the format has minima `acc = fma(m, sx, acc)`, and
//! `acc = fma(Σ weights, middle, acc)`: weights as stored, tokens as signed bytes with a scale dx, a
//! scaled sum sx and a middle ([`super::tokens`]).
//!
//! The sum over bytes is an exact integer, so the chain of a (token, row) is the same whatever the
//! tile it is computed in: one token streams the weights, eight reuse each line in registers.

use std::mem::MaybeUninit;

use super::matmul::{OutView, PanelView, store_rows};
use super::quants::{LineSink, QuantFormat, Scales};
use super::tokens::{QuantTile, QuantTokens, TileBlock};
use crate::simd::Simd;

/// Most blocks of a panel whose weight sums are kept for all tiles (64 B each); further ones are summed
/// again for each tile.
const KEPT_BLOCKS: usize = 512;

/// Sums of the weights of a panel's first blocks, a line of 16 rows each.
#[repr(C, align(64))]
struct KeptSums(MaybeUninit<[[f32; 16]; KEPT_BLOCKS]>);

impl KeptSums {
    fn block(&mut self, block: usize) -> *mut f32 {
        self.0
            .as_mut_ptr()
            .cast::<[f32; 16]>()
            .wrapping_add(block)
            .cast()
    }
}

/// Integer accumulators of 16 rows over a part of a block: by `C` tokens, and of the bytes alone.
struct Sums<S: Simd, const C: usize> {
    products: [S::Bits; C],
    bytes: S::Bits,
    x: TileBlock<C>,
    biased: bool,
    short: bool,
    /// Whether the bytes alone are wanted.
    weigh: bool,
}

impl<S: Simd, const C: usize> Sums<S, C> {
    /// Empty sums for format `Q`.
    ///
    /// # Safety
    /// `x` is a block of a quantised tile of `C` columns.
    #[inline(always)]
    unsafe fn new<Q: QuantFormat>(s: S, x: TileBlock<C>, weigh: bool) -> Self {
        let mut sums = Self {
            products: [s.zero_bits(); C],
            bytes: s.zero_bits(),
            x,
            biased: Q::BIASED,
            short: Q::SHORT,
            weigh,
        };
        if Q::BIASED {
            for column in 0..C {
                // SAFETY: the caller's promise.
                sums.products[column] = s.start_biased(unsafe { x.start_biased(column) });
            }
            // −128·Σ of the 32 ones.
            sums.bytes = s.start_biased(-128 * 32);
        }
        sums
    }

    #[inline(always)]
    fn dot(&self, s: S, acc: S::Bits, w: S::Bits, x: S::Bits) -> S::Bits {
        match (self.biased, self.short) {
            (true, _) => s.dot_biased(acc, w, x),
            (false, true) => s.dot_short(acc, w, x),
            (false, false) => s.dot(acc, w, x),
        }
    }
}

impl<S: Simd, const C: usize> LineSink<S> for Sums<S, C> {
    #[inline(always)]
    fn line<const G: usize>(&mut self, s: S, w: S::Bits) {
        for column in 0..C {
            // SAFETY: a block of a quantised tile of C columns, by the promise of `new`.
            let x = s.splat_word(unsafe { self.x.word(G, column) });
            self.products[column] = self.dot(s, self.products[column], w, x);
        }
        if self.weigh {
            const ONES: i32 = 0x0101_0101;
            self.bytes = self.dot(s, self.bytes, w, s.splat_word(ONES));
        }
    }
}

/// What a chain of [`Sums`] over bytes of format `Q` sums to.
#[inline(always)]
fn chain_sum<S: Simd, Q: QuantFormat>(s: S, chain: S::Bits) -> S::F {
    s.words_to_f32(match Q::SHORT {
        true => s.widen(chain),
        false => chain,
    })
}

/// Σ of the weights of part `part` of a block in each of 16 rows, from the sum of their bytes.
#[inline(always)]
fn part_sum<S: Simd, Q: QuantFormat>(
    s: S,
    scales: &Scales<S>,
    part: usize,
    bytes: S::Bits,
) -> S::F {
    let sum = s.mul(scales.d[part], chain_sum::<S, Q>(s, bytes));
    match Q::MINIMUM {
        true => s.fma(scales.m[part], s.splat(32.0 / Q::PARTS as f32), sum),
        false => sum,
    }
}

/// Σ of a block's weights in each of 16 rows.
#[inline(always)]
fn weight_sum<S: Simd, Q: QuantFormat>(s: S, scales: &Scales<S>, bytes: [S::Bits; 2]) -> S::F {
    let first = part_sum::<S, Q>(s, scales, 0, bytes[0]);
    match Q::PARTS {
        1 => first,
        _ => s.add(first, part_sum::<S, Q>(s, scales, 1, bytes[1])),
    }
}

/// One panel over one tile of `C` columns. `kept`: the weight sums of all blocks where `KEPT`.
///
/// # Safety
/// `w` readable, of format `Q`; the tile is quantised and has C columns; nobody else writes these rows
/// of these tokens.
#[inline(always)]
unsafe fn tile<S: Simd, Q: QuantFormat, const C: usize, const KEPT: bool>(
    s: S,
    w: PanelView,
    panel: usize,
    x: QuantTile,
    kept: *const f32,
    out: OutView,
) {
    let weights = w.panel(panel);
    let mut acc = [s.splat(0.0); C];
    for block in 0..w.cols / 32 {
        let tokens = TileBlock::<C>::of(x.base, block);
        // SAFETY: the caller's promise.
        let scales = unsafe { Q::scales(s, weights, block) };
        let mut bytes = [s.zero_bits(); 2];
        macro_rules! part {
            ($part:literal) => {
                // SAFETY: a block of a quantised tile of C columns.
                let mut sums = unsafe { Sums::new::<Q>(s, tokens, !KEPT) };
                // SAFETY: the caller's promise.
                unsafe { Q::lines::<S, $part>(s, weights, block, &mut sums) };
                bytes[$part] = sums.bytes;
                for column in 0..C {
                    // SAFETY: a block of a quantised tile of C columns.
                    let dx = s.splat(unsafe { tokens.scale(column) });
                    let scale = s.mul(scales.d[$part], dx);
                    let sum = chain_sum::<S, Q>(s, sums.products[column]);
                    acc[column] = s.fma(scale, sum, acc[column]);
                    if Q::MINIMUM {
                        // SAFETY: as above.
                        let sum = unsafe { tokens.sum(Q::PARTS, $part, column) };
                        acc[column] = s.fma(scales.m[$part], s.splat(sum), acc[column]);
                    }
                }
            };
        }
        part!(0);
        if Q::PARTS == 2 {
            part!(1);
        }
        let weight_sum = match KEPT {
            // SAFETY: all blocks' sums are kept.
            true => unsafe { s.load(kept.wrapping_add(16 * block)) },
            false => weight_sum::<S, Q>(s, &scales, bytes),
        };
        for column in 0..C {
            // SAFETY: a block of a quantised tile of C columns.
            let middle = s.splat(unsafe { tokens.middle(column) });
            acc[column] = s.fma(weight_sum, middle, acc[column]);
        }
    }
    let rows = w.rows_of(panel);
    for (column, acc) in acc.into_iter().enumerate().take(x.n) {
        // SAFETY: `rows` rows of the panel and this token exist in `out`.
        unsafe { store_rows(s, out.at(x.token + column, panel * 16), acc, rows) };
    }
}

/// Stores the weight sums of a panel's blocks.
///
/// # Safety
/// `w` readable, of format `Q`, with at most [`KEPT_BLOCKS`] blocks a row.
#[inline(always)]
unsafe fn keep_sums<S: Simd, Q: QuantFormat>(
    s: S,
    w: PanelView,
    panel: usize,
    kept: &mut KeptSums,
) {
    let weights = w.panel(panel);
    for block in 0..w.cols / 32 {
        let nothing = TileBlock::<0>::of(std::ptr::null(), 0);
        // SAFETY: the caller's promise; no column is read.
        unsafe {
            let scales = Q::scales(s, weights, block);
            let mut sums = Sums::new::<Q>(s, nothing, true);
            Q::lines::<S, 0>(s, weights, block, &mut sums);
            let mut bytes = [sums.bytes; 2];
            if Q::PARTS == 2 {
                let mut sums = Sums::new::<Q>(s, nothing, true);
                Q::lines::<S, 1>(s, weights, block, &mut sums);
                bytes[1] = sums.bytes;
            }
            s.store(kept.block(block), weight_sum::<S, Q>(s, &scales, bytes));
        }
    }
}

/// Panels `first..first + count` of `w` over tiles `tiles` of quantised tokens.
///
/// # Safety
/// All views readable/writable for what they name, every tile quantised; `w` is of format `Q`; nobody
/// else writes these rows of these tokens.
#[inline(always)]
pub(crate) unsafe fn dot<S: Simd, Q: QuantFormat>(
    s: S,
    w: PanelView,
    (first, count): (usize, usize),
    x: QuantTokens,
    tiles: (usize, usize),
    out: OutView,
) {
    let mut kept = KeptSums(MaybeUninit::uninit());
    let keep = tiles.1 - tiles.0 > 1 && w.cols / 32 <= KEPT_BLOCKS;
    for panel in first..first + count {
        if keep {
            // SAFETY: the caller's promise.
            unsafe { keep_sums::<S, Q>(s, w, panel, &mut kept) };
        }
        let sums = kept.block(0).cast_const();
        for at in tiles.0..tiles.1 {
            let x = x.tile(at);
            // SAFETY: the caller's promise; sums were kept where that is said.
            unsafe {
                match x.columns {
                    1 if S::DOT_COLUMNS > 1 => tile::<S, Q, 1, false>(s, w, panel, x, sums, out),
                    2 if S::DOT_COLUMNS > 2 => tile::<S, Q, 2, false>(s, w, panel, x, sums, out),
                    4 if S::DOT_COLUMNS > 4 => tile::<S, Q, 4, false>(s, w, panel, x, sums, out),
                    8 if S::DOT_COLUMNS > 8 => tile::<S, Q, 8, false>(s, w, panel, x, sums, out),
                    _ if keep => full_tile::<S, Q, true>(s, w, panel, x, sums, out),
                    _ => full_tile::<S, Q, false>(s, w, panel, x, sums, out),
                }
            }
        }
    }
}

/// As [`tile`], with as many columns as the instruction set likes.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn full_tile<S: Simd, Q: QuantFormat, const KEPT: bool>(
    s: S,
    w: PanelView,
    panel: usize,
    x: QuantTile,
    kept: *const f32,
    out: OutView,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match S::DOT_COLUMNS {
            1 => tile::<S, Q, 1, KEPT>(s, w, panel, x, kept, out),
            2 => tile::<S, Q, 2, KEPT>(s, w, panel, x, kept, out),
            4 => tile::<S, Q, 4, KEPT>(s, w, panel, x, kept, out),
            12 => tile::<S, Q, 12, KEPT>(s, w, panel, x, kept, out),
            columns => unreachable!("tiles of {columns} columns"),
        }
    }
}
