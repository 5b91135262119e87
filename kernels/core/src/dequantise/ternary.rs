//! Formats of two, three or four evenly spaced levels and one scale.

use super::f16_at;

/// Brings a digit of a byte to the top. The byte is a base-3 fraction in units of 1/256, rounded
/// up: times 3, its first digit stands above the eighth bit; times 3 modulo 256, its second digit
/// has become the first.
const POWERS_OF_3: [u8; 5] = [1, 3, 9, 27, 81];

/// Bytes: q 0..48 (five digits a byte), q 48..52 (four digits a byte), d 52..54.
/// Value: (digit − 1)·d.
///
/// Order: bytes come in runs of 32, 16 and 4; a run's first digits, then its second ones, and so
/// on.
pub(super) fn tq1_0(block: &[u8; 54], values: &mut [f32; 256]) {
    let d = f16_at(block, 52);
    let runs = [
        (&block[..32], &POWERS_OF_3[..]),
        (&block[32..48], &POWERS_OF_3[..]),
        (&block[48..52], &POWERS_OF_3[..4]),
    ];
    let mut rest = &mut values[..];
    for (run, powers) in runs {
        for power in powers {
            let (now, later) = rest.split_at_mut(run.len());
            for (value, byte) in now.iter_mut().zip(run) {
                let digit = (u16::from(byte.wrapping_mul(*power)) * 3) >> 8;
                *value = (f32::from(digit) - 1.0) * d;
            }
            rest = later;
        }
    }
}

/// Bytes: q 0..64, d 64..66.
/// Value: (q − 1)·d.
///
/// Order: runs of 32 bytes with 128 weights each, weight 32·p + i in bits 2p and 2p + 1 of byte i.
pub(super) fn tq2_0(block: &[u8; 66], values: &mut [f32; 256]) {
    let d = f16_at(block, 64);
    let (runs, _) = block[..64].as_chunks::<32>();
    for (index, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let shift = 2 * (index % 4);
        for (value, byte) in values.iter_mut().zip(&runs[index / 4]) {
            *value = (f32::from(byte >> shift & 3) - 1.0) * d;
        }
    }
}

/// Bytes: d 0..2, q 2..18 (weight i in bit i % 8 of byte i / 8).
/// Value: d if set, −d if not.
pub(super) fn q1_0(block: &[u8; 18], values: &mut [f32; 128]) {
    let d = f16_at(block, 0);
    for (values, byte) in values.as_chunks_mut::<8>().0.iter_mut().zip(&block[2..]) {
        for (bit, value) in values.iter_mut().enumerate() {
            *value = if byte >> bit & 1 == 1 { d } else { -d };
        }
    }
}

/// Bytes: d 0..2, q 2..18 (weight i in bits 2·(i % 4) of byte i / 4).
/// Value: (q − 1)·d.
pub(super) fn q2_0(block: &[u8; 18], values: &mut [f32; 64]) {
    let d = f16_at(block, 0);
    for (values, byte) in values.as_chunks_mut::<4>().0.iter_mut().zip(&block[2..]) {
        for (index, value) in values.iter_mut().enumerate() {
            *value = (f32::from(byte >> (2 * index) & 3) - 1.0) * d;
        }
    }
}
