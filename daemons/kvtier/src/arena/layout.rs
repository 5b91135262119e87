//! The bytes of the arena's headers; docs/formats/arena.md draws them.
//!
//! A reader may find a header half written, by a crash or because it is being written now, or damaged.
//! Whatever its checksum does not vouch for is no header.

use crate::{
    record::{Record, RecordName},
    slots::{SlotHeader, SlotIndex, Stamp, State, Writer},
};

/// Layout version; whoever changes a byte raises it.
pub const VERSION: u32 = 1;

/// Bytes of one copy of the arena header.
pub const ARENA_HEADER_BYTES: usize = 64;

/// Bytes of a slot header: two cache lines.
pub const SLOT_HEADER_BYTES: usize = 128;

/// Where slot headers begin; the page before holds the two copies of the arena header.
pub const SLOT_HEADERS_AT: usize = 4096;

const ARENA_MAGIC: [u8; 8] = *b"VTRLARNA";

/// Names one arena, so that what was handed out of another is not taken for it.
pub type ArenaId = [u8; 16];

/// What the arena header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaHeader {
    pub id: ArenaId,
    /// How often kvtier has started over this arena.
    pub epoch: u32,
    pub slots: u32,
    pub slot_bytes: u64,
}

impl ArenaHeader {
    pub fn encode(&self) -> [u8; ARENA_HEADER_BYTES] {
        let mut bytes = [0; ARENA_HEADER_BYTES];
        put(&mut bytes, 0, &ARENA_MAGIC);
        put(&mut bytes, 8, &VERSION.to_le_bytes());
        put(&mut bytes, 12, &self.epoch.to_le_bytes());
        put(&mut bytes, 16, &self.id);
        put(&mut bytes, 32, &self.slot_bytes.to_le_bytes());
        put(&mut bytes, 40, &self.slots.to_le_bytes());
        let crc = crc32c::crc32c(&bytes);
        put(&mut bytes, 60, &crc.to_le_bytes());
        bytes
    }

    /// None: no arena header of this version.
    pub fn decode(bytes: &[u8; ARENA_HEADER_BYTES]) -> Option<Self> {
        let header = Self {
            id: take(bytes, 16),
            epoch: u32::from_le_bytes(take(bytes, 12)),
            slots: u32::from_le_bytes(take(bytes, 40)),
            slot_bytes: u64::from_le_bytes(take(bytes, 32)),
        };
        // All bytes are accounted for: what encodes to these very bytes was not damaged.
        (header.encode() == *bytes).then_some(header)
    }
}

/// The header of `slot` of the arena `id`. One that holds nothing is zero, as fresh memory is.
pub fn encode_slot(id: &ArenaId, slot: SlotIndex, header: &SlotHeader) -> [u8; SLOT_HEADER_BYTES] {
    let mut bytes = [0; SLOT_HEADER_BYTES];
    let (state, writer) = match header.state {
        State::Free => return bytes,
        State::Reserved(Writer::Tier) => (1, 0),
        State::Reserved(Writer::Engine(engine)) => (2, engine),
        State::Sealed => (3, 0),
        State::Spilling => (4, 0),
        State::Spilled => (5, 0),
        State::Dropped => (6, 0),
    };
    let Record {
        name,
        parent,
        tokens,
        saved_us,
        length,
        xxh3,
    } = &header.record;
    put(&mut bytes, 0, &saved_us.to_le_bytes());
    put(&mut bytes, 4, &u32::to_le_bytes(state));
    put(&mut bytes, 8, &header.stamp.epoch.to_le_bytes());
    put(&mut bytes, 12, &header.stamp.generation.to_le_bytes());
    put(&mut bytes, 16, &writer.to_le_bytes());
    put(&mut bytes, 20, &name.group.to_le_bytes());
    put(&mut bytes, 24, &tokens.to_le_bytes());
    put(&mut bytes, 32, &length.to_le_bytes());
    put(&mut bytes, 40, &xxh3.to_le_bytes());
    put(&mut bytes, 48, &name.tag);
    put(&mut bytes, 64, &name.key);
    put(&mut bytes, 96, parent);
    let crc = slot_crc(id, slot, &bytes);
    put(&mut bytes, 28, &crc.to_le_bytes());
    bytes
}

/// None: torn, damaged, or of another slot or arena.
pub fn decode_slot(
    id: &ArenaId,
    slot: SlotIndex,
    bytes: &[u8; SLOT_HEADER_BYTES],
) -> Option<SlotHeader> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Some(SlotHeader::FREE);
    }
    let number = |at| u32::from_le_bytes(take(bytes, at));
    let state = match number(4) {
        1 => State::Reserved(Writer::Tier),
        2 => State::Reserved(Writer::Engine(number(16))),
        3 => State::Sealed,
        4 => State::Spilling,
        5 => State::Spilled,
        6 => State::Dropped,
        _ => return None,
    };
    let header = SlotHeader {
        state,
        stamp: Stamp {
            epoch: number(8),
            generation: number(12),
        },
        record: Record {
            name: RecordName {
                key: take(bytes, 64),
                tag: take(bytes, 48),
                group: number(20),
            },
            parent: take(bytes, 96),
            tokens: number(24),
            saved_us: number(0),
            length: u64::from_le_bytes(take(bytes, 32)),
            xxh3: u64::from_le_bytes(take(bytes, 40)),
        },
    };
    (encode_slot(id, slot, &header) == *bytes).then_some(header)
}

/// Covers the place too: a header is good for its own slot of its own arena.
fn slot_crc(id: &ArenaId, slot: SlotIndex, bytes: &[u8; SLOT_HEADER_BYTES]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(id), &slot.to_le_bytes());
    crc32c::crc32c_append(crc, bytes)
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::any_record;

    const ID: ArenaId = [9; 16];

    fn any_header() -> impl Strategy<Value = SlotHeader> {
        let state = prop_oneof![
            Just(State::Reserved(Writer::Tier)),
            any::<u32>().prop_map(|engine| State::Reserved(Writer::Engine(engine))),
            Just(State::Sealed),
            Just(State::Spilling),
            Just(State::Spilled),
            Just(State::Dropped),
        ];
        let stamps = any::<(u32, u32)>();
        (state, stamps, any_record()).prop_map(|(state, (epoch, generation), record)| SlotHeader {
            state,
            stamp: Stamp { epoch, generation },
            record,
        })
    }

    #[test]
    fn the_bytes_are_these() {
        let header = SlotHeader {
            state: State::Reserved(Writer::Engine(0x0a0b)),
            stamp: Stamp {
                epoch: 3,
                generation: 0x0102,
            },
            record: Record {
                name: RecordName {
                    key: [0xcc; 32],
                    tag: [0xdd; 16],
                    group: 5,
                },
                parent: [0xee; 32],
                tokens: 64,
                saved_us: 0x0708,
                length: 0x1234,
                xxh3: 0x5678,
            },
        };
        let bytes = encode_slot(&ID, 7, &header);
        let head = [
            8, 7, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2, 1, 0, 0, 0x0b, 0x0a, 0, 0, 5, 0, 0, 0, 64,
        ];
        assert_eq!(bytes[..25], head);
        assert_eq!(bytes[32..34], [0x34, 0x12]);
        assert_eq!(bytes[40..42], [0x78, 0x56]);
        assert_eq!(
            [bytes[48], bytes[64], bytes[96], bytes[127]],
            [0xdd, 0xcc, 0xee, 0xee]
        );
        assert_eq!(
            encode_slot(&ID, 7, &SlotHeader::FREE),
            [0; SLOT_HEADER_BYTES]
        );
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(header in any_header(), slot in any::<u32>()) {
            let bytes = encode_slot(&ID, slot, &header);
            prop_assert_eq!(decode_slot(&ID, slot, &bytes), Some(header));
            prop_assert_eq!(decode_slot(&ID, slot ^ 1, &bytes), None);
            prop_assert_eq!(decode_slot(&[8; 16], slot, &bytes), None);
        }

        #[test]
        fn every_flipped_bit_is_found(header in any_header(), bit in 0..SLOT_HEADER_BYTES * 8) {
            let mut bytes = encode_slot(&ID, 0, &header);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(decode_slot(&ID, 0, &bytes), None);
        }

        #[test]
        fn a_torn_header_is_the_old_one_or_the_new_one_or_none(
            old in any_header(),
            new in any_header(),
            was_free in any::<bool>(),
            cut in 0..=SLOT_HEADER_BYTES,
        ) {
            let old = if was_free { SlotHeader::FREE } else { old };
            let mut bytes = encode_slot(&ID, 0, &old);
            bytes[..cut].copy_from_slice(&encode_slot(&ID, 0, &new)[..cut]);
            let found = decode_slot(&ID, 0, &bytes);
            prop_assert!(found.is_none() || found == Some(old) || found == Some(new));
        }

        #[test]
        fn other_bytes_are_no_header(bytes in any::<[u8; SLOT_HEADER_BYTES]>()) {
            prop_assert_eq!(decode_slot(&ID, 0, &bytes), None);
        }

        #[test]
        fn arena_headers_read_back_and_no_damaged_one_does(
            id in any::<ArenaId>(),
            numbers in any::<(u32, u32, u64)>(),
            bit in 0..ARENA_HEADER_BYTES * 8,
        ) {
            let (epoch, slots, slot_bytes) = numbers;
            let header = ArenaHeader { id, epoch, slots, slot_bytes };
            let mut bytes = header.encode();
            prop_assert_eq!(ArenaHeader::decode(&bytes), Some(header));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(ArenaHeader::decode(&bytes), None);
        }
    }
}
