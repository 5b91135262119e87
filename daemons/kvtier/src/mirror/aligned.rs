//! Buffers as O_DIRECT wants them.

use super::segment::BLOCK_BYTES;

/// Bytes that begin at a multiple of [`BLOCK_BYTES`].
#[derive(Debug, Default)]
pub(super) struct Aligned {
    room: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// Zeroes.
    pub fn new(len: usize) -> Self {
        let room = vec![0; len + BLOCK_BYTES];
        let start = room.as_ptr().align_offset(BLOCK_BYTES);
        Self { room, start, len }
    }

    /// Has so many bytes, whatever is in them: memory of this size is as quickly copied as had anew.
    pub fn resize(&mut self, len: usize) {
        if self.start + len > self.room.len() {
            *self = Self::new(len);
        }
        self.len = len;
    }

    pub fn bytes(&self) -> &[u8] {
        &self.room[self.start..self.start + self.len]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.room[self.start..self.start + self.len]
    }
}
