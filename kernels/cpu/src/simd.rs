//! The vector operations the generic kernels are written in.

/// Sixteen f32 lanes under one instruction set.
///
/// A value of the implementing type is a *witness*: it is made only where the ISA has been
/// detected, so its methods are safe to call. They compile to single instructions only when they
/// are inlined into a function with the matching `#[target_feature]`; every generic kernel is
/// therefore `#[inline(always)]` down from the functions that `table` instantiates.
///
/// All implementations round each operation to nearest even, so two that fuse alike agree bit for
/// bit whatever their register width.
pub(crate) trait Simd: Copy {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen 32-bit words.
    type Bits: Copy;

    /// Panels (of 16 rows) × tokens of the f32 matmul tile. Derivation: panels·columns accumulators,
    /// the panels' weights and one broadcast have to fit the vector registers (avx2: 16 halves,
    /// 1×6×2 + 2 + 1; avx512: 32, 2×12 + 2 + 1), and FMAs should outnumber loads.
    const TILE_PANELS: usize;
    /// See [`Simd::TILE_PANELS`].
    const TILE_COLUMNS: usize;
    /// Whether 24 accumulators of 16 lanes fit the registers (else 6).
    const WIDE: bool;
    /// Whether attention takes pairs side by side, which has code for each number of them.
    const SIDE_BY_SIDE: bool;
    /// Tokens of the int8 matmul tile: as many as integer and f32 accumulators of 16 lanes fit the
    /// registers beside a line of weights (with 16 registers only the integer ones: the others are
    /// touched once a block and may spill).
    const DOT_COLUMNS: usize;

    fn splat(self, value: f32) -> Self::F;
    fn zero_bits(self) -> Self::Bits;
    /// # Safety
    /// `p` must be readable for 16 f32; no alignment needed.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// # Safety
    /// `p` must be writable for 16 f32; no alignment needed.
    unsafe fn store(self, p: *mut f32, v: Self::F);
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// Per lane `a > b ? a : b`: b where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// Per lane `a < b ? a : b`: b where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// a·b + c, rounded once (scalar, sse41: twice).
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Per lane v·2^n, where n is the integer in the low mantissa bits of `t` (two's complement
    /// modulo 2^9); v normal, v·2^n normal.
    fn scale_exponent(self, v: Self::F, t: Self::F) -> Self::F;
    /// Sum of the lanes by a fixed tree: i + (i+8), then +4, +2, +1.
    fn sum(self, v: Self::F) -> f32;
    /// Largest lane; where one is NaN, any.
    fn largest(self, v: Self::F) -> f32;
    /// Lanes outside `from..to` (to ≤ 16) replaced by `fill`.
    fn keep(self, v: Self::F, from: usize, to: usize, fill: f32) -> Self::F;
    /// Per lane `a < b ? x : y`: y where a or b is NaN.
    fn select_less(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;

    /// # Safety
    /// `p` must be readable for 64 bytes; no alignment needed.
    unsafe fn load_bits(self, p: *const u8) -> Self::Bits;
    /// Per lane logical shift right by `N`.
    fn shift_right<const N: i32>(self, v: Self::Bits) -> Self::Bits;
    /// Per lane shift left by `N`.
    fn shift_left<const N: i32>(self, v: Self::Bits) -> Self::Bits;
    /// Every lane this word.
    fn splat_word(self, word: i32) -> Self::Bits;
    /// Per lane v & mask.
    fn and_mask(self, v: Self::Bits, mask: u32) -> Self::Bits;
    /// Per lane a | b.
    fn or(self, a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// Per byte the entry of `table` it names; bytes are below 16.
    fn lookup(self, table: &[u8; 16], v: Self::Bits) -> Self::Bits;
    /// Per lane: acc + Σ of four products of an unsigned byte of `w`, at most 127, and a signed
    /// byte of `x` within ±127; exact.
    fn dot(self, acc: Self::Bits, w: Self::Bits, x: Self::Bits) -> Self::Bits;
    /// What a chain of [`Simd::dot_biased`] starts from: `start` is −128·Σx over the chain.
    fn start_biased(self, start: i32) -> Self::Bits;
    /// As [`Simd::dot`] for bytes w + 128 of any w. From [`Simd::start_biased`] on the chain gives
    /// Σ w·x.
    fn dot_biased(self, acc: Self::Bits, w: Self::Bits, x: Self::Bits) -> Self::Bits;
    /// As [`Simd::dot`], in a chain whose sums of every other pair of products fit 16 bits and that starts
    /// from zero; [`Simd::widen`] gives what it sums to.
    fn dot_short(self, acc: Self::Bits, w: Self::Bits, x: Self::Bits) -> Self::Bits;
    /// Per lane what a chain of [`Simd::dot_short`] sums to.
    fn widen(self, acc: Self::Bits) -> Self::Bits;
    /// Smallest and largest of 32 lanes, and whether all are numbers; if not, the two may be anything.
    fn range(self, v: [Self::F; 2]) -> (f32, f32, bool);
    /// Stores (v − middle)·inverse, rounded to nearest even, as signed bytes; gives Σ of the first and
    /// of the last 16. What is beyond a byte may become anything.
    ///
    /// # Safety
    /// `p` must be writable for 32 bytes; no alignment needed.
    unsafe fn store_bytes(
        self,
        p: *mut u8,
        v: [Self::F; 2],
        middle: f32,
        inverse: f32,
    ) -> (i32, i32);
    /// Whether [`Simd::quantise_four`] and [`Simd::quantise_row_of_four`] are there.
    const QUANTISES_FOUR: bool = false;
    /// Quantises blocks of four tokens at once, to the bits that [`super::generic::tokens`] gives each alone;
    /// `to`: the first of four neighbouring columns of a block of `columns`. False, and nothing of use
    /// written, where some element is no finite number.
    ///
    /// # Safety
    /// Each of `x` must be readable for 32 f32, the columns writable.
    unsafe fn quantise_four(self, _x: [*const f32; 4], _to: *mut u32, _columns: usize) -> bool {
        false
    }
    /// As [`Simd::quantise_four`], for four blocks of one token that stand alone in its tile.
    ///
    /// # Safety
    /// `x` must be readable for 128 f32, four blocks of one column writable.
    unsafe fn quantise_row_of_four(self, _x: *const f32, _to: *mut u32) -> bool {
        false
    }
    /// Per lane, as signed integers.
    fn words_to_f32(self, v: Self::Bits) -> Self::F;
    /// # Safety
    /// `p` must be writable for 16 words; no alignment needed.
    unsafe fn store_bits(self, p: *mut u32, v: Self::Bits);
    /// Per lane v & mask, as signed integer converted to f32.
    fn masked_to_f32(self, v: Self::Bits, mask: u32) -> Self::F;
    /// # Safety
    /// `p` must be readable for 16 u16 (binary16); no alignment needed.
    unsafe fn load_f16(self, p: *const u16) -> Self::F;
    /// # Safety
    /// `p` must be readable for 16 u16 (bfloat16); no alignment needed.
    unsafe fn load_bf16(self, p: *const u16) -> Self::F;
    /// # Safety
    /// `p` must be readable for 16 u8.
    unsafe fn load_u8(self, p: *const u8) -> Self::F;
    /// # Safety
    /// `p` must be readable for 16 i8.
    unsafe fn load_i8(self, p: *const i8) -> Self::F;
    /// Sixteen nibbles of 8 bytes: the low ones are lanes 0–7, the high ones 8–15.
    ///
    /// # Safety
    /// `p` must be readable for 8 bytes.
    unsafe fn load_nibbles(self, p: *const u8) -> Self::F;
    /// Rounds to binary16, to nearest even.
    ///
    /// # Safety
    /// `p` must be writable for 16 u16; no alignment needed.
    unsafe fn store_f16(self, p: *mut u16, v: Self::F);
    /// Hint that the cache line of `p` will be read soon; any address is allowed.
    fn prefetch(self, p: *const u8);
}
