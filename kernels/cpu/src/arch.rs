//! One file per instruction set: what a vector operation is there, nothing else.

/// What `$op` makes of four lanes: 0 with 2, 1 with 3, then both.
#[cfg(target_arch = "x86_64")]
macro_rules! across_four {
    ($op:ident, $v:expr) => {{
        let v = $v;
        let v = $op(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32($op(v, _mm_shuffle_ps::<1>(v, v)))
    }};
}

/// The same of sixteen lanes in two halves: i with i + 8, then + 4.
#[cfg(target_arch = "x86_64")]
macro_rules! across_halves {
    ($op256:ident, $op128:ident, $low:expr, $high:expr) => {{
        let v = $op256($low, $high);
        let v = $op128(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        across_four!($op128, v)
    }};
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) mod sse41;
