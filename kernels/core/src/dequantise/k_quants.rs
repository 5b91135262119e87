//! Super-blocks of 256 weights in groups of 16 or 32, whose scales (and minima) are quantised too.
//!
//! Where quants have 2 bits (q2_K, q3_K, high bits of q6_K), a run of 32 bytes holds 128 weights as
//! four planes: bits 2p and 2p + 1 of byte i belong to weight 32·p + i of that half super-block.

use super::{f16_at, nibble};

/// Bytes: scale and minimum of group g in the low and high nibble of byte g 0..16, q 16..80 (planes
/// of 2 bits), d 80..82, dmin 82..84. Groups of 16.
/// Value: q·(d·scale) − dmin·minimum.
pub(super) fn q2_k(block: &[u8; 84], values: &mut [f32; 256]) {
    let qs = &block[16..80];
    let d = f16_at(block, 80);
    let dmin = f16_at(block, 82);
    for (g, (values, &packed)) in groups_of_16(values).zip(block).enumerate() {
        let scale = d * f32::from(packed & 15);
        let minimum = dmin * f32::from(packed >> 4);
        let plane = Plane::of(g);
        for (value, &byte) in values.iter_mut().zip(&qs[plane.run..]) {
            *value = scale * f32::from(byte >> plane.shift & 3) - minimum;
        }
    }
}

/// Bytes: third bits 0..32 (bit p of byte i: weight 32·p + i), low bits of q 32..96 (planes of 2
/// bits), scales 96..108, d 108..110. Groups of 16.
/// Value: (q − 4)·(d·scale), scales as [`six_bit_scale`] has them.
pub(super) fn q3_k(block: &[u8; 110], values: &mut [f32; 256]) {
    let third_bits = &block[..32];
    let qs = &block[32..96];
    let scales = &block[96..108];
    let d = f16_at(block, 108);
    for (g, values) in groups_of_16(values).enumerate() {
        let scale = d * f32::from(six_bit_scale(scales, g));
        let plane = Plane::of(g);
        let third_bits = &third_bits[16 * (g % 2)..];
        for ((value, &byte), &third) in values.iter_mut().zip(&qs[plane.run..]).zip(third_bits) {
            let q = byte >> plane.shift & 3 | (third >> (g / 2) & 1) << 2;
            *value = scale * (f32::from(q) - 4.0);
        }
    }
}

/// Bytes: d 0..2, dmin 2..4, scales and minima 4..16 ([`six_bit_pair`]), q 16..144 (nibbles: run s
/// / 2 of 32 bytes, low half for even s). Groups s of 32.
/// Value: q·(d·scale) − dmin·minimum.
pub(super) fn q4_k(block: &[u8; 144], values: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let dmin = f16_at(block, 2);
    let (runs, _) = block[16..].as_chunks::<32>();
    for (s, values) in groups_of_32(values).enumerate() {
        let (scale, minimum) = six_bit_pair(&block[4..16], s);
        let scale = d * f32::from(scale);
        let minimum = dmin * f32::from(minimum);
        for (value, &byte) in values.iter_mut().zip(&runs[s / 2]) {
            let q = byte >> (4 * (s % 2)) & 15;
            *value = scale * f32::from(q) - minimum;
        }
    }
}

/// Bytes: d 0..2, dmin 2..4, scales and minima 4..16 ([`six_bit_pair`]), fifth bits 16..48 (bit s
/// of byte i: weight i of group s), low bits of q 48..176 (as in q4_K). Groups s of 32.
/// Value: q·(d·scale) − dmin·minimum.
pub(super) fn q5_k(block: &[u8; 176], values: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let dmin = f16_at(block, 2);
    let fifth_bits = &block[16..48];
    let (runs, _) = block[48..].as_chunks::<32>();
    for (s, values) in groups_of_32(values).enumerate() {
        let (scale, minimum) = six_bit_pair(&block[4..16], s);
        let scale = d * f32::from(scale);
        let minimum = dmin * f32::from(minimum);
        for ((value, &byte), &fifth) in values.iter_mut().zip(&runs[s / 2]).zip(fifth_bits) {
            let q = byte >> (4 * (s % 2)) & 15 | (fifth >> s & 1) << 4;
            *value = scale * f32::from(q) - minimum;
        }
    }
}

/// Bytes: low bits of q 0..128, high bits of q 128..192 (planes of 2 bits), scales 192..208
/// (signed), d 208..210. Groups of 16.
/// Value: (q − 32)·(d·scale).
///
/// Low bits: 64 bytes for each half super-block; its weights 0..64 in the low nibbles, 64..128 in
/// the high ones.
pub(super) fn q6_k(block: &[u8; 210], values: &mut [f32; 256]) {
    let low_bits = &block[..128];
    let high_bits = &block[128..192];
    let d = f16_at(block, 208);
    for (g, (values, &scale)) in groups_of_16(values).zip(&block[192..208]).enumerate() {
        let scale = d * f32::from(scale as i8);
        let low_run = &low_bits[64 * (g / 8) + 16 * (g % 4)..];
        let low_shift = 4 * (g % 8 / 4);
        let plane = Plane::of(g);
        for ((value, &low), &high) in values.iter_mut().zip(low_run).zip(&high_bits[plane.run..]) {
            let q = low >> low_shift & 15 | (high >> plane.shift & 3) << 4;
            *value = scale * (f32::from(q) - 32.0);
        }
    }
}

/// Where the 2-bit quants of a group of 16 weights lie.
struct Plane {
    /// First of its 16 bytes.
    run: usize,
    /// Lowest of the two bits.
    shift: usize,
}

impl Plane {
    fn of(group: usize) -> Plane {
        Plane {
            run: 32 * (group / 8) + 16 * (group % 2),
            shift: 2 * (group % 8 / 2),
        }
    }
}

fn groups_of_16(values: &mut [f32; 256]) -> std::slice::IterMut<'_, [f32; 16]> {
    values.as_chunks_mut().0.iter_mut()
}

fn groups_of_32(values: &mut [f32; 256]) -> std::slice::IterMut<'_, [f32; 32]> {
    values.as_chunks_mut().0.iter_mut()
}

/// Scale of group g of a q3_K block out of its 12 bytes of them: six bits less 32, the low four in
/// nibble order 0..8 low, 8..16 high of bytes 0..8, the high two in bits 2·(g / 4) of byte 8 + g % 4.
#[must_use]
pub fn six_bit_scale(packed: &[u8], g: usize) -> i8 {
    let low = packed[g % 8] >> (4 * (g / 8)) & 15;
    let high = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
    (low | high << 4) as i8 - 32
}

/// Scale and minimum of group s of a q4_K or q5_K block, 6 bits each, out of its 12 bytes of them: groups 0..4 in the low 6 bits of
/// bytes s and s + 4; groups 4..8 with their low 4 bits in byte s + 4 (scale low, minimum high
/// nibble) and their high 2 in the top of bytes s − 4 and s.
#[must_use]
pub fn six_bit_pair(packed: &[u8], s: usize) -> (u8, u8) {
    if s < 4 {
        (packed[s] & 63, packed[s + 4] & 63)
    } else {
        let low = &packed[8..];
        (
            nibble(low, 2 * (s - 4)) | packed[s - 4] >> 6 << 4,
            nibble(low, 2 * (s - 4) + 1) | packed[s] >> 6 << 4,
        )
    }
}
