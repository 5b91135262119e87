//! How the values of a page lie and turn into f32 columns.
//!
//! ```text
//! f32 f16   [64 rows][dim]
//! q8_0      d[dim/32][64 rows] f16, then [64 rows][dim] signed bytes
//! q4_0      d[dim/32][64 rows] f16, then [64 rows][dim/2] nibbles: 8 bytes hold 16 columns, the
//!           first eight in the low nibbles
//! ```
//! Scales lie by block, so that those of a block's 64 rows are converted once, four vectors.

use crate::kv::PAGE_TOKENS;
use crate::simd::Simd;

/// Rows whose scales are converted ahead: blocks of 32 that four vectors of columns touch.
const BLOCKS: usize = 2;

/// An encoding of values as the attention kernel sees it.
pub(crate) trait ValueFormat {
    /// Some columns of the rows of a page.
    type Rows;

    /// Bytes of 16 columns of a row.
    const COLUMN_BYTES: usize;

    /// Columns `column..column + 16·COLUMNS` of a page; COLUMNS is 1, 2 or 4 and divides
    /// `column / 16`.
    ///
    /// # Safety
    /// `page` readable for 64 rows of `dim`, in this format.
    unsafe fn rows<S: Simd, const COLUMNS: usize>(
        s: S,
        page: *const u8,
        dim: usize,
        column: usize,
    ) -> Self::Rows;

    /// Vector `u` of the columns in row `key`.
    ///
    /// # Safety
    /// Columns and rows that `rows` was made for.
    unsafe fn load<S: Simd>(s: S, rows: &Self::Rows, key: usize, u: usize) -> S::F;

    /// Hints that row `key` of the page `ahead` bytes on will be read.
    #[inline(always)]
    fn prefetch<S: Simd, const COLUMNS: usize>(s: S, rows: &Self::Rows, key: usize, ahead: usize) {
        let p = Self::row(rows, key).wrapping_add(ahead);
        for line in (0..COLUMNS * Self::COLUMN_BYTES).step_by(64) {
            s.prefetch(p.wrapping_add(line));
        }
    }

    /// Where the columns of row `key` begin.
    fn row(rows: &Self::Rows, key: usize) -> *const u8;
}

/// Columns of rows `stride` bytes apart.
pub(crate) struct PlainRows {
    base: *const u8,
    stride: usize,
}

macro_rules! plain_values {
    ($name:ident, $element:ty, $load:ident) => {
        pub(crate) struct $name;

        impl ValueFormat for $name {
            type Rows = PlainRows;

            const COLUMN_BYTES: usize = 16 * size_of::<$element>();

            #[inline(always)]
            unsafe fn rows<S: Simd, const COLUMNS: usize>(
                _s: S,
                page: *const u8,
                dim: usize,
                column: usize,
            ) -> PlainRows {
                PlainRows {
                    base: page.wrapping_add(column * size_of::<$element>()),
                    stride: dim * size_of::<$element>(),
                }
            }

            #[inline(always)]
            unsafe fn load<S: Simd>(s: S, rows: &PlainRows, key: usize, u: usize) -> S::F {
                let p = rows
                    .base
                    .wrapping_add(key * rows.stride + u * 16 * size_of::<$element>());
                // SAFETY: the caller's promise.
                unsafe { s.$load(p.cast()) }
            }

            #[inline(always)]
            fn row(rows: &PlainRows, key: usize) -> *const u8 {
                rows.base.wrapping_add(key * rows.stride)
            }
        }
    };
}

plain_values!(F32, f32, load);
plain_values!(F16, u16, load_f16);

/// Columns of quantised rows and the scales of their blocks.
pub(crate) struct ScaledRows {
    base: *const u8,
    stride: usize,
    scales: [[f32; PAGE_TOKENS]; BLOCKS],
}

/// `bytes`: what 16 columns take.
///
/// # Safety
/// As [`ValueFormat::rows`].
#[inline(always)]
unsafe fn scaled_rows<S: Simd, const COLUMNS: usize>(
    s: S,
    page: *const u8,
    dim: usize,
    column: usize,
    bytes: usize,
) -> ScaledRows {
    let mut scales = [[0f32; PAGE_TOKENS]; BLOCKS];
    for (block, scales) in scales[..COLUMNS.div_ceil(2)].iter_mut().enumerate() {
        let from = page
            .cast::<u16>()
            .wrapping_add((column / 32 + block) * PAGE_TOKENS);
        for row in (0..PAGE_TOKENS).step_by(16) {
            // SAFETY: the 64 scales of a block, by the caller's promise.
            unsafe {
                let d = s.load_f16(from.wrapping_add(row));
                s.store(scales.as_mut_ptr().wrapping_add(row), d);
            }
        }
    }
    let quants = page.wrapping_add(dim / 32 * PAGE_TOKENS * 2);
    ScaledRows {
        base: quants.wrapping_add(column / 16 * bytes),
        stride: dim / 16 * bytes,
        scales,
    }
}

pub(crate) struct Q8_0;

impl ValueFormat for Q8_0 {
    type Rows = ScaledRows;

    const COLUMN_BYTES: usize = 16;

    #[inline(always)]
    unsafe fn rows<S: Simd, const COLUMNS: usize>(
        s: S,
        page: *const u8,
        dim: usize,
        column: usize,
    ) -> ScaledRows {
        // SAFETY: the caller's promise.
        unsafe { scaled_rows::<S, COLUMNS>(s, page, dim, column, 16) }
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, rows: &ScaledRows, key: usize, u: usize) -> S::F {
        let p = rows.base.wrapping_add(key * rows.stride + u * 16);
        // SAFETY: the caller's promise.
        let q = unsafe { s.load_i8(p.cast()) };
        s.mul(q, s.splat(rows.scales[u / 2][key]))
    }

    #[inline(always)]
    fn row(rows: &ScaledRows, key: usize) -> *const u8 {
        rows.base.wrapping_add(key * rows.stride)
    }
}

pub(crate) struct Q4_0;

impl ValueFormat for Q4_0 {
    type Rows = ScaledRows;

    const COLUMN_BYTES: usize = 8;

    #[inline(always)]
    unsafe fn rows<S: Simd, const COLUMNS: usize>(
        s: S,
        page: *const u8,
        dim: usize,
        column: usize,
    ) -> ScaledRows {
        // SAFETY: the caller's promise.
        unsafe { scaled_rows::<S, COLUMNS>(s, page, dim, column, 8) }
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, rows: &ScaledRows, key: usize, u: usize) -> S::F {
        let p = rows.base.wrapping_add(key * rows.stride + u * 8);
        // SAFETY: the caller's promise.
        let q = unsafe { s.load_nibbles(p) };
        let d = rows.scales[u / 2][key];
        // q·d − 8·d is (q − 8)·d, all products being exact.
        s.fma(q, s.splat(d), s.splat(-8.0 * d))
    }

    #[inline(always)]
    fn row(rows: &ScaledRows, key: usize) -> *const u8 {
        rows.base.wrapping_add(key * rows.stride)
    }
}
