//! Exponential, norm and activation: per row, sums in a fixed lane pattern.

use crate::simd::{Simd, sum_lanes};

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

/// One row: out = x / sqrt(mean(x²) + eps) · w.
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
    let scale = s.splat(1.0 / (sum_lanes(s, sum) / d as f32 + eps).sqrt());
    for i in (0..d).step_by(16) {
        let v = s.mul(s.mul(load_tail(s, x, i), scale), load_tail(s, w, i));
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
