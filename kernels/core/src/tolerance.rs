//! How far a kernel may stay from [`crate::reference`], and why that far.

/// Unit roundoff of f32: one correctly rounded operation errs by at most this fraction.
pub const F32_UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// Bound of |kernel − reference| for a dot product of `k` terms, given Σ|wᵢ·xᵢ|.
///
/// Origin: the standard forward error bound of recursive summation, γ_k = k·u / (1 − k·u) with
/// u = [`F32_UNIT`] (Higham, Accuracy and Stability of Numerical Algorithms, §3.1). With separate
/// multiply and add each term rounds once more, hence k + 1.
#[must_use]
pub fn dot_bound(k: usize, sum_of_magnitudes: f64) -> f64 {
    let ku = (k + 1) as f64 * F32_UNIT;
    ku / (1.0 - ku) * sum_of_magnitudes
}

/// Relative error of the vector exponential over its whole range.
///
/// Origin: measured against f64 on 4.4 million values of every exponent in [−87, 88]: 1.2 u where
/// multiply-add fuses, 1.6 u where it does not; with a factor of about two.
pub const EXP_RELATIVE: f64 = 3.0 * F32_UNIT;

/// Vector hyperbolic tangent: relative error over its whole range.
///
/// Origin: measured against f64 on every exponent from 2^-40 to 2^6: 2.2 u, with a factor of about two.
pub const TANH_RELATIVE: f64 = 5.0 * F32_UNIT;

/// RMS norm and SiLU·up: relative error of an element.
///
/// Origin: measured 3.6 u (norm of Gaussian rows up to 8192) and 2.9 u (SiLU over ±85), with a
/// factor of two. The norm's worst case is d/128 + 8 u: each lane sums d/64 squares one after the
/// other, and the square root halves what that costs.
pub const ELEMENTWISE_RELATIVE: f64 = 8.0 * F32_UNIT;

/// Attention: error of an output element relative to the largest |V| the query sees.
///
/// Origin: scores carry [`dot_bound`] over head_dim, which the exponential turns into a relative
/// error of each weight, in proportion to the scores' magnitude. Measured with Gaussian heads of 64
/// at depths 256 to 8192: 4e-8 (unit variance) and 5e-7 (queries three times that, one key taking
/// most of the weight), with a factor of four.
pub const ATTENTION_RELATIVE: f64 = 2e-6;

/// RoPE: error of an element relative to the magnitude of its pair.
///
/// Origin: cosine and sine are rounded once from f64, then two products and a sum: at most 3 u.
pub const ROPE_RELATIVE: f64 = 3.0 * F32_UNIT;
