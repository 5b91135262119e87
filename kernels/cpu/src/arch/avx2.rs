use std::arch::x86_64::*;

use crate::simd::Simd;

/// Witness of AVX2, FMA and F16C, with `VNNI` of AVX-VNNI too. Sixteen lanes are two registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool>(());

impl<const VNNI: bool> Avx2<VNNI> {
    /// # Safety
    /// The processor must have AVX2, FMA and F16C, with `VNNI` AVX-VNNI.
    #[inline(always)]
    pub(crate) unsafe fn new_unchecked() -> Self {
        Self(())
    }
}

/// Lanes 0–7 and 8–15.
type Pair<T> = [T; 2];

// SAFETY of every block below: a value of `Avx2` exists only where AVX2, FMA and F16C were
// detected (`Avx2::new_unchecked`); those that dereference add what their pointer must allow.
macro_rules! both {
    ($h:ident => $value:expr) => {{
        // SAFETY: the witness shows that the instructions exist.
        unsafe {
            let low = {
                let $h = 0;
                $value
            };
            let high = {
                let $h = 1;
                $value
            };
            [low, high]
        }
    }};
}

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type F = Pair<__m256>;
    type Bits = Pair<__m256i>;

    const TILE_PANELS: usize = 1;
    const TILE_COLUMNS: usize = 6;
    const SIDE_BY_SIDE: bool = true;
    const WIDE: bool = false;
    const DOT_COLUMNS: usize = 4;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        // SAFETY: the witness shows that the instructions exist.
        let v = unsafe { _mm256_set1_ps(value) };
        [v, v]
    }
    #[inline(always)]
    fn zero_bits(self) -> Self::Bits {
        both!(_h => _mm256_setzero_si256())
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY: witness; readable for 16 f32 by this function's contract.
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::F) {
        // SAFETY: witness; writable for 16 f32 by this function's contract.
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        both!(h => _mm256_add_ps(a[h], b[h]))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        both!(h => _mm256_sub_ps(a[h], b[h]))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        both!(h => _mm256_mul_ps(a[h], b[h]))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        both!(h => _mm256_div_ps(a[h], b[h]))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        both!(h => _mm256_max_ps(a[h], b[h]))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        both!(h => _mm256_min_ps(a[h], b[h]))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        both!(h => _mm256_fmadd_ps(a[h], b[h], c[h]))
    }
    #[inline(always)]
    fn scale_exponent(self, v: Self::F, t: Self::F) -> Self::F {
        both!(h => {
            let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(t[h]));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v[h]), exponent))
        })
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        // SAFETY: the witness shows that the instructions exist.
        unsafe { across_halves!(_mm256_add_ps, _mm_add_ps, v[0], v[1]) }
    }
    #[inline(always)]
    fn largest(self, v: Self::F) -> f32 {
        // SAFETY: the witness shows that the instructions exist.
        unsafe { across_halves!(_mm256_max_ps, _mm_max_ps, v[0], v[1]) }
    }
    #[inline(always)]
    fn keep(self, v: Self::F, from: usize, to: usize, fill: f32) -> Self::F {
        both!(h => {
            let lane = _mm256_add_epi32(
                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                _mm256_set1_epi32(8 * h as i32),
            );
            let below = _mm256_cmpgt_epi32(_mm256_set1_epi32(to as i32), lane);
            let before = _mm256_cmpgt_epi32(_mm256_set1_epi32(from as i32), lane);
            let keep = _mm256_andnot_si256(before, below);
            _mm256_blendv_ps(_mm256_set1_ps(fill), v[h], _mm256_castsi256_ps(keep))
        })
    }
    #[inline(always)]
    fn select_less(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        both!(h => _mm256_blendv_ps(y[h], x[h], _mm256_cmp_ps::<_CMP_LT_OQ>(a[h], b[h])))
    }
    #[inline(always)]
    unsafe fn load_bits(self, p: *const u8) -> Self::Bits {
        // SAFETY: witness; readable for 64 bytes by this function's contract.
        unsafe {
            [
                _mm256_loadu_si256(p.cast()),
                _mm256_loadu_si256(p.add(32).cast()),
            ]
        }
    }
    #[inline(always)]
    fn shift_right<const N: i32>(self, v: Self::Bits) -> Self::Bits {
        both!(h => _mm256_srli_epi32::<N>(v[h]))
    }
    #[inline(always)]
    fn shift_left<const N: i32>(self, v: Self::Bits) -> Self::Bits {
        both!(h => _mm256_slli_epi32::<N>(v[h]))
    }
    #[inline(always)]
    fn splat_word(self, word: i32) -> Self::Bits {
        // SAFETY: the witness shows that the instructions exist.
        let v = unsafe { _mm256_set1_epi32(word) };
        [v, v]
    }
    #[inline(always)]
    fn and_mask(self, v: Self::Bits, mask: u32) -> Self::Bits {
        both!(h => _mm256_and_si256(v[h], _mm256_set1_epi32(mask.cast_signed())))
    }
    #[inline(always)]
    fn or(self, a: Self::Bits, b: Self::Bits) -> Self::Bits {
        both!(h => _mm256_or_si256(a[h], b[h]))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], v: Self::Bits) -> Self::Bits {
        both!(h => {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), v[h])
        })
    }
    #[inline(always)]
    fn dot(self, acc: Self::Bits, w: Self::Bits, x: Self::Bits) -> Self::Bits {
        both!(h => if VNNI {
            _mm256_dpbusd_avx_epi32(acc[h], w[h], x[h])
        } else {
            // Pairs fit 16 bits: 2·127·127.
            let pairs = _mm256_maddubs_epi16(w[h], x[h]);
            _mm256_add_epi32(acc[h], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        })
    }
    #[inline(always)]
    fn start_biased(self, start: i32) -> Self::Bits {
        if VNNI {
            self.splat_word(start)
        } else {
            self.zero_bits()
        }
    }
    #[inline(always)]
    fn dot_biased(self, acc: Self::Bits, w: Self::Bits, x: Self::Bits) -> Self::Bits {
        if VNNI {
            return self.dot(acc, w, x);
        }
        // Pairs of 255·127 do not fit 16 bits: the sign of each weight goes to its factor, and
        // pairs are at most 2·128·127.
        both!(h => {
            let w = _mm256_xor_si256(w[h], _mm256_set1_epi8(-128));
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x[h], w));
            _mm256_add_epi32(acc[h], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        })
    }
    #[inline(always)]
    fn dot_short(self, acc: Self::Bits, w: Self::Bits, x: Self::Bits) -> Self::Bits {
        if VNNI {
            return self.dot(acc, w, x);
        }
        both!(h => _mm256_add_epi16(acc[h], _mm256_maddubs_epi16(w[h], x[h])))
    }
    #[inline(always)]
    fn widen(self, acc: Self::Bits) -> Self::Bits {
        if VNNI {
            return acc;
        }
        both!(h => _mm256_madd_epi16(acc[h], _mm256_set1_epi16(1)))
    }
    #[inline(always)]
    fn range(self, [a, b]: [Self::F; 2]) -> (f32, f32, bool) {
        // SAFETY: the witness shows that the instructions exist.
        unsafe {
            let high = _mm256_max_ps(_mm256_max_ps(a[0], a[1]), _mm256_max_ps(b[0], b[1]));
            let low = _mm256_min_ps(_mm256_min_ps(a[0], a[1]), _mm256_min_ps(b[0], b[1]));
            let low = _mm256_sub_ps(_mm256_setzero_ps(), low);
            // Both maxima side by side: `high` in the lower half, the negated `low` in the upper.
            let m = _mm256_max_ps(
                _mm256_permute2f128_ps::<0x20>(high, low),
                _mm256_permute2f128_ps::<0x31>(high, low),
            );
            let m = _mm256_max_ps(m, _mm256_permute_ps::<0b01_00_11_10>(m));
            let m = _mm256_max_ps(m, _mm256_permute_ps::<0b10_11_00_01>(m));
            let low = -_mm_cvtss_f32(_mm256_extractf128_ps::<1>(m));
            let none = _mm256_or_ps(
                _mm256_cmp_ps::<_CMP_UNORD_Q>(a[0], b[0]),
                _mm256_cmp_ps::<_CMP_UNORD_Q>(a[1], b[1]),
            );
            let is_number = _mm256_movemask_ps(none) == 0;
            (low, _mm256_cvtss_f32(m), is_number)
        }
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
            let (middle, inverse) = (_mm256_set1_ps(middle), _mm256_set1_ps(inverse));
            // Rounds as the control register says: to nearest even, which Rust code may rely on.
            let word = |v| _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_sub_ps(v, middle), inverse));
            let [a, b] = v;
            let halves = _mm256_packs_epi32(word(a[0]), word(a[1]));
            let bytes = _mm256_packs_epi16(halves, _mm256_packs_epi32(word(b[0]), word(b[1])));
            // Packing goes by 128-bit lanes: four words of each register in turn, twice.
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(bytes, order);
            _mm256_storeu_si256(p.cast(), bytes);
            let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
            let sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b01_00_11_10>(sums));
            let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b10_11_00_01>(sums));
            let last = _mm_cvtsi128_si32(_mm256_extracti128_si256::<1>(sums));
            (_mm256_cvtsi256_si32(sums), last)
        }
    }
    #[inline(always)]
    fn words_to_f32(self, v: Self::Bits) -> Self::F {
        both!(h => _mm256_cvtepi32_ps(v[h]))
    }
    #[inline(always)]
    unsafe fn store_bits(self, p: *mut u32, v: Self::Bits) {
        // SAFETY: witness; writable for 64 bytes by this function's contract.
        unsafe {
            _mm256_storeu_si256(p.cast(), v[0]);
            _mm256_storeu_si256(p.add(8).cast(), v[1]);
        }
    }
    #[inline(always)]
    fn masked_to_f32(self, v: Self::Bits, mask: u32) -> Self::F {
        both!(h => {
            _mm256_cvtepi32_ps(_mm256_and_si256(v[h], _mm256_set1_epi32(mask.cast_signed())))
        })
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::F {
        // SAFETY: witness; readable for 16 u16 by this function's contract.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::F {
        // SAFETY: witness; readable for 16 u16 by this function's contract.
        both!(h => {
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(8 * h).cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
        })
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::F {
        // SAFETY: witness; readable for 16 u8 by this function's contract.
        both!(h => {
            let bytes = _mm_loadl_epi64(p.add(8 * h).cast());
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))
        })
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::F {
        // SAFETY: witness; readable for 16 i8 by this function's contract.
        both!(h => {
            let bytes = _mm_loadl_epi64(p.add(8 * h).cast());
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
        })
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> Self::F {
        // SAFETY: witness; readable for 8 bytes by this function's contract.
        unsafe {
            let words = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            let low = _mm256_and_si256(words, _mm256_set1_epi32(15));
            [
                _mm256_cvtepi32_ps(low),
                _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(words)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: Self::F) {
        // SAFETY: witness; writable for 16 u16 by this function's contract.
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(
                p.add(8).cast(),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]),
            );
        }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a prefetch does not fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}
