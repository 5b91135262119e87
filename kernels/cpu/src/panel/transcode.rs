//! Block formats that are q8_0 in disguise: each weight a small integer times one scale.

use vitriol_kernels_core::TensorType;
use vitriol_kernels_core::half::{f16_to_f32, f32_to_f16};

/// Where a block has its only scale.
enum Scale {
    /// f16 at this byte.
    Half(usize),
    /// E8M0 at byte 0, halved as the integers are doubled.
    Exponent,
}

fn scale_of(tensor_type: TensorType) -> Option<Scale> {
    match tensor_type {
        TensorType::Q1_0 | TensorType::Q2_0 => Some(Scale::Half(0)),
        TensorType::TQ1_0 => Some(Scale::Half(52)),
        TensorType::TQ2_0 => Some(Scale::Half(64)),
        TensorType::MXFP4 => Some(Scale::Exponent),
        _ => None,
    }
}

/// Whether [`to_q8_0`] knows the type.
pub(super) fn has_one_scale(tensor_type: TensorType) -> bool {
    scale_of(tensor_type).is_some()
}

/// Appends a row, given as stored and as its `values`, in q8_0 blocks; false if a value would not
/// come out as it is, which is checked for each one.
///
/// A value is q·d, exact in f32, and so is its quotient by d: the integers come back as they were.
pub(super) fn to_q8_0(
    tensor_type: TensorType,
    stored: &[u8],
    values: &[f32],
    out: &mut Vec<u8>,
) -> bool {
    let Some(scale) = scale_of(tensor_type) else {
        return false;
    };
    let blocks = stored.chunks_exact(tensor_type.block_bytes());
    for (block, values) in blocks.zip(values.chunks_exact(tensor_type.block_len())) {
        let half = match scale {
            Scale::Half(at) => u16::from_le_bytes([block[at], block[at + 1]]),
            // 2^(e − 128); the two smallest are no normal f32, and zero as f16 either way.
            Scale::Exponent => f32_to_f16(f32::from_bits(u32::from(block[0].max(1) - 1) << 23)),
        };
        let d = f16_to_f32(half);
        for values in values.chunks_exact(32) {
            out.extend(half.to_le_bytes());
            for &value in values {
                let q = (value / d).round() as i8;
                let back = f32::from(q) * d;
                if back != value && !(back.is_nan() && value.is_nan()) {
                    return false;
                }
                out.push(q.cast_unsigned());
            }
        }
    }
    true
}
