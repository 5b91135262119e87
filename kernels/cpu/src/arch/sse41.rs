use std::arch::x86_64::*;

use vitriol_kernels_core::half::f32_to_f16;

use crate::simd::Simd;

/// Witness of SSSE3 and SSE4.1. Sixteen lanes are four registers; multiplies, then adds, so that its bits
/// are those of `scalar`.
#[derive(Clone, Copy)]
pub(crate) struct Sse41(());

impl Sse41 {
    /// # Safety
    /// The processor must have SSSE3 and SSE4.1.
    #[inline(always)]
    pub(crate) unsafe fn new_unchecked() -> Self {
        Self(())
    }
}

/// Lanes 0–3, 4–7, 8–11 and 12–15.
type Four<T> = [T; 4];

// SAFETY of every block below: a value of `Sse41` exists only where SSSE3 and SSE4.1 were detected
// (`Sse41::new_unchecked`); those that dereference add what their pointer must allow.
macro_rules! four {
    ($q:ident => $value:expr) => {{
        // SAFETY: the witness shows that the instructions exist.
        unsafe {
            [
                {
                    let $q = 0;
                    $value
                },
                {
                    let $q = 1;
                    $value
                },
                {
                    let $q = 2;
                    $value
                },
                {
                    let $q = 3;
                    $value
                },
            ]
        }
    }};
}

/// Four binary16 numbers in the low halves of words, as f32; exact for every one of them.
///
/// # Safety
/// The processor has SSE4.1.
#[inline(always)]
unsafe fn halves_to_f32(h: __m128i) -> __m128 {
    // SAFETY: the caller's promise.
    unsafe {
        let magnitude = _mm_slli_epi32::<13>(_mm_and_si128(h, _mm_set1_epi32(0x7fff)));
        let sign = _mm_slli_epi32::<16>(_mm_and_si128(h, _mm_set1_epi32(0x8000)));
        // The exponent's bias is 15 here and 127 there.
        let normal = _mm_add_epi32(magnitude, _mm_set1_epi32(112 << 23));
        // Exponent 31 means infinity or NaN and has to become 255.
        let special = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32((31 << 23) - 1));
        let special = _mm_and_si128(special, _mm_set1_epi32(112 << 23));
        let normal = _mm_add_epi32(normal, special);
        // Exponent 0 has no leading one: with one, and 2^-14 taken off again, the difference is exact.
        // (A product would take a subnormal factor, which is slow.)
        let subnormal = _mm_add_epi32(magnitude, _mm_set1_epi32(113 << 23));
        let least = _mm_castsi128_ps(_mm_set1_epi32(113 << 23));
        let subnormal = _mm_sub_ps(_mm_castsi128_ps(subnormal), least);
        let is_subnormal = _mm_cmplt_epi32(magnitude, _mm_set1_epi32(1 << 23));
        let value = _mm_blendv_ps(
            _mm_castsi128_ps(normal),
            subnormal,
            _mm_castsi128_ps(is_subnormal),
        );
        _mm_or_ps(value, _mm_castsi128_ps(sign))
    }
}

impl Simd for Sse41 {
    type F = Four<__m128>;
    type Bits = Four<__m128i>;

    const TILE_PANELS: usize = 1;
    const TILE_COLUMNS: usize = 3;
    const SIDE_BY_SIDE: bool = false;
    const WIDE: bool = false;
    const DOT_COLUMNS: usize = 2;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        // SAFETY: the witness shows that the instructions exist.
        [unsafe { _mm_set1_ps(value) }; 4]
    }
    #[inline(always)]
    fn zero_bits(self) -> Self::Bits {
        four!(_q => _mm_setzero_si128())
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY: witness; readable for 16 f32 by this function's contract.
        four!(q => _mm_loadu_ps(p.add(4 * q)))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::F) {
        // SAFETY: witness; writable for 16 f32 by this function's contract.
        let [(), (), (), ()] = four!(q => _mm_storeu_ps(p.add(4 * q), v[q]));
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        four!(q => _mm_add_ps(a[q], b[q]))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        four!(q => _mm_sub_ps(a[q], b[q]))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        four!(q => _mm_mul_ps(a[q], b[q]))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        four!(q => _mm_div_ps(a[q], b[q]))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        four!(q => _mm_max_ps(a[q], b[q]))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        four!(q => _mm_min_ps(a[q], b[q]))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        four!(q => _mm_add_ps(_mm_mul_ps(a[q], b[q]), c[q]))
    }
    #[inline(always)]
    fn scale_exponent(self, v: Self::F, t: Self::F) -> Self::F {
        four!(q => {
            let exponent = _mm_slli_epi32::<23>(_mm_castps_si128(t[q]));
            _mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(v[q]), exponent))
        })
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        // SAFETY: the witness shows that the instructions exist.
        unsafe {
            let v = _mm_add_ps(_mm_add_ps(v[0], v[2]), _mm_add_ps(v[1], v[3]));
            across_four!(_mm_add_ps, v)
        }
    }
    #[inline(always)]
    fn largest(self, v: Self::F) -> f32 {
        // SAFETY: the witness shows that the instructions exist.
        unsafe {
            let v = _mm_max_ps(_mm_max_ps(v[0], v[2]), _mm_max_ps(v[1], v[3]));
            across_four!(_mm_max_ps, v)
        }
    }
    #[inline(always)]
    fn keep(self, v: Self::F, from: usize, to: usize, fill: f32) -> Self::F {
        four!(q => {
            let lane = _mm_add_epi32(_mm_setr_epi32(0, 1, 2, 3), _mm_set1_epi32(4 * q as i32));
            let below = _mm_cmpgt_epi32(_mm_set1_epi32(to as i32), lane);
            let before = _mm_cmpgt_epi32(_mm_set1_epi32(from as i32), lane);
            let keep = _mm_andnot_si128(before, below);
            _mm_blendv_ps(_mm_set1_ps(fill), v[q], _mm_castsi128_ps(keep))
        })
    }
    #[inline(always)]
    fn select_less(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        four!(q => _mm_blendv_ps(y[q], x[q], _mm_cmplt_ps(a[q], b[q])))
    }
    #[inline(always)]
    unsafe fn load_bits(self, p: *const u8) -> Self::Bits {
        // SAFETY: witness; readable for 64 bytes by this function's contract.
        four!(q => _mm_loadu_si128(p.add(16 * q).cast()))
    }
    #[inline(always)]
    fn shift_right<const N: i32>(self, v: Self::Bits) -> Self::Bits {
        four!(q => _mm_srli_epi32::<N>(v[q]))
    }
    #[inline(always)]
    fn shift_left<const N: i32>(self, v: Self::Bits) -> Self::Bits {
        four!(q => _mm_slli_epi32::<N>(v[q]))
    }
    #[inline(always)]
    fn splat_word(self, word: i32) -> Self::Bits {
        // SAFETY: the witness shows that the instructions exist.
        [unsafe { _mm_set1_epi32(word) }; 4]
    }
    #[inline(always)]
    fn and_mask(self, v: Self::Bits, mask: u32) -> Self::Bits {
        four!(q => _mm_and_si128(v[q], _mm_set1_epi32(mask.cast_signed())))
    }
    #[inline(always)]
    fn or(self, a: Self::Bits, b: Self::Bits) -> Self::Bits {
        four!(q => _mm_or_si128(a[q], b[q]))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], v: Self::Bits) -> Self::Bits {
        four!(q => _mm_shuffle_epi8(_mm_loadu_si128(table.as_ptr().cast()), v[q]))
    }
    #[inline(always)]
    fn dot(self, acc: Self::Bits, w: Self::Bits, x: Self::Bits) -> Self::Bits {
        // Pairs fit 16 bits: 2·127·127.
        four!(q => {
            let pairs = _mm_maddubs_epi16(w[q], x[q]);
            _mm_add_epi32(acc[q], _mm_madd_epi16(pairs, _mm_set1_epi16(1)))
        })
    }
    #[inline(always)]
    fn start_biased(self, _start: i32) -> Self::Bits {
        self.zero_bits()
    }
    #[inline(always)]
    fn dot_biased(self, acc: Self::Bits, w: Self::Bits, x: Self::Bits) -> Self::Bits {
        // Pairs of 255·127 do not fit 16 bits: the sign of each weight goes to its factor, and
        // pairs are at most 2·128·127.
        four!(q => {
            let w = _mm_xor_si128(w[q], _mm_set1_epi8(-128));
            let pairs = _mm_maddubs_epi16(_mm_abs_epi8(w), _mm_sign_epi8(x[q], w));
            _mm_add_epi32(acc[q], _mm_madd_epi16(pairs, _mm_set1_epi16(1)))
        })
    }
    #[inline(always)]
    fn dot_short(self, acc: Self::Bits, w: Self::Bits, x: Self::Bits) -> Self::Bits {
        four!(q => _mm_add_epi16(acc[q], _mm_maddubs_epi16(w[q], x[q])))
    }
    #[inline(always)]
    fn widen(self, acc: Self::Bits) -> Self::Bits {
        four!(q => _mm_madd_epi16(acc[q], _mm_set1_epi16(1)))
    }
    #[inline(always)]
    fn range(self, [a, b]: [Self::F; 2]) -> (f32, f32, bool) {
        let (high, low, none) = (
            self.max(a, b),
            self.min(a, b),
            four!(q => _mm_cmpunord_ps(a[q], b[q])),
        );
        // SAFETY: the witness shows that the instructions exist.
        unsafe {
            let high = _mm_max_ps(_mm_max_ps(high[0], high[1]), _mm_max_ps(high[2], high[3]));
            let low = _mm_min_ps(_mm_min_ps(low[0], low[1]), _mm_min_ps(low[2], low[3]));
            let low = _mm_sub_ps(_mm_setzero_ps(), low);
            // Both maxima side by side: `high` in the even lanes, the negated `low` in the odd.
            let m = _mm_max_ps(_mm_unpacklo_ps(high, low), _mm_unpackhi_ps(high, low));
            let m = _mm_max_ps(m, _mm_movehl_ps(m, m));
            let none = _mm_or_ps(_mm_or_ps(none[0], none[1]), _mm_or_ps(none[2], none[3]));
            let low = -_mm_cvtss_f32(_mm_shuffle_ps::<1>(m, m));
            (low, _mm_cvtss_f32(m), _mm_movemask_ps(none) == 0)
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
        let mut sums = [0; 2];
        for half in 0..2 {
            let scaled = self.mul(self.sub(v[half], self.splat(middle)), self.splat(inverse));
            // SAFETY: witness; writable for 32 bytes by this function's contract. Rounds as the control
            // register says: to nearest even, which Rust code may rely on.
            unsafe {
                let words = [
                    _mm_cvtps_epi32(scaled[0]),
                    _mm_cvtps_epi32(scaled[1]),
                    _mm_cvtps_epi32(scaled[2]),
                    _mm_cvtps_epi32(scaled[3]),
                ];
                let bytes = _mm_packs_epi16(
                    _mm_packs_epi32(words[0], words[1]),
                    _mm_packs_epi32(words[2], words[3]),
                );
                _mm_storeu_si128(p.add(16 * half).cast(), bytes);
                let pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), bytes);
                let sum = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
                let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b01_00_11_10>(sum));
                let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b10_11_00_01>(sum));
                sums[half] = _mm_cvtsi128_si32(sum);
            }
        }
        (sums[0], sums[1])
    }
    #[inline(always)]
    fn words_to_f32(self, v: Self::Bits) -> Self::F {
        four!(q => _mm_cvtepi32_ps(v[q]))
    }
    #[inline(always)]
    unsafe fn store_bits(self, p: *mut u32, v: Self::Bits) {
        // SAFETY: witness; writable for 64 bytes by this function's contract.
        let [(), (), (), ()] = four!(q => _mm_storeu_si128(p.add(4 * q).cast(), v[q]));
    }
    #[inline(always)]
    fn masked_to_f32(self, v: Self::Bits, mask: u32) -> Self::F {
        self.words_to_f32(self.and_mask(v, mask))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::F {
        // SAFETY: witness; readable for 16 u16 by this function's contract.
        four!(q => halves_to_f32(_mm_cvtepu16_epi32(_mm_loadl_epi64(p.add(4 * q).cast()))))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::F {
        // SAFETY: witness; readable for 16 u16 by this function's contract.
        four!(q => {
            let words = _mm_cvtepu16_epi32(_mm_loadl_epi64(p.add(4 * q).cast()));
            _mm_castsi128_ps(_mm_slli_epi32::<16>(words))
        })
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::F {
        // SAFETY: witness; readable for 16 u8 by this function's contract.
        four!(q => {
            let bytes = _mm_cvtsi32_si128(p.add(4 * q).cast::<i32>().read_unaligned());
            _mm_cvtepi32_ps(_mm_cvtepu8_epi32(bytes))
        })
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::F {
        // SAFETY: witness; readable for 16 i8 by this function's contract.
        four!(q => {
            let bytes = _mm_cvtsi32_si128(p.add(4 * q).cast::<i32>().read_unaligned());
            _mm_cvtepi32_ps(_mm_cvtepi8_epi32(bytes))
        })
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> Self::F {
        // SAFETY: witness; readable for 8 bytes by this function's contract.
        unsafe {
            let bytes = _mm_loadl_epi64(p.cast());
            let low = _mm_and_si128(bytes, _mm_set1_epi8(15));
            let high = _mm_and_si128(_mm_srli_epi16::<4>(bytes), _mm_set1_epi8(15));
            [
                _mm_cvtepi32_ps(_mm_cvtepu8_epi32(low)),
                _mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_srli_si128::<4>(low))),
                _mm_cvtepi32_ps(_mm_cvtepu8_epi32(high)),
                _mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_srli_si128::<4>(high))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: Self::F) {
        let mut lanes = [0f32; 16];
        // SAFETY: `lanes` is 16 f32, and p writable for 16 u16 by this function's contract. One by one:
        // only what the cache takes of a new token comes this way.
        unsafe {
            self.store(lanes.as_mut_ptr(), v);
            p.cast::<[u16; 16]>().write_unaligned(lanes.map(f32_to_f16));
        }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a prefetch does not fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}

#[cfg(test)]
mod tests {
    use vitriol_kernels_core::half::f16_to_f32;

    use super::*;
    use crate::Isa;

    #[test]
    fn every_f16_loads_as_it_is() {
        if !Isa::Sse41.is_present() {
            println!("this processor lacks sse41: its f16 loads are NOT checked by this run");
            return;
        }
        // SAFETY: detected just now.
        let s = unsafe { Sse41::new_unchecked() };
        for first in (0..=u16::MAX).step_by(16) {
            let halves: [u16; 16] = std::array::from_fn(|i| first + i as u16);
            let mut lanes = [0f32; 16];
            // SAFETY: sixteen elements each.
            unsafe { s.store(lanes.as_mut_ptr(), s.load_f16(halves.as_ptr())) };
            for (half, lane) in halves.into_iter().zip(lanes) {
                assert_eq!(lane.to_bits(), f16_to_f32(half).to_bits(), "{half:#06x}");
            }
        }
    }
}
