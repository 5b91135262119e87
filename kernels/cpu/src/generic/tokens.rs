//! Tokens as signed bytes, with a scale and a middle for every 32 columns, as the int8 dot product wants
//! them: x = scale·byte + middle.
//!
//! Why a middle: blocks of activations are often lopsided, one outlier far from the rest. Halving the
//! range that the bytes span, it takes mean KL divergence from exact activations down by 2 to 3 times
//! (SmolLM2-135M 0.0056 to 0.0021, Gemma-3-270M 0.0034 to 0.0016, ten prompts) for one multiply-add a
//! block; a scale for every 16 columns, the other way to get there, costs three.

use crate::simd::Simd;

/// Bytes a column of a tile takes for each block of 32: the bytes and six words.
const COLUMN_BYTES: usize = 56;

/// Half range below which a block counts as constant: its inverse scale would be infinite.
pub(crate) const SMALLEST: f32 = 1.0e-30;

/// Quantised tokens of an op, in tiles of `width`; the last is as wide as [`tile_columns`] says, its
/// columns without a token unused.
///
/// Per block of 32 columns of the matrix a tile of C tokens holds
/// `[8][C]` words of four bytes, then `[C]` each of: scale, scale·Σ bytes (both f32), −128·Σ bytes
/// (i32), scale·Σ of the first 16, of the last 16, middle (f32).
#[derive(Clone, Copy)]
pub(crate) struct QuantTokens {
    pub(crate) base: *mut u8,
    pub(crate) n: usize,
    pub(crate) width: usize,
    pub(crate) blocks: usize,
}

/// One of its tiles.
#[derive(Clone, Copy)]
pub(crate) struct QuantTile {
    pub(crate) base: *mut u8,
    /// First token.
    pub(crate) token: usize,
    /// Tokens.
    pub(crate) n: usize,
    /// Columns, at least `n`.
    pub(crate) columns: usize,
}

impl QuantTile {
    /// Its part from block `block` on.
    #[inline(always)]
    pub(crate) fn block(&self, block: usize) -> *const u8 {
        self.base.wrapping_add(block * self.columns * COLUMN_BYTES)
    }
}

/// Columns of a tile of `n` tokens: a power of two, or all.
#[inline(always)]
fn tile_columns(n: usize, width: usize) -> usize {
    n.next_power_of_two().min(width)
}

impl QuantTokens {
    /// Bytes of all tiles.
    pub(crate) fn bytes(n: usize, width: usize, blocks: usize) -> usize {
        let last = match n % width {
            0 => 0,
            rest => tile_columns(rest, width),
        };
        (n / width * width + last) * blocks * COLUMN_BYTES
    }

    pub(crate) fn tiles(&self) -> usize {
        self.n.div_ceil(self.width)
    }

    #[inline(always)]
    pub(crate) fn tile(&self, tile: usize) -> QuantTile {
        let token = tile * self.width;
        let n = self.width.min(self.n - token);
        QuantTile {
            base: self.base.wrapping_add(token * self.blocks * COLUMN_BYTES),
            token,
            n,
            columns: tile_columns(n, self.width),
        }
    }
}

/// A block of a tile of `C` columns.
#[derive(Clone, Copy)]
pub(crate) struct TileBlock<const C: usize>(*const u8);

impl<const C: usize> TileBlock<C> {
    pub(crate) const BYTES: usize = C * COLUMN_BYTES;

    #[inline(always)]
    pub(crate) fn of(tile: *const u8, block: usize) -> Self {
        Self(tile.wrapping_add(block * Self::BYTES))
    }

    /// # Safety
    /// The block lies in a quantised tile, and `row` and `column` in the block.
    #[inline(always)]
    unsafe fn entry<T: Copy>(self, row: usize, column: usize) -> T {
        // SAFETY: the caller's promise; entries are words, and tiles begin on cache lines.
        unsafe { *self.0.cast::<T>().wrapping_add(row * C + column) }
    }

    /// Four bytes of line `g`.
    ///
    /// # Safety
    /// As the other entries: the block lies in a quantised tile of at least `column` + 1 columns.
    #[inline(always)]
    pub(crate) unsafe fn word(self, g: usize, column: usize) -> i32 {
        // SAFETY: the caller's promise.
        unsafe { self.entry(g, column) }
    }

    /// # Safety
    /// As [`TileBlock::word`].
    #[inline(always)]
    pub(crate) unsafe fn scale(self, column: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { self.entry(8, column) }
    }

    /// Scale·Σ bytes: of all (`parts` = 1) or of part `part` of two.
    ///
    /// # Safety
    /// As [`TileBlock::word`].
    #[inline(always)]
    pub(crate) unsafe fn sum(self, parts: usize, part: usize, column: usize) -> f32 {
        let row = if parts == 1 { 9 } else { 11 + part };
        // SAFETY: the caller's promise.
        unsafe { self.entry(row, column) }
    }

    /// # Safety
    /// As [`TileBlock::word`].
    #[inline(always)]
    pub(crate) unsafe fn middle(self, column: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { self.entry(13, column) }
    }

    /// −128·Σ bytes.
    ///
    /// # Safety
    /// As [`TileBlock::word`].
    #[inline(always)]
    pub(crate) unsafe fn start_biased(self, column: usize) -> i32 {
        // SAFETY: the caller's promise.
        unsafe { self.entry(10, column) }
    }
}

/// Arguments of [`quantise_rows`].
pub(crate) struct QuantiseRows {
    /// (columns.1, 32·blocks)
    pub(crate) x: *const f32,
    pub(crate) tokens: QuantTokens,
    pub(crate) tile: usize,
    /// First column of the tile, columns.
    pub(crate) columns: (usize, usize),
}

/// Quantises rows to columns of a tile: per block of 32, with half the range h = (max − min) / 2 and the
/// middle (max + min) / 2, scale = h / 127 and bytes = (x − middle)·(127 / h) to nearest even. A block
/// with a NaN or an infinity gets a scale that is none either.
///
/// # Safety
/// `x` is readable, the columns of the tile writable and nobody else's.
#[inline(always)]
pub(crate) unsafe fn quantise_rows<S: Simd>(s: S, a: &QuantiseRows) {
    let QuantTile { base, columns, .. } = a.tokens.tile(a.tile);
    let (blocks, (first, count)) = (a.tokens.blocks, a.columns);
    let mut row = 0;
    while S::QUANTISES_FOUR && row + 4 <= count {
        for block in 0..blocks {
            let x = a.x.wrapping_add(32 * (row * blocks + block));
            let x = [0, 1, 2, 3].map(|i| x.wrapping_add(i * 32 * blocks));
            let to = base.wrapping_add(block * columns * COLUMN_BYTES);
            let to = to.cast::<u32>().wrapping_add(first + row);
            // SAFETY: a block of readable rows; entries of four columns of a writable tile.
            unsafe {
                if !s.quantise_four(x, to, columns) {
                    for i in 0..4 {
                        quantise_block(s, x[i], to.wrapping_add(i), columns);
                    }
                }
            }
        }
        row += 4;
    }
    let fours = match S::QUANTISES_FOUR && columns == 1 {
        true => blocks / 4 * 4,
        false => 0,
    };
    for block in (0..fours).step_by(4) {
        let x = a.x.wrapping_add(32 * block);
        let to = base.wrapping_add(block * COLUMN_BYTES).cast::<u32>();
        // SAFETY: blocks of a readable row; the only column of a writable tile.
        unsafe {
            if !s.quantise_row_of_four(x, to) {
                for i in 0..4 {
                    let to = to.wrapping_add(i * COLUMN_BYTES / 4);
                    quantise_block(s, x.wrapping_add(32 * i), to, 1);
                }
            }
        }
    }
    for row in row..count {
        for block in fours..blocks {
            let x = a.x.wrapping_add(32 * (row * blocks + block));
            let to = base.wrapping_add(block * columns * COLUMN_BYTES);
            let to = to.cast::<u32>().wrapping_add(first + row);
            // SAFETY: block of a readable row; entries of a column of a writable tile.
            unsafe { quantise_block(s, x, to, columns) };
        }
    }
}

/// # Safety
/// `x` readable for 32 f32, `to` writable for a column of a block of `columns` columns.
#[inline(always)]
unsafe fn quantise_block<S: Simd>(s: S, x: *const f32, to: *mut u32, columns: usize) {
    // SAFETY: the caller's promise.
    let v = unsafe { [s.load(x), s.load(x.wrapping_add(16))] };
    let (low, high, is_number) = s.range(v);
    // Halves first: the sum of two finite numbers may not be one.
    let (half, middle) = (0.5 * high - 0.5 * low, 0.5 * high + 0.5 * low);
    let (mut scale, inverse) = match half < SMALLEST {
        true => (0.0, 0.0),
        false => (half / 127.0, 127.0 / half),
    };
    if !is_number {
        scale = f32::NAN;
    }
    let mut bytes = [0u32; 8];
    // SAFETY: `bytes` is 32 bytes.
    let (first, last) = unsafe { s.store_bytes(bytes.as_mut_ptr().cast(), v, middle, inverse) };
    let sum = first + last;
    let entry = |row: usize, word: u32| {
        // SAFETY: an entry of the column, by the caller's promise.
        unsafe { to.wrapping_add(row * columns).write(word) }
    };
    for (g, word) in bytes.into_iter().enumerate() {
        entry(g, word);
    }
    entry(8, scale.to_bits());
    entry(9, (scale * sum as f32).to_bits());
    entry(10, (-128 * sum).cast_unsigned());
    entry(11, (scale * first as f32).to_bits());
    entry(12, (scale * last as f32).to_bits());
    entry(13, middle.to_bits());
}
