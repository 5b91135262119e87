//! Nibbles that name levels.

use vitriol_kernels_core::half::f32_to_f16;
use vitriol_kernels_core::{Codebook, DequantiseError, TensorType, half_of_ue4m3, iq4_xs_scale};

use super::{halves, words};
use crate::generic::quants::{MXFP4_EXPONENTS, mxfp4_scales_bytes, super_scales_bytes};

pub(super) fn iq4_xs(cols: usize, row: &[u8], lane: usize, panel: &mut [u8]) {
    let (first, supers) = panel.split_at_mut(super_scales_bytes(cols));
    let supers = supers.as_chunks_mut::<{ 128 + 8 * 256 }>().0.iter_mut();
    for ((to, d), block) in supers.zip(halves(first)).zip(row.as_chunks::<136>().0) {
        d[lane] = [block[0], block[1]];
        let (scales, lines) = to.split_at_mut(128);
        for (b, lines) in lines.as_chunks_mut::<256>().0.iter_mut().enumerate() {
            scales[16 * b + lane] = iq4_xs_scale(&block[2..8], b).cast_unsigned();
            words::<4>(lines, lane, &block[8 + 16 * b..][..16]);
        }
    }
}

/// Whether all of a block's quants are zero, whatever its scale.
fn is_zero(block: &[u8; 17]) -> bool {
    block[1..].iter().all(|byte| byte & 0x77 == 0)
}

/// Whether panels of mxfp4 can hold these blocks.
pub(in crate::panel) fn mxfp4_fits(blocks: &[u8]) -> bool {
    let mut blocks = blocks.as_chunks::<17>().0.iter();
    blocks.all(|block| MXFP4_EXPONENTS.contains(&block[0]) || is_zero(block))
}

pub(super) fn mxfp4(cols: usize, row: &[u8], lane: usize, panel: &mut [u8]) {
    let (scales, lines) = panel.split_at_mut(mxfp4_scales_bytes(cols));
    let targets = scales
        .chunks_exact_mut(16)
        .zip(lines.as_chunks_mut::<256>().0);
    for ((scales, lines), block) in targets.zip(row.as_chunks::<17>().0) {
        // From the least of them on, so that the zero of a lane without a row is a scale too; as are
        // those of blocks of zeros, which writers give the exponent 0.
        scales[lane] = match MXFP4_EXPONENTS.contains(&block[0]) {
            true => block[0] - MXFP4_EXPONENTS.start,
            false => 0,
        };
        words::<4>(lines, lane, &block[1..]);
    }
}

pub(super) fn nvfp4(row: &[u8], lane: usize, panel: &mut [u8]) {
    let pairs = panel.as_chunks_mut::<640>().0.iter_mut();
    for (to, block) in pairs.zip(row.as_chunks::<36>().0) {
        for (b, to) in to.as_chunks_mut::<320>().0.iter_mut().enumerate() {
            words::<4>(&mut to[..256], lane, &block[4 + 16 * b..][..16]);
            for part in 0..2 {
                let scale = f32_to_f16(half_of_ue4m3(block[2 * b + part]));
                to[256 + 32 * part + 2 * lane..][..2].copy_from_slice(&scale.to_le_bytes());
            }
        }
    }
}

/// A row of an iq1, iq2 or iq3 type.
pub(super) fn codebook(
    tensor_type: TensorType,
    cols: usize,
    row: &[u8],
    lane: usize,
    panel: &mut [u8],
) -> Result<(), DequantiseError> {
    let codebook = Codebook::of(tensor_type).ok_or(DequantiseError::Unsupported(tensor_type))?;
    let offset = codebook
        .levels
        .iter()
        .fold(0, |most, &level| level.max(most));
    let mut nibble_of = [0u8; 256];
    for (nibble, level) in (0..).zip(codebook.levels) {
        nibble_of[usize::from(level.cast_unsigned())] = nibble;
    }
    let (head, rest) = panel.split_at_mut(64);
    for (byte, level) in head.iter_mut().zip(codebook.levels) {
        *byte = (level + offset).cast_unsigned();
    }
    head[16..20].copy_from_slice(&codebook.unit.to_le_bytes());
    head[20..24].copy_from_slice(&f32::from(offset).to_le_bytes());
    let (first, supers) = rest.split_at_mut(super_scales_bytes(cols));
    let supers = supers.as_chunks_mut::<{ 256 + 8 * 256 }>().0.iter_mut();
    let blocks = row.chunks_exact(tensor_type.block_bytes());
    for ((to, d), block) in supers.zip(halves(first)).zip(blocks) {
        let block = codebook.split(block);
        d[lane] = block.d.to_le_bytes();
        let (scales, lines) = to.split_at_mut(256);
        for (group, scale) in block.scales.into_iter().enumerate() {
            scales[16 * group + lane] = scale;
        }
        let quants = block.quants.as_chunks::<32>().0;
        for (lines, quants) in lines.as_chunks_mut::<256>().0.iter_mut().zip(quants) {
            let nibble = |k: usize| nibble_of[usize::from(quants[k].cast_unsigned())];
            for (part, lines) in lines.as_chunks_mut::<128>().0.iter_mut().enumerate() {
                for i in 0..8 {
                    let k = 16 * part + i;
                    lines[64 * (i / 4) + 4 * lane + i % 4] = nibble(k) | nibble(k + 8) << 4;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vitriol_kernels_core::half::f16_to_f32;

    #[test]
    fn half_scales_of_nvfp4_are_f16() {
        for bits in 0..=255 {
            let scale = half_of_ue4m3(bits);
            assert_eq!(f16_to_f32(f32_to_f16(scale)), scale, "{bits:#04x}");
        }
    }
}
