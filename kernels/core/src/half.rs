//! The two 16-bit float formats of model files.

/// Value of an IEEE binary16 number (all values exact, subnormals and NaN included).
#[must_use]
pub fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half >> 15) << 31;
    let exponent = u32::from(half >> 10) & 0x1f;
    let mantissa = u32::from(half) & 0x3ff;
    let magnitude = match exponent {
        // Subnormal: mantissa units of 2^-24, exact in f32.
        0 => (mantissa as f32 * f32::from_bits(0x3380_0000)).to_bits(),
        0x1f => 0x7f80_0000 | (mantissa << 13),
        _ => ((exponent + 112) << 23) | (mantissa << 13),
    };
    f32::from_bits(sign | magnitude)
}

/// Nearest IEEE binary16 number, ties to even; beyond ±65504 rounds to infinity, NaN stays NaN.
#[must_use]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00 | ((magnitude >> 13) & 0x3ff) as u16;
    }
    // 65520 is half way between the largest finite number and the next step: it ties to infinity.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Below 2^-14 the result is subnormal: adding 0.5 aligns its units (2^-24) with the last
        // mantissa bit of f32, so that the addition itself rounds to nearest even.
        let aligned = f32::from_bits(magnitude) + 0.5;
        return sign | (aligned.to_bits() - 0x3f00_0000) as u16;
    }
    let rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    sign | ((rounded - (112 << 23)) >> 13) as u16
}

/// Value of a bfloat16 number (exact).
#[must_use]
pub fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// Nearest bfloat16 number, ties to even; NaN stays NaN.
#[must_use]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_survives_the_round_trip() {
        for half in 0..=u16::MAX {
            let value = f16_to_f32(half);
            if value.is_nan() {
                assert!(f16_to_f32(f32_to_f16(value)).is_nan(), "{half:#06x}");
            } else {
                assert_eq!(f32_to_f16(value), half, "{half:#06x} = {value}");
            }
        }
    }

    #[test]
    fn f16_rounds_to_nearest_even_between_all_neighbours() {
        for half in 0..0x7bffu16 {
            let low = f64::from(f16_to_f32(half));
            let high = f64::from(f16_to_f32(half + 1));
            let middle = ((low + high) / 2.0) as f32;
            let even = if half & 1 == 0 { half } else { half + 1 };
            assert_eq!(f32_to_f16(middle), even, "tie above {half:#06x}");
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() - 1)), half);
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() + 1)), half + 1);
        }
        assert_eq!(f32_to_f16(65519.996), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(f32::NEG_INFINITY), 0xfc00);
        assert_eq!(f32_to_f16(-0.0), 0x8000);
    }

    #[test]
    fn every_bf16_survives_the_round_trip() {
        for half in 0..=u16::MAX {
            let value = bf16_to_f32(half);
            if value.is_nan() {
                assert!(bf16_to_f32(f32_to_bf16(value)).is_nan(), "{half:#06x}");
            } else {
                assert_eq!(f32_to_bf16(value), half, "{half:#06x} = {value}");
            }
        }
        // 1 + 2^-8 is half way between 1 and its neighbour 1 + 2^-7.
        assert_eq!(f32_to_bf16(1.003_906_2), 0x3f80);
        assert_eq!(f32_to_bf16(1.011_718_8), 0x3f82);
    }
}
