use thiserror::Error;

use crate::TensorType;
use crate::half::{bf16_to_f32, f16_to_f32};

/// Why a row could not be dequantised.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DequantiseError {
    /// This release has no decoder for the type.
    #[error(
        "cannot decode {0} weights in this release: use a file quantised to f32, f16, bf16, q8_0 or q4_1"
    )]
    Unsupported(TensorType),
    /// Source and destination do not describe the same number of weights.
    #[error("row of {cols} {tensor_type} weights needs {needed} bytes, but {given} were given")]
    Length {
        /// Type of the row.
        tensor_type: TensorType,
        /// Weights asked for.
        cols: usize,
        /// Bytes that many weights take (rounded down where `cols` is not a whole number of blocks).
        needed: usize,
        /// Bytes given.
        given: usize,
    },
}

/// Decodes one row of weights to f32.
///
/// Shapes:   src row bytes of `out.len()` weights; out (cols)
/// Errors:   a type without decoder, or lengths that do not match; `out` then stays untouched
/// Numerics: bit-equal to ggml's `to_float`. All products of a 4- or 8-bit integer and an f16 scale
///           are exact in f32, so that fused and separate multiply-add give the same value.
/// Source:   ggml `ggml-quants.c` (dequantize_row_*)
pub fn dequantise_row(
    tensor_type: TensorType,
    src: &[u8],
    out: &mut [f32],
) -> Result<(), DequantiseError> {
    let cols = out.len();
    if tensor_type.row_bytes(cols) != Some(src.len()) {
        let needed = (cols / tensor_type.block_len()).saturating_mul(tensor_type.block_bytes());
        return Err(DequantiseError::Length {
            tensor_type,
            cols,
            needed,
            given: src.len(),
        });
    }
    match tensor_type {
        TensorType::F32 => {
            for (value, bytes) in out.iter_mut().zip(src.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        TensorType::F16 => {
            for (value, bytes) in out.iter_mut().zip(src.as_chunks::<2>().0) {
                *value = f16_to_f32(u16::from_le_bytes(*bytes));
            }
        }
        TensorType::BF16 => {
            for (value, bytes) in out.iter_mut().zip(src.as_chunks::<2>().0) {
                *value = bf16_to_f32(u16::from_le_bytes(*bytes));
            }
        }
        TensorType::Q8_0 => {
            for (values, block) in out
                .as_chunks_mut::<32>()
                .0
                .iter_mut()
                .zip(src.as_chunks::<34>().0)
            {
                dequantise_q8_0(block, values);
            }
        }
        TensorType::Q4_1 => {
            for (values, block) in out
                .as_chunks_mut::<32>()
                .0
                .iter_mut()
                .zip(src.as_chunks::<20>().0)
            {
                dequantise_q4_1(block, values);
            }
        }
        other => return Err(DequantiseError::Unsupported(other)),
    }
    Ok(())
}

/// Block: f16 scale d, 32 signed bytes q. Value: q·d.
fn dequantise_q8_0(block: &[u8; 34], values: &mut [f32; 32]) {
    let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
    for (value, &q) in values.iter_mut().zip(&block[2..]) {
        *value = f32::from(q as i8) * d;
    }
}

/// Block: f16 scale d, f16 minimum m, 16 bytes of two nibbles q: weight i in the low half of byte
/// i, weight 16 + i in its high half. Value: q·d + m.
fn dequantise_q4_1(block: &[u8; 20], values: &mut [f32; 32]) {
    let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
    let m = f16_to_f32(u16::from_le_bytes([block[2], block[3]]));
    let (low, high) = values.split_at_mut(16);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block[4..]) {
        *low = f32::from(byte & 15) * d + m;
        *high = f32::from(byte >> 4) * d + m;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_it_cannot_decode_by_name() {
        let mut out = [7.0; 256];
        let error = dequantise_row(TensorType::Q4_K, &[0; 144], &mut out).unwrap_err();
        assert_eq!(error, DequantiseError::Unsupported(TensorType::Q4_K));
        assert!(error.to_string().contains("q4_K"));
        assert_eq!(out, [7.0; 256]);
    }

    #[test]
    fn refuses_lengths_that_do_not_match() {
        let mut out = [0.0; 33];
        assert!(matches!(
            dequantise_row(TensorType::Q8_0, &[0; 34], &mut out),
            Err(DequantiseError::Length {
                cols: 33,
                needed: 34,
                given: 34,
                ..
            })
        ));
        assert!(dequantise_row(TensorType::Q8_0, &[0; 68], &mut out[..32]).is_err());
    }
}
