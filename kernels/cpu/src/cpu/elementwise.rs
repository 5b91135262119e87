use super::{Cpu, Gate, Shared};
use crate::kv::{KvPlace, KvStore, PAGE_TOKENS, Side};
use crate::rope::RopeAngles;

/// Elements per item of an elementwise op: below that a dispatch costs more than it saves.
const ITEM_LEN: usize = 16 << 10;

impl Cpu {
    /// RMS norm row by row: out = x / sqrt(mean(x²) + eps) · w.
    ///
    /// Shapes:   x (n, d); w (d); out (n, d)
    /// Numerics: f32; sum of squares in 64 lanes, then a fixed tree
    /// Source:   Zhang & Sennrich, Root Mean Square Layer Normalization, eq. 4
    pub fn rms_norm(&self, x: &[f32], w: &[f32], eps: f32, n: usize, d: usize, out: &mut [f32]) {
        assert_eq!(x.len(), n * d, "x is (n {n}, d {d})");
        assert_eq!(w.len(), d, "w is (d {d})");
        assert_eq!(out.len(), n * d, "out is (n {n}, d {d})");
        self.for_rows(out, d, |first, rows| {
            for (i, out) in rows.chunks_exact_mut(d).enumerate() {
                let x = &x[(first + i) * d..][..d];
                // SAFETY: the table was chosen for this processor.
                unsafe { (self.table.rms_norm_row)(x, w, eps, out) };
            }
        });
    }

    /// As [`Cpu::rms_norm`] on every stretch of `w.len()` elements of `x`, in place: the norm of each
    /// head of q or k, or of whole rows.
    ///
    /// Shapes: x (rows, d); w (d)
    pub fn rms_norm_in_place(&self, x: &mut [f32], w: &[f32], eps: f32) {
        self.norm_stretches(x, w.len(), w, eps);
    }

    /// As [`Cpu::rms_norm_in_place`] without weights: x / sqrt(mean(x²) + eps) of every stretch of `d`.
    ///
    /// Shapes: x (rows, d)
    pub fn rms_scale_in_place(&self, x: &mut [f32], d: usize, eps: f32) {
        self.norm_stretches(x, d, &[], eps);
    }

    fn norm_stretches(&self, x: &mut [f32], d: usize, w: &[f32], eps: f32) {
        assert!(
            d > 0 && x.len().is_multiple_of(d),
            "x is (rows, d {d}), not {} elements",
            x.len()
        );
        self.for_rows(x, d, |_, rows| {
            let mut copy = vec![0.0; d];
            for row in rows.chunks_exact_mut(d) {
                copy.copy_from_slice(row);
                // SAFETY: the table was chosen for this processor.
                unsafe { (self.table.rms_norm_row)(&copy, w, eps, row) };
            }
        });
    }

    /// x += bias, row by row.
    ///
    /// Shapes: x (n, bias.len())
    pub fn add_bias(&self, x: &mut [f32], bias: &[f32]) {
        let d = bias.len();
        assert!(
            d > 0 && x.len().is_multiple_of(d),
            "x is (n, d {d}), not {} elements",
            x.len()
        );
        self.for_rows(x, d, |_, rows| {
            for row in rows.chunks_exact_mut(d) {
                for (x, b) in row.iter_mut().zip(bias) {
                    *x += b;
                }
            }
        });
    }

    /// Gated SiLU, element by element: out = gate·σ(gate)·up.
    ///
    /// Shapes: all of one length
    pub fn silu_mul(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        self.gated(Gate::Silu, gate, up, out);
    }

    /// Gated GELU in its tanh form, element by element: out = gelu(gate)·up.
    ///
    /// Shapes:   all of one length
    /// Numerics: no table; relative error as [`Cpu::silu_mul`], and far below zero, where the result
    ///           vanishes, what the exponential makes of its rounded argument
    pub fn gelu_mul(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        self.gated(Gate::GeluTanh, gate, up, out);
    }

    /// Clamped SwiGLU of gpt-oss, element by element: out = g·σ(alpha·g)·(u + 1), with g the gate and
    /// at most `limit`, u the up within ±limit.
    ///
    /// Shapes: all of one length
    pub fn swiglu_clamped(
        &self,
        gate: &[f32],
        up: &[f32],
        alpha: f32,
        limit: f32,
        out: &mut [f32],
    ) {
        self.gated(Gate::SwigluClamped { alpha, limit }, gate, up, out);
    }

    fn gated(&self, by: Gate, gate: &[f32], up: &[f32], out: &mut [f32]) {
        assert_eq!(gate.len(), up.len(), "gate and up have one shape");
        assert_eq!(gate.len(), out.len(), "gate and out have one shape");
        self.for_rows(out, 1, |first, out| {
            let (gate, up) = (&gate[first..][..out.len()], &up[first..][..out.len()]);
            // SAFETY: the table was chosen for this processor.
            unsafe { by.apply(self.table, gate, up, out) };
        });
    }

    /// Soft cap, element by element, in place: x = cap·tanh(x/cap).
    pub fn softcap(&self, x: &mut [f32], cap: f32) {
        self.for_rows(x, 1, |_, x| {
            // SAFETY: the table was chosen for this processor.
            unsafe { (self.table.softcap)(x, cap) };
        });
    }

    /// x *= factor.
    pub fn scale(&self, x: &mut [f32], factor: f32) {
        self.for_rows(x, 1, |_, x| x.iter_mut().for_each(|x| *x *= factor));
    }

    /// Multiplies row i by `factors[i]`.
    ///
    /// Shapes: x (factors.len(), d)
    pub fn scale_rows(&self, x: &mut [f32], factors: &[f32]) {
        let n = factors.len();
        if n == 0 {
            assert!(x.is_empty(), "x is (0, d)");
            return;
        }
        let d = x.len() / n;
        assert!(
            d > 0 && d * n == x.len(),
            "x is (n {n}, d), not {} elements",
            x.len()
        );
        self.for_rows(x, d, |first, rows| {
            for (row, factor) in rows.chunks_exact_mut(d).zip(&factors[first..]) {
                row.iter_mut().for_each(|x| *x *= factor);
            }
        });
    }

    /// Residual sum, element by element: acc += x.
    pub fn add_assign(&self, acc: &mut [f32], x: &[f32]) {
        assert_eq!(acc.len(), x.len(), "both of one shape");
        self.for_rows(acc, 1, |first, acc| {
            for (acc, x) in acc.iter_mut().zip(&x[first..]) {
                *acc += x;
            }
        });
    }

    /// Turns the first n_rot elements of each token's heads by its position, in place (RoPE).
    ///
    /// Shapes: angles of n positions; x (n, heads, head_dim)
    pub fn rope(&self, angles: &RopeAngles, x: &mut [f32], head_dim: usize) {
        self.rope_from(angles, x, head_dim, 0);
    }

    /// As [`Cpu::rope`] for elements `first..first + n_rot` of each head (the rotary part of MLA heads
    /// comes last).
    pub fn rope_from(&self, angles: &RopeAngles, x: &mut [f32], head_dim: usize, first: usize) {
        let n = angles.n();
        assert!(
            first + angles.n_rot() <= head_dim,
            "n_rot {} from {first} of head_dim {head_dim}",
            angles.n_rot()
        );
        if n == 0 {
            assert!(x.is_empty(), "x is (0, heads, {head_dim})");
            return;
        }
        let row = x.len() / n;
        assert!(
            row * n == x.len() && row.is_multiple_of(head_dim),
            "x is (n {n}, heads, head_dim {head_dim}), not {} elements",
            x.len()
        );
        self.for_rows(x, row, |first_row, rows| {
            for (i, token) in rows.chunks_exact_mut(row).enumerate() {
                angles.turn(first_row + i, token, head_dim, first);
            }
        });
    }

    /// Stores the keys and values of `places.len()` tokens of one layer, encoded as the store's codecs
    /// say.
    ///
    /// Shapes: k (n, n_kv_heads, key_dim), v (n, n_kv_heads, value_dim)
    ///
    /// # Panics
    /// If lengths do not match, a page is not committed or a row is not below [`PAGE_TOKENS`].
    pub fn kv_write(
        &self,
        kv: &mut KvStore,
        layer: usize,
        k: &[f32],
        v: &[f32],
        places: &[KvPlace],
    ) {
        let shape = kv.shape();
        let (n, heads) = (places.len(), shape.n_kv_heads);
        let (key_dim, value_dim) = (shape.key_dim, shape.value_dim);
        assert!(
            layer < shape.n_layers,
            "layer {layer} of {}",
            shape.n_layers
        );
        assert_eq!(
            k.len(),
            n * heads * key_dim,
            "k is ({n}, {heads}, {key_dim})"
        );
        assert_eq!(
            v.len(),
            n * heads * value_dim,
            "v is ({n}, {heads}, {value_dim})"
        );
        for place in places {
            kv.check_writable(place.page);
            assert!(
                (place.row as usize) < PAGE_TOKENS,
                "row {} of a page",
                place.row
            );
        }
        let kv = &*kv;
        let [write_key, write_value] = self.table.write_head;
        let write = |head: usize| {
            for (token, &place) in places.iter().enumerate() {
                let index = token * heads + head;
                let (k, v) = (
                    &k[index * key_dim..][..key_dim],
                    &v[index * value_dim..][..value_dim],
                );
                // SAFETY: the table was chosen for this processor; `kv` is borrowed mutably by this
                // op, and this item alone writes `head`; pages and rows were checked above.
                unsafe {
                    write_key(&kv.head_write(layer, Side::Keys, head, place, k));
                    write_value(&kv.head_write(layer, Side::Values, head, place, v));
                }
            }
        };
        if k.len() < ITEM_LEN {
            (0..heads).for_each(write);
        } else {
            self.pool.for_each(heads, write);
        }
    }

    /// Calls `run(first row, rows)` on runs of whole rows of `out`, in parallel if worth it.
    pub(super) fn for_rows(
        &self,
        out: &mut [f32],
        row: usize,
        run: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let len = out.len();
        if len < 2 * ITEM_LEN || self.threads() == 1 {
            run(0, out);
            return;
        }
        // Whole rows, and whole vectors where a row is one element.
        let item = ITEM_LEN.div_ceil(row) * row;
        let shared = Shared(out.as_mut_ptr());
        self.pool.for_each(len.div_ceil(item), |index| {
            let first = index * item;
            let count = item.min(len - first);
            // SAFETY: items are disjoint parts of `out`, which is borrowed for the whole op.
            let rows =
                unsafe { std::slice::from_raw_parts_mut(shared.get().wrapping_add(first), count) };
            run(first / row, rows);
        });
    }
}
