//! Four blocks of 32 elements as bytes at once, to the bits that [`crate::generic::tokens`] gives one.

use std::arch::x86_64::*;

use crate::generic::tokens::SMALLEST;

/// What four blocks became.
pub(super) struct Four {
    /// Lane l of 128 bits: word l, and word 4 + l, of each block.
    words: [__m512i; 2],
    /// Of each block: scale, scale·Σ, −128·Σ, scale·Σ of the first 16, of the last 16, middle.
    rest: [__m128i; 6],
}

/// `None` where an element is no finite number.
///
/// # Safety
/// The processor has AVX-512 F, BW, VL, DQ and VNNI; each of `x` is readable for 32 f32.
#[inline(always)]
pub(super) unsafe fn quantise(x: [*const f32; 4]) -> Option<Four> {
    // SAFETY: the caller's promise.
    unsafe {
        let mut v = [[_mm512_setzero_ps(); 2]; 4];
        let mut ends = [_mm512_setzero_ps(); 4];
        for i in 0..4 {
            v[i] = [
                _mm512_loadu_ps(x[i]),
                _mm512_loadu_ps(x[i].wrapping_add(16)),
            ];
            // The largest of 8 lanes in the lower half, the largest negated in the upper.
            let [a, b] = v[i];
            let (high, low) = (_mm512_max_ps(a, b), _mm512_min_ps(a, b));
            let low = _mm512_sub_ps(_mm512_setzero_ps(), low);
            ends[i] = _mm512_max_ps(
                _mm512_shuffle_f32x4::<0b01_00_01_00>(high, low),
                _mm512_shuffle_f32x4::<0b11_10_11_10>(high, low),
            );
        }
        // Both of two tokens, 4 lanes each.
        let mut pairs = [_mm512_setzero_ps(); 2];
        for i in 0..2 {
            let (m, n) = (ends[2 * i], ends[2 * i + 1]);
            pairs[i] = _mm512_max_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(m, n),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(m, n),
            );
        }
        let [m, n] = pairs;
        let m = _mm512_max_ps(_mm512_unpacklo_ps(m, n), _mm512_unpackhi_ps(m, n));
        let m = _mm512_max_ps(m, _mm512_permute_ps::<0b01_00_11_10>(m));
        let order = _mm512_setr_epi32(0, 8, 1, 9, 4, 12, 5, 13, 0, 0, 0, 0, 0, 0, 0, 0);
        let m = _mm512_castps512_ps256(_mm512_permutexvar_ps(order, m));
        let high = _mm256_castps256_ps128(m);
        let low = _mm_xor_ps(_mm256_extractf128_ps::<1>(m), _mm_set1_ps(-0.0));

        let (high, low) = (
            _mm_mul_ps(_mm_set1_ps(0.5), high),
            _mm_mul_ps(_mm_set1_ps(0.5), low),
        );
        let (half, middle) = (_mm_sub_ps(high, low), _mm_add_ps(high, low));
        let varies = !_mm_cmp_ps_mask::<_CMP_LT_OQ>(half, _mm_set1_ps(SMALLEST));
        let steps = _mm_set1_ps(127.0);
        let scale = _mm_maskz_div_ps(varies, half, steps);
        let inverse = _mm_maskz_div_ps(varies, steps, half);

        // Packing keeps groups of four elements together: a word of token 0, one of its second half,
        // the same of token 1. Lane l then has words l and 4 + l of all tokens.
        let mut shorts = [_mm512_setzero_si512(); 4];
        for i in 0..4 {
            let lane = _mm512_set1_epi32(i as i32);
            let middle = _mm512_permutexvar_ps(lane, _mm512_castps128_ps512(middle));
            let inverse = _mm512_permutexvar_ps(lane, _mm512_castps128_ps512(inverse));
            let mut words = [_mm512_setzero_si512(); 2];
            for half in 0..2 {
                let v = _mm512_mul_ps(_mm512_sub_ps(v[i][half], middle), inverse);
                words[half] = _mm512_cvt_roundps_epi32::<
                    { _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC },
                >(v);
            }
            shorts[i] = _mm512_packs_epi32(words[0], words[1]);
        }
        let m = _mm512_castsi512_ps(_mm512_packs_epi16(shorts[0], shorts[1]));
        let n = _mm512_castsi512_ps(_mm512_packs_epi16(shorts[2], shorts[3]));
        let first = _mm512_castps_si512(_mm512_shuffle_ps::<0b10_00_10_00>(m, n));
        let last = _mm512_castps_si512(_mm512_shuffle_ps::<0b11_01_11_01>(m, n));
        // Finite numbers lie within ±127; what is none became the least integer.
        let least = _mm512_set1_epi8(i8::MIN);
        if _mm512_cmpeq_epi8_mask(first, least) | _mm512_cmpeq_epi8_mask(last, least) != 0 {
            return None;
        }

        let (ones, zero) = (_mm512_set1_epi8(1), _mm512_setzero_si512());
        let words = [first, last];
        let first = _mm512_dpbusd_epi32(zero, ones, first);
        let last = _mm512_dpbusd_epi32(zero, ones, last);
        let sums = _mm512_add_epi32(
            _mm512_shuffle_i32x4::<0b10_00_10_00>(first, last),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(first, last),
        );
        let sums = _mm512_add_epi32(sums, _mm512_shuffle_i32x4::<0b10_11_00_01>(sums, sums));
        let first = _mm512_castsi512_si128(sums);
        let last = _mm512_extracti32x4_epi32::<2>(sums);
        let sum = _mm_add_epi32(first, last);
        let rest = [
            _mm_castps_si128(scale),
            _mm_castps_si128(_mm_mul_ps(scale, _mm_cvtepi32_ps(sum))),
            _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32::<7>(sum)),
            _mm_castps_si128(_mm_mul_ps(scale, _mm_cvtepi32_ps(first))),
            _mm_castps_si128(_mm_mul_ps(scale, _mm_cvtepi32_ps(last))),
            _mm_castps_si128(middle),
        ];
        Some(Four { words, rest })
    }
}

impl Four {
    /// As blocks of four tokens: neighbouring columns of rows of `columns` words.
    ///
    /// # Safety
    /// The processor is as in [`quantise`]; 14 rows are writable.
    #[inline(always)]
    pub(super) unsafe fn store_columns(&self, to: *mut u32, columns: usize) {
        let [first, last] = self.words;
        // SAFETY: the caller's promise.
        unsafe {
            let rows = [
                _mm512_castsi512_si128(first),
                _mm512_extracti32x4_epi32::<1>(first),
                _mm512_extracti32x4_epi32::<2>(first),
                _mm512_extracti32x4_epi32::<3>(first),
                _mm512_castsi512_si128(last),
                _mm512_extracti32x4_epi32::<1>(last),
                _mm512_extracti32x4_epi32::<2>(last),
                _mm512_extracti32x4_epi32::<3>(last),
            ];
            for (row, words) in rows.into_iter().chain(self.rest).enumerate() {
                _mm_storeu_si128(to.wrapping_add(row * columns).cast(), words);
            }
        }
    }

    /// As blocks of one token: 14 words of each, one block after the other.
    ///
    /// # Safety
    /// The processor is as in [`quantise`]; 56 words are writable.
    #[inline(always)]
    pub(super) unsafe fn store_blocks(&self, to: *mut u32) {
        let [first, last] = self.words;
        // SAFETY: the caller's promise.
        unsafe {
            let order = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
            let early = _mm512_permutex2var_epi32(first, order, last);
            let order = _mm512_add_epi32(order, _mm512_set1_epi32(2));
            let late = _mm512_permutex2var_epi32(first, order, last);
            let words = [
                _mm512_castsi512_si256(early),
                _mm512_extracti64x4_epi64::<1>(early),
                _mm512_castsi512_si256(late),
                _mm512_extracti64x4_epi64::<1>(late),
            ];
            let [a, b, c, d, e, f] = self.rest;
            let (ab, cd) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
            let (ab2, cd2) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
            let (ef, ef2) = (_mm_unpacklo_epi32(e, f), _mm_unpackhi_epi32(e, f));
            let four = [
                _mm_unpacklo_epi64(ab, cd),
                _mm_unpackhi_epi64(ab, cd),
                _mm_unpacklo_epi64(ab2, cd2),
                _mm_unpackhi_epi64(ab2, cd2),
            ];
            let two = [
                ef,
                _mm_unpackhi_epi64(ef, ef),
                ef2,
                _mm_unpackhi_epi64(ef2, ef2),
            ];
            for block in 0..4 {
                let to = to.wrapping_add(14 * block);
                _mm256_storeu_si256(to.cast(), words[block]);
                _mm_storeu_si128(to.wrapping_add(8).cast(), four[block]);
                _mm_storel_epi64(to.wrapping_add(12).cast(), two[block]);
            }
        }
    }
}
