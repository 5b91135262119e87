//! Blocks of 32 weights with one scale, and a minimum in the `_1` formats.

use super::{decode_halves, f16_at, u32_at};

/// Bytes: d 0..2, q 2..18 (nibbles, [`decode_halves`]).
/// Value: (q − 8)·d.
pub(super) fn q4_0(block: &[u8; 18], values: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    decode_halves(&block[2..], values, |q| (f32::from(q) - 8.0) * d);
}

/// Bytes: d 0..2, minimum m 2..4, q 4..20 (nibbles, [`decode_halves`]).
/// Value: q·d + m.
pub(super) fn q4_1(block: &[u8; 20], values: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let m = f16_at(block, 2);
    decode_halves(&block[4..], values, |q| f32::from(q) * d + m);
}

/// Bytes: d 0..2, fifth bits 2..6, low bits 6..22 ([`decode_fives`]).
/// Value: (q − 16)·d.
pub(super) fn q5_0(block: &[u8; 22], values: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    decode_fives(u32_at(block, 2), &block[6..], values, |q| {
        (f32::from(q) - 16.0) * d
    });
}

/// Bytes: d 0..2, minimum m 2..4, fifth bits 4..8, low bits 8..24 ([`decode_fives`]).
/// Value: q·d + m.
pub(super) fn q5_1(block: &[u8; 24], values: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let m = f16_at(block, 2);
    decode_fives(u32_at(block, 4), &block[8..], values, |q| {
        f32::from(q) * d + m
    });
}

/// Bytes: d 0..2, q 2..34 (signed).
/// Value: q·d.
pub(super) fn q8_0(block: &[u8; 34], values: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (value, &q) in values.iter_mut().zip(&block[2..]) {
        *value = f32::from(q as i8) * d;
    }
}

/// Quants of 5 bits: the low four as in [`decode_halves`], the fifth of weight i in bit i of
/// `fifth`.
fn decode_fives(fifth: u32, qs: &[u8], values: &mut [f32; 32], value_of: impl Fn(u8) -> f32) {
    let (low, high) = values.split_at_mut(16);
    for (i, ((low, high), &byte)) in low.iter_mut().zip(high).zip(qs).enumerate() {
        let bits = fifth >> i;
        *low = value_of(byte & 15 | (bits as u8 & 1) << 4);
        *high = value_of(byte >> 4 | ((bits >> 16) as u8 & 1) << 4);
    }
}
