//! Every op in plain loops with f64 accumulation: the meaning of the kernels, whatever the device.
//!
//! Slow on purpose. Inputs are f32 as a kernel gets them; results are f64, unrounded.

mod attention;

pub use attention::{AttentionOptions, AttentionShape, attention};

/// Matrix product: `out[t][r] = Σ_k w[r][k]·x[t][k]`.
///
/// Shapes: w (rows, cols) dequantised; x (n, cols); result (n, rows)
#[must_use]
pub fn matmul(w: &[f32], rows: usize, cols: usize, x: &[f32], n: usize) -> Vec<f64> {
    assert_eq!(w.len(), rows * cols, "w is (rows, cols)");
    assert_eq!(x.len(), n * cols, "x is (n, cols)");
    let mut out = Vec::with_capacity(n * rows);
    for t in 0..n {
        for r in 0..rows {
            out.push(dot(&w[r * cols..][..cols], &x[t * cols..][..cols]));
        }
    }
    out
}

/// What tokens are once rounded to signed bytes: per 32 columns, with half the range
/// h = (max − min) / 2 and the middle (max + min) / 2, bytes = (x − middle)·(127 / h) to nearest even
/// and value = byte·(h / 127) + middle; all the middle where h is below 1e-30. Kernels for quantised
/// weights multiply these.
///
/// Shapes: x (n, cols), cols a multiple of 32; result the same
#[must_use]
pub fn round_tokens(x: &[f32]) -> Vec<f32> {
    assert!(x.len().is_multiple_of(32), "x is whole blocks of 32");
    let round_block = |block: &[f32; 32]| {
        let low = block.iter().fold(f32::MAX, |low, &x| low.min(x));
        let high = block.iter().fold(f32::MIN, |high, &x| high.max(x));
        let (half, middle) = (0.5 * high - 0.5 * low, 0.5 * high + 0.5 * low);
        if half < 1e-30 {
            return [middle; 32];
        }
        let (scale, inverse) = (half / 127.0, 127.0 / half);
        block.map(|x| ((x - middle) * inverse).round_ties_even() * scale + middle)
    };
    let blocks = x.as_chunks::<32>().0.iter();
    blocks.flat_map(round_block).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(&a, &b)| f64::from(a) * f64::from(b))
        .sum()
}

/// RMS norm of each row of x: `out[i] = x[i] / sqrt(mean(x²) + eps) · w[i]`.
///
/// Shapes: x (n, d); w (d); result (n, d)
#[must_use]
pub fn rms_norm(x: &[f32], w: &[f32], eps: f32) -> Vec<f64> {
    let d = w.len();
    assert!(x.len().is_multiple_of(d), "x is (n, d)");
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(d) {
        let mean = dot(row, row) / d as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        out.extend(
            row.iter()
                .zip(w)
                .map(|(&x, &w)| f64::from(x) * scale * f64::from(w)),
        );
    }
    out
}

/// Gated SiLU: `out[i] = gate[i]·σ(gate[i])·up[i]`.
#[must_use]
pub fn silu_mul(gate: &[f32], up: &[f32]) -> Vec<f64> {
    assert_eq!(gate.len(), up.len(), "gate and up have one shape");
    let silu = |g: f64| g / (1.0 + (-g).exp());
    gate.iter()
        .zip(up)
        .map(|(&g, &u)| silu(f64::from(g)) * f64::from(u))
        .collect()
}

/// Gated GELU, tanh form: `out[i] = ½·g·(1 + tanh(√(2/π)·(g + 0.044715·g³)))·up[i]` with g = gate[i].
#[must_use]
pub fn gelu_mul(gate: &[f32], up: &[f32]) -> Vec<f64> {
    assert_eq!(gate.len(), up.len(), "gate and up have one shape");
    let gelu = |g: f64| {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044_715 * g * g * g);
        // 1 + tanh(t) without its cancellation far below zero.
        g / (1.0 + (-2.0 * inner).exp())
    };
    gate.iter()
        .zip(up)
        .map(|(&g, &u)| gelu(f64::from(g)) * f64::from(u))
        .collect()
}

/// Clamped SwiGLU of gpt-oss: `out[i] = g·σ(alpha·g)·(u + 1)` with g = min(gate[i], limit) and
/// u = up[i] within ±limit.
#[must_use]
pub fn swiglu_clamped(gate: &[f32], up: &[f32], alpha: f32, limit: f32) -> Vec<f64> {
    assert_eq!(gate.len(), up.len(), "gate and up have one shape");
    let limit = f64::from(limit);
    gate.iter()
        .zip(up)
        .map(|(&g, &u)| {
            let (g, u) = (f64::from(g).min(limit), f64::from(u).clamp(-limit, limit));
            g / (1.0 + (-f64::from(alpha) * g).exp()) * (u + 1.0)
        })
        .collect()
}

/// Soft cap: `cap·tanh(x/cap)`.
#[must_use]
pub fn softcap(x: f64, cap: f32) -> f64 {
    let cap = f64::from(cap);
    cap * (x / cap).tanh()
}

/// Softmax: exp(xᵢ − max x) / Σ exp(xⱼ − max x).
#[must_use]
pub fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = x.iter().map(|&x| (x - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / sum).collect()
}

/// Which two elements of a head RoPE turns together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// (2i, 2i + 1): the order of the original paper; llama checkpoints in GGUF are permuted to it.
    Norm,
    /// (i, i + n_rot/2): the order of GPT-NeoX.
    Neox,
}

/// Angle in radians by which pair `i` turns at a position.
///
/// `θ = position · linear_scale · freq_base^(−2i/n_rot) / freq_factors[i]`
/// Source: Su et al., RoFormer, §3.2.2; factors as in Llama 3.1 (ggml `ggml_rope_ext`).
#[must_use]
pub fn rope_angle(
    position: u32,
    pair: usize,
    n_rot: usize,
    freq_base: f32,
    linear_scale: f32,
    freq_factors: Option<&[f32]>,
) -> f64 {
    let frequency = f64::from(freq_base).powf(-2.0 * pair as f64 / n_rot as f64);
    let factor = freq_factors.map_or(1.0, |factors| f64::from(factors[pair]));
    f64::from(position) * f64::from(linear_scale) * frequency / factor
}

/// Turns the first `n_rot` elements of one head by `angles` (n_rot/2), returns the whole head.
#[must_use]
pub fn rope(head: &[f32], n_rot: usize, pairs: RopeStyle, angles: &[f64]) -> Vec<f64> {
    let mut out: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
    for (i, angle) in angles.iter().enumerate().take(n_rot / 2) {
        let (a, b) = match pairs {
            RopeStyle::Norm => (2 * i, 2 * i + 1),
            RopeStyle::Neox => (i, i + n_rot / 2),
        };
        let (x, y) = (f64::from(head[a]), f64::from(head[b]));
        out[a] = x * angle.cos() - y * angle.sin();
        out[b] = x * angle.sin() + y * angle.cos();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matmul_by_hand() {
        let w = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let x = [1.0, 0.0, -1.0, 2.0, 2.0, 2.0];
        assert_eq!(matmul(&w, 2, 3, &x, 2), [-2.0, -2.0, 12.0, 30.0]);
    }

    #[test]
    fn norm_of_a_constant_row_is_the_weight() {
        let out = rms_norm(&[3.0; 4], &[1.0, -2.0, 0.5, 0.0], 0.0);
        for (value, expected) in out.iter().zip([1.0, -2.0, 0.5, 0.0]) {
            assert!((value - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn rope_keeps_the_length_of_pairs_and_leaves_the_rest() {
        let head = [3.0, 4.0, 1.0, 0.0, 9.0];
        let angles: Vec<f64> = (0..2)
            .map(|i| rope_angle(5, i, 4, 1e4, 1.0, None))
            .collect();
        for (pairs, (a, b)) in [(RopeStyle::Norm, (0, 1)), (RopeStyle::Neox, (0, 2))] {
            let out = rope(&head, 4, pairs, &angles);
            let before = f64::from(head[a]).hypot(f64::from(head[b]));
            assert!((out[a].hypot(out[b]) - before).abs() < 1e-12, "{pairs:?}");
            assert_eq!(out[4], 9.0);
        }
        assert!((rope_angle(5, 1, 4, 1e4, 0.5, Some(&[1.0, 2.0])) - 0.0125).abs() < 1e-9);
    }
}
