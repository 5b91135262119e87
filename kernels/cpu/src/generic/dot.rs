//! out[t][row] = Σ over blocks of 32 columns, ascending, of
//! `acc = fma(d·dx, Σ byte·byte, acc)`, where the format has minima `acc = fma(m, sx, acc)`, and
//! `acc = fma(Σ weights, middle, acc)`: weights as stored, tokens as signed bytes with a scale dx, a
//! scaled sum sx and a middle ([`super::tokens`]).
//!
//! The sum over bytes is an exact integer, so the chain of a (token, row) is the same whatever the
//! tile it is computed in. Few tokens stream the weights, each line made whole in registers; for many a
//! part of a panel is taken apart once ([`PanelApart`]) and stays in L1 while tiles run over it.

use super::matmul::{OutView, PanelView, load_rows, store_rows};
use super::quants::{ApartFormat, Kept, LineSink, Panel, PanelApart, QuantFormat, Scales};
use super::tokens::{QuantTile, QuantTokens, TileBlock};
use crate::simd::Simd;

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

/// Where the results of a tile with a panel go.
#[derive(Clone, Copy)]
pub(crate) struct Results {
    /// Of the first token and row.
    to: *mut f32,
    /// f32 from a token to the next.
    stride: usize,
    tokens: usize,
    rows: usize,
    /// Whether chains rest there, of the blocks before.
    resume: bool,
}

impl Results {
    #[inline(always)]
    fn new(w: PanelView, panel: usize, x: QuantTile, out: OutView) -> Self {
        Self {
            to: out.at(x.token, panel * 16),
            stride: out.rows,
            tokens: x.n,
            rows: w.rows_of(panel),
            resume: false,
        }
    }
}

/// The first `blocks` blocks of a panel of format `Q` over those of a tile of `C` columns.
///
/// # Safety
/// The panel is readable, of format `Q`; `x` quantised, of C columns; nobody else touches `results`,
/// which exist.
#[inline(always)]
unsafe fn tile<S: Simd, Q: QuantFormat, const C: usize>(
    s: S,
    weights: Panel,
    blocks: usize,
    x: *const u8,
    results: Results,
) {
    let mut acc = [s.splat(0.0); C];
    if results.resume {
        for (column, acc) in acc.iter_mut().enumerate().take(results.tokens) {
            let from = results.to.wrapping_add(column * results.stride);
            // SAFETY: the caller's promise.
            *acc = unsafe { load_rows(s, from, results.rows) };
        }
    }
    for block in 0..blocks {
        let tokens = TileBlock::<C>::of(x, block);
        let sums_at = Q::sums_at(block);
        // SAFETY: the caller's promise.
        let scales = unsafe { Q::scales(s, weights, block) };
        let mut bytes = [s.zero_bits(); 2];
        macro_rules! part {
            ($part:literal) => {
                // SAFETY: a block of a quantised tile of C columns.
                let mut sums = unsafe { Sums::new::<Q>(s, tokens, sums_at.is_none()) };
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
        let weight_sum = match sums_at {
            // SAFETY: the panel holds them, by what the format says.
            Some(at) => unsafe { s.load(weights.base.wrapping_add(at).cast()) },
            None => weight_sum::<S, Q>(s, &scales, bytes),
        };
        for column in 0..C {
            // SAFETY: a block of a quantised tile of C columns.
            let middle = s.splat(unsafe { tokens.middle(column) });
            acc[column] = s.fma(weight_sum, middle, acc[column]);
        }
    }
    for (column, acc) in acc.into_iter().enumerate().take(results.tokens) {
        let to = results.to.wrapping_add(column * results.stride);
        // SAFETY: the caller's promise.
        unsafe { store_rows(s, to, acc, results.rows) };
    }
}

/// Arguments of [`apart_tile`].
pub(crate) struct ApartTile {
    /// Blocks taken apart.
    weights: *const u8,
    blocks: usize,
    /// The tile, from the first of these blocks on.
    x: *const u8,
    results: Results,
}

/// A part of a panel, taken apart to format `Q`, over a full tile.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
pub(crate) unsafe fn apart_tile<S: Simd, Q: QuantFormat>(s: S, a: &ApartTile) {
    let weights = Panel {
        base: a.weights,
        cols: 32 * a.blocks,
    };
    macro_rules! by_columns {
        ($($columns:literal)*) => {
            match S::DOT_COLUMNS {
                // SAFETY: the caller's promise.
                $($columns => unsafe { tile::<S, Q, $columns>(s, weights, a.blocks, a.x, a.results) },)*
                columns => unreachable!("tiles of {columns} columns"),
            }
        };
    }
    by_columns!(1 2 4 12);
}

/// Takes apart the blocks `blocks` of a panel.
///
/// # Safety
/// The panel is readable, of format `Q`, and has them; `to` has room for them.
#[inline(always)]
unsafe fn take_apart<S: Simd, Q: QuantFormat>(
    s: S,
    weights: Panel,
    blocks: std::ops::Range<usize>,
    to: *mut u8,
) {
    const {
        assert!(Q::PARTS == Q::Apart::PARTS && Q::MINIMUM == Q::Apart::MINIMUM);
        assert!(Q::BIASED == Q::Apart::BIASED && (Q::SHORT || !Q::Apart::SHORT));
    };
    for (index, block) in blocks.enumerate() {
        // SAFETY: the caller's promise; no column of a tile is read.
        unsafe {
            let scales = Q::scales(s, weights, block);
            let mut bytes = [s.zero_bits(); 2];
            macro_rules! part {
                ($part:literal) => {
                    let nothing = TileBlock::<0>::of(std::ptr::null(), 0);
                    let mut sums = Sums::new::<Q>(s, nothing, true);
                    let mut kept = Kept {
                        block: to.wrapping_add(Q::Apart::lines_at(index)),
                        then: &mut sums,
                    };
                    Q::lines::<S, $part>(s, weights, block, &mut kept);
                    bytes[$part] = sums.bytes;
                    let d = to
                        .wrapping_add(Q::Apart::scales_at(index, $part))
                        .cast::<f32>();
                    s.store(d, scales.d[$part]);
                    if Q::MINIMUM {
                        s.store(d.wrapping_add(16), scales.m[$part]);
                    }
                };
            }
            part!(0);
            if Q::PARTS == 2 {
                part!(1);
            }
            let sum = weight_sum::<S, Q>(s, &scales, bytes);
            s.store(to.wrapping_add(Q::Apart::sums_of(index)).cast(), sum);
        }
    }
}

/// Panels `first..first + count` of `w` over tiles `tiles` of quantised tokens. Full tiles, where there
/// are several, run over a panel that is taken apart once; `apart` is [`apart_tile`] for this format's.
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
    apart: unsafe fn(&ApartTile),
) {
    let (start, end) = tiles;
    let is_full = |tile: usize| x.tile(tile).columns == S::DOT_COLUMNS;
    // Only the last of all can be narrower.
    let full_end = if is_full(end - 1) { end } else { end - 1 };
    // Wide tiles have no code of their own for a single one.
    let together = full_end - start > 1 || S::DOT_COLUMNS > 8 && full_end > start;
    let alone = if together { full_end } else { start };
    let mut scratch = PanelApart::new();
    let blocks = w.cols / 32;
    let step = PanelApart::chunk_blocks(blocks);
    for panel in first..first + count {
        let weights = w.panel(panel);
        if together {
            for chunk in (0..blocks).step_by(step) {
                let chunk_end = (chunk + step).min(blocks);
                // SAFETY: the caller's promise; a chunk fits the scratch.
                unsafe { take_apart::<S, Q>(s, weights, chunk..chunk_end, scratch.base()) };
                for at in start..full_end {
                    let x = x.tile(at);
                    let arguments = ApartTile {
                        weights: scratch.base(),
                        blocks: chunk_end - chunk,
                        x: x.block(chunk),
                        results: Results {
                            resume: chunk > 0,
                            ..Results::new(w, panel, x, out)
                        },
                    };
                    // SAFETY: it is for this instruction set and what the panel was taken apart to.
                    unsafe { apart(&arguments) };
                }
            }
        }
        for at in alone..end {
            let x = x.tile(at);
            let results = Results::new(w, panel, x, out);
            macro_rules! by_columns {
                ($($columns:literal)*) => {
                    match x.columns {
                        // SAFETY: the caller's promise.
                        $($columns if $columns <= S::DOT_COLUMNS => unsafe {
                            tile::<S, Q, $columns>(s, weights, blocks, x.base, results)
                        },)*
                        columns => unreachable!("a tile of {columns} columns"),
                    }
                };
            }
            by_columns!(1 2 4 8);
        }
    }
}
