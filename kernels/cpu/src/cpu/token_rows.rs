use crate::table::{Clamped, KernelTable};

/// What an element of the gate is made of before it is multiplied with that of up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gate {
    /// g·σ(g)
    Silu,
    /// gelu(g) in its tanh form.
    GeluTanh,
    /// With g at most `limit` and up within ±limit: g·σ(alpha·g), times up + 1 (gpt-oss).
    SwigluClamped {
        /// Factor within the sigmoid.
        alpha: f32,
        /// Where both are clamped.
        limit: f32,
    },
}

impl Gate {
    /// out = gate·up.
    ///
    /// # Safety
    /// The table is for this processor; all of one length.
    pub(super) unsafe fn apply(
        self,
        table: &KernelTable,
        gate: &[f32],
        up: &[f32],
        out: &mut [f32],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Gate::Silu => (table.silu_mul)(gate, up, out),
                Gate::GeluTanh => (table.gelu_mul)(gate, up, out),
                Gate::SwigluClamped { alpha, limit } => {
                    let arguments = Clamped {
                        gate,
                        up,
                        alpha,
                        limit,
                    };
                    (table.swiglu_clamped)(&arguments, out);
                }
            }
        }
    }
}

/// Rows of tokens that a product multiplies. Those that are made of others are made a few at a time, just
/// before they are encoded for the kernels: they need no memory of their own and are not fetched again.
#[derive(Clone, Copy, Debug)]
pub enum TokenRows<'a> {
    /// As they are: (n, cols).
    Stored(&'a [f32]),
    /// [`Cpu::rms_norm`](super::Cpu::rms_norm) of `x` (n, cols) by `w` (cols).
    Normed {
        /// Rows to norm.
        x: &'a [f32],
        /// Weights.
        w: &'a [f32],
        /// What is added to the mean square.
        eps: f32,
    },
    /// gate·up, both (n, cols).
    Gated {
        /// Rows of the gate.
        gate: &'a [f32],
        /// Rows of up.
        up: &'a [f32],
        /// What is done with the gate.
        by: Gate,
    },
}

impl TokenRows<'_> {
    /// Elements of all rows.
    pub(super) fn len(&self) -> usize {
        match self {
            TokenRows::Stored(x) | TokenRows::Normed { x, .. } => x.len(),
            TokenRows::Gated { gate, .. } => gate.len(),
        }
    }

    /// # Panics
    /// If they are not `n` rows of `cols`.
    pub(super) fn source(&self, n: usize, cols: usize) -> Source {
        assert_eq!(self.len(), n * cols, "x is (n {n}, cols {cols})");
        match *self {
            TokenRows::Stored(x) => Source::Stored(x.as_ptr()),
            TokenRows::Normed { x, w, eps } => {
                assert_eq!(w.len(), cols, "w is (cols {cols})");
                Source::Normed(x.as_ptr(), w.as_ptr(), eps)
            }
            TokenRows::Gated { gate, up, by } => {
                assert_eq!(gate.len(), up.len(), "gate and up have one shape");
                Source::Gated(gate.as_ptr(), up.as_ptr(), by)
            }
        }
    }
}

/// [`TokenRows`] whose lengths were checked.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Source {
    Stored(*const f32),
    Normed(*const f32, *const f32, f32),
    Gated(*const f32, *const f32, Gate),
}

impl Source {
    /// The rows, where there is nothing to make.
    pub(super) fn stored(self) -> Option<*const f32> {
        match self {
            Source::Stored(x) => Some(x),
            _ => None,
        }
    }

    /// Makes row `row`, of `out.len()` columns.
    ///
    /// # Safety
    /// What this was made of is borrowed still, and has the row; the table is for this processor.
    pub(super) unsafe fn make(self, table: &KernelTable, row: usize, out: &mut [f32]) {
        let cols = out.len();
        // SAFETY: the caller's promise.
        unsafe {
            let row_of =
                |x: *const f32| std::slice::from_raw_parts(x.wrapping_add(row * cols), cols);
            match self {
                Source::Stored(x) => out.copy_from_slice(row_of(x)),
                Source::Normed(x, w, eps) => {
                    let w = std::slice::from_raw_parts(w, cols);
                    (table.rms_norm_row)(row_of(x), w, eps, out);
                }
                Source::Gated(gate, up, by) => {
                    let (gate, up) = (row_of(gate), row_of(up));
                    by.apply(table, gate, up, out);
                }
            }
        }
    }
}
