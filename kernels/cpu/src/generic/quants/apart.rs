//! A part of a panel of any quantised format with its bytes whole and its scales as f32, for as many
//! tokens as make up for taking it apart.
//!
//! ```text
//! per block 8 lines, then per part d[16] and, if there are minima, m[16], then Σ weights [16], all f32
//! ```

use std::mem::MaybeUninit;

use super::{LineSink, Panel, QuantFormat, Scales};
use crate::simd::Simd;

/// Most blocks taken apart at a time: beside them a tile's part fits L1 (avx512: 24·704 B + 24·672 B).
const CHUNK_BLOCKS: usize = 24;
/// Most bytes of a block.
const BLOCK_BYTES_MAX: usize = 64 * (8 + 2 * 2 + 1);

/// Room for one part of a panel.
#[repr(C, align(64))]
pub(crate) struct PanelApart(MaybeUninit<[u8; CHUNK_BLOCKS * BLOCK_BYTES_MAX]>);

impl PanelApart {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Blocks to take apart at a time of a panel of `blocks`, so that the parts are alike.
    #[inline(always)]
    pub(crate) fn chunk_blocks(blocks: usize) -> usize {
        blocks.div_ceil(blocks.div_ceil(CHUNK_BLOCKS).max(1))
    }

    #[inline(always)]
    pub(crate) fn base(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// A format that panels are taken apart into: where it has what of a block, bytes from the first block.
pub(crate) trait ApartFormat: QuantFormat {
    /// The eight lines.
    fn lines_at(block: usize) -> usize;
    /// Scale d of a part, and behind it, if there is one, m.
    fn scales_at(block: usize, part: usize) -> usize;
    /// The weight sums.
    fn sums_of(block: usize) -> usize;
}

/// See the file's comment. `SHORT` as the format's whose panels they were.
pub(crate) struct Apart<
    const PARTS: usize,
    const MINIMUM: bool,
    const BIASED: bool,
    const SHORT: bool,
>;

impl<const PARTS: usize, const MINIMUM: bool, const BIASED: bool, const SHORT: bool>
    Apart<PARTS, MINIMUM, BIASED, SHORT>
{
    /// Lines of 64 bytes of a part's scales.
    const SCALE_LINES: usize = 1 + MINIMUM as usize;
    const BLOCK_BYTES: usize = {
        let bytes = 64 * (8 + PARTS * Self::SCALE_LINES + 1);
        assert!(bytes <= BLOCK_BYTES_MAX);
        bytes
    };
}

impl<const PARTS: usize, const MINIMUM: bool, const BIASED: bool, const SHORT: bool> ApartFormat
    for Apart<PARTS, MINIMUM, BIASED, SHORT>
{
    #[inline(always)]
    fn lines_at(block: usize) -> usize {
        block * Self::BLOCK_BYTES
    }

    #[inline(always)]
    fn scales_at(block: usize, part: usize) -> usize {
        Self::lines_at(block) + 64 * (8 + part * Self::SCALE_LINES)
    }

    #[inline(always)]
    fn sums_of(block: usize) -> usize {
        Self::scales_at(block, PARTS)
    }
}

impl<const PARTS: usize, const MINIMUM: bool, const BIASED: bool, const SHORT: bool> QuantFormat
    for Apart<PARTS, MINIMUM, BIASED, SHORT>
{
    const PARTS: usize = PARTS;
    const MINIMUM: bool = MINIMUM;
    const BIASED: bool = BIASED;
    const BYTE_MAX: usize = if BIASED { 255 } else { 127 };
    const SHORT: bool = SHORT;
    type Apart = Self;

    fn panel_bytes(cols: usize) -> Option<usize> {
        (cols / 32).checked_mul(Self::BLOCK_BYTES)
    }

    #[inline(always)]
    fn sums_at(block: usize) -> Option<usize> {
        Some(Self::sums_of(block))
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, panel: Panel, block: usize) -> Scales<S> {
        let zero = s.splat(0.0);
        let mut scales = Scales::whole(zero, zero);
        for part in 0..PARTS {
            let d = panel.at(Self::scales_at(block, part)).cast::<f32>();
            // SAFETY: the scales of a block that was taken apart.
            unsafe {
                scales.d[part] = s.load(d);
                if MINIMUM {
                    scales.m[part] = s.load(d.wrapping_add(16));
                }
            }
        }
        scales
    }

    #[inline(always)]
    unsafe fn lines<S: Simd, const PART: usize>(
        s: S,
        panel: Panel,
        block: usize,
        sink: &mut impl LineSink<S>,
    ) {
        let p = panel.at(Self::lines_at(block));
        macro_rules! lines {
            ($($g:literal)*) => {$(
                if PARTS == 1 || $g / 4 == PART {
                    // SAFETY: a line of a block that was taken apart.
                    sink.line::<$g>(s, unsafe { s.load_bits(p.wrapping_add(64 * $g)) });
                }
            )*};
        }
        lines!(0 1 2 3 4 5 6 7);
    }
}

/// Stores a block's lines, and passes them on.
pub(crate) struct Kept<'a, T> {
    /// The block taken apart.
    pub(crate) block: *mut u8,
    pub(crate) then: &'a mut T,
}

impl<S: Simd, T: LineSink<S>> LineSink<S> for Kept<'_, T> {
    #[inline(always)]
    fn line<const G: usize>(&mut self, s: S, w: S::Bits) {
        // SAFETY: line G of a block that is there to be written.
        unsafe { s.store_bits(self.block.wrapping_add(64 * G).cast(), w) };
        self.then.line::<G>(s, w);
    }
}
