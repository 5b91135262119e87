//! Four, five and six bits, in super-blocks of 256.
//!
//! ```text
//! q4_K   per 8 blocks d[16], dmin[16] f16, scales [8][16], minima [8][16] u8, then per block 4 lines
//!        of nibbles
//! q5_K   the same, per block 4 lines of nibbles and 1 of fifth bits
//! q6_K   per 8 blocks d[16] f16, 32 bytes unused, scales [16][16] i8, then per block 4 lines of
//!        nibbles and 2 of high bits (bits 2·(g % 4), +1 of line g / 4: line g)
//! ```

use super::{
    AHEAD_BYTES, Apart, Finish, LineSink, NIBBLES, Panel, QuantFormat, Scales, five_bit_lines,
    four_bit_lines, is_short, load_line,
};
use crate::simd::Simd;

/// Super-blocks of 256 with a 6-bit scale and minimum for each block.
macro_rules! scaled_minima {
    ($name:ident, lines $lines:literal, byte_max $byte_max:literal, $feed:ident) => {
        pub(crate) struct $name;

        impl $name {
            const SUPER_BYTES: usize = 64 + 256 + 8 * 64 * $lines;
        }

        impl QuantFormat for $name {
            const PARTS: usize = 1;
            const MINIMUM: bool = true;
            const BIASED: bool = false;
            const BYTE_MAX: usize = $byte_max;
            type Apart = Apart<1, true, false, { is_short($byte_max, 1) }>;

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

scaled_minima!(Q4K, lines 4, byte_max 15, four_bit_lines);
scaled_minima!(Q5K, lines 5, byte_max 31, five_bit_lines);

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

pub(crate) struct Q6K;

impl Q6K {
    const SUPER_BYTES: usize = 64 + 256 + 8 * 64 * 6;
}

impl QuantFormat for Q6K {
    const PARTS: usize = 2;
    const MINIMUM: bool = true;
    const BIASED: bool = false;
    const BYTE_MAX: usize = 63;
    type Apart = Apart<2, true, false, false>;

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
            let d = [
                s.mul(d, s.load_i8(scale.cast())),
                s.mul(d, s.load_i8(scale.wrapping_add(16).cast())),
            ];
            Scales::offset(s, d, 32.0)
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
