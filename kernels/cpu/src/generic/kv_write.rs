//! One head of one token into its page: rotated, encoded, laid out as [`super::formats`] (keys) and
//! [`super::values`] say. The same bits on every instruction set: sums and products alone, no fused
//! ones.

use vitriol_kernels_core::KvCodec;
use vitriol_kernels_core::kv::{KV_BLOCK_LEN, Rotation, quantise_q4_0, quantise_q8_0};

use crate::kv::{HEAD_DIM_MAX, PAGE_TOKENS};
use crate::simd::Simd;

/// One side of one head of one token.
pub(crate) struct HeadWrite<'a> {
    pub(crate) codec: KvCodec,
    pub(crate) rotation: Rotation,
    /// The page's part for this kv head.
    pub(crate) page: *mut u8,
    /// Token in the page.
    pub(crate) row: usize,
    /// (head_dim)
    pub(crate) head: &'a [f32],
}

/// The head rotated and padded with zeros to whole blocks.
struct Prepared {
    elements: [f32; HEAD_DIM_MAX],
    stored: usize,
}

impl Prepared {
    #[inline(always)]
    fn new(write: &HeadWrite<'_>) -> Self {
        let mut elements = [0f32; HEAD_DIM_MAX];
        let head = &mut elements[..write.head.len()];
        head.copy_from_slice(write.head);
        write.rotation.apply(head);
        let stored = write.codec.stored_dim(write.head.len());
        Self { elements, stored }
    }

    #[inline(always)]
    fn blocks(&self) -> &[[f32; KV_BLOCK_LEN]] {
        self.elements[..self.stored].as_chunks().0
    }
}

/// Writes `bytes` at `to`.
///
/// # Safety
/// `to` writable for them.
#[inline(always)]
unsafe fn put<const N: usize>(to: *mut u8, bytes: [u8; N]) {
    // SAFETY: the caller's promise.
    unsafe { to.cast::<[u8; N]>().write_unaligned(bytes) }
}

/// Elements of a prepared head as f16.
#[inline(always)]
fn halves<S: Simd>(s: S, head: &Prepared) -> [u16; HEAD_DIM_MAX] {
    let mut halves = [0u16; HEAD_DIM_MAX];
    for i in (0..head.stored).step_by(16) {
        // SAFETY: sixteen elements of both, HEAD_DIM_MAX being a multiple of 16.
        unsafe {
            let v = s.load(head.elements.as_ptr().wrapping_add(i));
            s.store_f16(halves.as_mut_ptr().wrapping_add(i), v);
        }
    }
    halves
}

/// A key: column `row` of its tile of 16.
///
/// # Safety
/// The page's part is writable for 64 heads, nobody else uses it; the row is below 64.
#[inline(always)]
pub(crate) unsafe fn write_key<S: Simd>(s: S, write: &HeadWrite<'_>) {
    let head = Prepared::new(write);
    let lane = write.row % 16;
    let tile_bytes = 16 * write.codec.head_bytes(write.head.len());
    let tile = write.page.wrapping_add(write.row / 16 * tile_bytes);
    let quants = tile.wrapping_add(head.stored);
    // SAFETY: offsets inside the tile, as the panel formats lay them out.
    unsafe {
        match write.codec {
            KvCodec::F32 => {
                for (d, value) in head.elements[..head.stored].iter().enumerate() {
                    put(tile.wrapping_add((d * 16 + lane) * 4), value.to_ne_bytes());
                }
            }
            KvCodec::F16 => {
                for (d, half) in halves(s, &head)[..head.stored].iter().enumerate() {
                    put(tile.wrapping_add((d * 16 + lane) * 2), half.to_ne_bytes());
                }
            }
            KvCodec::Q8_0 => {
                for (b, block) in head.blocks().iter().enumerate() {
                    let (d, q) = quantise_q8_0(block);
                    put(tile.wrapping_add(b * 32 + lane * 2), d.to_ne_bytes());
                    for (line, word) in q.as_chunks::<4>().0.iter().enumerate() {
                        let to = quants.wrapping_add(b * 512 + line * 64 + lane * 4);
                        put(to, word.map(|q| q.cast_unsigned() ^ 0x80));
                    }
                }
            }
            KvCodec::Q4_0 => {
                for (b, block) in head.blocks().iter().enumerate() {
                    let (d, q) = quantise_q4_0(block);
                    put(tile.wrapping_add(b * 32 + lane * 2), d.to_ne_bytes());
                    let (low, high) = q.split_at(16);
                    let words = low.as_chunks::<4>().0.iter().zip(high.as_chunks::<4>().0);
                    for (line, (low, high)) in words.enumerate() {
                        let to = quants.wrapping_add(b * 256 + line * 64 + lane * 4);
                        put(
                            to,
                            std::array::from_fn::<u8, 4, _>(|i| low[i] | high[i] << 4),
                        );
                    }
                }
            }
        }
    }
}

/// A value: row `row`.
///
/// # Safety
/// As [`write_key`].
#[inline(always)]
pub(crate) unsafe fn write_value<S: Simd>(s: S, write: &HeadWrite<'_>) {
    let head = Prepared::new(write);
    let (row, dim) = (write.row, head.stored);
    let scale = |block: usize| write.page.wrapping_add((block * PAGE_TOKENS + row) * 2);
    let quants = write
        .page
        .wrapping_add(dim / KV_BLOCK_LEN * PAGE_TOKENS * 2);
    // SAFETY: offsets inside the page's part, as the value formats lay them out.
    unsafe {
        match write.codec {
            KvCodec::F32 => {
                let to = write.page.wrapping_add(row * dim * 4);
                std::ptr::copy_nonoverlapping(head.elements.as_ptr().cast(), to, dim * 4);
            }
            KvCodec::F16 => {
                let to = write.page.wrapping_add(row * dim * 2);
                std::ptr::copy_nonoverlapping(halves(s, &head).as_ptr().cast(), to, dim * 2);
            }
            KvCodec::Q8_0 => {
                for (b, block) in head.blocks().iter().enumerate() {
                    let (d, q) = quantise_q8_0(block);
                    put(scale(b), d.to_ne_bytes());
                    let to = quants.wrapping_add(row * dim + b * KV_BLOCK_LEN);
                    put(to, q.map(i8::cast_unsigned));
                }
            }
            KvCodec::Q4_0 => {
                for (b, block) in head.blocks().iter().enumerate() {
                    let (d, q) = quantise_q4_0(block);
                    put(scale(b), d.to_ne_bytes());
                    let to = quants.wrapping_add(row * dim / 2 + b * 16);
                    put(
                        to,
                        std::array::from_fn::<u8, 16, _>(|i| {
                            let first = i / 8 * 16 + i % 8;
                            q[first] | q[first + 8] << 4
                        }),
                    );
                }
            }
        }
    }
}
