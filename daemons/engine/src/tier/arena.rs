use std::ops::Range;
use vitriol_kernels_cpu::{PageFill, PageRead};
use vitriol_proto::kvtier::v1::{AttachResponse, Pinned, Ticket};
use vitriol_shm::Memfd;
use xxhash_rust::xxh3::Xxh3;

/// Where slot headers lie and what this side reads of one: docs/formats/arena.md.
const SLOT_HEADERS_AT: usize = 4096;
const SLOT_HEADER_BYTES: usize = 128;
const STAMP_AT: usize = 8;
const LENGTH_AT: usize = 32;

/// The arena as an engine has it. Anybody may write any of its bytes at any time, so what is copied out of
/// it is proven afterwards.
#[derive(Debug)]
pub struct Arena {
    memory: Memfd,
    id: Vec<u8>,
    slots: u32,
    slot_bytes: usize,
    payloads_at: usize,
}

impl Arena {
    /// `None`: the memory does not hold what `attached` says.
    pub fn new(memory: Memfd, attached: &AttachResponse) -> Option<Self> {
        let slot_bytes = usize::try_from(attached.slot_bytes).ok()?;
        let payloads_at = usize::try_from(attached.payloads_at).ok()?;
        let slots = attached.slots as usize;
        let headers_end = SLOT_HEADERS_AT + slots.checked_mul(SLOT_HEADER_BYTES)?;
        let end = payloads_at.checked_add(slots.checked_mul(slot_bytes)?)?;
        let fits = slot_bytes > 0 && headers_end <= payloads_at && end <= memory.len();
        fits.then(|| Self {
            id: attached.arena_id.clone(),
            slots: attached.slots,
            memory,
            slot_bytes,
            payloads_at,
        })
    }

    /// Names it among all there ever were.
    pub fn id(&self) -> &[u8] {
        &self.id
    }

    pub fn is(&self, attached: &AttachResponse) -> bool {
        self.id == attached.arena_id
    }

    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Writes the bytes `of` a page to the slot of a reservation; their checksum. `None`: there is no such
    /// slot, or it is shorter.
    pub fn write(&self, ticket: &Ticket, page: &PageRead, of: Range<usize>) -> Option<u64> {
        let mut at = self.payload_at(ticket, of.len())?;
        let mut hasher = Xxh3::new();
        for piece in page.pieces(of) {
            self.memory.copy_in(at, piece);
            hasher.update(piece);
            at += piece.len();
        }
        Some(hasher.digest())
    }

    /// Fills the bytes `of` a page with what a slot has. False: it is not what lookup found, and the page
    /// has bytes that mean nothing.
    pub fn read(&self, pinned: &Pinned, page: &mut PageFill, of: Range<usize>) -> bool {
        let Some(ticket) = &pinned.ticket else {
            return false;
        };
        let Some(mut at) = self.payload_at(ticket, of.len()) else {
            return false;
        };
        if pinned.length != of.len() as u64 {
            return false;
        }
        let mut hasher = Xxh3::new();
        for piece in page.pieces_mut(of) {
            self.memory.copy_out(at, piece);
            hasher.update(piece);
            at += piece.len();
        }
        // Of the copy, which nobody else can change; and the header as it is after it.
        hasher.digest() == pinned.xxh3 && self.has(ticket, pinned.length)
    }

    fn has(&self, ticket: &Ticket, length: u64) -> bool {
        let mut header = [0; SLOT_HEADER_BYTES];
        let at = SLOT_HEADERS_AT + ticket.slot as usize * SLOT_HEADER_BYTES;
        self.memory.copy_out(at, &mut header);
        let mut expected = [0; 8];
        expected[..4].copy_from_slice(&ticket.epoch.to_le_bytes());
        expected[4..].copy_from_slice(&ticket.generation.to_le_bytes());
        header[STAMP_AT..][..8] == expected && header[LENGTH_AT..][..8] == length.to_le_bytes()
    }

    fn payload_at(&self, ticket: &Ticket, length: usize) -> Option<usize> {
        let is_there = ticket.slot < self.slots && length <= self.slot_bytes;
        is_there.then(|| self.payloads_at + ticket.slot as usize * self.slot_bytes)
    }

    /// Copies in and out for what is no page.
    pub fn write_bytes(&self, ticket: &Ticket, bytes: &[u8]) -> bool {
        let at = self.payload_at(ticket, bytes.len());
        at.map(|at| self.memory.copy_in(at, bytes)).is_some()
    }

    /// Whether a slot has these bytes.
    pub fn has_bytes(&self, pinned: &Pinned, bytes: &[u8]) -> bool {
        let Some(ticket) = &pinned.ticket else {
            return false;
        };
        let mut copy = vec![0; bytes.len()];
        let Some(at) = self.payload_at(ticket, copy.len()) else {
            return false;
        };
        self.memory.copy_out(at, &mut copy);
        copy == bytes && self.has(ticket, bytes.len() as u64)
    }
}
