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
/// Origin: 2 ulp measured over every exponent against f64 (polynomial of degree 7, argument
/// reduction in two steps), doubled.
pub const EXP_RELATIVE: f64 = 4.0 * 2.0 * F32_UNIT;

/// RMS norm and SiLU·up: relative error of an element.
///
/// Origin: a sum of squares has no cancellation; sixteen lanes, a square root, a division and two
/// products stay below 16 roundings for rows up to 8192.
pub const ELEMENTWISE_RELATIVE: f64 = 32.0 * F32_UNIT;

/// Attention: error of an output element relative to the largest |V| the query sees.
///
/// Origin: the scores carry [`dot_bound`] over head_dim, which the exponential turns into a
/// relative error of each weight; measured at most 6e-7 for unit-variance inputs at depth 8192,
/// with room for scores of magnitude 30.
pub const ATTENTION_RELATIVE: f64 = 1e-5;

/// RoPE: error of an element relative to the magnitude of its pair.
///
/// Origin: cosine and sine are rounded once from f64, then two products and a sum.
pub const ROPE_RELATIVE: f64 = 4.0 * F32_UNIT;
