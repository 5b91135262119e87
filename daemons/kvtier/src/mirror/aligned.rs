//! Buffers as O_DIRECT wants them.

use super::segment::BLOCK_BYTES;

/// Zeroed bytes that begin at a multiple of [`BLOCK_BYTES`].
#[derive(Debug)]
pub(super) struct Aligned {
    room: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub fn new(len: usize) -> Self {
        let room = vec![0; len + BLOCK_BYTES];
        let start = room.as_ptr().align_offset(BLOCK_BYTES);
        Self { room, start, len }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.room[self.start..self.start + self.len]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.room[self.start..self.start + self.len]
    }
}
