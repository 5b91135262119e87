//! Exponential, norm and activation: per row, sums in a fixed lane pattern.

use crate::simd::Simd;

/// e^x for x in [−87, 88], clamped outside; NaN stays NaN.
///
/// Numerics: n = round(x·log2 e) by adding 1.5·2^23, r = x − n·ln 2 in two parts, polynomial of
/// degree 7 on |r| ≤ ln 2 / 2; about 2 ulp.
/// Source: range reduction and coefficients of Cephes expf (S. Moshier).
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // Operand order keeps NaN: max and min give their second operand where one is NaN.
    let x = s.min(s.splat(88.0), s.max(s.splat(-87.0), x));
    let magic = s.splat(12_582_912.0);
    let t = s.fma(x, s.splat(std::f32::consts::LOG2_E), magic);
    let n = s.sub(t, magic);
    let r = s.fma(n, s.splat(-0.693_359_4), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_1e-4);
    for c in [
        1.398_2e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
        1.0,
        1.0,
    ] {
        p = s.fma(p, r, s.splat(c));
    }
    s.scale_exponent(p, t)
}

/// tanh x; NaN stays NaN, odd to the bit.
///
/// Numerics: an odd polynomial below 0.625, 1 − 2/(e^2|x| + 1) above; about 2 ulp.
/// Source: split and coefficients of Cephes tanhf (S. Moshier).
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let zero = s.splat(0.0);
    let one = s.splat(1.0);
    // Operand order keeps NaN.
    let magnitude = s.max(s.sub(zero, x), x);
    let square = s.mul(x, x);
    let mut p = s.splat(-5.704_988_7e-3);
    for c in [2.063_909e-2, -5.373_971_6e-2, 0.133_314_42, -0.333_332_8] {
        p = s.fma(p, square, s.splat(c));
    }
    let small = s.fma(s.mul(p, square), x, x);
    let grown = exp(s, s.add(magnitude, magnitude));
    let large = s.sub(one, s.div(s.splat(2.0), s.add(grown, one)));
    let large = s.select_less(x, zero, s.sub(zero, large), large);
    s.select_less(magnitude, s.splat(0.625), small, large)
}

/// Loads lanes `i..i + 16` of `row`, zero beyond its end.
#[inline(always)]
fn load_tail<S: Simd>(s: S, row: &[f32], i: usize) -> S::F {
    if let Some(lanes) = row.get(i..i + 16) {
        // SAFETY: sixteen elements.
        return unsafe { s.load(lanes.as_ptr()) };
    }
    let mut lanes = [0f32; 16];
    for (lane, &value) in lanes.iter_mut().zip(&row[i..]) {
        *lane = value;
    }
    // SAFETY: sixteen elements.
    unsafe { s.load(lanes.as_ptr()) }
}

/// Stores lanes to `row[i..i + 16]`, or as many as there are.
#[inline(always)]
fn store_tail<S: Simd>(s: S, row: &mut [f32], i: usize, v: S::F) {
    if let Some(lanes) = row.get_mut(i..i + 16) {
        // SAFETY: sixteen elements.
        unsafe { s.store(lanes.as_mut_ptr(), v) };
        return;
    }
    let mut lanes = [0f32; 16];
    // SAFETY: sixteen elements.
    unsafe { s.store(lanes.as_mut_ptr(), v) };
    for (value, &lane) in row[i..].iter_mut().zip(&lanes) {
        *value = lane;
    }
}

/// One row: out = x / sqrt(mean(x²) + eps) · w, without w where it is empty.
///
/// Numerics: four groups of sixteen lanes take the squares of elements 0–63, 64–127, …; groups
/// (0 + 1) + (2 + 3), then the lane tree.
#[inline(always)]
pub(crate) fn rms_norm_row<S: Simd>(s: S, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    let d = x.len();
    let mut groups = [s.splat(0.0); 4];
    for i in (0..d).step_by(64) {
        for (g, group) in groups.iter_mut().enumerate() {
            if i + 16 * g < d {
                let v = load_tail(s, x, i + 16 * g);
                *group = s.fma(v, v, *group);
            }
        }
    }
    let sum = s.add(s.add(groups[0], groups[1]), s.add(groups[2], groups[3]));
    let scale = s.splat(1.0 / (s.sum(sum) / d as f32 + eps).sqrt());
    for i in (0..d).step_by(16) {
        let mut v = s.mul(load_tail(s, x, i), scale);
        if !w.is_empty() {
            v = s.mul(v, load_tail(s, w, i));
        }
        store_tail(s, out, i, v);
    }
}

/// out = gate·σ(gate)·up.
#[inline(always)]
pub(crate) fn silu_mul<S: Simd>(s: S, gate: &[f32], up: &[f32], out: &mut [f32]) {
    for i in (0..gate.len()).step_by(16) {
        let g = load_tail(s, gate, i);
        let e = exp(s, s.sub(s.splat(0.0), g));
        let silu = s.div(g, s.add(s.splat(1.0), e));
        store_tail(s, out, i, s.mul(silu, load_tail(s, up, i)));
    }
}

/// out = gelu(gate)·up, tanh form.
///
/// Numerics: ½·(1 + tanh t) is 1/(1 + e^−2t): one exponential, and no cancellation below zero.
#[inline(always)]
pub(crate) fn gelu_mul<S: Simd>(s: S, gate: &[f32], up: &[f32], out: &mut [f32]) {
    // −2·√(2/π) and that times 0.044715.
    let (linear, cubic) = (s.splat(-1.595_769), s.splat(-0.071_354_814));
    for i in (0..gate.len()).step_by(16) {
        let g = load_tail(s, gate, i);
        let t = s.mul(g, s.fma(cubic, s.mul(g, g), linear));
        let gelu = s.div(g, s.add(s.splat(1.0), exp(s, t)));
        store_tail(s, out, i, s.mul(gelu, load_tail(s, up, i)));
    }
}

/// out = g·σ(alpha·g)·(u + 1) with g = min(gate, limit), u = up within ±limit.
#[inline(always)]
pub(crate) fn swiglu_clamped<S: Simd>(
    s: S,
    gate: &[f32],
    up: &[f32],
    alpha: f32,
    limit: f32,
    out: &mut [f32],
) {
    let one = s.splat(1.0);
    for i in (0..gate.len()).step_by(16) {
        // Operand order keeps NaN.
        let g = s.min(s.splat(limit), load_tail(s, gate, i));
        let u = s.min(s.splat(limit), s.max(s.splat(-limit), load_tail(s, up, i)));
        let e = exp(s, s.mul(s.splat(-alpha), g));
        let swish = s.div(g, s.add(one, e));
        store_tail(s, out, i, s.mul(swish, s.add(u, one)));
    }
}

/// x = cap·tanh(x/cap).
#[inline(always)]
pub(crate) fn softcap<S: Simd>(s: S, x: &mut [f32], cap: f32) {
    for i in (0..x.len()).step_by(16) {
        let v = softcap_lanes(s, load_tail(s, x, i), cap);
        store_tail(s, x, i, v);
    }
}

/// cap·tanh(x/cap) per lane.
#[inline(always)]
pub(crate) fn softcap_lanes<S: Simd>(s: S, x: S::F, cap: f32) -> S::F {
    let cap = s.splat(cap);
    s.mul(cap, tanh(s, s.div(x, cap)))
}

#[cfg(test)]
mod tests {
    use vitriol_kernels_core::tolerance;

    use super::*;
    use crate::arch::scalar::Scalar;

    /// Largest relative error over the whole range, in units of the tolerance.
    fn worst<S: Simd>(s: S) -> f64 {
        let mut worst = 0f64;
        let negative = (0x8000_0000..(-87f32).to_bits()).step_by(1 << 13);
        for first in (0..88f32.to_bits()).step_by(1 << 13).chain(negative) {
            let x: [f32; 16] = std::array::from_fn(|i| f32::from_bits(first + 97 * i as u32));
            let mut out = [0f32; 16];
            // SAFETY: sixteen elements.
            unsafe { s.store(out.as_mut_ptr(), exp(s, s.load(x.as_ptr()))) };
            for (&x, &value) in x.iter().zip(&out) {
                let exact = f64::from(x).exp();
                worst = worst.max((f64::from(value) - exact).abs() / exact);
            }
        }
        println!(
            "{}: {:.2} u",
            std::any::type_name::<S>(),
            worst / tolerance::F32_UNIT
        );
        worst
    }

    #[test]
    fn exponential_is_within_its_tolerance_everywhere() {
        assert!(worst(Scalar) <= tolerance::EXP_RELATIVE);
        #[cfg(target_arch = "x86_64")]
        {
            use crate::Isa;
            use crate::arch::{avx2::Avx2, avx512::Avx512, sse41::Sse41};
            if Isa::Sse41.is_present() {
                // SAFETY: detected just now.
                let witness = unsafe { Sse41::new_unchecked() };
                assert!(worst(witness) <= tolerance::EXP_RELATIVE);
            }
            if Isa::Avx2.is_present() {
                // SAFETY: detected just now.
                let witness = unsafe { Avx2::<false>::new_unchecked() };
                assert!(worst(witness) <= tolerance::EXP_RELATIVE);
            }
            if Isa::Avx512.is_present() {
                // SAFETY: detected just now.
                let witness = unsafe { Avx512::new_unchecked() };
                assert!(worst(witness) <= tolerance::EXP_RELATIVE);
            }
        }
    }

    fn worst_tanh<S: Simd>(s: S) -> f64 {
        let mut worst = 0f64;
        for first in (1e-12f32.to_bits()..64f32.to_bits()).step_by(1 << 12) {
            let x: [f32; 16] = std::array::from_fn(|i| f32::from_bits(first + 97 * i as u32));
            let (mut out, mut negative) = ([0f32; 16], [0f32; 16]);
            // SAFETY: sixteen elements each.
            unsafe {
                let lanes = s.load(x.as_ptr());
                s.store(out.as_mut_ptr(), tanh(s, lanes));
                s.store(negative.as_mut_ptr(), tanh(s, s.sub(s.splat(0.0), lanes)));
            }
            assert_eq!(out, negative.map(|value| -value), "odd");
            for (&x, &value) in x.iter().zip(&out) {
                let exact = f64::from(x).tanh();
                worst = worst.max((f64::from(value) - exact).abs() / exact);
            }
        }
        let units = worst / tolerance::F32_UNIT;
        println!("tanh, {}: {units:.2} u", std::any::type_name::<S>());
        worst
    }

    #[test]
    fn tangent_is_within_its_tolerance_everywhere() {
        assert!(worst_tanh(Scalar) <= tolerance::TANH_RELATIVE);
        #[cfg(target_arch = "x86_64")]
        {
            use crate::Isa;
            use crate::arch::{avx2::Avx2, avx512::Avx512, sse41::Sse41};
            if Isa::Sse41.is_present() {
                // SAFETY: detected just now.
                let witness = unsafe { Sse41::new_unchecked() };
                assert!(worst_tanh(witness) <= tolerance::TANH_RELATIVE);
            }
            if Isa::Avx2.is_present() {
                // SAFETY: detected just now.
                let witness = unsafe { Avx2::<false>::new_unchecked() };
                assert!(worst_tanh(witness) <= tolerance::TANH_RELATIVE);
            }
            if Isa::Avx512.is_present() {
                // SAFETY: detected just now.
                let witness = unsafe { Avx512::new_unchecked() };
                assert!(worst_tanh(witness) <= tolerance::TANH_RELATIVE);
            }
        }
        let x = [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            -0.0,
            1e-40,
            200.0,
        ];
        let mut lanes = [0f32; 16];
        lanes[..6].copy_from_slice(&x);
        let out = tanh(Scalar, lanes);
        assert!(out[0].is_nan());
        assert_eq!(out[1..6], [1.0, -1.0, 0.0, 1e-40, 1.0]);
    }

    #[test]
    fn exponential_saturates_and_keeps_nan() {
        let x = [
            f32::NAN,
            f32::NEG_INFINITY,
            f32::INFINITY,
            -1e30,
            1e30,
            0.0,
            -0.0,
            1e-45,
        ];
        let s = Scalar;
        let mut lanes = [0f32; 16];
        lanes[..8].copy_from_slice(&x);
        let out = exp(s, lanes);
        assert!(out[0].is_nan());
        assert!(out[1] < 1e-37 && out[1] == out[3]);
        assert!(out[2] > 1e38 && out[2] == out[4] && out[2].is_finite());
        assert_eq!(out[5..8], [1.0; 3]);
    }
}
