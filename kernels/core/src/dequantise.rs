//! Decoders of the block formats. Each has its layout in bytes above it; d, m and dmin are f16,
//! numbers little-endian, and nibbles, bit fields and bit planes count from the lowest bit.

mod codebooks;
mod fp4;
mod iq;
mod k_quants;
mod legacy;
mod ternary;

pub use fp4::half_of_ue4m3;
pub use iq::{Codebook, CodebookBlock, iq4_xs_scale};
pub use k_quants::{six_bit_pair, six_bit_scale};

use thiserror::Error;

use crate::TensorType;
use crate::half::{bf16_to_f32, f16_to_f32};

/// Why a row could not be dequantised.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DequantiseError {
    /// The type holds activations or plain numbers, never weights.
    #[error(
        "cannot decode {0} as weights: it is a type of activations or plain numbers; use a file with weights in e.g. f16, q8_0 or q4_K"
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
/// Errors:   a type that is not [`TensorType::is_dequantisable`], or lengths that do not match;
///           `out` then stays untouched. Any bytes of the right length decode to something.
/// Numerics: bit-equal to ggml's `to_float` for every value but NaN, whose payload is not defined.
///           Every product of scales and quants fits the 24 bits of an f32 and is exact, so that
///           neither the order of multiplications nor fused multiply-add makes a difference; where
///           a minimum is added or taken off, that is the only rounding.
/// Source:   ggml `ggml-quants.c` (dequantize_row_*) and `ggml-common.h` (block structs)
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
        TensorType::F32 => decode_blocks(src, out, |bytes, [value]| {
            *value = f32::from_le_bytes(*bytes);
        }),
        TensorType::F16 => decode_blocks(src, out, |bytes, [value]| {
            *value = f16_to_f32(u16::from_le_bytes(*bytes));
        }),
        TensorType::BF16 => decode_blocks(src, out, |bytes, [value]| {
            *value = bf16_to_f32(u16::from_le_bytes(*bytes));
        }),
        TensorType::Q4_0 => decode_blocks(src, out, legacy::q4_0),
        TensorType::Q4_1 => decode_blocks(src, out, legacy::q4_1),
        TensorType::Q5_0 => decode_blocks(src, out, legacy::q5_0),
        TensorType::Q5_1 => decode_blocks(src, out, legacy::q5_1),
        TensorType::Q8_0 => decode_blocks(src, out, legacy::q8_0),
        TensorType::Q2_K => decode_blocks(src, out, k_quants::q2_k),
        TensorType::Q3_K => decode_blocks(src, out, k_quants::q3_k),
        TensorType::Q4_K => decode_blocks(src, out, k_quants::q4_k),
        TensorType::Q5_K => decode_blocks(src, out, k_quants::q5_k),
        TensorType::Q6_K => decode_blocks(src, out, k_quants::q6_k),
        TensorType::IQ4_NL => decode_blocks(src, out, iq::iq4_nl),
        TensorType::IQ4_XS => decode_blocks(src, out, iq::iq4_xs),
        TensorType::TQ1_0 => decode_blocks(src, out, ternary::tq1_0),
        TensorType::TQ2_0 => decode_blocks(src, out, ternary::tq2_0),
        TensorType::Q1_0 => decode_blocks(src, out, ternary::q1_0),
        TensorType::Q2_0 => decode_blocks(src, out, ternary::q2_0),
        TensorType::MXFP4 => decode_blocks(src, out, fp4::mxfp4),
        TensorType::NVFP4 => decode_blocks(src, out, fp4::nvfp4),
        _ => {
            let codebook = Codebook::of(tensor_type);
            let codebook = codebook.ok_or(DequantiseError::Unsupported(tensor_type))?;
            let blocks = src.chunks_exact(tensor_type.block_bytes());
            for (block, values) in blocks.zip(out.chunks_exact_mut(tensor_type.block_len())) {
                codebook.decode(block, values);
            }
        }
    }
    Ok(())
}

/// Decodes block after block; the lengths are checked by then.
fn decode_blocks<const BYTES: usize, const LEN: usize>(
    src: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, _) = src.as_chunks();
    let (values, _) = out.as_chunks_mut();
    for (block, values) in blocks.iter().zip(values) {
        decode(block, values);
    }
}

/// The f16 at `offset`.
fn f16_at(block: &[u8], offset: usize) -> f32 {
    f16_to_f32(u16_at(block, offset))
}

fn u16_at(block: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([block[offset], block[offset + 1]])
}

fn u32_at(block: &[u8], offset: usize) -> u32 {
    u32::from(u16_at(block, offset)) | u32::from(u16_at(block, offset + 2)) << 16
}

/// Nibble `index`, low ones first.
fn nibble(packed: &[u8], index: usize) -> u8 {
    packed[index / 2] >> (4 * (index % 2)) & 15
}

/// Bytes of two nibbles q: the low ones are the first half of the weights, the high ones the
/// second.
fn decode_halves(qs: &[u8], values: &mut [f32], value_of: impl Fn(u8) -> f32) {
    let (low, high) = values.split_at_mut(qs.len());
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(qs) {
        *low = value_of(byte & 15);
        *high = value_of(byte >> 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_holds_no_weights_by_name() {
        let mut out = [7.0; 256];
        let error = dequantise_row(TensorType::Q8_K, &[0; 292], &mut out).unwrap_err();
        assert_eq!(error, DequantiseError::Unsupported(TensorType::Q8_K));
        assert!(error.to_string().contains("q8_K"));
        assert_eq!(out, [7.0; 256]);
    }

    #[test]
    fn decodes_what_it_says_it_can() {
        for &tensor_type in TensorType::ALL {
            let block = vec![0; tensor_type.block_bytes()];
            let mut out = vec![0.0; tensor_type.block_len()];
            let decoded = dequantise_row(tensor_type, &block, &mut out);
            assert_eq!(
                decoded.is_ok(),
                tensor_type.is_dequantisable(),
                "{tensor_type}"
            );
        }
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
