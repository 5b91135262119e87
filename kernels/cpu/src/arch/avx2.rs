use std::arch::x86_64::*;

use crate::simd::Simd;

/// Witness of AVX2, FMA and F16C. Sixteen lanes are two registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The processor must have AVX2, FMA and F16C.
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

impl Simd for Avx2 {
    type F = Pair<__m256>;
    type Bits = Pair<__m256i>;

    const TILE_PANELS: usize = 1;
    const TILE_COLUMNS: usize = 6;
    const WIDE: bool = false;

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
