//! 4-bit floats (E2M1: sign, two bits of exponent, one of mantissa) with an 8-bit float as scale.

use super::decode_halves;

/// Twice the value of each E2M1 number, so that they are integers; scales are halved for it.
/// Negative zero is stored as plain zero, as ggml has it.
const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Bytes: scale 0..1 (E8M0: 2^(e − 127)), q 1..17 (E2M1, [`decode_halves`]).
/// Value: q·scale.
///
/// Source: OCP Microscaling Formats (MX) 1.0, §5; e = 255 is NaN there, 2^128 here as in ggml, and
/// most of its products are infinite.
pub(super) fn mxfp4(block: &[u8; 17], values: &mut [f32; 32]) {
    let half_scale = half_of_e8m0(block[0]);
    decode_halves(&block[1..], values, |q| {
        f32::from(E2M1_DOUBLED[usize::from(q)]) * half_scale
    });
}

/// Bytes: scales 0..4 (UE4M3, one for 16 weights), q 4..36 (E2M1, 8 bytes for 16 weights,
/// [`decode_halves`]).
/// Value: q·scale. The f32 scale that NVFP4 has for a whole tensor is a tensor of its own in the
/// file and not applied here.
pub(super) fn nvfp4(block: &[u8; 36], values: &mut [f32; 64]) {
    let (quants, _) = block[4..].as_chunks::<8>();
    let (groups, _) = values.as_chunks_mut::<16>();
    for ((group, quants), &scale) in groups.iter_mut().zip(quants).zip(block) {
        let half_scale = half_of_ue4m3(scale);
        decode_halves(quants, group, |q| {
            f32::from(E2M1_DOUBLED[usize::from(q)]) * half_scale
        });
    }
}

/// 2^(e − 128). The two smallest are subnormal in f32.
fn half_of_e8m0(e: u8) -> f32 {
    match e {
        0 => f32::from_bits(0x0020_0000),
        1 => f32::from_bits(0x0040_0000),
        _ => f32::from_bits((u32::from(e) - 1) << 23),
    }
}

/// Half of a float with four bits of exponent (bias 7) and three of mantissa; the top bit has no
/// meaning. 0x7f is NaN in E4M3 and 0 here, as in ggml. Every one of them is an f16.
#[must_use]
pub fn half_of_ue4m3(bits: u8) -> f32 {
    const SUBNORMAL_UNIT: f32 = 1.0 / 1024.0;
    let exponent = u32::from(bits >> 3 & 15);
    let mantissa = u32::from(bits & 7);
    match (bits, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa as f32 * SUBNORMAL_UNIT,
        // Bias 127 against 7, less one for the half.
        _ => f32::from_bits((exponent + 119) << 23 | mantissa << 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_follow_their_definition() {
        for e in 0..=255u8 {
            let expected = (f64::from(e) - 128.0).exp2();
            assert_eq!(f64::from(half_of_e8m0(e)), expected, "e {e}");
        }
        for bits in (0..=255u8).filter(|bits| *bits != 0x7f) {
            let exponent = bits >> 3 & 15;
            let fraction = f64::from(bits & 7) / 8.0;
            let value = if exponent == 0 {
                fraction * 2f64.powi(-6)
            } else {
                (1.0 + fraction) * 2f64.powi(i32::from(exponent) - 7)
            };
            assert_eq!(f64::from(half_of_ue4m3(bits)), value / 2.0, "{bits:#04x}");
        }
        assert_eq!(half_of_ue4m3(0x7f), 0.0);
    }
}
