use super::{Cpu, Shared};
use crate::kv::{HEAD_DIM_MAX, KvPlace, KvStore, PAGE_TOKENS};
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
    /// head of q or k.
    ///
    /// Shapes: x (rows, d); w (d), d ≤ 256
    pub fn rms_norm_in_place(&self, x: &mut [f32], w: &[f32], eps: f32) {
        let d = w.len();
        assert!((1..=HEAD_DIM_MAX).contains(&d), "w is (d {d})");
        assert!(
            x.len().is_multiple_of(d),
            "x is (rows, d {d}), not {} elements",
            x.len()
        );
        self.for_rows(x, d, |_, rows| {
            let mut copy = [0.0; HEAD_DIM_MAX];
            for row in rows.chunks_exact_mut(d) {
                copy[..d].copy_from_slice(row);
                // SAFETY: the table was chosen for this processor.
                unsafe { (self.table.rms_norm_row)(&copy[..d], w, eps, row) };
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
        assert_eq!(gate.len(), up.len(), "gate and up have one shape");
        assert_eq!(gate.len(), out.len(), "gate and out have one shape");
        self.for_rows(out, 1, |first, out| {
            let (gate, up) = (&gate[first..][..out.len()], &up[first..][..out.len()]);
            // SAFETY: the table was chosen for this processor.
            unsafe { (self.table.silu_mul)(gate, up, out) };
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

    /// Turns each token's heads by its position, in place (RoPE); elements beyond n_rot stay.
    ///
    /// Shapes: angles of n positions; x (n, heads, head_dim)
    pub fn rope(&self, angles: &RopeAngles, x: &mut [f32], head_dim: usize) {
        let n = angles.n();
        assert!(
            angles.n_rot() <= head_dim,
            "n_rot {} of head_dim {head_dim}",
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
        self.for_rows(x, row, |first, rows| {
            for (i, token) in rows.chunks_exact_mut(row).enumerate() {
                angles.turn(first + i, token, head_dim);
            }
        });
    }

    /// Stores the keys and values of `places.len()` tokens of one layer.
    ///
    /// Shapes: k, v (n, n_kv_heads, head_dim)
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
        let (heads, head_dim) = (shape.n_kv_heads, shape.head_dim);
        let len = places.len() * heads * head_dim;
        assert!(
            layer < shape.n_layers,
            "layer {layer} of {}",
            shape.n_layers
        );
        assert_eq!(k.len(), len, "k is ({}, {heads}, {head_dim})", places.len());
        assert_eq!(v.len(), len, "v is ({}, {heads}, {head_dim})", places.len());
        for place in places {
            kv.check_page(place.page);
            assert!(
                (place.row as usize) < PAGE_TOKENS,
                "row {} of a page",
                place.row
            );
        }
        let kv = &*kv;
        let write = |head: usize| {
            for (token, &place) in places.iter().enumerate() {
                let at = (token * heads + head) * head_dim;
                // SAFETY: `kv` is borrowed mutably by this op, and this item alone writes `head`;
                // pages and rows were checked above.
                unsafe {
                    kv.write_head(
                        layer,
                        head,
                        place,
                        &k[at..][..head_dim],
                        &v[at..][..head_dim],
                    );
                }
            }
        };
        if len < ITEM_LEN {
            (0..heads).for_each(write);
        } else {
            self.pool.for_each(heads, write);
        }
    }

    /// Calls `run(first row, rows)` on runs of whole rows of `out`, in parallel if worth it.
    fn for_rows(&self, out: &mut [f32], row: usize, run: impl Fn(usize, &mut [f32]) + Sync) {
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
