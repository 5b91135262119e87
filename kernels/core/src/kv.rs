//! Codecs of the key/value cache: what an element costs, how heads are rotated and encoded.

use std::fmt;

use crate::half::{f16_to_f32, f32_to_f16};

/// Elements of a block of the quantised codecs.
pub const KV_BLOCK_LEN: usize = 32;

/// How keys or values are encoded in their pages.
///
/// q8_0 and q4_0 hold *rotated* heads ([`Rotation`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the field writes these names so")]
pub enum KvCodec {
    /// IEEE binary32, as computed.
    F32,
    /// IEEE binary16, rounded to nearest even.
    F16,
    /// Blocks of 32: an f16 scale and signed bytes.
    Q8_0,
    /// Blocks of 32: an f16 scale and nibbles, 8 standing for zero.
    Q4_0,
}

impl KvCodec {
    /// Every codec, from the most to the least bytes.
    pub const ALL: [KvCodec; 4] = [KvCodec::F32, KvCodec::F16, KvCodec::Q8_0, KvCodec::Q4_0];

    /// Name as written in a profile.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            KvCodec::F32 => "f32",
            KvCodec::F16 => "f16",
            KvCodec::Q8_0 => "q8_0",
            KvCodec::Q4_0 => "q4_0",
        }
    }

    /// Codec of this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| codec.name() == name)
    }

    /// Elements that a head of `head_dim` is stored as: padded with zeros to whole vectors of 16, to
    /// whole blocks of 32 where there are blocks.
    #[must_use]
    pub const fn stored_dim(self, head_dim: usize) -> usize {
        match self {
            KvCodec::F32 | KvCodec::F16 => head_dim.next_multiple_of(16),
            KvCodec::Q8_0 | KvCodec::Q4_0 => head_dim.next_multiple_of(KV_BLOCK_LEN),
        }
    }

    /// Bytes of one head of one token, padding included.
    #[must_use]
    pub const fn head_bytes(self, head_dim: usize) -> usize {
        let stored = self.stored_dim(head_dim);
        match self {
            KvCodec::F32 => stored * 4,
            KvCodec::F16 => stored * 2,
            KvCodec::Q8_0 => stored / KV_BLOCK_LEN * 34,
            KvCodec::Q4_0 => stored / KV_BLOCK_LEN * 18,
        }
    }

    /// How keys (and so queries) of this head are rotated: as wide as the largest power of two that
    /// divides it, so that no element is left out; not at all where the codec does not rotate.
    ///
    /// For heads that are multiples of 64 the widths are llama.cpp's; it leaves others unrotated,
    /// where a narrower rotation is still better than none: beside one channel thirty times the others
    /// the noise on these is less than half, in heads of 24, 80 and 96, too (a test holds that).
    #[must_use]
    pub const fn key_rotation(self, head_dim: usize) -> Rotation {
        match self {
            KvCodec::F32 | KvCodec::F16 => Rotation::NONE,
            KvCodec::Q8_0 | KvCodec::Q4_0 => Rotation {
                width: 1 << head_dim.trailing_zeros(),
                signs: true,
            },
        }
    }

    /// How values (and so the attention's output) are rotated: as keys, at most 64 wide and without
    /// signs, so that the rotation is its own inverse.
    #[must_use]
    pub const fn value_rotation(self, head_dim: usize) -> Rotation {
        let Rotation { width, .. } = self.key_rotation(head_dim);
        Rotation {
            width: if width > 64 { 64 } else { width },
            signs: false,
        }
    }
}

/// An orthonormal matrix that heads are multiplied by before they are encoded, so that an outlier
/// channel is spread over its neighbours and the block's scale is not made for it alone. Dot products
/// of rotated heads equal those of the heads themselves, and a sum of rotated values is the rotated
/// sum.
///
/// The Walsh–Hadamard matrix alone does the reverse to what many channels have in common: it gathers
/// an offset of all of them in one element. Keys have such offsets. With signs, about half the
/// channels are negated first: those whose number has an odd count of neighbouring ones in binary
/// (the Rudin–Shapiro sequence, whose Walsh–Hadamard transform is flat).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Elements of a stretch that is rotated as one: a power of two that divides the head; 1 for none.
    width: usize,
    signs: bool,
}

impl Rotation {
    /// Heads stay as they are.
    pub const NONE: Self = Self {
        width: 1,
        signs: false,
    };

    /// Rotates a head in place.
    ///
    /// Numerics: f32 sums in a fixed order, then one product with 1/√width
    #[inline(always)]
    pub fn apply(self, head: &mut [f32]) {
        if self.width == 1 {
            return;
        }
        if self.signs {
            self.turn_signs(head);
        }
        walsh_hadamard(head, self.width);
    }

    #[inline(always)]
    fn turn_signs(self, head: &mut [f32]) {
        for stretch in head.chunks_exact_mut(self.width) {
            for (i, x) in stretch.iter_mut().enumerate() {
                let odd = (i & (i >> 1)).count_ones() & 1;
                *x = f32::from_bits(x.to_bits() ^ odd << 31);
            }
        }
    }
}

impl fmt::Display for KvCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a model caches per token: heads of keys and values in each of its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvHeads {
    /// Layers that cache.
    pub n_layers: usize,
    /// Key/value heads of each layer.
    pub n_kv_heads: usize,
    /// Elements of a key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
}

/// Bytes that one token takes in the cache, both sides of all layers.
#[must_use]
pub const fn bytes_per_token(heads: KvHeads, keys: KvCodec, values: KvCodec) -> u64 {
    let head = keys.head_bytes(heads.key_dim) + values.head_bytes(heads.value_dim);
    head as u64 * heads.n_kv_heads as u64 * heads.n_layers as u64
}

/// Multiplies each stretch of `width` elements by the orthonormal Walsh–Hadamard matrix, which is its
/// own inverse.
#[inline(always)]
fn walsh_hadamard(x: &mut [f32], width: usize) {
    let scale = 1.0 / (width as f32).sqrt();
    for stretch in x.chunks_exact_mut(width) {
        let mut half = 1;
        if width >= 8 {
            // The first three passes on arrays, which become straight code: three times as fast.
            stretch
                .as_chunks_mut::<8>()
                .0
                .iter_mut()
                .for_each(butterflies_of_8);
            half = 8;
        }
        while half < width {
            for pair in stretch.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (low, high) in low.iter_mut().zip(high) {
                    (*low, *high) = (*low + *high, *low - *high);
                }
            }
            half *= 2;
        }
        for value in stretch {
            *value *= scale;
        }
    }
}

#[inline(always)]
fn butterflies_of_8(x: &mut [f32; 8]) {
    for half in [1, 2, 4] {
        let old = *x;
        for i in 0..8 {
            let other = old[i ^ half];
            x[i] = if i & half == 0 {
                old[i] + other
            } else {
                other - old[i]
            };
        }
    }
}

/// Encodes a q8_0 block: (f16 scale, quants). Value: quant · scale.
///
/// Source: ggml `ggml-quants.c` (quantize_row_q8_0_ref): d = max |x| / 127, q = round(x / d) with the
/// scale before its rounding to f16
#[inline(always)]
#[must_use]
pub fn quantise_q8_0(x: &[f32; KV_BLOCK_LEN]) -> (u16, [i8; KV_BLOCK_LEN]) {
    // Eight running maxima, so that the loop is eight lanes wide.
    let mut lanes = [0f32; 8];
    for values in x.as_chunks::<8>().0 {
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane = if value.abs() > *lane {
                value.abs()
            } else {
                *lane
            };
        }
    }
    let largest = lanes
        .into_iter()
        .fold(0.0, |m: f32, lane| if lane > m { lane } else { m });
    let d = largest / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut quants = [0; KV_BLOCK_LEN];
    for (quant, value) in quants.iter_mut().zip(x) {
        *quant = (value * inverse).round() as i32 as i8;
    }
    (f32_to_f16(d), quants)
}

/// Divisors of a q4_0 block's largest value that are tried for its scale. The first is ggml's: the
/// largest value becomes −8, exactly. The others make steps coarser, or finer at the largest value's
/// cost. On Gaussian blocks the best of the three has 9% less squared error than the first alone.
const Q4_0_DIVISORS: [f32; 3] = [-8.0, -7.5, -8.6];

/// Encodes a q4_0 block: (f16 scale, quants 0–15 in the order of the elements). Value:
/// (quant − 8) · scale.
///
/// Numerics: of three candidate scales (see [`Q4_0_DIVISORS`]) the one whose quants lie closest to the
///           block, with the scale that fits them best in the sense of least squares
/// Source:   format and first candidate: ggml `ggml-quants.c` (quantize_row_q4_0_ref)
#[inline(always)]
#[must_use]
pub fn quantise_q4_0(x: &[f32; KV_BLOCK_LEN]) -> (u16, [u8; KV_BLOCK_LEN]) {
    let largest = largest_of(x);
    if largest == 0.0 {
        return (0, [8; KV_BLOCK_LEN]);
    }
    let (mut best, mut least_lost) = ((0.0, [8; KV_BLOCK_LEN]), f32::NEG_INFINITY);
    for divisor in Q4_0_DIVISORS {
        let inverse = divisor / largest;
        let quants = x.map(|value| ((value * inverse + 8.5) as i32).clamp(0, 15));
        let centred = quants.map(|q| (q - 8) as f32);
        // The scale s with the least Σ(x − s·q)² is Σxq / Σq², and what it explains of Σx² is s·Σxq.
        let (xq, qq) = (dot(x, &centred), dot(&centred, &centred));
        let explained = xq * xq / qq;
        if explained > least_lost {
            best = (xq / qq, quants.map(|q| q as u8));
            least_lost = explained;
        }
    }
    (f32_to_f16(best.0), best.1)
}

/// The value of largest magnitude.
#[inline(always)]
fn largest_of(x: &[f32; KV_BLOCK_LEN]) -> f32 {
    // Most and least in eight lanes.
    let (mut high, mut low) = ([0f32; 8], [0f32; 8]);
    for values in x.as_chunks::<8>().0 {
        for ((high, low), &value) in high.iter_mut().zip(&mut low).zip(values) {
            *high = if value > *high { value } else { *high };
            *low = if value < *low { value } else { *low };
        }
    }
    let high = high
        .into_iter()
        .fold(0.0, |m: f32, v| if v > m { v } else { m });
    let low = low
        .into_iter()
        .fold(0.0, |m: f32, v| if v < m { v } else { m });
    if high > -low { high } else { low }
}

/// Sum of products in eight lanes, then a fixed tree.
#[inline(always)]
fn dot(a: &[f32; KV_BLOCK_LEN], b: &[f32; KV_BLOCK_LEN]) -> f32 {
    let mut lanes = [0f32; 8];
    for (a, b) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// What a page gives back for `head`: encoded, rotated before, decoded and turned back.
///
/// Numerics: the codec's own arithmetic, then the inverse rotation in f64
#[must_use]
pub fn kv_round_trip(codec: KvCodec, rotation: Rotation, head: &[f32]) -> Vec<f32> {
    let mut stored = head.to_vec();
    rotation.apply(&mut stored);
    stored.resize(codec.stored_dim(head.len()), 0.0);
    let (blocks, _) = stored.as_chunks_mut::<KV_BLOCK_LEN>();
    match codec {
        KvCodec::F32 => {}
        KvCodec::F16 => stored
            .iter_mut()
            .for_each(|x| *x = f16_to_f32(f32_to_f16(*x))),
        KvCodec::Q8_0 => blocks.iter_mut().for_each(|block| {
            let (d, quants) = quantise_q8_0(block);
            *block = quants.map(|q| f32::from(q) * f16_to_f32(d));
        }),
        KvCodec::Q4_0 => blocks.iter_mut().for_each(|block| {
            let (d, quants) = quantise_q4_0(block);
            *block = quants.map(|q| (f32::from(q) - 8.0) * f16_to_f32(d));
        }),
    }
    stored.truncate(head.len());
    let width = rotation.width;
    let turned = stored.chunks(width).flat_map(|stretch| {
        let scale = 1.0 / (width as f64).sqrt();
        (0..width).map(move |row| {
            // Element (row, column) of the matrix: −1 to the number of bits both have.
            let terms = stretch.iter().enumerate().map(|(column, &x)| {
                let odd = (row & column).count_ones() % 2 == 1;
                f64::from(if odd { -x } else { x })
            });
            (terms.sum::<f64>() * scale) as f32
        })
    });
    let mut turned: Vec<f32> = turned.collect();
    if rotation.signs {
        rotation.turn_signs(&mut turned);
    }
    turned
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gaussian_like(n: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut unit = move || {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n)
            .map(|_| (0..6).map(|_| unit()).sum::<f32>() * 0.7)
            .collect()
    }

    fn error(codec: KvCodec, rotation: Rotation, x: &[f32]) -> f64 {
        let back = kv_round_trip(codec, rotation, x);
        let squares = |a: &[f32]| a.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>();
        let difference: Vec<f32> = back.iter().zip(x).map(|(a, b)| a - b).collect();
        (squares(&difference) / squares(x)).sqrt()
    }

    #[test]
    fn a_token_costs_what_the_formats_say() {
        let heads = KvHeads {
            n_layers: 30,
            n_kv_heads: 3,
            key_dim: 64,
            value_dim: 64,
        };
        let bytes = |codec| bytes_per_token(heads, codec, codec);
        assert_eq!(bytes(KvCodec::F32), 30 * 3 * 2 * 256);
        assert_eq!(bytes(KvCodec::F16), 30 * 3 * 2 * 128);
        assert_eq!(bytes(KvCodec::Q8_0), 30 * 3 * 2 * 68);
        assert_eq!(bytes(KvCodec::Q4_0), 30 * 3 * 2 * 36);
        let mixed = bytes_per_token(heads, KvCodec::Q8_0, KvCodec::Q4_0);
        assert_eq!(mixed, 30 * 3 * (68 + 36));
        // 80 elements are three blocks, the last one half empty.
        assert_eq!(KvCodec::Q8_0.head_bytes(80), 3 * 34);
    }

    #[test]
    fn names_round_trip() {
        for codec in KvCodec::ALL {
            assert_eq!(KvCodec::from_name(codec.name()), Some(codec));
        }
        assert_eq!(KvCodec::from_name("q4_1"), None);
    }

    #[test]
    fn rotations_are_as_wide_as_the_head_allows() {
        let widths = |dim| {
            let codec = KvCodec::Q4_0;
            (
                codec.key_rotation(dim).width,
                codec.value_rotation(dim).width,
            )
        };
        assert_eq!(widths(64), (64, 64));
        assert_eq!(widths(128), (128, 64));
        assert_eq!(widths(192), (64, 64));
        assert_eq!(widths(576), (64, 64));
        assert_eq!(widths(80), (16, 16));
        assert_eq!(widths(24), (8, 8));
        assert_eq!(KvCodec::F16.key_rotation(64), Rotation::NONE);
        assert_eq!(KvCodec::F16.value_rotation(64), Rotation::NONE);
    }

    #[test]
    fn rotating_twice_is_rotating_not_at_all() {
        for width in [2, 4, 8, 16, 64, 256] {
            let x = gaussian_like(512, width as u64);
            let mut y = x.clone();
            walsh_hadamard(&mut y, width);
            let length = |v: &[f32]| v.iter().map(|&a| f64::from(a).powi(2)).sum::<f64>();
            assert!((length(&y) / length(&x) - 1.0).abs() < 1e-6);
            assert!(y.iter().zip(&x).any(|(a, b)| (a - b).abs() > 0.1));
            walsh_hadamard(&mut y, width);
            for (a, b) in y.iter().zip(&x) {
                assert!((a - b).abs() < 2e-6, "{a} is not {b}");
            }
        }
    }

    #[test]
    fn rotation_of_a_unit_vector_is_a_column_of_the_matrix() {
        let mut x = [0.0, 0.0, 1.0, 0.0];
        walsh_hadamard(&mut x, 4);
        assert_eq!(x, [0.5, 0.5, -0.5, -0.5]);
        for column in 0..64usize {
            let mut x = [0.0; 64];
            x[column] = 8.0;
            walsh_hadamard(&mut x, 64);
            for (row, value) in x.into_iter().enumerate() {
                let odd = (row & column).count_ones() % 2 == 1;
                assert_eq!(value, if odd { -1.0 } else { 1.0 });
            }
        }
    }

    #[test]
    fn quants_by_hand() {
        let mut x = [0.0; 32];
        (x[0], x[1], x[2], x[3]) = (-127.0, 0.5, 1.49, -2.5);
        let (d, quants) = quantise_q8_0(&x);
        assert_eq!(d, f32_to_f16(1.0));
        assert_eq!(quants[..5], [-127, 1, 1, -3, 0]);
        // What the format holds exactly comes back exactly.
        (x[0], x[1], x[2], x[3]) = (-8.0, 7.0, 3.0, -1.0);
        let (d, quants) = quantise_q4_0(&x);
        assert_eq!(d, f32_to_f16(1.0));
        assert_eq!(quants[..5], [0, 15, 11, 7, 8]);
        // The sign of the scale is that of the largest element, turned round.
        (x[0], x[1], x[2], x[3]) = (8.0, -7.0, -3.0, 1.0);
        let (d, quants) = quantise_q4_0(&x);
        assert_eq!(d, f32_to_f16(-1.0));
        assert_eq!(quants[..5], [0, 15, 11, 7, 8]);
        assert_eq!(quantise_q4_0(&[0.0; 32]), (0, [8; 32]));
    }

    /// The formulas as ggml writes them, one element after the other.
    fn ggml_q4_0(x: &[f32; 32]) -> (u16, [u8; 32]) {
        let mut largest = 0f32;
        for &value in x {
            if value.abs() > largest.abs() {
                largest = value;
            }
        }
        let d = largest / -8.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        (
            f32_to_f16(d),
            x.map(|v| ((v * inverse + 8.5) as i8).min(15) as u8),
        )
    }

    fn ggml_q8_0(x: &[f32; 32]) -> (u16, [i8; 32]) {
        let d = x.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        (f32_to_f16(d), x.map(|v| (v * inverse).round() as i8))
    }

    fn q4_0_error(x: &[f32; 32], (d, quants): (u16, [u8; 32])) -> f64 {
        let scale = f64::from(f16_to_f32(d));
        let value = |q: u8| (f64::from(q) - 8.0) * scale;
        let pairs = quants.into_iter().zip(x);
        pairs.map(|(q, &x)| (value(q) - f64::from(x)).powi(2)).sum()
    }

    #[test]
    fn the_fitted_scale_saves_a_tenth_of_the_error() {
        let (mut ours, mut ggmls) = (0.0, 0.0);
        for block in gaussian_like(32 * 500, 3).as_chunks::<32>().0 {
            ours += q4_0_error(block, quantise_q4_0(block));
            ggmls += q4_0_error(block, ggml_q4_0(block));
        }
        assert!(ours < 0.93 * ggmls, "{ours} against {ggmls}");
    }

    #[test]
    fn rotation_pays_where_a_channel_stands_out() {
        for dim in [24, 64, 80, 96, 128] {
            let mut x = gaussian_like(dim, dim as u64);
            x[5] = 30.0;
            for codec in [KvCodec::Q8_0, KvCodec::Q4_0] {
                let noise = |rotation| {
                    let back = kv_round_trip(codec, rotation, &x);
                    let others = back.iter().zip(&x).enumerate().filter(|(i, _)| *i != 5);
                    others
                        .map(|(_, (a, b))| f64::from(a - b).powi(2))
                        .sum::<f64>()
                };
                let (plain, rotated) = (noise(Rotation::NONE), noise(codec.key_rotation(dim)));
                assert!(
                    rotated < 0.5 * plain,
                    "{codec} head of {dim}: {rotated} against {plain}"
                );
            }
        }
    }

    #[test]
    fn an_offset_of_all_channels_is_spread_too() {
        for dim in [64, 128, 256] {
            let rotation = KvCodec::Q4_0.key_rotation(dim);
            let mut offset = vec![1.0; dim];
            rotation.apply(&mut offset);
            let largest = offset.iter().fold(0f32, |m, v| m.max(v.abs()));
            // Flat where the width is a power of four, else zero and √2.
            assert!(largest < 1.5, "{dim}: {largest}");

            let x: Vec<f32> = gaussian_like(dim, 11).iter().map(|x| x + 2.0).collect();
            let plain = Rotation {
                signs: false,
                ..rotation
            };
            let (with, without) = (
                error(KvCodec::Q4_0, rotation, &x),
                error(KvCodec::Q4_0, plain, &x),
            );
            assert!(with < 0.8 * without, "{dim}: {with} against {without}");
        }
    }

    proptest! {
        #[test]
        fn what_comes_back_is_near(
            x in prop::array::uniform32(-100f32..100.0),
        ) {
            let (ours, ggmls) = (
                q4_0_error(&x, quantise_q4_0(&x)),
                q4_0_error(&x, ggml_q4_0(&x)),
            );
            // The scale is rounded after it was chosen.
            prop_assert!(ours <= 1.02 * ggmls + 1e-3, "{ours} against {ggmls}");
            prop_assert_eq!(quantise_q8_0(&x), ggml_q8_0(&x));
            let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
            // Half a step, and the rounding of the scale to f16 (2^-11) on the largest quant; q4_0
            // gives up some of the largest values for the others' sake.
            let q8 = kv_round_trip(KvCodec::Q8_0, Rotation::NONE, &x);
            let q4 = kv_round_trip(KvCodec::Q4_0, Rotation::NONE, &x);
            let f16 = kv_round_trip(KvCodec::F16, Rotation::NONE, &x);
            for i in 0..32 {
                prop_assert!((q8[i] - x[i]).abs() <= largest * (0.5 / 127.0 + 1.0 / 2000.0));
                prop_assert!((q4[i] - x[i]).abs() <= largest * 0.25);
                prop_assert!((f16[i] - x[i]).abs() <= x[i].abs() / 2048.0 + 1e-7);
            }
        }
    }

    #[test]
    fn relative_errors_are_those_of_the_bits() {
        let x = gaussian_like(4096, 7);
        let f16 = error(KvCodec::F16, Rotation::NONE, &x);
        let q8 = error(KvCodec::Q8_0, KvCodec::Q8_0.key_rotation(64), &x);
        let q4 = error(KvCodec::Q4_0, KvCodec::Q4_0.key_rotation(64), &x);
        assert!(f16 < 3e-4 && f16 > 1e-5, "{f16}");
        assert!(q8 < 8e-3 && q8 > 1e-3, "{q8}");
        assert!(q4 < 0.12 && q4 > 0.03, "{q4}");
    }
}
