//! Four-bit floats (E2M1), as twice their value.
//!
//! ```text
//! mxfp4  e[nb][16] u8, then per block 4 lines of nibbles; the half scale is 2^(e − 126)
//! nvfp4  per block 2 lines of nibbles for the first and 2 for the last 16 columns (low ones are the
//!        first 8), then half scales [2][16] f16
//! ```

use std::ops::Range;

use super::{
    AHEAD_BYTES, Apart, Entries, LineSink, Panel, QuantFormat, Scales, nibble_lines,
    paired_nibble_lines,
};
use crate::simd::Simd;

/// What is added to twice a value, so that a byte is not negative.
const E2M1_OFFSET: u8 = 12;

/// Twice each value + the offset.
///
/// Source: OCP Microscaling Formats (MX) 1.0, §5.3.3
const E2M1: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// E8M0 exponents of the file that mxfp4 panels take: half the scale, 2^(e − 128), and 12 times it are
/// normal f32.
pub(crate) const MXFP4_EXPONENTS: Range<u8> = 2..253;

pub(crate) struct Mxfp4;

impl QuantFormat for Mxfp4 {
    const PARTS: usize = 1;
    const MINIMUM: bool = true;
    const BIASED: bool = false;
    const BYTE_MAX: usize = 24;
    type Apart = Apart<1, true, false, false>;

    fn panel_bytes(cols: usize) -> Option<usize> {
        (cols / 32)
            .checked_mul(4 * 64)?
            .checked_add(mxfp4_scales_bytes(cols))
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, panel: Panel, block: usize) -> Scales<S> {
        let p = panel.at(16 * block);
        s.prefetch(p.wrapping_add(AHEAD_BYTES));
        // The low mantissa bits of this number plus e are e − 126.
        const EXPONENT: f32 = (3u32 << 22) as f32 - 126.0;
        // SAFETY: the exponents of a block of a readable panel.
        let e = unsafe { s.load_u8(p) };
        let d = s.scale_exponent(s.splat(1.0), s.add(e, s.splat(EXPONENT)));
        Scales::whole(d, s.mul(d, s.splat(-f32::from(E2M1_OFFSET))))
    }

    #[inline(always)]
    unsafe fn lines<S: Simd, const PART: usize>(
        s: S,
        panel: Panel,
        block: usize,
        sink: &mut impl LineSink<S>,
    ) {
        let p = panel.at(mxfp4_scales_bytes(panel.cols) + 4 * 64 * block);
        // SAFETY: the lines of a block of a readable panel.
        unsafe { nibble_lines(s, p, &Entries(&E2M1), sink) }
    }
}

/// Bytes of the exponents of a panel, whole lines.
pub(crate) fn mxfp4_scales_bytes(cols: usize) -> usize {
    (cols / 2).next_multiple_of(64)
}

pub(crate) struct Nvfp4;

impl QuantFormat for Nvfp4 {
    const PARTS: usize = 2;
    const MINIMUM: bool = true;
    const BIASED: bool = false;
    const BYTE_MAX: usize = 24;
    type Apart = Apart<2, true, false, true>;

    fn panel_bytes(cols: usize) -> Option<usize> {
        (cols / 32).checked_mul(320)
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, panel: Panel, block: usize) -> Scales<S> {
        let p = panel.at(320 * block + 256);
        s.prefetch(p.wrapping_add(AHEAD_BYTES));
        // SAFETY: the last 64 bytes of a block of a readable panel.
        let d = unsafe { [s.load_f16(p.cast()), s.load_f16(p.wrapping_add(32).cast())] };
        Scales::offset(s, d, f32::from(E2M1_OFFSET))
    }

    #[inline(always)]
    unsafe fn lines<S: Simd, const PART: usize>(
        s: S,
        panel: Panel,
        block: usize,
        sink: &mut impl LineSink<S>,
    ) {
        let p = panel.at(320 * block);
        // SAFETY: the lines of a block of a readable panel.
        unsafe {
            paired_nibble_lines::<S, PART>(s, p.wrapping_add(128 * PART), &Entries(&E2M1), sink)
        }
    }
}
