use std::arch::x86_64::*;

use quantise::quantise;

use crate::simd::Simd;

mod quantise;

/// Witness of AVX-512 F, BW, VL, DQ and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL, DQ and VNNI, and what `Avx2` asks for.
    #[inline(always)]
    pub(crate) unsafe fn new_unchecked() -> Self {
        Self(())
    }
}

macro_rules! op {
    ($value:expr) => {{
        // SAFETY: a value of `Avx512` exists only where its features were detected.
        unsafe { $value }
    }};
}

impl Simd for Avx512 {
    type F = __m512;
    type Bits = __m512i;

    const TILE_PANELS: usize = 2;
    const TILE_COLUMNS: usize = 12;
    const SIDE_BY_SIDE: bool = true;
    const WIDE: bool = true;
    const DOT_COLUMNS: usize = 12;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        op!(_mm512_set1_ps(value))
    }
    #[inline(always)]
    fn zero_bits(self) -> Self::Bits {
        op!(_mm512_setzero_si512())
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY: witness; readable for 16 f32 by this function's contract.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::F) {
        // SAFETY: witness; writable for 16 f32 by this function's contract.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        op!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        op!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        op!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        op!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        op!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        op!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        op!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn scale_exponent(self, v: Self::F, t: Self::F) -> Self::F {
        op!({
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(t));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), exponent))
        })
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        op!({
            let (low, high) = (_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            across_halves!(_mm256_add_ps, _mm_add_ps, low, high)
        })
    }
    #[inline(always)]
    fn largest(self, v: Self::F) -> f32 {
        op!({
            let (low, high) = (_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            across_halves!(_mm256_max_ps, _mm_max_ps, low, high)
        })
    }
    #[inline(always)]
    fn keep(self, v: Self::F, from: usize, to: usize, fill: f32) -> Self::F {
        let below = |n: usize| if n >= 16 { u16::MAX } else { (1u16 << n) - 1 };
        let keep = below(to) & !below(from);
        op!(_mm512_mask_mov_ps(_mm512_set1_ps(fill), keep, v))
    }
    #[inline(always)]
    fn select_less(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        op!(_mm512_mask_mov_ps(
            y,
            _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b),
            x
        ))
    }
    #[inline(always)]
    unsafe fn load_bits(self, p: *const u8) -> Self::Bits {
        // SAFETY: witness; readable for 64 bytes by this function's contract.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    fn shift_right<const N: i32>(self, v: Self::Bits) -> Self::Bits {
        // The intrinsic takes its count as u32, which a const parameter of i32 cannot name.
        op!(_mm512_srl_epi32(v, _mm_cvtsi32_si128(N)))
    }
    #[inline(always)]
    fn shift_left<const N: i32>(self, v: Self::Bits) -> Self::Bits {
        op!(_mm512_sll_epi32(v, _mm_cvtsi32_si128(N)))
    }
    #[inline(always)]
    fn splat_word(self, word: i32) -> Self::Bits {
        op!(_mm512_set1_epi32(word))
    }
    #[inline(always)]
    fn and_mask(self, v: Self::Bits, mask: u32) -> Self::Bits {
        op!(_mm512_and_si512(v, _mm512_set1_epi32(mask.cast_signed())))
    }
    #[inline(always)]
    fn or(self, a: Self::Bits, b: Self::Bits) -> Self::Bits {
        op!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], v: Self::Bits) -> Self::Bits {
        // SAFETY: witness; `table` is 16 bytes.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, v)
        }
    }
    #[inline(always)]
    fn dot(self, acc: Self::Bits, w: Self::Bits, x: Self::Bits) -> Self::Bits {
        op!(_mm512_dpbusd_epi32(acc, w, x))
    }
    #[inline(always)]
    fn start_biased(self, start: i32) -> Self::Bits {
        self.splat_word(start)
    }
    #[inline(always)]
    fn dot_biased(self, acc: Self::Bits, w: Self::Bits, x: Self::Bits) -> Self::Bits {
        self.dot(acc, w, x)
    }
    #[inline(always)]
    fn dot_short(self, acc: Self::Bits, w: Self::Bits, x: Self::Bits) -> Self::Bits {
        self.dot(acc, w, x)
    }
    #[inline(always)]
    fn widen(self, acc: Self::Bits) -> Self::Bits {
        acc
    }
    #[inline(always)]
    fn range(self, [a, b]: [Self::F; 2]) -> (f32, f32, bool) {
        op!({
            let (high, low) = (_mm512_max_ps(a, b), _mm512_min_ps(a, b));
            let low = _mm512_sub_ps(_mm512_setzero_ps(), low);
            // Both maxima side by side: `high` in the lower half, the negated `low` in the upper.
            let m = _mm512_max_ps(
                _mm512_shuffle_f32x4::<0b01_00_01_00>(high, low),
                _mm512_shuffle_f32x4::<0b11_10_11_10>(high, low),
            );
            let m = _mm512_max_ps(m, _mm512_shuffle_f32x4::<0b10_11_00_01>(m, m));
            let m = _mm512_max_ps(m, _mm512_permute_ps::<0b01_00_11_10>(m));
            let m = _mm512_max_ps(m, _mm512_permute_ps::<0b10_11_00_01>(m));
            let low = -_mm_cvtss_f32(_mm512_extractf32x4_ps::<2>(m));
            let is_number = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, b) == 0;
            (low, _mm512_cvtss_f32(m), is_number)
        })
    }
    #[inline(always)]
    unsafe fn store_bytes(
        self,
        p: *mut u8,
        v: [Self::F; 2],
        middle: f32,
        inverse: f32,
    ) -> (i32, i32) {
        // SAFETY: witness; writable for 32 bytes by this function's contract.
        unsafe {
            let (middle, inverse) = (_mm512_set1_ps(middle), _mm512_set1_ps(inverse));
            let [a, b] = v.map(|v| {
                let v = _mm512_mul_ps(_mm512_sub_ps(v, middle), inverse);
                _mm512_cvtepi32_epi8(_mm512_cvt_roundps_epi32::<
                    { _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC },
                >(v))
            });
            let bytes = _mm256_set_m128i(b, a);
            _mm256_storeu_si256(p.cast(), bytes);
            let ones = _mm256_set1_epi8(1);
            let sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), ones, bytes);
            let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b01_00_11_10>(sums));
            let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b10_11_00_01>(sums));
            let last = _mm_cvtsi128_si32(_mm256_extracti128_si256::<1>(sums));
            (_mm256_cvtsi256_si32(sums), last)
        }
    }
    const QUANTISES_FOUR: bool = true;

    #[inline(always)]
    unsafe fn quantise_four(self, x: [*const f32; 4], to: *mut u32, columns: usize) -> bool {
        // SAFETY: witness; readable and writable by this function's contract.
        unsafe {
            let four = quantise(x);
            if let Some(four) = &four {
                four.store_columns(to, columns);
            }
            four.is_some()
        }
    }
    #[inline(always)]
    unsafe fn quantise_row_of_four(self, x: *const f32, to: *mut u32) -> bool {
        // SAFETY: witness; readable and writable by this function's contract.
        unsafe {
            let four = quantise([0, 1, 2, 3].map(|block| x.wrapping_add(32 * block)));
            if let Some(four) = &four {
                four.store_blocks(to);
            }
            four.is_some()
        }
    }
    #[inline(always)]
    fn words_to_f32(self, v: Self::Bits) -> Self::F {
        op!(_mm512_cvtepi32_ps(v))
    }
    #[inline(always)]
    unsafe fn store_bits(self, p: *mut u32, v: Self::Bits) {
        // SAFETY: witness; writable for 64 bytes by this function's contract.
        unsafe { _mm512_storeu_si512(p.cast(), v) }
    }
    #[inline(always)]
    fn masked_to_f32(self, v: Self::Bits, mask: u32) -> Self::F {
        op!(_mm512_cvtepi32_ps(_mm512_and_si512(
            v,
            _mm512_set1_epi32(mask.cast_signed())
        )))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::F {
        // SAFETY: witness; readable for 16 u16 by this function's contract.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::F {
        // SAFETY: witness; readable for 16 u16 by this function's contract.
        unsafe {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::F {
        // SAFETY: witness; readable for 16 u8 by this function's contract.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::F {
        // SAFETY: witness; readable for 16 i8 by this function's contract.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> Self::F {
        // SAFETY: witness; readable for 8 bytes by this function's contract.
        unsafe {
            let low = _mm_loadl_epi64(p.cast());
            let high = _mm_srli_epi16::<4>(low);
            let nibbles = _mm_and_si128(_mm_unpacklo_epi64(low, high), _mm_set1_epi8(15));
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(nibbles))
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: Self::F) {
        // SAFETY: witness; writable for 16 u16 by this function's contract.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a prefetch does not fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}
