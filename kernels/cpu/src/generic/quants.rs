//! How quantised weights lie in panels of 16 rows, and how a block of 32 columns becomes lines of
//! bytes for the int8 dot product.
//!
//! A *line* is 64 bytes, four columns of 16 rows: word r holds columns 4g..4g + 4 of row r.
//!
//! ```text
//! q8_0   d[nb][16] f16, then per block 8 lines, each byte q + 128
//! q4_0   d[nb][16] f16, then per block 4 lines of nibbles: low ones are line j, high ones line j + 4
//! q5_0   d[nb][16] f16, then per block 4 lines of nibbles and 1 of fifth bits (bit g: line g)
//! q4_1   per block 4 lines of nibbles, then d[16], m[16] f16
//! q5_1   per block 4 lines of nibbles, 1 of fifth bits, then d[16], m[16] f16
//! iq4_nl as q4_0, a nibble naming an entry of the codebook
//! ```
//! The others: the files of `quants/`. Values are those of the file. A block's dot product is an exact
//! integer, so what stands in which order inside it does not matter to the bits.

/// Formats of a file with one scale a block, all scales in front of the lines: `nibble`s, with a
/// fifth bit, or bytes.
macro_rules! scales_first {
    ($name:ident, lines $lines:literal, minimum $minimum:literal, biased $biased:literal,
     byte_max $byte_max:literal, |$s:ident, $d:ident| $m:expr, |$p:ident, $sink:ident| $feed:expr) => {
        pub(crate) struct $name;

        impl QuantFormat for $name {
            const PARTS: usize = 1;
            const MINIMUM: bool = $minimum;
            const BIASED: bool = $biased;
            const BYTE_MAX: usize = $byte_max;
            type Apart = Apart<1, $minimum, $biased, { !$biased && is_short($byte_max, 1) }>;

            fn panel_bytes(cols: usize) -> Option<usize> {
                (cols / 32).checked_mul(32 + 64 * $lines)
            }

            #[inline(always)]
            unsafe fn scales<S: Simd>($s: S, panel: Panel, block: usize) -> Scales<S> {
                let p = panel.at(32 * block);
                $s.prefetch(p.wrapping_add(AHEAD_BYTES));
                // SAFETY: the scales of a block of a readable panel.
                let $d = unsafe { $s.load_f16(p.cast()) };
                Scales::whole($d, $m)
            }

            #[inline(always)]
            unsafe fn lines<S: Simd, const PART: usize>(
                $s: S,
                panel: Panel,
                block: usize,
                $sink: &mut impl LineSink<S>,
            ) {
                let $p = panel.at(panel.cols + 64 * $lines * block);
                // SAFETY: the lines of a block of a readable panel.
                unsafe { $feed }
            }
        }
    };
}

mod apart;
mod codebook;
mod few_bits;
mod fp4;
mod k_quants;

pub(crate) use apart::{Apart, ApartFormat, Kept, PanelApart};
pub(crate) use codebook::{Codebook, Iq4Xs};
pub(crate) use few_bits::{Q2K, Q3K, TwoBits, super_scales_bytes};
pub(crate) use fp4::{MXFP4_EXPONENTS, Mxfp4, Nvfp4, mxfp4_scales_bytes};
pub(crate) use k_quants::{Q4K, Q5K, Q6K};

use crate::simd::Simd;

/// One panel.
#[derive(Clone, Copy)]
pub(crate) struct Panel {
    pub(crate) base: *const u8,
    pub(crate) cols: usize,
}

impl Panel {
    #[inline(always)]
    fn at(&self, offset: usize) -> *const u8 {
        self.base.wrapping_add(offset)
    }
}

/// Distance of the software prefetch. Panels follow each other, so that the stream goes on there.
/// Hardware prefetch alone stalls where eight tokens share the weights (measured on Zen 5: 1.5
/// times slower).
const AHEAD_BYTES: usize = 4096;

/// Consumer of the eight lines of a block, in any order.
///
/// Which line it is is a constant, so that shifts and offsets are: a loop over lines that the compiler
/// leaves as one costs several times the work.
pub(crate) trait LineSink<S: Simd> {
    fn line<const G: usize>(&mut self, s: S, w: S::Bits);
}

/// What makes nibbles whole.
trait Finish<S: Simd> {
    fn finish<const G: usize>(&self, s: S, nibbles: S::Bits) -> S::Bits;
}

/// They are.
struct Whole;

impl<S: Simd> Finish<S> for Whole {
    #[inline(always)]
    fn finish<const G: usize>(&self, _s: S, nibbles: S::Bits) -> S::Bits {
        nibbles
    }
}

/// By bit g of each byte as bit 4.
struct FifthBit<S: Simd>(S::Bits);

impl<S: Simd> Finish<S> for FifthBit<S> {
    #[inline(always)]
    fn finish<const G: usize>(&self, s: S, nibbles: S::Bits) -> S::Bits {
        let moved = match G {
            0 => s.shift_left::<4>(self.0),
            1 => s.shift_left::<3>(self.0),
            2 => s.shift_left::<2>(self.0),
            3 => s.shift_left::<1>(self.0),
            4 => self.0,
            5 => s.shift_right::<1>(self.0),
            6 => s.shift_right::<2>(self.0),
            _ => s.shift_right::<3>(self.0),
        };
        s.or(nibbles, s.and_mask(moved, 0x1010_1010))
    }
}

/// By the entries they name of a codebook.
struct Entries<'a>(&'a [u8; 16]);

impl<S: Simd> Finish<S> for Entries<'_> {
    #[inline(always)]
    fn finish<const G: usize>(&self, s: S, nibbles: S::Bits) -> S::Bits {
        s.lookup(self.0, nibbles)
    }
}

/// Scale and minimum of 16 rows, for each part of a block: weight = byte·d + m.
///
/// No closure makes them: what is not inlined into a kernel lacks its instruction set, and each
/// operation becomes a call (measured with AVX2 at one token: 2 to 14 times slower).
#[derive(Clone, Copy)]
pub(crate) struct Scales<S: Simd> {
    pub(crate) d: [S::F; 2],
    pub(crate) m: [S::F; 2],
}

impl<S: Simd> Scales<S> {
    #[inline(always)]
    fn whole(d: S::F, m: S::F) -> Self {
        Self {
            d: [d, d],
            m: [m, m],
        }
    }

    /// Where weight = (byte − offset)·d.
    #[inline(always)]
    fn offset(s: S, d: [S::F; 2], offset: f32) -> Self {
        let offset = s.splat(-offset);
        Self {
            d,
            m: [s.mul(d[0], offset), s.mul(d[1], offset)],
        }
    }
}

/// Whether every other pair of products over one of `parts` parts of a block sums to 16 bits.
const fn is_short(byte_max: usize, parts: usize) -> bool {
    byte_max * 127 * 16 / parts <= i16::MAX as usize
}

/// A quantised format as the kernels see it.
pub(crate) trait QuantFormat {
    /// 1: a block has one scale; 2: its first and last 16 columns have one each.
    const PARTS: usize;
    /// Whether [`Scales::m`] says anything; else it is zero.
    const MINIMUM: bool;
    /// Whether the bytes are q + 128 of a signed q, and m is zero.
    const BIASED: bool;
    /// No byte of a line is larger; at most 127 unless biased.
    const BYTE_MAX: usize;
    /// Whether the sums over a part of every other pair of products fit 16 bits.
    const SHORT: bool = is_short(Self::BYTE_MAX, Self::PARTS);
    /// What a panel is taken apart into for many tokens ([`PanelApart`]): of the same parts, minimum and
    /// bias.
    type Apart: ApartFormat;

    /// Where a panel holds the weight sums of a block, 16 f32; `None` where they are formed from its bytes.
    #[inline(always)]
    fn sums_at(_block: usize) -> Option<usize> {
        None
    }

    /// Bytes of a panel of `cols` columns, a multiple of the block length.
    fn panel_bytes(cols: usize) -> Option<usize>;

    /// # Safety
    /// The panel is readable, of this format, and has the block.
    unsafe fn scales<S: Simd>(s: S, panel: Panel, block: usize) -> Scales<S>;

    /// Feeds the lines of part `PART` of the block: all eight, or four of two parts.
    ///
    /// # Safety
    /// As [`QuantFormat::scales`].
    unsafe fn lines<S: Simd, const PART: usize>(
        s: S,
        panel: Panel,
        block: usize,
        sink: &mut impl LineSink<S>,
    );
}

/// # Safety
/// `p` readable for a line.
#[inline(always)]
unsafe fn load_line<S: Simd>(s: S, p: *const u8) -> S::Bits {
    s.prefetch(p.wrapping_add(AHEAD_BYTES));
    // SAFETY: the caller's promise.
    unsafe { s.load_bits(p) }
}

const NIBBLES: u32 = 0x0f0f_0f0f;

/// The four lines of nibbles at `p`, made whole.
///
/// # Safety
/// `p` readable for four lines.
#[inline(always)]
unsafe fn nibble_lines<S: Simd>(
    s: S,
    p: *const u8,
    whole: &impl Finish<S>,
    sink: &mut impl LineSink<S>,
) {
    macro_rules! lines {
        ($($low:literal $high:literal),*) => {$(
            // SAFETY: the caller's promise.
            let v = unsafe { load_line(s, p.wrapping_add(64 * $low)) };
            sink.line::<$low>(s, whole.finish::<$low>(s, s.and_mask(v, NIBBLES)));
            let high = s.and_mask(s.shift_right::<4>(v), NIBBLES);
            sink.line::<$high>(s, whole.finish::<$high>(s, high));
        )*};
    }
    lines!(0 4, 1 5, 2 6, 3 7);
}

/// Lines 4·`PART`.. from the two lines of nibbles at `p`, made whole: low ones are the first two.
///
/// # Safety
/// `p` readable for two lines.
#[inline(always)]
unsafe fn paired_nibble_lines<S: Simd, const PART: usize>(
    s: S,
    p: *const u8,
    whole: &impl Finish<S>,
    sink: &mut impl LineSink<S>,
) {
    macro_rules! lines {
        ($first:literal $second:literal $third:literal $fourth:literal) => {
            // SAFETY: the caller's promise.
            let (v, w) = unsafe { (load_line(s, p), load_line(s, p.wrapping_add(64))) };
            sink.line::<$first>(s, whole.finish::<$first>(s, s.and_mask(v, NIBBLES)));
            sink.line::<$second>(s, whole.finish::<$second>(s, s.and_mask(w, NIBBLES)));
            let v = s.and_mask(s.shift_right::<4>(v), NIBBLES);
            sink.line::<$third>(s, whole.finish::<$third>(s, v));
            let w = s.and_mask(s.shift_right::<4>(w), NIBBLES);
            sink.line::<$fourth>(s, whole.finish::<$fourth>(s, w));
        };
    }
    match PART {
        0 => {
            lines!(0 1 2 3);
        }
        _ => {
            lines!(4 5 6 7);
        }
    }
}

/// # Safety
/// `p` readable for four lines of nibbles and one of fifth bits.
#[inline(always)]
unsafe fn five_bit_lines<S: Simd>(s: S, p: *const u8, sink: &mut impl LineSink<S>) {
    // SAFETY: the caller's promise.
    unsafe {
        let fifth = FifthBit(load_line(s, p.wrapping_add(256)));
        nibble_lines(s, p, &fifth, sink);
    }
}

scales_first!(Q8_0, lines 8, minimum false, biased true, byte_max 255, |s, _d| s.splat(0.0), |p, sink| {
    macro_rules! lines {
        ($($g:literal)*) => {$(sink.line::<$g>(s, load_line(s, p.wrapping_add(64 * $g)));)*};
    }
    lines!(0 1 2 3 4 5 6 7);
});

scales_first!(Q4_0, lines 4, minimum true, biased false, byte_max 15, |s, d| s.mul(d, s.splat(-8.0)), |p, sink| {
    nibble_lines(s, p, &Whole, sink);
});

scales_first!(Q5_0, lines 5, minimum true, biased false, byte_max 31, |s, d| s.mul(d, s.splat(-16.0)), |p, sink| {
    five_bit_lines(s, p, sink);
});

/// Entries of the codebook of iq4_nl and iq4_xs, + 128.
///
/// Source: ggml `ggml-common.h` (kvalues_iq4nl)
const NONLINEAR: [u8; 16] = [
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241,
];

scales_first!(Iq4Nl, lines 4, minimum false, biased true, byte_max 241, |s, _d| s.splat(0.0), |p, sink| {
    nibble_lines(s, p, &Entries(&NONLINEAR), sink);
});

/// Scale and minimum of the file behind a block's lines.
macro_rules! scales_last {
    ($name:ident, lines $lines:literal, byte_max $byte_max:literal, $feed:ident) => {
        pub(crate) struct $name;

        impl QuantFormat for $name {
            const PARTS: usize = 1;
            const MINIMUM: bool = true;
            const BIASED: bool = false;
            const BYTE_MAX: usize = $byte_max;
            type Apart = Apart<1, true, false, { is_short($byte_max, 1) }>;

            fn panel_bytes(cols: usize) -> Option<usize> {
                (cols / 32).checked_mul(64 * $lines + 64)
            }

            #[inline(always)]
            unsafe fn scales<S: Simd>(s: S, panel: Panel, block: usize) -> Scales<S> {
                let p = panel.at((64 * $lines + 64) * block + 64 * $lines);
                s.prefetch(p.wrapping_add(AHEAD_BYTES));
                let at_m = p.wrapping_add(32);
                // SAFETY: the last 64 bytes of a block of a readable panel.
                let (d, m) = unsafe { (s.load_f16(p.cast()), s.load_f16(at_m.cast())) };
                Scales::whole(d, m)
            }

            #[inline(always)]
            unsafe fn lines<S: Simd, const PART: usize>(
                s: S,
                panel: Panel,
                block: usize,
                sink: &mut impl LineSink<S>,
            ) {
                let p = panel.at((64 * $lines + 64) * block);
                // SAFETY: the lines of a block of a readable panel.
                unsafe { $feed(s, p, sink) }
            }
        }
    };
}

/// # Safety
/// `p` readable for four lines of nibbles.
#[inline(always)]
unsafe fn four_bit_lines<S: Simd>(s: S, p: *const u8, sink: &mut impl LineSink<S>) {
    // SAFETY: the caller's promise.
    unsafe { nibble_lines(s, p, &Whole, sink) }
}

scales_last!(Q4_1, lines 4, byte_max 15, four_bit_lines);
scales_last!(Q5_1, lines 5, byte_max 31, five_bit_lines);

#[cfg(test)]
mod tests {
    use vitriol_kernels_core::TensorType;

    use super::*;
    use crate::PanelMatrix;
    use crate::arch::scalar::Scalar;
    use crate::panel::format::by_quant_format;

    struct Largest(usize);

    impl LineSink<Scalar> for Largest {
        fn line<const G: usize>(&mut self, _s: Scalar, w: [u32; 16]) {
            let bytes = w.map(u32::to_le_bytes);
            let largest = bytes.as_flattened().iter().max();
            self.0 = self.0.max(largest.map_or(0, |&byte| byte.into()));
        }
    }

    #[test]
    fn no_byte_is_above_what_its_format_says() {
        for &tensor_type in TensorType::ALL.iter().filter(|t| t.is_dequantisable()) {
            let (rows, cols) = (64, 1024);
            let bytes = rows * cols / tensor_type.block_len() * tensor_type.block_bytes();
            let stored: Vec<u8> = (0..bytes as u32)
                .map(|i| (i.wrapping_mul(0x9e37_79b9).wrapping_mul(i | 1) >> 24) as u8)
                .collect();
            let packed = PanelMatrix::pack(tensor_type, rows, cols, &stored).unwrap();
            if !packed.is_quantised() {
                continue;
            }
            let view = packed.view();
            let mut largest = Largest(0);
            for (panel, block) in (0..4).flat_map(|p| (0..cols / 32).map(move |b| (p, b))) {
                by_quant_format!(view.format, Q => {
                    // SAFETY: a panel of the matrix, of the view's format, has the block.
                    unsafe {
                        Q::lines::<Scalar, 0>(Scalar, view.panel(panel), block, &mut largest);
                        Q::lines::<Scalar, 1>(Scalar, view.panel(panel), block, &mut largest);
                    }
                });
            }
            by_quant_format!(view.format, Q => {
                assert!(largest.0 <= Q::BYTE_MAX, "{tensor_type}: {}", largest.0);
                const { assert!(Q::BIASED || Q::BYTE_MAX <= 127) };
            });
        }
    }
}
