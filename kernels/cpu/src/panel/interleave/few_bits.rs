//! Quants of two and three bits.

use vitriol_kernels_core::half::f32_to_f16;
use vitriol_kernels_core::{DequantiseError, TensorType, dequantise_row, six_bit_scale};

use super::fifth_bits;
use crate::generic::quants::super_scales_bytes;

/// Where a block of a type of two bits has its f16 scale.
fn scale_at(tensor_type: TensorType) -> usize {
    match tensor_type {
        TensorType::TQ1_0 => 52,
        TensorType::TQ2_0 => 64,
        _ => 0,
    }
}

/// A row of tq1_0, tq2_0, q1_0 or q2_0. With a scale of one the values of a block are its quants.
pub(super) fn two_bits(
    tensor_type: TensorType,
    cols: usize,
    row: &[u8],
    lane: usize,
    panel: &mut [u8],
) -> Result<(), DequantiseError> {
    let (scales, lines) = panel.split_at_mut(cols);
    let (scales, lines) = (
        scales.as_chunks_mut::<2>().0,
        lines.as_chunks_mut::<128>().0,
    );
    let mut targets = scales.chunks_exact_mut(16).zip(lines);
    let at = scale_at(tensor_type);
    let mut values = vec![0f32; tensor_type.block_len()];
    for block in row.chunks_exact(tensor_type.block_bytes()) {
        let mut quants = block.to_vec();
        quants[at..at + 2].copy_from_slice(&f32_to_f16(1.0).to_le_bytes());
        dequantise_row(tensor_type, &quants, &mut values)?;
        let blocks = values.as_chunks::<32>().0.iter();
        for (values, (scales, lines)) in blocks.zip(targets.by_ref()) {
            scales[lane] = [block[at], block[at + 1]];
            crumbs(lines, lane, |k| (values[k] + 1.0) as u8);
        }
    }
    Ok(())
}

pub(super) fn q2_k(row: &[u8], lane: usize, panel: &mut [u8]) {
    let supers = panel.as_chunks_mut::<{ 320 + 8 * 128 }>().0.iter_mut();
    for (to, block) in supers.zip(row.as_chunks::<84>().0) {
        let (head, lines) = to.split_at_mut(320);
        head[2 * lane..][..2].copy_from_slice(&block[80..82]);
        head[32 + 2 * lane..][..2].copy_from_slice(&block[82..]);
        // Rows 0..8 below, 8..16 above.
        let (row, shift) = (lane % 8, 4 * (lane / 8));
        for (group, packed) in block[..16].iter().enumerate() {
            head[64 + 16 * group + row] |= (packed & 15) << shift;
            head[64 + 16 * group + 8 + row] |= (packed >> 4) << shift;
        }
        for (b, lines) in lines.as_chunks_mut::<128>().0.iter_mut().enumerate() {
            crumbs(lines, lane, |k| plane(&block[16..80], b, k));
        }
    }
}

pub(super) fn q3_k(cols: usize, row: &[u8], lane: usize, panel: &mut [u8]) {
    let (first, supers) = panel.split_at_mut(super_scales_bytes(cols));
    let supers = supers.as_chunks_mut::<{ 256 + 8 * 192 }>().0.iter_mut();
    let blocks = row.as_chunks::<110>().0;
    for ((to, d), block) in supers.zip(super::halves(first)).zip(blocks) {
        d[lane] = [block[108], block[109]];
        let (scales, lines) = to.split_at_mut(256);
        for group in 0..16 {
            let scale = six_bit_scale(&block[96..108], group);
            scales[16 * group + lane] = scale.cast_unsigned();
        }
        for (b, lines) in lines.as_chunks_mut::<192>().0.iter_mut().enumerate() {
            crumbs(lines, lane, |k| plane(&block[32..96], b, k));
            let third = fifth_bits(|k| block[k] >> b & 1);
            lines[128 + 4 * lane..][..4].copy_from_slice(&third);
        }
    }
}

/// Column k of block b of quants that lie in planes of two bits.
fn plane(quants: &[u8], b: usize, k: usize) -> u8 {
    quants[32 * (b / 4) + k] >> (2 * (b % 4)) & 3
}

/// Two lines of crumbs: bits 2p, 2p + 1 of byte i of line h have column 16h + 4p + i.
fn crumbs(lines: &mut [u8], lane: usize, quant: impl Fn(usize) -> u8) {
    for half in 0..2 {
        for i in 0..4 {
            let column = |p: usize| quant(16 * half + 4 * p + i) << (2 * p);
            lines[64 * half + 4 * lane + i] = column(0) | column(1) | column(2) | column(3);
        }
    }
}
