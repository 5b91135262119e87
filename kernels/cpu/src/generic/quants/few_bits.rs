//! Quants of two and three bits.
//!
//! ```text
//! two bits  (tq1_0, tq2_0, q1_0, q2_0) d[nb][16] f16, then per block 2 lines of crumbs: weight = d·(q − 1)
//! q2_K      per 8 blocks d[16], dmin[16] f16, then [16] each of scales [16], minima [16] nibbles
//!           (rows r and r + 8 share a byte), then per block 2 lines of crumbs
//! q3_K      d[nb / 8][16] f16 up to a whole line, then per 8 blocks scales − 32 [16][16] i8 and per
//!           block 2 lines of crumbs and 1 of third bits (bit g: line g)
//! ```
//! A line of crumbs has two bits of four lines in each byte: bits 2·(g % 4), +1 of line g / 4 are line
//! g's.

use super::{
    AHEAD_BYTES, Apart, Finish, LineSink, Panel, QuantFormat, Scales, Whole, is_short, load_line,
};
use crate::simd::Simd;

/// Lines 4·`PART`.. from the line of crumbs at `p`, made whole.
///
/// # Safety
/// `p` readable for a line.
#[inline(always)]
unsafe fn crumb_lines<S: Simd, const PART: usize>(
    s: S,
    p: *const u8,
    whole: &impl Finish<S>,
    sink: &mut impl LineSink<S>,
) {
    const CRUMBS: u32 = 0x0303_0303;
    // SAFETY: the caller's promise.
    let v = unsafe { load_line(s, p) };
    let crumbs = [
        s.and_mask(v, CRUMBS),
        s.and_mask(s.shift_right::<2>(v), CRUMBS),
        s.and_mask(s.shift_right::<4>(v), CRUMBS),
        s.and_mask(s.shift_right::<6>(v), CRUMBS),
    ];
    macro_rules! lines {
        ($($g:literal)*) => {$(
            sink.line::<$g>(s, whole.finish::<$g>(s, crumbs[$g % 4]));
        )*};
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

/// By bit g of each byte as bit 2.
struct ThirdBit<S: Simd>(S::Bits);

impl<S: Simd> Finish<S> for ThirdBit<S> {
    #[inline(always)]
    fn finish<const G: usize>(&self, s: S, crumbs: S::Bits) -> S::Bits {
        let moved = match G {
            0 => s.shift_left::<2>(self.0),
            1 => s.shift_left::<1>(self.0),
            2 => self.0,
            3 => s.shift_right::<1>(self.0),
            4 => s.shift_right::<2>(self.0),
            5 => s.shift_right::<3>(self.0),
            6 => s.shift_right::<4>(self.0),
            _ => s.shift_right::<5>(self.0),
        };
        s.or(crumbs, s.and_mask(moved, 0x0404_0404))
    }
}

scales_first!(TwoBits, lines 2, minimum true, biased false, byte_max 3, |s, d| s.sub(s.splat(0.0), d), |p, sink| {
    crumb_lines::<S, 0>(s, p, &Whole, sink);
    crumb_lines::<S, 1>(s, p.wrapping_add(64), &Whole, sink);
});

pub(crate) struct Q2K;

impl Q2K {
    const SUPER_BYTES: usize = 64 + 256 + 8 * 2 * 64;
}

impl QuantFormat for Q2K {
    const PARTS: usize = 2;
    const MINIMUM: bool = true;
    const BIASED: bool = false;
    const BYTE_MAX: usize = 3;
    type Apart = Apart<2, true, false, true>;

    fn panel_bytes(cols: usize) -> Option<usize> {
        (cols / 256).checked_mul(Self::SUPER_BYTES)
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, panel: Panel, block: usize) -> Scales<S> {
        let head = panel.at(block / 8 * Self::SUPER_BYTES);
        let nibbles = head.wrapping_add(64 + 32 * (block % 8));
        s.prefetch(nibbles.wrapping_add(AHEAD_BYTES));
        // SAFETY: the header of a readable super-block.
        unsafe {
            let d = s.load_f16(head.cast());
            let dmin = s.sub(s.splat(0.0), s.load_f16(head.wrapping_add(32).cast()));
            Scales {
                d: [
                    s.mul(d, s.load_nibbles(nibbles)),
                    s.mul(d, s.load_nibbles(nibbles.wrapping_add(16))),
                ],
                m: [
                    s.mul(dmin, s.load_nibbles(nibbles.wrapping_add(8))),
                    s.mul(dmin, s.load_nibbles(nibbles.wrapping_add(24))),
                ],
            }
        }
    }

    #[inline(always)]
    unsafe fn lines<S: Simd, const PART: usize>(
        s: S,
        panel: Panel,
        block: usize,
        sink: &mut impl LineSink<S>,
    ) {
        let p = panel.at(block / 8 * Self::SUPER_BYTES + 320 + block % 8 * 128);
        // SAFETY: the lines of a block of a readable panel.
        unsafe { crumb_lines::<S, PART>(s, p.wrapping_add(64 * PART), &Whole, sink) }
    }
}

pub(crate) struct Q3K;

impl Q3K {
    const SUPER_BYTES: usize = 256 + 8 * 3 * 64;

    fn at(panel: Panel, block: usize) -> *const u8 {
        panel.at(super_scales_bytes(panel.cols) + block / 8 * Self::SUPER_BYTES)
    }
}

/// Bytes of an f16 for each of 16 rows and super-block of a panel, whole lines.
pub(crate) fn super_scales_bytes(cols: usize) -> usize {
    (cols / 256 * 32).next_multiple_of(64)
}

impl QuantFormat for Q3K {
    const PARTS: usize = 2;
    const MINIMUM: bool = true;
    const BIASED: bool = false;
    const BYTE_MAX: usize = 7;
    type Apart = Apart<2, true, false, true>;

    fn panel_bytes(cols: usize) -> Option<usize> {
        let supers = (cols / 256).checked_mul(Self::SUPER_BYTES)?;
        supers.checked_add(super_scales_bytes(cols))
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, panel: Panel, block: usize) -> Scales<S> {
        let scale = Self::at(panel, block).wrapping_add(32 * (block % 8));
        s.prefetch(scale.wrapping_add(AHEAD_BYTES));
        // SAFETY: scales of a readable panel.
        unsafe {
            let d = s.load_f16(panel.at(block / 8 * 32).cast());
            let d = [
                s.mul(d, s.load_i8(scale.cast())),
                s.mul(d, s.load_i8(scale.wrapping_add(16).cast())),
            ];
            Scales::offset(s, d, 4.0)
        }
    }

    #[inline(always)]
    unsafe fn lines<S: Simd, const PART: usize>(
        s: S,
        panel: Panel,
        block: usize,
        sink: &mut impl LineSink<S>,
    ) {
        let p = Self::at(panel, block).wrapping_add(256 + block % 8 * 192);
        // SAFETY: the lines of a block of a readable panel.
        unsafe {
            let third = ThirdBit(load_line(s, p.wrapping_add(128)));
            crumb_lines::<S, PART>(s, p.wrapping_add(64 * PART), &third, sink);
        }
    }
}
