//! Panels of 16 interleaved rows (or of 16 keys) that are turned into f32 columns on the fly.
//!
//! ```text
//! f32 f16 bf16  [k][16]
//! q8_0          d[nb][16] f16, then per block of 32: 8 × 64 B; word r of line g holds bytes
//!               k = 4g..4g+4 of row r, each stored as q + 128
//! q4_0          d[nb][16] f16, then per block of 32: 4 × 64 B of nibbles; word r of line j holds bytes
//!               4j..4j+4 of row r's block: low nibbles are k = 4j.., high ones k = 16 + 4j..
//! ```
//! Weights are read so where they are plain floats, keys whatever their codec.

use crate::simd::Simd;

/// Consumer of weights in ascending k: `w[r]` is column `k` of the 16 rows of panel r.
pub(crate) trait WeightSink<S: Simd, const R: usize> {
    fn take(&mut self, s: S, k: usize, w: [S::F; R]);
}

/// `R` panels side by side. `ahead` is the distance of the software prefetch in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Panels<const R: usize> {
    pub(crate) first: *const u8,
    pub(crate) stride: usize,
    pub(crate) cols: usize,
    pub(crate) ahead: usize,
}

impl<const R: usize> Panels<R> {
    #[inline(always)]
    fn at(&self, panel: usize, offset: usize) -> *const u8 {
        self.first.wrapping_add(panel * self.stride + offset)
    }
}

/// A weight format as the matmul kernels see it.
pub(crate) trait PanelFormat {
    /// Feeds columns `k0..k1` (multiples of the block length) of `R` panels to `sink`.
    ///
    /// # Safety
    /// The panels must be readable, of this format, `cols` ≥ `k1` wide.
    unsafe fn decode<S: Simd, const R: usize>(
        s: S,
        panels: Panels<R>,
        k0: usize,
        k1: usize,
        sink: &mut impl WeightSink<S, R>,
    );
}

/// One column after the other, each a load.
macro_rules! plain_format {
    ($name:ident, $element:ty, $load:ident) => {
        pub(crate) struct $name;

        impl PanelFormat for $name {
            #[inline(always)]
            unsafe fn decode<S: Simd, const R: usize>(
                s: S,
                panels: Panels<R>,
                k0: usize,
                k1: usize,
                sink: &mut impl WeightSink<S, R>,
            ) {
                const COLUMN: usize = 16 * size_of::<$element>();
                for k in k0..k1 {
                    let mut w = [s.splat(0.0); R];
                    for r in 0..R {
                        let p = panels.at(r, k * COLUMN);
                        if COLUMN == 64 || k & 1 == 0 {
                            s.prefetch(p.wrapping_add(panels.ahead));
                        }
                        // SAFETY: column k < cols of a readable panel.
                        w[r] = unsafe { s.$load(p.cast()) };
                    }
                    sink.take(s, k, w);
                }
            }
        }
    };
}

plain_format!(F32, f32, load);
plain_format!(F16, u16, load_f16);
plain_format!(Bf16, u16, load_bf16);

/// `scale[b]` = d·2^(−shift·b): the mask leaves byte b of a word in place, 2^(8b) too large, and
/// the scale takes that back. All factors are powers of two, so the product is exact, and a shift
/// per column is saved.
#[inline(always)]
fn scales_in_place<S: Simd>(s: S, d: S::F) -> [S::F; 4] {
    let step = s.splat(1.0 / 256.0);
    let d1 = s.mul(d, step);
    let d2 = s.mul(d1, step);
    [d, d1, d2, s.mul(d2, step)]
}

pub(crate) struct Q4_0;

impl PanelFormat for Q4_0 {
    #[inline(always)]
    unsafe fn decode<S: Simd, const R: usize>(
        s: S,
        panels: Panels<R>,
        k0: usize,
        k1: usize,
        sink: &mut impl WeightSink<S, R>,
    ) {
        let quants = panels.cols;
        for block in k0 / 32..k1 / 32 {
            let zero = s.splat(0.0);
            let mut scales = [[zero; 4]; R];
            let mut minimum = [zero; R];
            for r in 0..R {
                let p = panels.at(r, block * 32);
                s.prefetch(p.wrapping_add(panels.ahead));
                // SAFETY: scales of a block inside a readable panel.
                let d = unsafe { s.load_f16(p.cast()) };
                scales[r] = scales_in_place(s, d);
                // q·d − 8·d is (q − 8)·d, all products being exact.
                minimum[r] = s.mul(d, s.splat(-8.0));
            }
            // SAFETY: the nibble lines of a block inside a readable panel.
            unsafe {
                nibble_lines(
                    s,
                    panels,
                    quants + block * 256,
                    &scales,
                    minimum,
                    block * 32,
                    sink,
                )
            };
        }
    }
}

/// The 32 columns from `k` on of a block whose four nibble lines start at byte `at`: low nibbles are the
/// first half of them, high ones the second.
///
/// # Safety
/// `at..at + 256` lies inside readable panels.
#[inline(always)]
unsafe fn nibble_lines<S: Simd, const R: usize>(
    s: S,
    panels: Panels<R>,
    at: usize,
    scales: &[[S::F; 4]; R],
    minimum: [S::F; R],
    k: usize,
    sink: &mut impl WeightSink<S, R>,
) {
    for line in 0..4 {
        let mut words = [s.zero_bits(); R];
        for r in 0..R {
            let p = panels.at(r, at + 64 * line);
            s.prefetch(p.wrapping_add(panels.ahead));
            // SAFETY: the caller's promise.
            words[r] = unsafe { s.load_bits(p) };
        }
        nibbles(s, words, scales, minimum, k + 4 * line, sink);
    }
    for line in 0..4 {
        let mut words = [s.zero_bits(); R];
        for r in 0..R {
            // SAFETY: the caller's promise.
            let v = unsafe { s.load_bits(panels.at(r, at + 64 * line)) };
            words[r] = s.shift_right::<4>(v);
        }
        nibbles(s, words, scales, minimum, k + 16 + 4 * line, sink);
    }
}

/// Four columns from the low nibbles of the four bytes of each word: q·d + m.
#[inline(always)]
fn nibbles<S: Simd, const R: usize>(
    s: S,
    words: [S::Bits; R],
    scales: &[[S::F; 4]; R],
    minimum: [S::F; R],
    k: usize,
    sink: &mut impl WeightSink<S, R>,
) {
    macro_rules! column {
        ($byte:literal) => {
            let mut w = [s.splat(0.0); R];
            for r in 0..R {
                let q = s.masked_to_f32(words[r], 15 << (8 * $byte));
                w[r] = s.fma(q, scales[r][$byte], minimum[r]);
            }
            sink.take(s, k + $byte, w);
        };
    }
    column!(0);
    column!(1);
    column!(2);
    column!(3);
}

pub(crate) struct Q8_0;

impl PanelFormat for Q8_0 {
    #[inline(always)]
    unsafe fn decode<S: Simd, const R: usize>(
        s: S,
        panels: Panels<R>,
        k0: usize,
        k1: usize,
        sink: &mut impl WeightSink<S, R>,
    ) {
        let quants = panels.cols / 32 * 32;
        for block in k0 / 32..k1 / 32 {
            let zero = s.splat(0.0);
            let mut scales = [[zero; 4]; R];
            let mut minimum = [zero; R];
            for r in 0..R {
                let p = panels.at(r, block * 32);
                s.prefetch(p.wrapping_add(panels.ahead));
                // SAFETY: scales of a block inside a readable panel.
                let d = unsafe { s.load_f16(p.cast()) };
                scales[r] = scales_in_place(s, d);
                // Bytes hold q + 128: (q + 128)·d − 128·d is q·d, both products being exact.
                minimum[r] = s.mul(d, s.splat(-128.0));
            }
            for line in 0..8 {
                let mut words = [s.zero_bits(); R];
                for r in 0..R {
                    let p = panels.at(r, quants + block * 512 + 64 * line);
                    s.prefetch(p.wrapping_add(panels.ahead));
                    // SAFETY: one of eight lines of a block inside a readable panel.
                    words[r] = unsafe { s.load_bits(p) };
                }
                bytes(s, words, &scales, minimum, block * 32 + 4 * line, sink);
            }
        }
    }
}

/// Four columns from the four bytes of each word.
#[inline(always)]
fn bytes<S: Simd, const R: usize>(
    s: S,
    words: [S::Bits; R],
    scales: &[[S::F; 4]; R],
    minimum: [S::F; R],
    k: usize,
    sink: &mut impl WeightSink<S, R>,
) {
    macro_rules! column {
        ($byte:literal) => {
            let mut w = [s.splat(0.0); R];
            for r in 0..R {
                let q = s.masked_to_f32(words[r], 255 << (8 * $byte));
                w[r] = s.fma(q, scales[r][$byte], minimum[r]);
            }
            sink.take(s, k + $byte, w);
        };
    }
    column!(0);
    column!(1);
    column!(2);
    // In place the top byte would be a sign: it is shifted down instead.
    let mut w = [s.splat(0.0); R];
    for r in 0..R {
        let q = s.masked_to_f32(s.shift_right::<24>(words[r]), 255);
        w[r] = s.fma(q, scales[r][0], minimum[r]);
    }
    sink.take(s, k + 3, w);
}
