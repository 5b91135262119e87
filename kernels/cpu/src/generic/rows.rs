//! One row of a panel as f32: embeddings.

use vitriol_kernels_core::half::{bf16_to_f32, f16_to_f32};

use super::matmul::PanelView;
use super::quants::{LineSink, QuantFormat};
use crate::panel::format::PanelFormat;
use crate::simd::Simd;

/// Row `row` of `w`, of plain floats.
///
/// # Safety
/// `w` readable, `out` as long as a row, `row` one of its rows.
pub(crate) unsafe fn convert_row(w: PanelView, row: usize, out: &mut [f32]) {
    let panel = w.panel(row / 16);
    let lane = row % 16;
    let plain = panel.base.cast::<u16>().wrapping_add(lane);
    match w.format {
        PanelFormat::F32 => {
            let column = panel.base.cast::<f32>().wrapping_add(lane);
            for (k, value) in out.iter_mut().enumerate() {
                // SAFETY: column k of a readable panel.
                *value = unsafe { *column.wrapping_add(16 * k) };
            }
        }
        PanelFormat::F16 => {
            for (k, value) in out.iter_mut().enumerate() {
                // SAFETY: as above.
                *value = f16_to_f32(unsafe { *plain.wrapping_add(16 * k) });
            }
        }
        PanelFormat::Bf16 => {
            for (k, value) in out.iter_mut().enumerate() {
                // SAFETY: as above.
                *value = bf16_to_f32(unsafe { *plain.wrapping_add(16 * k) });
            }
        }
        other => unreachable!("{other:?} panels are no floats"),
    }
}

/// The lines of a block, of one row.
struct RowLines {
    lane: usize,
    lines: [u32; 8],
}

impl<S: Simd> LineSink<S> for RowLines {
    #[inline(always)]
    fn line<const G: usize>(&mut self, s: S, w: S::Bits) {
        let mut words = [0u32; 16];
        // SAFETY: `words` is 64 bytes.
        unsafe { s.store_bits(words.as_mut_ptr(), w) };
        self.lines[G] = words[self.lane];
    }
}

/// Row `row` of `w`, quantised, with the values of `vitriol_kernels_core::dequantise_row`.
///
/// # Safety
/// As [`convert_row`]; `w` is of format `Q`.
#[inline(always)]
pub(crate) unsafe fn decode_row<S: Simd, Q: QuantFormat>(
    s: S,
    w: PanelView,
    row: usize,
    out: &mut [f32],
) {
    let (panel, lane) = (w.panel(row / 16), row % 16);
    let of_lane = |v: S::F| {
        let mut lanes = [0f32; 16];
        // SAFETY: `lanes` is 16 f32.
        unsafe { s.store(lanes.as_mut_ptr(), v) };
        f64::from(lanes[lane])
    };
    let bias = if Q::BIASED { 128.0 } else { 0.0 };
    for (block, values) in out.chunks_exact_mut(32).enumerate() {
        let mut row = RowLines {
            lane,
            lines: [0; 8],
        };
        // SAFETY: the caller's promise.
        let scales = unsafe {
            Q::lines::<S, 0>(s, panel, block, &mut row);
            if Q::PARTS == 2 {
                Q::lines::<S, 1>(s, panel, block, &mut row);
            }
            Q::scales(s, panel, block)
        };
        let bytes = row.lines.map(u32::to_le_bytes);
        let parts = values.chunks_exact_mut(32 / Q::PARTS);
        for ((part, values), bytes) in parts.enumerate().zip(bytes.chunks_exact(8 / Q::PARTS)) {
            let (d, m) = (of_lane(scales.d[part]), of_lane(scales.m[part]));
            for (value, &byte) in values.iter_mut().zip(bytes.as_flattened()) {
                // In f64 the product is exact, and what the file means is rounded once.
                *value = ((f64::from(byte) - bias) * d + m) as f32;
            }
        }
    }
}
