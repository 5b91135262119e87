//! Formats whose quants are indices: into a codebook of points with 4 or 8 coordinates, one for
//! each of so many neighbouring weights, or into 16 unevenly spaced levels (iq4). Super-blocks have
//! 256 weights; "point k" decodes weights 8·k.. or 4·k...
//!
//! Points of iq2 and iq3 have positive coordinates and the signs are stored apart, lowest bit
//! first, set for minus. Points of iq1 have the coordinates −1, 0 and 1, shifted together by ±1/8.

use super::{codebooks, decode_halves, f16_at, nibble, u16_at, u32_at};
use crate::TensorType;
use crate::half::f16_to_f32;

const IQ2_LEVELS: [i8; 3] = [8, 25, 43];
static IQ2_XXS: [[i8; 8]; 256] = points(&codebooks::IQ2_XXS, &IQ2_LEVELS);
static IQ2_XS: [[i8; 8]; 512] = points(&codebooks::IQ2_XS, &IQ2_LEVELS);
static IQ2_S: [[i8; 8]; 1024] = points(&codebooks::IQ2_S, &IQ2_LEVELS);
const IQ3_XXS_LEVELS: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
static IQ3_XXS: [[i8; 4]; 256] = points(&codebooks::IQ3_XXS, &IQ3_XXS_LEVELS);
const IQ3_S_LEVELS: [i8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
static IQ3_S: [[i8; 4]; 512] = points(&codebooks::IQ3_S, &IQ3_S_LEVELS);
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

/// A type whose weights are points of a codebook, as whole numbers and scales: a weight is one of at
/// most 16 levels times its group's scale, unit and d.
///
/// Every product is exact in f32, and so is a weight (a d of any bits, infinite and NaN apart).
pub struct Codebook {
    /// What a quant can be; unused places are 0.
    pub levels: [i8; 16],
    /// A power of two.
    pub unit: f32,
    split: fn(&[u8]) -> CodebookBlock,
}

/// A super-block of a [`Codebook`]'s type: weight k is `quants[k]·(d·scales[k / 16]·unit)`.
pub struct CodebookBlock {
    /// Bits of an f16.
    pub d: u16,
    /// Of 16 weights each, below 32.
    pub scales: [u8; 16],
    /// Each one of the levels.
    pub quants: [i8; 256],
}

impl Codebook {
    /// The codebook behind a type, if it has one.
    #[must_use]
    pub fn of(tensor_type: TensorType) -> Option<&'static Codebook> {
        Some(match tensor_type {
            TensorType::IQ1_S => &const { Codebook::new([1, 7, 9], 0.125, iq1_s) },
            TensorType::IQ1_M => &const { Codebook::new([1, 7, 9], 0.125, iq1_m) },
            TensorType::IQ2_XXS => &const { Codebook::new(IQ2_LEVELS, 0.125, iq2_xxs) },
            TensorType::IQ2_XS => &const { Codebook::new(IQ2_LEVELS, 0.125, iq2_xs) },
            TensorType::IQ2_S => &const { Codebook::new(IQ2_LEVELS, 0.125, iq2_s) },
            TensorType::IQ3_XXS => &const { Codebook::new(IQ3_XXS_LEVELS, 0.25, iq3_xxs) },
            TensorType::IQ3_S => &const { Codebook::new(IQ3_S_LEVELS, 1.0, iq3_s) },
            _ => return None,
        })
    }

    /// Levels of these magnitudes and either sign.
    const fn new<const N: usize>(
        magnitudes: [i8; N],
        unit: f32,
        split: fn(&[u8]) -> CodebookBlock,
    ) -> Self {
        let mut levels = [0; 16];
        let mut i = 0;
        while i < N {
            levels[2 * i] = magnitudes[i];
            levels[2 * i + 1] = -magnitudes[i];
            i += 1;
        }
        Self {
            levels,
            unit,
            split,
        }
    }

    /// Takes a super-block of the type apart.
    ///
    /// # Panics
    /// If `block` is shorter than one.
    #[must_use]
    pub fn split(&self, block: &[u8]) -> CodebookBlock {
        (self.split)(block)
    }

    /// Values of a super-block.
    pub(super) fn decode(&self, block: &[u8], values: &mut [f32]) {
        let block = self.split(block);
        let d = f16_to_f32(block.d) * self.unit;
        for ((values, quants), scale) in values
            .chunks_exact_mut(16)
            .zip(block.quants.as_chunks::<16>().0)
            .zip(block.scales)
        {
            let scale = d * f32::from(scale);
            for (value, &q) in values.iter_mut().zip(quants) {
                *value = f32::from(q) * scale;
            }
        }
    }
}

/// Scales and quants of a block, from those of eight weights each.
fn codebook_block(
    d: u16,
    scale: impl Fn(usize) -> u8,
    point: impl Fn(usize) -> [i8; 8],
) -> CodebookBlock {
    let mut block = CodebookBlock {
        d,
        scales: std::array::from_fn(|group| scale(2 * group)),
        quants: [0; 256],
    };
    for (k, quants) in block.quants.as_chunks_mut().0.iter_mut().enumerate() {
        *quants = point(k);
    }
    block
}

/// Bytes: d 0..2, then 8 groups of 32 weights: point indices 4, signs and scale 4
/// ([`seven_signs`]).
/// Value: ±point·d·(2·scale + 1)/8.
fn iq2_xxs(block: &[u8]) -> CodebookBlock {
    let signs_and_scale = |k: usize| u32_at(block, 6 + 8 * (k / 4));
    codebook_block(
        u16_at(block, 0),
        |k| odd(signs_and_scale(k) >> 28),
        |k| {
            let point = IQ2_XXS[usize::from(block[2 + 8 * (k / 4) + k % 4])];
            signed(point, seven_signs(signs_and_scale(k) >> (7 * (k % 4))))
        },
    )
}

/// Bytes: d 0..2, points 2..66 (u16: index 9 bits, signs 7, [`seven_signs`]), scales 66..74
/// (nibbles, one for two points).
/// Value: ±point·d·(2·scale + 1)/8.
fn iq2_xs(block: &[u8]) -> CodebookBlock {
    codebook_block(
        u16_at(block, 0),
        |k| odd(nibble(&block[66..74], k / 2).into()),
        |k| {
            let packed = u16_at(block, 2 + 2 * k);
            let point = IQ2_XS[usize::from(packed & 511)];
            signed(point, seven_signs(u32::from(packed >> 9)))
        },
    )
}

/// Bytes: d 0..2, low 8 bits of the point indices 2..34, signs 34..66, high bits of the indices
/// 66..74 (2 for each point), scales 74..82 (nibbles, one for two points).
/// Value: ±point·d·(2·scale + 1)/8.
fn iq2_s(block: &[u8]) -> CodebookBlock {
    codebook_block(
        u16_at(block, 0),
        |k| odd(nibble(&block[74..82], k / 2).into()),
        |k| {
            let high = usize::from(block[66 + k / 4] >> (2 * (k % 4)) & 3);
            let point = IQ2_S[usize::from(block[2 + k]) | high << 8];
            signed(point, block[34 + k])
        },
    )
}

/// Bytes: d 0..2, point indices 2..66, then 8 times signs and scale of 32 weights 4
/// ([`seven_signs`]).
/// Value: ±point·d·(2·scale + 1)/4.
fn iq3_xxs(block: &[u8]) -> CodebookBlock {
    let signs_and_scale = |k: usize| u32_at(block, 66 + 4 * (k / 4));
    codebook_block(
        u16_at(block, 0),
        |k| odd(signs_and_scale(k) >> 28),
        |k| {
            let point = |i: usize| IQ3_XXS[usize::from(block[2 + i])];
            let signs = seven_signs(signs_and_scale(k) >> (7 * (k % 4)));
            signed(eight(point(2 * k), point(2 * k + 1)), signs)
        },
    )
}

/// Bytes: d 0..2, low 8 bits of the point indices 2..66, their ninth bits 66..74 (point k in bit k
/// % 8 of byte k / 8), signs 74..106, scales 106..110 (nibbles, one for 32 weights).
/// Value: ±point·d·(2·scale + 1).
fn iq3_s(block: &[u8]) -> CodebookBlock {
    codebook_block(
        u16_at(block, 0),
        |k| odd(nibble(&block[106..110], k / 4).into()),
        |k| {
            let point = |i: usize| {
                let ninth = usize::from(block[66 + i / 8] >> (i % 8) & 1);
                IQ3_S[usize::from(block[2 + i]) | ninth << 8]
            };
            signed(eight(point(2 * k), point(2 * k + 1)), block[74 + k])
        },
    )
}

/// Bytes: d 0..2, low 8 bits of the point indices 2..34, then for each 32 weights a u16 34..50:
/// high 3 bits of its four indices, scale 3, shift 1 (set: −1/8, else 1/8).
/// Value: (point + shift)·d·(2·scale + 1).
fn iq1_s(block: &[u8]) -> CodebookBlock {
    let packed = |k: usize| u16_at(block, 34 + 2 * (k / 4));
    codebook_block(
        u16_at(block, 0),
        |k| odd(u32::from(packed(k) >> 12 & 7)),
        |k| {
            let high = usize::from(packed(k) >> (3 * (k % 4)) & 7);
            let point = IQ1[usize::from(block[2 + k]) | high << 8];
            shifted(point, packed(k) >> 15 == 1)
        },
    )
}

/// Bytes: low 8 bits of the point indices 0..32, then for each point a nibble 32..48: high 3 bits
/// of its index, shift 1 (as in iq1_s), then four u16 48..56: 3-bit scales of four groups of 16
/// weights, and in the top four bits a quarter of d, lowest first.
/// Value: (point + shift)·d·(2·scale + 1).
fn iq1_m(block: &[u8]) -> CodebookBlock {
    let quarter = |i: usize| u16_at(block, 48 + 2 * i) >> 12 << (4 * i);
    codebook_block(
        quarter(0) | quarter(1) | quarter(2) | quarter(3),
        |k| {
            let scales = u16_at(block, 48 + 2 * (k / 8));
            odd(u32::from(scales >> (3 * (k / 2 % 4)) & 7))
        },
        |k| {
            let packed = nibble(&block[32..48], k);
            let point = IQ1[usize::from(block[k]) | usize::from(packed & 7) << 8];
            shifted(point, packed & 8 != 0)
        },
    )
}

/// Bytes: d 0..2, q 2..18 (nibbles, [`decode_halves`]).
/// Value: level(q)·d.
pub(super) fn iq4_nl(block: &[u8; 18], values: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    decode_halves(&block[2..], values, |q| iq4_level(q) * d);
}

/// Bytes: d 0..2, scales 2..8 ([`iq4_xs_scale`]), then 8 groups of 32 weights, q 16 each (nibbles,
/// [`decode_halves`]).
/// Value: level(q)·d·scale.
pub(super) fn iq4_xs(block: &[u8; 136], values: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let (quants, _) = block[8..].as_chunks::<16>();
    let (groups, _) = values.as_chunks_mut::<32>();
    for (s, (values, quants)) in groups.iter_mut().zip(quants).enumerate() {
        let scale = d * f32::from(iq4_xs_scale(&block[2..8], s));
        decode_halves(quants, values, |q| iq4_level(q) * scale);
    }
}

/// Scale of group s of an iq4_xs block out of its 6 bytes of them: six bits less 32, the high two in a
/// u16 0..2, the low four in nibbles 2..6.
#[must_use]
pub fn iq4_xs_scale(packed: &[u8], s: usize) -> i8 {
    let high = (u16_at(packed, 0) >> (2 * s) & 3) as u8;
    (nibble(&packed[2..6], s) | high << 4) as i8 - 32
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

/// 2·scale + 1, of a scale of at most four bits.
fn odd(scale: u32) -> u8 {
    (2 * scale + 1) as u8
}

fn eight(first: [i8; 4], second: [i8; 4]) -> [i8; 8] {
    let ([a, b, c, d], [e, f, g, h]) = (first, second);
    [a, b, c, d, e, f, g, h]
}

/// The point with a minus where a bit is set.
fn signed(mut point: [i8; 8], signs: u8) -> [i8; 8] {
    for (i, level) in point.iter_mut().enumerate() {
        if signs >> i & 1 == 1 {
            *level = -*level;
        }
    }
    point
}

/// Eighths of the point, shifted by one.
fn shifted(point: [i8; 8], minus: bool) -> [i8; 8] {
    point.map(|level| 8 * level + if minus { -1 } else { 1 })
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
    fn quants_are_levels_and_scales_fit_five_bits() {
        for &tensor_type in TensorType::ALL {
            let Some(codebook) = Codebook::of(tensor_type) else {
                continue;
            };
            let mut met = std::collections::BTreeSet::new();
            for seed in 0..64u32 {
                let bytes: Vec<u8> = (0..tensor_type.block_bytes() as u32)
                    .map(|i| ((i ^ seed << 10).wrapping_mul(0x9e37_79b9) >> 24) as u8)
                    .collect();
                let block = codebook.split(&bytes);
                assert!(block.scales.iter().all(|&scale| scale < 32));
                met.extend(block.quants);
            }
            let levels: std::collections::BTreeSet<i8> = codebook.levels.into();
            let unused = usize::from(levels.contains(&0));
            assert!(met.is_subset(&levels), "{tensor_type}");
            assert_eq!(met.len() + unused, levels.len(), "{tensor_type}");
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
