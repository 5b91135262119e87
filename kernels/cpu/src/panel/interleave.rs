//! Rows as a file stores them, interleaved into panels of 16.

mod few_bits;
mod levels;

use vitriol_kernels_core::{DequantiseError, TensorType};

use super::format::PanelFormat;
pub(super) use levels::mxfp4_fits;

/// Interleaves up to 16 rows of `row_bytes` bytes into a zeroed panel of `cols` columns; lanes without
/// a row stay zero.
///
/// Errors: a type that is not one of the format's
pub(super) fn interleave(
    format: PanelFormat,
    tensor_type: TensorType,
    cols: usize,
    rows: &[u8],
    row_bytes: usize,
    panel: &mut [u8],
) -> Result<(), DequantiseError> {
    for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
        match format {
            PanelFormat::TwoBits => few_bits::two_bits(tensor_type, cols, row, lane, panel)?,
            PanelFormat::Q2K => few_bits::q2_k(row, lane, panel),
            PanelFormat::Q3K => few_bits::q3_k(cols, row, lane, panel),
            PanelFormat::Iq4Xs => levels::iq4_xs(cols, row, lane, panel),
            PanelFormat::Mxfp4 => levels::mxfp4(cols, row, lane, panel),
            PanelFormat::Nvfp4 => levels::nvfp4(row, lane, panel),
            PanelFormat::Codebook => levels::codebook(tensor_type, cols, row, lane, panel)?,
            PanelFormat::F32 => words::<4>(panel, lane, row),
            PanelFormat::F16 | PanelFormat::Bf16 => words::<2>(panel, lane, row),
            PanelFormat::Q8_0 => {
                let (scales, lines) = panel.split_at_mut(cols);
                let blocks = lines.as_chunks_mut::<512>().0.iter_mut();
                for ((lines, scale), block) in
                    blocks.zip(halves(scales)).zip(row.as_chunks::<34>().0)
                {
                    scale[lane] = [block[0], block[1]];
                    for (line, word) in block[2..].as_chunks::<4>().0.iter().enumerate() {
                        let word = word.map(|q| q ^ 0x80);
                        lines[64 * line + 4 * lane..][..4].copy_from_slice(&word);
                    }
                }
            }
            PanelFormat::Q4_0 | PanelFormat::Iq4Nl => {
                let (scales, lines) = panel.split_at_mut(cols);
                let blocks = lines.as_chunks_mut::<256>().0.iter_mut();
                for ((lines, scale), block) in
                    blocks.zip(halves(scales)).zip(row.as_chunks::<18>().0)
                {
                    scale[lane] = [block[0], block[1]];
                    words::<4>(lines, lane, &block[2..]);
                }
            }
            PanelFormat::Q5_0 => {
                let (scales, lines) = panel.split_at_mut(cols);
                let blocks = lines.as_chunks_mut::<320>().0.iter_mut();
                for ((lines, scale), block) in
                    blocks.zip(halves(scales)).zip(row.as_chunks::<22>().0)
                {
                    scale[lane] = [block[0], block[1]];
                    words::<4>(&mut lines[..256], lane, &block[6..]);
                    let fifth = fifth_bits(|k| block[2 + k / 8] >> (k % 8) & 1);
                    lines[256 + 4 * lane..][..4].copy_from_slice(&fifth);
                }
            }
            PanelFormat::Q4_1 => {
                let blocks = panel.as_chunks_mut::<320>().0.iter_mut();
                for (to, block) in blocks.zip(row.as_chunks::<20>().0) {
                    to[256 + 2 * lane..][..2].copy_from_slice(&block[..2]);
                    to[288 + 2 * lane..][..2].copy_from_slice(&block[2..4]);
                    words::<4>(&mut to[..256], lane, &block[4..]);
                }
            }
            PanelFormat::Q5_1 => {
                let blocks = panel.as_chunks_mut::<384>().0.iter_mut();
                for (to, block) in blocks.zip(row.as_chunks::<24>().0) {
                    to[320 + 2 * lane..][..2].copy_from_slice(&block[..2]);
                    to[352 + 2 * lane..][..2].copy_from_slice(&block[2..4]);
                    words::<4>(&mut to[..256], lane, &block[8..]);
                    let fifth = fifth_bits(|k| block[4 + k / 8] >> (k % 8) & 1);
                    to[256 + 4 * lane..][..4].copy_from_slice(&fifth);
                }
            }
            PanelFormat::Q4K => {
                let supers = panel.as_chunks_mut::<{ 320 + 8 * 256 }>().0.iter_mut();
                for (to, block) in supers.zip(row.as_chunks::<144>().0) {
                    let (head, lines) = to.split_at_mut(320);
                    scaled_minima(head, lane, &block[..16]);
                    for (b, lines) in lines.as_chunks_mut::<256>().0.iter_mut().enumerate() {
                        four_bits(lines, lane, |k| group_nibble(&block[16..], b, k));
                    }
                }
            }
            PanelFormat::Q5K => {
                let supers = panel.as_chunks_mut::<{ 320 + 8 * 320 }>().0.iter_mut();
                for (to, block) in supers.zip(row.as_chunks::<176>().0) {
                    let (head, lines) = to.split_at_mut(320);
                    scaled_minima(head, lane, &block[..16]);
                    for (b, lines) in lines.as_chunks_mut::<320>().0.iter_mut().enumerate() {
                        four_bits(&mut lines[..256], lane, |k| {
                            group_nibble(&block[48..], b, k)
                        });
                        let fifth = fifth_bits(|k| block[16 + k] >> b & 1);
                        lines[256 + 4 * lane..][..4].copy_from_slice(&fifth);
                    }
                }
            }
            PanelFormat::Q6K => {
                let supers = panel.as_chunks_mut::<{ 320 + 8 * 384 }>().0.iter_mut();
                for (to, block) in supers.zip(row.as_chunks::<210>().0) {
                    let (head, lines) = to.split_at_mut(320);
                    head[2 * lane..][..2].copy_from_slice(&block[208..]);
                    for (part, &scale) in block[192..208].iter().enumerate() {
                        head[64 + 16 * part + lane] = scale;
                    }
                    for (b, lines) in lines.as_chunks_mut::<384>().0.iter_mut().enumerate() {
                        let low = &block[64 * (b / 4) + 32 * (b % 2)..];
                        let shift = 4 * (b % 4 / 2);
                        four_bits(&mut lines[..256], lane, |k| low[k] >> shift & 15);
                        let high = &block[128 + 32 * (b / 4)..];
                        for (line, half) in [0, 16].into_iter().enumerate() {
                            let bits = |i: usize| {
                                (0..4).fold(0, |byte, word| {
                                    let k = half + 4 * word + i;
                                    byte | (high[k] >> (2 * (b % 4)) & 3) << (2 * word)
                                })
                            };
                            lines[256 + 64 * line + 4 * lane..][..4].copy_from_slice(&[
                                bits(0),
                                bits(1),
                                bits(2),
                                bits(3),
                            ]);
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// Words of `N` bytes of one row, 16 rows side by side.
fn words<const N: usize>(panel: &mut [u8], lane: usize, row: &[u8]) {
    let lines = panel.chunks_exact_mut(16 * N);
    for (line, word) in lines.zip(row.as_chunks::<N>().0) {
        line[N * lane..][..N].copy_from_slice(word);
    }
}

/// f16 of 16 rows, block after block.
fn halves(scales: &mut [u8]) -> impl Iterator<Item = &mut [[u8; 2]]> {
    scales
        .chunks_exact_mut(32)
        .map(|line| line.as_chunks_mut::<2>().0)
}

/// Nibbles of 32 columns: column k below, column k + 16 above.
fn four_bits(lines: &mut [u8], lane: usize, nibble: impl Fn(usize) -> u8) {
    for k in 0..16 {
        lines[k / 4 * 64 + 4 * lane + k % 4] = nibble(k) | nibble(k + 16) << 4;
    }
}

/// Bit g of byte i: the fifth bit of column 4g + i.
fn fifth_bits(bit: impl Fn(usize) -> u8) -> [u8; 4] {
    [0, 1, 2, 3].map(|i| (0..8).fold(0, |byte, g| byte | bit(4 * g + i) << g))
}

/// Column k of group `b` of q4_K and q5_K.
fn group_nibble(nibbles: &[u8], b: usize, k: usize) -> u8 {
    nibbles[32 * (b / 2) + k] >> (4 * (b % 2)) & 15
}

/// d, dmin and the 6-bit scales and minima of a q4_K or q5_K super-block, a byte each.
fn scaled_minima(head: &mut [u8], lane: usize, block: &[u8]) {
    head[2 * lane..][..2].copy_from_slice(&block[..2]);
    head[32 + 2 * lane..][..2].copy_from_slice(&block[2..4]);
    for b in 0..8 {
        let (scale, minimum) = vitriol_kernels_core::six_bit_pair(&block[4..16], b);
        head[64 + 16 * b + lane] = scale;
        head[192 + 16 * b + lane] = minimum;
    }
}
