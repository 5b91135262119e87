//! Nibbles that name one of 16 levels.
//!
//! ```text
//! iq4_xs    d[nb / 8][16] f16 up to a whole line, then per 8 blocks scales − 32 [8][16] i8 and per
//!           block 4 lines of nibbles
//! codebook  (iq1, iq2 and iq3 types) a line: levels + offset [16] u8, unit, offset f32; then
//!           d[nb / 8][16] f16 up to a whole line; then per 8 blocks scales [16][16] u8, of 16 columns
//!           each, and per block 2 lines of nibbles for the first and 2 for the last 16 columns (low
//!           ones are the first 8)
//! ```
//! A codebook has points of 4 or 8 coordinates, but never more than 16 levels with their signs: a
//! nibble for each weight decodes in one instruction, where an index would have to be gathered.

use super::few_bits::super_scales_bytes;
use super::{
    AHEAD_BYTES, Apart, Entries, LineSink, NONLINEAR, Panel, QuantFormat, Scales, nibble_lines,
    paired_nibble_lines,
};
use crate::simd::Simd;

pub(crate) struct Iq4Xs;

impl Iq4Xs {
    const SUPER_BYTES: usize = 128 + 8 * 4 * 64;

    fn at(panel: Panel, block: usize) -> *const u8 {
        panel.at(super_scales_bytes(panel.cols) + block / 8 * Self::SUPER_BYTES)
    }
}

impl QuantFormat for Iq4Xs {
    const PARTS: usize = 1;
    const MINIMUM: bool = false;
    const BIASED: bool = true;
    const BYTE_MAX: usize = 241;
    type Apart = Apart<1, false, true, false>;

    fn panel_bytes(cols: usize) -> Option<usize> {
        let supers = (cols / 256).checked_mul(Self::SUPER_BYTES)?;
        supers.checked_add(super_scales_bytes(cols))
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, panel: Panel, block: usize) -> Scales<S> {
        let scale = Self::at(panel, block).wrapping_add(16 * (block % 8));
        s.prefetch(scale.wrapping_add(AHEAD_BYTES));
        // SAFETY: scales of a readable panel.
        unsafe {
            let d = s.load_f16(panel.at(block / 8 * 32).cast());
            Scales::whole(s.mul(d, s.load_i8(scale.cast())), s.splat(0.0))
        }
    }

    #[inline(always)]
    unsafe fn lines<S: Simd, const PART: usize>(
        s: S,
        panel: Panel,
        block: usize,
        sink: &mut impl LineSink<S>,
    ) {
        let p = Self::at(panel, block).wrapping_add(128 + block % 8 * 256);
        // SAFETY: the lines of a block of a readable panel.
        unsafe { nibble_lines(s, p, &Entries(&NONLINEAR), sink) }
    }
}

pub(crate) struct Codebook;

impl Codebook {
    const SUPER_BYTES: usize = 256 + 8 * 4 * 64;

    fn at(panel: Panel, block: usize) -> *const u8 {
        panel.at(64 + super_scales_bytes(panel.cols) + block / 8 * Self::SUPER_BYTES)
    }
}

impl QuantFormat for Codebook {
    const PARTS: usize = 2;
    const MINIMUM: bool = true;
    const BIASED: bool = false;
    const BYTE_MAX: usize = 127;
    type Apart = Apart<2, true, false, false>;

    fn panel_bytes(cols: usize) -> Option<usize> {
        let supers = (cols / 256).checked_mul(Self::SUPER_BYTES)?;
        supers.checked_add(64 + super_scales_bytes(cols))
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, panel: Panel, block: usize) -> Scales<S> {
        let scale = Self::at(panel, block).wrapping_add(32 * (block % 8));
        s.prefetch(scale.wrapping_add(AHEAD_BYTES));
        // SAFETY: header and scales of a readable panel.
        unsafe {
            let [unit, offset] = panel.at(16).cast::<[f32; 2]>().read_unaligned();
            let d = s.load_f16(panel.at(64 + block / 8 * 32).cast());
            let d = s.mul(d, s.splat(unit));
            let scales = [s.load_u8(scale), s.load_u8(scale.wrapping_add(16))];
            let d = [s.mul(d, scales[0]), s.mul(d, scales[1])];
            Scales::offset(s, d, offset)
        }
    }

    #[inline(always)]
    unsafe fn lines<S: Simd, const PART: usize>(
        s: S,
        panel: Panel,
        block: usize,
        sink: &mut impl LineSink<S>,
    ) {
        let p = Self::at(panel, block).wrapping_add(256 + block % 8 * 256);
        // SAFETY: header and lines of a block of a readable panel.
        unsafe {
            let levels = panel.at(0).cast::<[u8; 16]>().read_unaligned();
            paired_nibble_lines::<S, PART>(s, p.wrapping_add(128 * PART), &Entries(&levels), sink);
        }
    }
}
