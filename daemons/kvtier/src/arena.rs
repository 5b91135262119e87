//! The RAM tier: slots and their headers in memory that engines map too, and that outlives both.

pub mod layout;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use vitriol_shm::{EXTENT_BYTES, Memfd, MemfdError, Pages};
use xxhash_rust::xxh3::xxh3_64;

use crate::slots::{SlotHeader, SlotIndex};
use layout::{
    ARENA_HEADER_BYTES, ArenaHeader, ArenaId, SLOT_HEADER_BYTES, SLOT_HEADERS_AT, decode_slot,
    encode_slot,
};

/// Why there is no arena.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    #[error(transparent)]
    Memory(#[from] MemfdError),
    #[error(
        "{bytes} bytes of arena hold no slot of {slot_bytes} bytes; raise arena_bytes or lower slot_bytes"
    )]
    TooSmall { bytes: u64, slot_bytes: u64 },
    #[error("slots of {slot_bytes} bytes; they must be a multiple of 4096")]
    Unaligned { slot_bytes: u64 },
    #[error("what was kept is no arena of this version")]
    NotAnArena,
}

/// The arena's memory. Only kvtier writes headers, and it writes each before it says what it says.
///
/// Cost: [`Arena::headers`] reads 128 bytes a slot; payloads are copied once, in or out.
#[derive(Debug)]
pub struct Arena {
    memory: Memfd,
    header: ArenaHeader,
}

impl Arena {
    /// A new arena in its first epoch, of as many slots as `bytes` hold beside their headers.
    ///
    /// The memory is taken at once, so whoever calls asks first whether the machine has it.
    ///
    /// Errors: there is no room for a slot; `slot_bytes` is no multiple of 4096; the kernel refuses.
    pub fn create(id: ArenaId, bytes: u64, slot_bytes: u64) -> Result<Self, ArenaError> {
        let slots = plan_slots(bytes, slot_bytes)?;
        let header = ArenaHeader {
            id,
            epoch: 1,
            slots,
            slot_bytes,
        };
        let memory = Memfd::create(
            "vitriol-kv-arena",
            end_of(slots, slot_bytes).unwrap_or(usize::MAX),
        )?;
        let arena = Self { memory, header };
        arena.write_arena_header();
        Ok(arena)
    }

    /// Takes over an arena that outlived the process that made it, in its next epoch.
    ///
    /// Errors: [`ArenaError::NotAnArena`] when neither copy of its header can be read, or it says more
    /// than the memory holds; then whatever it held is lost.
    pub fn take_over(file: OwnedFd) -> Result<Self, ArenaError> {
        let memory = Memfd::take_over(file)?;
        if memory.len() < SLOT_HEADERS_AT {
            return Err(ArenaError::NotAnArena);
        }
        let copy = |at: usize| {
            let mut bytes = [0; ARENA_HEADER_BYTES];
            memory.copy_out(at * ARENA_HEADER_BYTES, &mut bytes);
            ArenaHeader::decode(&bytes)
        };
        let newest = [copy(0), copy(1)].into_iter().flatten();
        let mut header = newest
            .max_by_key(|header| header.epoch)
            .filter(|header| {
                let end = end_of(header.slots, header.slot_bytes);
                end.is_some_and(|end| end <= memory.len())
            })
            .ok_or(ArenaError::NotAnArena)?;
        // At four billion starts stamps would come again; the arena is given up before.
        header.epoch = header.epoch.checked_add(1).ok_or(ArenaError::NotAnArena)?;
        let arena = Self { memory, header };
        arena.write_arena_header();
        Ok(arena)
    }

    /// Whether [`Arena::create`] would make one of this size.
    pub fn is_of(&self, bytes: u64, slot_bytes: u64) -> bool {
        let slots = plan_slots(bytes, slot_bytes).ok();
        slots == Some(self.header.slots) && slot_bytes == self.header.slot_bytes
    }

    pub fn id(&self) -> ArenaId {
        self.header.id
    }

    pub fn epoch(&self) -> u32 {
        self.header.epoch
    }

    pub fn slots(&self) -> u32 {
        self.header.slots
    }

    pub fn slot_bytes(&self) -> u64 {
        self.header.slot_bytes
    }

    /// Bytes of memory, headers included.
    pub fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    pub fn pages(&self) -> Pages {
        self.memory.pages()
    }

    /// Offset of the first payload; slot `n` lies `n * slot_bytes` behind it.
    pub fn payloads_at(&self) -> u64 {
        payloads_at(self.header.slots) as u64
    }

    /// All slot headers, None where there is none that can be read.
    pub fn headers(&self) -> Vec<Option<SlotHeader>> {
        (0..self.header.slots)
            .map(|slot| self.read_header(slot))
            .collect()
    }

    /// A slot's header as it lies in memory now, None when it cannot be read.
    pub fn read_header(&self, slot: SlotIndex) -> Option<SlotHeader> {
        let mut bytes = [0; SLOT_HEADER_BYTES];
        self.memory.copy_out(self.header_at(slot), &mut bytes);
        let header = decode_slot(&self.header.id, slot, &bytes)?;
        (header.record.length <= self.header.slot_bytes).then_some(header)
    }

    pub fn write_header(&self, slot: SlotIndex, header: &SlotHeader) {
        let bytes = encode_slot(&self.header.id, slot, header);
        self.memory.copy_in(self.header_at(slot), &bytes);
    }

    /// The first bytes of a slot, as many as `payload` takes.
    pub fn write_payload(&self, slot: SlotIndex, payload: &[u8]) {
        let at = self.payload_at(slot, payload.len());
        self.memory.copy_in(at, payload);
    }

    /// The payload that `header` says the slot has, proven: the checksum is taken of the copy, which
    /// nobody else can change, and the header is as it was. None: it is not, or was overwritten.
    pub fn read_payload(&self, slot: SlotIndex, header: &SlotHeader) -> Option<Vec<u8>> {
        let length = usize::try_from(header.record.length).ok()?;
        if header.record.length > self.header.slot_bytes {
            return None;
        }
        let mut payload = vec![0; length];
        self.memory
            .copy_out(self.payload_at(slot, length), &mut payload);
        let is_same = self.read_header(slot)?.stamp == header.stamp;
        (is_same && xxh3_64(&payload) == header.record.xxh3).then_some(payload)
    }

    /// Writes zeroes over a slot's payload.
    pub fn wipe(&self, slot: SlotIndex) {
        self.write_payload(slot, &vec![0; self.header.slot_bytes as usize]);
    }

    /// Gives the memory of a slot's payload back to the machine; it is zero from then on.
    ///
    /// Errors: the pages are huge, or the kernel refuses; nothing changed then.
    pub fn give_back(&self, slot: SlotIndex) -> Result<(), ArenaError> {
        let at = self.payload_at(slot, 0);
        Ok(self.memory.give_back(at, self.header.slot_bytes as usize)?)
    }

    /// Takes memory for the payload of a slot that had been given back.
    ///
    /// Errors: the machine has none left.
    pub fn take_again(&self, slot: SlotIndex) -> Result<(), ArenaError> {
        let at = self.payload_at(slot, 0);
        Ok(self
            .memory
            .take_again(at, self.header.slot_bytes as usize)?)
    }

    /// Whether the memory of a slot's payload was given back, perhaps by an earlier run.
    pub fn is_given_back(&self, slot: SlotIndex) -> bool {
        let at = self.payload_at(slot, 0);
        self.memory
            .is_given_back(at, self.header.slot_bytes as usize)
    }

    /// The first bytes of a slot, whatever they are.
    #[cfg(test)]
    pub fn peek(&self, slot: SlotIndex, into: &mut [u8]) {
        self.memory
            .copy_out(self.payload_at(slot, into.len()), into);
    }

    /// Copies are written in turn, so that one of them is whole at any time.
    fn write_arena_header(&self) {
        let copy = (self.header.epoch % 2) as usize;
        self.memory
            .copy_in(copy * ARENA_HEADER_BYTES, &self.header.encode());
    }

    fn header_at(&self, slot: SlotIndex) -> usize {
        assert!(
            slot < self.header.slots,
            "slot {slot} of {}",
            self.header.slots
        );
        SLOT_HEADERS_AT + slot as usize * SLOT_HEADER_BYTES
    }

    fn payload_at(&self, slot: SlotIndex, length: usize) -> usize {
        let slot_bytes = self.header.slot_bytes as usize;
        assert!(
            slot < self.header.slots,
            "slot {slot} of {}",
            self.header.slots
        );
        assert!(
            length <= slot_bytes,
            "{length} bytes in a slot of {slot_bytes}"
        );
        payloads_at(self.header.slots) + slot as usize * slot_bytes
    }
}

impl AsFd for Arena {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// Slots of `slot_bytes` that an arena of `bytes` has beside their headers.
///
/// Errors: there is no room for one; `slot_bytes` is no multiple of 4096.
pub fn plan_slots(bytes: u64, slot_bytes: u64) -> Result<u32, ArenaError> {
    if slot_bytes == 0 || !slot_bytes.is_multiple_of(4096) {
        return Err(ArenaError::Unaligned { slot_bytes });
    }
    // Headers take one extent, or as many as the slots beside them need.
    (1..)
        .map_while(|extents| bytes.checked_sub(extents * EXTENT_BYTES as u64))
        .map(|payloads| u32::try_from(payloads / slot_bytes).unwrap_or(u32::MAX))
        .find(|&slots| end_of(slots, slot_bytes).is_some_and(|end| end as u64 <= bytes))
        .filter(|&slots| slots > 0)
        .ok_or(ArenaError::TooSmall { bytes, slot_bytes })
}

/// Payloads begin at a huge page of their own.
fn payloads_at(slots: u32) -> usize {
    (SLOT_HEADERS_AT + slots as usize * SLOT_HEADER_BYTES).next_multiple_of(EXTENT_BYTES)
}

/// Bytes of an arena; None when it is more than can be addressed.
fn end_of(slots: u32, slot_bytes: u64) -> Option<usize> {
    let payloads = usize::try_from(slot_bytes)
        .ok()?
        .checked_mul(slots as usize)?;
    payloads_at(slots).checked_add(payloads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{Record, RecordName},
        slots::{Caller, SlotTable, Stamp, State},
    };

    const SLOT_BYTES: u64 = 8192;

    fn arena() -> Arena {
        Arena::create([3; 16], 3 * EXTENT_BYTES as u64, SLOT_BYTES).unwrap()
    }

    fn again(arena: Arena) -> Result<Arena, ArenaError> {
        Arena::take_over(arena.as_fd().try_clone_to_owned().unwrap())
    }

    fn record(key: u8, payload: &[u8]) -> Record {
        Record {
            name: RecordName {
                key: [key; 32],
                tag: [1; 16],
                group: 0,
            },
            parent: [0; 32],
            tokens: 64,
            saved_us: 1000,
            length: payload.len() as u64,
            xxh3: xxh3_64(payload),
        }
    }

    fn sealed(generation: u32, record: Record) -> SlotHeader {
        SlotHeader {
            state: State::Sealed,
            stamp: Stamp {
                epoch: 1,
                generation,
            },
            record,
        }
    }

    #[test]
    fn slots_fill_what_headers_leave() {
        let arena = arena();
        assert_eq!(arena.slots(), 2 * EXTENT_BYTES as u32 / 8192);
        assert_eq!(arena.bytes(), 3 * EXTENT_BYTES as u64);
        assert_eq!(arena.payloads_at(), EXTENT_BYTES as u64);
        let last = arena.slots() - 1;
        arena.write_payload(last, &[7; SLOT_BYTES as usize]);
        let header = sealed(1, record(1, &[7; SLOT_BYTES as usize]));
        arena.write_header(last, &header);
        assert!(arena.read_payload(last, &header).is_some());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let create = |bytes, slot_bytes| Arena::create([0; 16], bytes, slot_bytes).unwrap_err();
        assert!(matches!(
            create(4 << 20, 4095),
            ArenaError::Unaligned { .. }
        ));
        assert!(matches!(create(4 << 20, 0), ArenaError::Unaligned { .. }));
        assert!(matches!(create(2 << 20, 4096), ArenaError::TooSmall { .. }));
        assert!(matches!(
            create(4 << 20, 4 << 20),
            ArenaError::TooSmall { .. }
        ));
        assert!(matches!(create(0, 4096), ArenaError::TooSmall { .. }));
    }

    #[test]
    fn an_arena_is_found_again_in_its_next_epoch() {
        let arena = arena();
        let header = sealed(4, record(1, b"payload"));
        arena.write_payload(2, b"payload");
        arena.write_header(2, &header);
        let mut found = arena;
        for epoch in 2..5 {
            found = again(found).unwrap();
            assert_eq!((found.epoch(), found.id()), (epoch, [3; 16]));
        }
        let bytes = found.bytes();
        assert!(found.is_of(bytes, SLOT_BYTES));
        assert!(!found.is_of(2 * bytes, SLOT_BYTES) && !found.is_of(bytes, 2 * SLOT_BYTES));
        let payload = found.read_payload(2, &header);
        assert_eq!(payload.as_deref(), Some(&b"payload"[..]));
        let expected = |slot| if slot == 2 { header } else { SlotHeader::FREE };
        for (slot, found) in found.headers().into_iter().enumerate() {
            assert_eq!(found, Some(expected(slot)));
        }
    }

    #[test]
    fn a_torn_copy_of_the_arena_header_costs_nothing() {
        let arena = again(arena()).unwrap();
        // The third start wrote half of its copy, which lies where the first one's did.
        arena
            .memory
            .copy_in(ARENA_HEADER_BYTES, &[0xff; ARENA_HEADER_BYTES / 2]);
        let found = again(arena).unwrap();
        assert_eq!(found.epoch(), 3);
        found.memory.copy_in(0, &[0; 2 * ARENA_HEADER_BYTES]);
        assert!(matches!(again(found), Err(ArenaError::NotAnArena)));
    }

    #[test]
    fn an_arena_that_claims_more_than_there_is_is_none() {
        let arena = arena();
        let mut header = arena.header;
        header.slots += 1;
        header.epoch = 3;
        arena.memory.copy_in(ARENA_HEADER_BYTES, &header.encode());
        assert!(matches!(again(arena), Err(ArenaError::NotAnArena)));
    }

    #[test]
    fn a_damaged_header_is_a_free_slot_and_the_others_stay() {
        let arena = arena();
        for slot in 0..3 {
            arena.write_header(slot, &sealed(slot + 1, record(slot as u8, b"")));
        }
        arena.memory.copy_in(arena.header_at(1) + 70, &[0xff]);
        // The header of another slot, as a stray copy would leave it.
        let mut stray = [0; SLOT_HEADER_BYTES];
        arena.memory.copy_out(arena.header_at(0), &mut stray);
        arena.memory.copy_in(arena.header_at(5), &stray);
        let found = again(arena).unwrap();
        let mut table = SlotTable::recover(SLOT_BYTES, found.epoch(), found.headers(), |_| false);
        assert_eq!(table.free_slots(), table.len() - 2);
        let changed: Vec<_> = table.take_changed().collect();
        assert_eq!(changed, [1, 5]);
        for slot in changed {
            found.write_header(slot, table.header(slot));
        }
        assert_eq!(found.read_header(1), Some(SlotHeader::FREE));
    }

    #[test]
    fn a_length_beyond_the_slot_is_damage() {
        let arena = arena();
        let mut header = sealed(1, record(1, b""));
        header.record.length = SLOT_BYTES + 1;
        arena.write_header(0, &header);
        assert_eq!(arena.read_header(0), None);
        assert_eq!(arena.read_payload(0, &header), None);
    }

    #[test]
    fn a_payload_that_is_not_what_was_sealed_is_not_given_out() {
        let arena = arena();
        let mut table = SlotTable::new(SLOT_BYTES, arena.slots());
        let ticket = table.reserve(Caller::Tier, record(1, b"right")).unwrap();
        table
            .seal(Caller::Tier, ticket, 5, xxh3_64(b"right"))
            .unwrap();
        let header = *table.header(ticket.slot);
        arena.write_header(ticket.slot, &header);
        arena.write_payload(ticket.slot, b"wrong");
        assert_eq!(arena.read_payload(ticket.slot, &header), None);
        arena.write_payload(ticket.slot, b"right");
        assert!(arena.read_payload(ticket.slot, &header).is_some());
        // Another use of the slot, be it of the same bytes.
        arena.write_header(ticket.slot, &sealed(99, header.record));
        assert_eq!(arena.read_payload(ticket.slot, &header), None);
    }
}
