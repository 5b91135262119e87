//! Formats whose quants are indices: into a codebook of points with 4 or 8 coordinates, one for
//! each of so many neighbouring weights, or into 16 unevenly spaced levels (iq4). Super-blocks have
//! 256 weights; "point k" decodes weights 8·k.. or 4·k...
//!
//! Points of iq2 and iq3 have positive coordinates and the signs are stored apart, lowest bit
//! first, set for minus. Points of iq1 have the coordinates −1, 0 and 1, shifted together by ±1/8.

use super::{codebooks, decode_halves, f16_at, nibble, u16_at, u32_at};
use crate::half::f16_to_f32;

const IQ2_LEVELS: [i8; 3] = [8, 25, 43];
static IQ2_XXS: [[i8; 8]; 256] = points(&codebooks::IQ2_XXS, &IQ2_LEVELS);
static IQ2_XS: [[i8; 8]; 512] = points(&codebooks::IQ2_XS, &IQ2_LEVELS);
static IQ2_S: [[i8; 8]; 1024] = points(&codebooks::IQ2_S, &IQ2_LEVELS);
static IQ3_XXS: [[i8; 4]; 256] = points(&codebooks::IQ3_XXS, &[4, 12, 20, 28, 36, 44, 52, 62]);
static IQ3_S: [[i8; 4]; 512] = points(&codebooks::IQ3_S, &[1, 3, 5, 7, 9, 11, 13, 15]);
static IQ1: [[i8; 8]; 2048] = points(&codebooks::IQ1, &[-1, 0, 1]);

/// Levels of iq4: finer near zero, where most weights are.
const IQ4_LEVELS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Points of a codebook, ascending by code. A code is the number whose digits, lowest first, are
/// the coordinates, each a place in `levels`; `members` is the bitmap of the codes that belong to
/// it.
pub(super) const fn points<const DIMS: usize, const POINTS: usize>(
    members: &[u64],
    levels: &[i8],
) -> [[i8; DIMS]; POINTS] {
    let mut points = [[0; DIMS]; POINTS];
    let mut found = 0;
    let mut code = 0;
    while code < members.len() * 64 {
        if members[code / 64] >> (code % 64) & 1 == 1 {
            let mut rest = code;
            let mut axis = 0;
            while axis < DIMS {
                points[found][axis] = levels[rest % levels.len()];
                rest /= levels.len();
                axis += 1;
            }
            found += 1;
        }
        code += 1;
    }
    assert!(found == POINTS, "the bitmap has another number of points");
    points
}

/// Bytes: d 0..2, then 8 groups of 32 weights: point indices 4, signs and scale 4
/// ([`seven_signs`]).
/// Value: ±point·d·(scale + ½)/4.
pub(super) fn iq2_xxs(block: &[u8; 66], values: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let (groups, _) = block[2..].as_chunks::<8>();
    for (group, values) in groups.iter().zip(values.as_chunks_mut::<32>().0) {
        let signs_and_scale = u32_at(group, 4);
        let scale = d * ((signs_and_scale >> 28) as f32 + 0.5) * 0.25;
        for (k, values) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let point = &IQ2_XXS[usize::from(group[k])];
            write_signed(
                values,
                point,
                seven_signs(signs_and_scale >> (7 * k)),
                scale,
            );
        }
    }
}

/// Bytes: d 0..2, points 2..66 (u16: index 9 bits, signs 7, [`seven_signs`]), scales 66..74
/// (nibbles, one for two points).
/// Value: ±point·d·(scale + ½)/4.
pub(super) fn iq2_xs(block: &[u8; 74], values: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (k, values) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let packed = u16_at(block, 2 + 2 * k);
        let scale = d * (f32::from(nibble(&block[66..], k / 2)) + 0.5) * 0.25;
        let point = &IQ2_XS[usize::from(packed & 511)];
        write_signed(values, point, seven_signs(u32::from(packed >> 9)), scale);
    }
}

/// Bytes: d 0..2, low 8 bits of the point indices 2..34, signs 34..66, high bits of the indices
/// 66..74 (2 for each point), scales 74..82 (nibbles, one for two points).
/// Value: ±point·d·(scale + ½)/4.
pub(super) fn iq2_s(block: &[u8; 82], values: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (k, values) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let high = usize::from(block[66 + k / 4] >> (2 * (k % 4)) & 3);
        let scale = d * (f32::from(nibble(&block[74..], k / 2)) + 0.5) * 0.25;
        let point = &IQ2_S[usize::from(block[2 + k]) | high << 8];
        write_signed(values, point, block[34 + k], scale);
    }
}

/// Bytes: d 0..2, point indices 2..66, then 8 times signs and scale of 32 weights 4
/// ([`seven_signs`]).
/// Value: ±point·d·(scale + ½)/2.
pub(super) fn iq3_xxs(block: &[u8; 98], values: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let (indices, _) = block[2..66].as_chunks::<2>();
    for (k, (values, index)) in values
        .as_chunks_mut::<8>()
        .0
        .iter_mut()
        .zip(indices)
        .enumerate()
    {
        let signs_and_scale = u32_at(block, 66 + 4 * (k / 4));
        let scale = d * ((signs_and_scale >> 28) as f32 + 0.5) * 0.5;
        let signs = seven_signs(signs_and_scale >> (7 * (k % 4)));
        let (first, second) = values.split_at_mut(4);
        write_signed(first, &IQ3_XXS[usize::from(index[0])], signs, scale);
        write_signed(second, &IQ3_XXS[usize::from(index[1])], signs >> 4, scale);
    }
}

/// Bytes: d 0..2, low 8 bits of the point indices 2..66, their ninth bits 66..74 (point k in bit k
/// % 8 of byte k / 8), signs 74..106, scales 106..110 (nibbles, one for 32 weights).
/// Value: ±point·d·(2·scale + 1).
pub(super) fn iq3_s(block: &[u8; 110], values: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (k, values) in values.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let ninth = usize::from(block[66 + k / 8] >> (k % 8) & 1);
        let scale = d * (2.0 * f32::from(nibble(&block[106..], k / 8)) + 1.0);
        let signs = nibble(&block[74..106], k);
        let point = &IQ3_S[usize::from(block[2 + k]) | ninth << 8];
        write_signed(values, point, signs, scale);
    }
}

/// Bytes: d 0..2, low 8 bits of the point indices 2..34, then for each 32 weights a u16 34..50:
/// high 3 bits of its four indices, scale 3, shift 1 (set: −1/8, else 1/8).
/// Value: (point + shift)·d·(2·scale + 1).
pub(super) fn iq1_s(block: &[u8; 50], values: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (k, values) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let packed = u16_at(block, 34 + 2 * (k / 4));
        let high = usize::from(packed >> (3 * (k % 4)) & 7);
        let scale = d * f32::from(2 * (packed >> 12 & 7) + 1);
        let point = &IQ1[usize::from(block[2 + k]) | high << 8];
        write_shifted(values, point, packed >> 15 == 1, scale);
    }
}

/// Bytes: low 8 bits of the point indices 0..32, then for each point a nibble 32..48: high 3 bits
/// of its index, shift 1 (as in iq1_s), then four u16 48..56: 3-bit scales of four groups of 16
/// weights, and in the top four bits a quarter of d, lowest first.
/// Value: (point + shift)·d·(2·scale + 1).
pub(super) fn iq1_m(block: &[u8; 56], values: &mut [f32; 256]) {
    let quarter = |i: usize| u16_at(block, 48 + 2 * i) >> 12 << (4 * i);
    let d = f16_to_f32(quarter(0) | quarter(1) | quarter(2) | quarter(3));
    for (k, values) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let group = k / 2;
        let scales = u16_at(block, 48 + 2 * (group / 4));
        let scale = d * f32::from(2 * (scales >> (3 * (group % 4)) & 7) + 1);
        let packed = nibble(&block[32..48], k);
        let point = &IQ1[usize::from(block[k]) | usize::from(packed & 7) << 8];
        write_shifted(values, point, packed & 8 != 0, scale);
    }
}

/// Bytes: d 0..2, q 2..18 (nibbles, [`decode_halves`]).
/// Value: level(q)·d.
pub(super) fn iq4_nl(block: &[u8; 18], values: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    decode_halves(&block[2..], values, |q| iq4_level(q) * d);
}

/// Bytes: d 0..2, high bits of the scales 2..4 (2 for each group), their low bits 4..8 (nibbles),
/// then 8 groups of 32 weights, q 16 each (nibbles, [`decode_halves`]).
/// Value: level(q)·d·(scale − 32).
pub(super) fn iq4_xs(block: &[u8; 136], values: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let high_bits = u16_at(block, 2);
    let (quants, _) = block[8..].as_chunks::<16>();
    let (groups, _) = values.as_chunks_mut::<32>();
    for (s, (values, quants)) in groups.iter_mut().zip(quants).enumerate() {
        let high = high_bits >> (2 * s) & 3;
        let scale = f32::from(u16::from(nibble(&block[4..8], s)) | high << 4) - 32.0;
        let scale = d * scale;
        decode_halves(quants, values, |q| iq4_level(q) * scale);
    }
}

fn iq4_level(q: u8) -> f32 {
    f32::from(IQ4_LEVELS[usize::from(q & 15)])
}

/// Signs of eight weights out of the low seven bits: the number of minuses is even, so the eighth
/// follows.
fn seven_signs(packed: u32) -> u8 {
    let seven = packed as u8 & 127;
    seven | (seven.count_ones() as u8 & 1) << 7
}

fn write_signed(values: &mut [f32], point: &[i8], signs: u8, scale: f32) {
    for (i, (value, &level)) in values.iter_mut().zip(point).enumerate() {
        let magnitude = scale * f32::from(level);
        *value = if signs >> i & 1 == 1 {
            -magnitude
        } else {
            magnitude
        };
    }
}

fn write_shifted(values: &mut [f32; 8], point: &[i8; 8], minus: bool, scale: f32) {
    let shift = if minus { -0.125 } else { 0.125 };
    for (value, &level) in values.iter_mut().zip(point) {
        *value = scale * (f32::from(level) + shift);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_those_of_the_source() {
        let books: [(&str, &[i8]); 6] = [
            ("IQ2_XXS", IQ2_XXS.as_flattened()),
            ("IQ2_XS", IQ2_XS.as_flattened()),
            ("IQ2_S", IQ2_S.as_flattened()),
            ("IQ1", IQ1.as_flattened()),
            ("IQ3_XXS", IQ3_XXS.as_flattened()),
            ("IQ3_S", IQ3_S.as_flattened()),
        ];
        for ((name, coordinates), (source, checksum)) in books.into_iter().zip(codebooks::CHECKSUMS)
        {
            assert_eq!(name, source);
            let fnv1a = coordinates.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &x| {
                (hash ^ u64::from(x as u8)).wrapping_mul(0x100_0000_01b3)
            });
            assert_eq!(fnv1a, checksum, "{name}");
        }
    }

    #[test]
    fn eighth_sign_makes_the_minuses_even() {
        for packed in 0..128 {
            let signs = seven_signs(packed);
            assert_eq!(u32::from(signs) & 127, packed);
            assert_eq!(signs.count_ones() % 2, 0, "{packed:#09b}");
        }
    }
}
