//! out[t][row] = Σ_k w[row][k]·x[t][k] for weights that are plain floats, one FMA chain over ascending
//! k per element.
//!
//! Two ways to walk the same chains:
//! - [`direct`], few tokens: weights are decoded in registers and used at once; several panels run
//!   side by side so that enough chains hide the FMA latency.
//! - [`packed`], any number of tokens: a K chunk of a panel group is decoded to a scratch that
//!   stays in L1 while tiles of tokens run over it; between chunks the chains rest in `out`.

use std::mem::MaybeUninit;

use super::formats::{Bf16, F16, F32, PanelFormat, Panels, WeightSink};
use super::quants::Panel;
use crate::panel::format;
use crate::simd::Simd;

/// Most tokens of [`direct`]: with more, avx2 runs out of registers beside the decoding, and the
/// scratch is faster (measured at 6: 3.1 against 4.0 ns per 16 weights).
pub(crate) const DIRECT_TOKENS: usize = 5;

/// f32 of the scratch: 24 KiB. It has to share an L1 of 32 KiB with the token tile streaming by
/// (12·192·4 B or 6·384·4 B = 9 KiB, of which each line is used once).
const SCRATCH_LEN: usize = 6 << 10;

/// Widest chunk of K for `panels` side by side. Wide chunks spare `out` (chains rest there between
/// chunks) and are whole blocks.
const fn chunk_cols(panels: usize) -> usize {
    SCRATCH_LEN / 16 / panels
}

/// A weight matrix as the kernels see it.
#[derive(Clone, Copy)]
pub(crate) struct PanelView {
    pub(crate) format: format::PanelFormat,
    pub(crate) base: *const u8,
    pub(crate) panel_bytes: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl PanelView {
    /// Panels from `first` on; what a prefetch brings is the next group for narrow matrices (all
    /// `R` streams end soon), the same streams 4 KiB on for wide ones.
    #[inline(always)]
    fn panels<const R: usize>(&self, first: usize) -> Panels<R> {
        let ahead = if self.panel_bytes <= 8192 {
            R * self.panel_bytes
        } else {
            4096
        };
        Panels {
            first: self.base.wrapping_add(first * self.panel_bytes),
            stride: self.panel_bytes,
            cols: self.cols,
            ahead,
        }
    }

    /// Panel `panel` of quantised weights.
    #[inline(always)]
    pub(super) fn panel(&self, panel: usize) -> Panel {
        Panel {
            base: self.base.wrapping_add(panel * self.panel_bytes),
            cols: self.cols,
        }
    }

    /// Rows of panel `panel` that exist (the last may be padded).
    #[inline(always)]
    pub(super) fn rows_of(&self, panel: usize) -> usize {
        (self.rows - panel * 16).min(16)
    }
}

/// Where results go: row-major (n, rows).
#[derive(Clone, Copy)]
pub(crate) struct OutView {
    pub(crate) base: *mut f32,
    pub(crate) rows: usize,
}

impl OutView {
    #[inline(always)]
    pub(super) fn at(&self, token: usize, row: usize) -> *mut f32 {
        self.base.wrapping_add(token * self.rows + row)
    }
}

/// Tokens of an op in tiles of `width` (the last may be narrower), each `[k/16][column][16]`, so
/// that a tile is one linear stream whatever the row length; K padded to 16.
#[derive(Clone, Copy)]
pub(crate) struct PackedTokens {
    pub(crate) base: *const f32,
    pub(crate) n: usize,
    pub(crate) width: usize,
    pub(crate) cols_padded: usize,
}

/// Copies a token's row of `cols` into its packed place.
///
/// # Safety
/// `row` readable for cols; `packed` writable for n·cols_padded f32, nobody else on this column.
#[inline(always)]
pub(crate) unsafe fn pack_row(row: *const f32, cols: usize, packed: PackedTokens, token: usize) {
    let first = token / packed.width * packed.width;
    let (column, width) = (token - first, packed.width.min(packed.n - first));
    let out = packed
        .base
        .cast_mut()
        .wrapping_add(first * packed.cols_padded);
    for k in (0..cols).step_by(16) {
        let len = (cols - k).min(16);
        let to = out.wrapping_add(k * width + column * 16);
        // SAFETY: inside row and tile as sized above.
        unsafe { std::ptr::copy_nonoverlapping(row.wrapping_add(k), to, len) };
    }
}

/// Accumulators of `R` panels by `C` tokens, fed with weights in ascending k.
struct Chains<S: Simd, const R: usize, const C: usize> {
    acc: [[S::F; C]; R],
    x: *const f32,
    x_stride: usize,
}

impl<S: Simd, const R: usize, const C: usize> WeightSink<S, R> for Chains<S, R, C> {
    #[inline(always)]
    fn take(&mut self, s: S, k: usize, w: [S::F; R]) {
        for c in 0..C {
            // SAFETY: token c of the tile has an element k, by the promise of `direct_tile`.
            let x = s.splat(unsafe { *self.x.wrapping_add(c * self.x_stride + k) });
            for r in 0..R {
                self.acc[r][c] = s.fma(w[r], x, self.acc[r][c]);
            }
        }
    }
}

/// Runs `R` panels from `first` over `C` row-major tokens.
///
/// # Safety
/// All views readable/writable for what they name; nobody else writes these rows of `out`.
#[inline(always)]
unsafe fn direct_tile<S: Simd, P: PanelFormat, const R: usize, const C: usize>(
    s: S,
    w: PanelView,
    first: usize,
    x: *const f32,
    out: OutView,
) {
    let mut chains = Chains::<S, R, C> {
        acc: [[s.splat(0.0); C]; R],
        x,
        x_stride: w.cols,
    };
    // SAFETY: the caller's promise about `w`.
    unsafe { P::decode::<S, R>(s, w.panels(first), 0, w.cols, &mut chains) };
    for r in 0..R {
        let rows = w.rows_of(first + r);
        for c in 0..C {
            let to = out.at(c, (first + r) * 16);
            // SAFETY: `rows` rows of panel first + r exist in `out`.
            unsafe { store_rows(s, to, chains.acc[r][c], rows) };
        }
    }
}

/// # Safety
/// `to` writable for `rows` ≤ 16 f32.
#[inline(always)]
pub(super) unsafe fn store_rows<S: Simd>(s: S, to: *mut f32, v: S::F, rows: usize) {
    if rows == 16 {
        // SAFETY: 16 f32 by the caller's promise.
        unsafe { s.store(to, v) };
        return;
    }
    let mut lanes = [0f32; 16];
    // SAFETY: `lanes` is 16 f32; `to` takes `rows` of them.
    unsafe {
        s.store(lanes.as_mut_ptr(), v);
        std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, rows);
    }
}

/// # Safety
/// `from` readable for `rows` ≤ 16 f32.
#[inline(always)]
pub(super) unsafe fn load_rows<S: Simd>(s: S, from: *const f32, rows: usize) -> S::F {
    if rows == 16 {
        // SAFETY: 16 f32 by the caller's promise.
        return unsafe { s.load(from) };
    }
    let mut lanes = [0f32; 16];
    // SAFETY: `from` has `rows` f32; `lanes` is 16.
    unsafe {
        std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), rows);
        s.load(lanes.as_ptr())
    }
}

/// Panels `first..first + count` over the `n` ≤ [`DIRECT_TOKENS`] row-major tokens of `x`.
///
/// # Safety
/// As [`direct_tile`].
#[inline(always)]
pub(crate) unsafe fn direct<S: Simd>(
    s: S,
    w: PanelView,
    first: usize,
    count: usize,
    x: *const f32,
    n: usize,
    out: OutView,
) {
    // SAFETY: the view says its format; the rest is the caller's promise.
    unsafe {
        match w.format {
            format::PanelFormat::F32 => direct_format::<S, F32>(s, w, first, count, x, n, out),
            format::PanelFormat::F16 => direct_format::<S, F16>(s, w, first, count, x, n, out),
            format::PanelFormat::Bf16 => direct_format::<S, Bf16>(s, w, first, count, x, n, out),
            other => unreachable!("{other:?} panels are no floats"),
        }
    }
}

/// # Safety
/// As [`direct_tile`].
#[inline(always)]
unsafe fn direct_format<S: Simd, P: PanelFormat>(
    s: S,
    w: PanelView,
    first: usize,
    count: usize,
    x: *const f32,
    n: usize,
    out: OutView,
) {
    let end = first + count;
    let mut panel = first;
    macro_rules! sweep {
        ($panels:literal, $columns:literal) => {
            while end - panel >= $panels {
                // SAFETY: panels up to `end` and n tokens exist.
                unsafe { direct_tile::<S, P, $panels, $columns>(s, w, panel, x, out) };
                panel += $panels;
            }
        };
    }
    // Panels side by side: the more chains the better, as long as they and the decoding fit the
    // registers.
    macro_rules! sweeps {
        ($columns:literal: $wide:literal, $narrow:literal) => {{
            if S::WIDE {
                sweep!($wide, $columns);
            } else {
                sweep!($narrow, $columns);
            }
            sweep!(1, $columns);
        }};
    }
    match n {
        1 => sweeps!(1: 4, 2),
        2 => sweeps!(2: 2, 2),
        3 => sweeps!(3: 2, 1),
        4 => sweeps!(4: 2, 1),
        5 => sweeps!(5: 2, 1),
        _ => unreachable!("{n} tokens in a direct matmul"),
    }
}

/// Stores decoded weights as f32 panels: `[panel][k][16]`.
struct ToScratch {
    base: *mut f32,
    k0: usize,
}

impl<S: Simd, const R: usize> WeightSink<S, R> for ToScratch {
    #[inline(always)]
    fn take(&mut self, s: S, k: usize, w: [S::F; R]) {
        for r in 0..R {
            let to = self
                .base
                .wrapping_add((r * chunk_cols(R) + k - self.k0) * 16);
            // SAFETY: chunks are at most chunk_cols(R) wide, so R of them fit the scratch.
            unsafe { s.store(to, w[r]) };
        }
    }
}

#[repr(C, align(64))]
struct Scratch(MaybeUninit<[f32; SCRATCH_LEN]>);

/// Panels `first..first + count` over tiles `tiles` of packed tokens.
///
/// # Safety
/// All views readable/writable for what they name, every tile packed; nobody else writes these
/// rows of these tokens.
#[inline(always)]
pub(crate) unsafe fn packed<S: Simd>(
    s: S,
    w: PanelView,
    first: usize,
    count: usize,
    x: PackedTokens,
    tiles: (usize, usize),
    out: OutView,
) {
    let mut scratch = Scratch(MaybeUninit::uninit());
    let scratch = scratch.0.as_mut_ptr().cast::<f32>();
    let end = first + count;
    let mut panel = first;
    if S::TILE_PANELS == 2 {
        while panel + 2 <= end {
            // SAFETY: the caller's promise.
            unsafe { packed_panels::<S, 2>(s, w, panel, x, tiles, out, scratch) };
            panel += 2;
        }
    }
    while panel < end {
        // SAFETY: the caller's promise.
        unsafe { packed_panels::<S, 1>(s, w, panel, x, tiles, out, scratch) };
        panel += 1;
    }
}

/// # Safety
/// As [`packed`]; `scratch` holds [`SCRATCH_LEN`] f32.
#[inline(always)]
unsafe fn packed_panels<S: Simd, const R: usize>(
    s: S,
    w: PanelView,
    first: usize,
    x: PackedTokens,
    tiles: (usize, usize),
    out: OutView,
    scratch: *mut f32,
) {
    let mut k0 = 0;
    while k0 < w.cols {
        // Chunks of equal width, in whole blocks of 32.
        let left = w.cols - k0;
        let chunks = left.div_ceil(chunk_cols(R));
        let k1 = k0
            + left
                .div_ceil(chunks)
                .next_multiple_of(32)
                .min(chunk_cols(R))
                .min(left);
        // SAFETY: the view's format is its tensor type; k0 and k1 are block borders.
        unsafe { decode_chunk::<S, R>(s, w, first, k0, k1, scratch) };
        for tile in tiles.0..tiles.1 {
            // SAFETY: the tile is packed; scratch holds columns k0..k1.
            unsafe { packed_tile::<S, R>(s, w, first, x, tile, (k0, k1), out, scratch) };
        }
        k0 = k1;
    }
}

/// # Safety
/// As [`packed_panels`].
#[inline(always)]
unsafe fn decode_chunk<S: Simd, const R: usize>(
    s: S,
    w: PanelView,
    first: usize,
    k0: usize,
    k1: usize,
    scratch: *mut f32,
) {
    let mut sink = ToScratch { base: scratch, k0 };
    let panels = w.panels::<R>(first);
    // SAFETY: the view's format is its tensor type; the rest is the caller's promise.
    unsafe {
        match w.format {
            format::PanelFormat::F32 => F32::decode::<S, R>(s, panels, k0, k1, &mut sink),
            format::PanelFormat::F16 => F16::decode::<S, R>(s, panels, k0, k1, &mut sink),
            format::PanelFormat::Bf16 => Bf16::decode::<S, R>(s, panels, k0, k1, &mut sink),
            other => unreachable!("{other:?} panels are no floats"),
        }
    }
}

/// # Safety
/// As [`packed_panels`]; tile `tile` is packed.
#[inline(always)]
#[allow(
    clippy::too_many_arguments,
    reason = "inlined: a struct here would only rename them"
)]
unsafe fn packed_tile<S: Simd, const R: usize>(
    s: S,
    w: PanelView,
    first: usize,
    x: PackedTokens,
    tile: usize,
    chunk: (usize, usize),
    out: OutView,
    scratch: *const f32,
) {
    let token = tile * x.width;
    let width = x.width.min(x.n - token);
    let base = x.base.wrapping_add(token * x.cols_padded);
    macro_rules! by_width {
        ($($columns:literal)*) => {
            match width {
                // SAFETY: the caller's promise; the tile holds this many tokens.
                $($columns if $columns <= S::TILE_COLUMNS => unsafe {
                    packed_kernel::<S, R, $columns>(s, w, first, base, token, chunk, out, scratch)
                },)*
                _ => unreachable!("a tile of {width} tokens"),
            }
        };
    }
    by_width!(1 2 3 4 5 6 7 8 9 10 11 12);
}

/// # Safety
/// As [`packed_tile`]; `x` is a tile of `C` tokens.
#[inline(always)]
#[allow(
    clippy::too_many_arguments,
    reason = "inlined: a struct here would only rename them"
)]
unsafe fn packed_kernel<S: Simd, const R: usize, const C: usize>(
    s: S,
    w: PanelView,
    first: usize,
    x: *const f32,
    token: usize,
    (k0, k1): (usize, usize),
    out: OutView,
    scratch: *const f32,
) {
    let mut acc = [[s.splat(0.0); C]; R];
    if k0 > 0 {
        for r in 0..R {
            let rows = w.rows_of(first + r);
            for c in 0..C {
                // SAFETY: `rows` rows of panel first + r exist in `out`.
                acc[r][c] = unsafe { load_rows(s, out.at(token + c, (first + r) * 16), rows) };
            }
        }
    }
    let mut x16 = x.wrapping_add(k0 * C);
    let mut w16 = scratch;
    let mut left = k1 - k0;
    while left > 0 {
        for k in 0..left.min(16) {
            let mut weights = [s.splat(0.0); R];
            for r in 0..R {
                // SAFETY: the scratch holds columns k0..k1 of R panels.
                weights[r] = unsafe { s.load(w16.wrapping_add((r * chunk_cols(R) + k) * 16)) };
            }
            for c in 0..C {
                // SAFETY: the tile holds C tokens, padded to 16 elements.
                let value = s.splat(unsafe { *x16.wrapping_add(c * 16 + k) });
                for r in 0..R {
                    acc[r][c] = s.fma(weights[r], value, acc[r][c]);
                }
            }
        }
        left -= left.min(16);
        x16 = x16.wrapping_add(16 * C);
        w16 = w16.wrapping_add(256);
    }
    for r in 0..R {
        let rows = w.rows_of(first + r);
        for c in 0..C {
            // SAFETY: as for the loads.
            unsafe { store_rows(s, out.at(token + c, (first + r) * 16), acc[r][c], rows) };
        }
    }
}
