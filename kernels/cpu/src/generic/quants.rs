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
//! q4_K   per 8 blocks d[16], dmin[16] f16, scales [8][16], minima [8][16] u8, then per block 4 lines
//!        of nibbles
//! q5_K   the same, per block 4 lines of nibbles and 1 of fifth bits
//! q6_K   per 8 blocks d[16] f16, 32 bytes unused, scales [16][16] i8, then per block 4 lines of
//!        nibbles and 2 of high bits (bits 2·(g % 4), +1 of line g / 4: line g)
//! iq4_nl as q4_0, a nibble naming an entry of the codebook
//! ```
//! Values are those of the file. A block's dot product is an exact integer, so what stands in which
//! order inside it does not matter to the bits.

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

/// By bits 2·(g % 4), +1 of each byte as bits 4, 5.
struct TwoHighBits<S: Simd>(S::Bits);

impl<S: Simd> Finish<S> for TwoHighBits<S> {
    #[inline(always)]
    fn finish<const G: usize>(&self, s: S, nibbles: S::Bits) -> S::Bits {
        let moved = match G % 4 {
            0 => s.shift_left::<4>(self.0),
            1 => s.shift_left::<2>(self.0),
            2 => self.0,
            _ => s.shift_right::<2>(self.0),
        };
        s.or(nibbles, s.and_mask(moved, 0x3030_3030))
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
}

/// A quantised format as the kernels see it.
pub(crate) trait QuantFormat {
    /// 1: a block has one scale; 2: its first and last 16 columns have one each.
    const PARTS: usize;
    /// Whether [`Scales::m`] says anything; else it is zero.
    const MINIMUM: bool;
    /// Whether the bytes are q + 128 of a signed q, and m is zero; else they are at most 127.
    const BIASED: bool;

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

/// The low or the high nibbles of the four lines at `p`, made whole.
///
/// # Safety
/// `p` readable for four lines.
#[inline(always)]
unsafe fn half_nibble_lines<S: Simd, const PART: usize>(
    s: S,
    p: *const u8,
    whole: &impl Finish<S>,
    sink: &mut impl LineSink<S>,
) {
    macro_rules! lines {
        ($($low:literal $high:literal),*) => {$(
            // SAFETY: the caller's promise.
            let v = unsafe { load_line(s, p.wrapping_add(64 * $low)) };
            if PART == 0 {
                sink.line::<$low>(s, whole.finish::<$low>(s, s.and_mask(v, NIBBLES)));
            } else {
                let high = s.and_mask(s.shift_right::<4>(v), NIBBLES);
                sink.line::<$high>(s, whole.finish::<$high>(s, high));
            }
        )*};
    }
    lines!(0 4, 1 5, 2 6, 3 7);
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

/// Formats of a file with one scale a block, all scales in front of the lines: `nibble`s, with a
/// fifth bit, or bytes.
macro_rules! scales_first {
    ($name:ident, lines $lines:literal, minimum $minimum:literal, biased $biased:literal,
     |$s:ident, $d:ident| $m:expr, |$p:ident, $sink:ident| $feed:expr) => {
        pub(crate) struct $name;

        impl QuantFormat for $name {
            const PARTS: usize = 1;
            const MINIMUM: bool = $minimum;
            const BIASED: bool = $biased;

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

scales_first!(Q8_0, lines 8, minimum false, biased true, |s, _d| s.splat(0.0), |p, sink| {
    macro_rules! lines {
        ($($g:literal)*) => {$(sink.line::<$g>(s, load_line(s, p.wrapping_add(64 * $g)));)*};
    }
    lines!(0 1 2 3 4 5 6 7);
});

scales_first!(Q4_0, lines 4, minimum true, biased false, |s, d| s.mul(d, s.splat(-8.0)), |p, sink| {
    nibble_lines(s, p, &Whole, sink);
});

scales_first!(Q5_0, lines 5, minimum true, biased false, |s, d| s.mul(d, s.splat(-16.0)), |p, sink| {
    five_bit_lines(s, p, sink);
});

/// Entries of the codebook of iq4_nl and iq4_xs, + 128.
///
/// Source: ggml `ggml-common.h` (kvalues_iq4nl)
const NONLINEAR: [u8; 16] = [
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241,
];

scales_first!(Iq4Nl, lines 4, minimum false, biased true, |s, _d| s.splat(0.0), |p, sink| {
    nibble_lines(s, p, &Entries(&NONLINEAR), sink);
});

/// Scale and minimum of the file behind a block's lines.
macro_rules! scales_last {
    ($name:ident, lines $lines:literal, $feed:ident) => {
        pub(crate) struct $name;

        impl QuantFormat for $name {
            const PARTS: usize = 1;
            const MINIMUM: bool = true;
            const BIASED: bool = false;

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

scales_last!(Q4_1, lines 4, four_bit_lines);
scales_last!(Q5_1, lines 5, five_bit_lines);

/// Super-blocks of 256 with a 6-bit scale and minimum for each block.
macro_rules! scaled_minima {
    ($name:ident, lines $lines:literal, $feed:ident) => {
        pub(crate) struct $name;

        impl $name {
            const SUPER_BYTES: usize = 64 + 256 + 8 * 64 * $lines;
        }

        impl QuantFormat for $name {
            const PARTS: usize = 1;
            const MINIMUM: bool = true;
            const BIASED: bool = false;

            fn panel_bytes(cols: usize) -> Option<usize> {
                (cols / 256).checked_mul(Self::SUPER_BYTES)
            }

            #[inline(always)]
            unsafe fn scales<S: Simd>(s: S, panel: Panel, block: usize) -> Scales<S> {
                let head = panel.at(block / 8 * Self::SUPER_BYTES);
                let scale = head.wrapping_add(64 + 16 * (block % 8));
                s.prefetch(head.wrapping_add(AHEAD_BYTES + 64 * (block % 8)));
                // SAFETY: the header of a readable super-block.
                unsafe {
                    let d = s.load_f16(head.cast());
                    let dmin = s.load_f16(head.wrapping_add(32).cast());
                    let minimum = s.load_u8(scale.wrapping_add(128));
                    Scales::whole(
                        s.mul(d, s.load_u8(scale)),
                        s.sub(s.splat(0.0), s.mul(dmin, minimum)),
                    )
                }
            }

            #[inline(always)]
            unsafe fn lines<S: Simd, const PART: usize>(
                s: S,
                panel: Panel,
                block: usize,
                sink: &mut impl LineSink<S>,
            ) {
                let p = panel.at(block / 8 * Self::SUPER_BYTES + 320 + block % 8 * 64 * $lines);
                // SAFETY: the lines of a block of a readable panel.
                unsafe { $feed(s, p, sink) }
            }
        }
    };
}

scaled_minima!(Q4K, lines 4, four_bit_lines);
scaled_minima!(Q5K, lines 5, five_bit_lines);

pub(crate) struct Q6K;

impl Q6K {
    const SUPER_BYTES: usize = 64 + 256 + 8 * 64 * 6;
}

impl QuantFormat for Q6K {
    const PARTS: usize = 2;
    const MINIMUM: bool = true;
    const BIASED: bool = false;

    fn panel_bytes(cols: usize) -> Option<usize> {
        (cols / 256).checked_mul(Self::SUPER_BYTES)
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, panel: Panel, block: usize) -> Scales<S> {
        let head = panel.at(block / 8 * Self::SUPER_BYTES);
        let scale = head.wrapping_add(64 + 32 * (block % 8));
        s.prefetch(scale.wrapping_add(AHEAD_BYTES));
        // SAFETY: the header of a readable super-block.
        unsafe {
            let d = s.load_f16(head.cast());
            let d = [0, 16].map(|part| s.mul(d, s.load_i8(scale.wrapping_add(part).cast())));
            let m = d.map(|d| s.mul(d, s.splat(-32.0)));
            Scales { d, m }
        }
    }

    #[inline(always)]
    unsafe fn lines<S: Simd, const PART: usize>(
        s: S,
        panel: Panel,
        block: usize,
        sink: &mut impl LineSink<S>,
    ) {
        let p = panel.at(block / 8 * Self::SUPER_BYTES + 320 + block % 8 * 384);
        // SAFETY: the lines of a block of a readable panel.
        unsafe {
            let high = TwoHighBits(load_line(s, p.wrapping_add(256 + 64 * PART)));
            half_nibble_lines::<S, PART>(s, p, &high, sink);
        }
    }
}
