//! The bytes of a segment file; docs/formats/segment.md draws them.

use crate::record::{Record, RecordName};

/// Layout version; whoever changes a byte raises it.
pub const VERSION: u32 = 1;

/// Records and payloads begin at multiples of this, as O_DIRECT asks.
pub const BLOCK_BYTES: usize = 4096;

/// Number of the segment in records that are exported: no segment has it.
pub const FOR_EXPORT: u64 = u64::MAX;

const MAGIC: [u8; 8] = *b"VTRLKVRC";

/// Bytes of the header's fields; zero from there to the end of its block.
const FIELDS_BYTES: usize = 132;

/// Bytes that a record takes in a file, header and padding included; saturates.
pub fn stored_bytes(length: u64) -> u64 {
    let padded = length.checked_next_multiple_of(BLOCK_BYTES as u64);
    padded.map_or(u64::MAX, |padded| padded.saturating_add(BLOCK_BYTES as u64))
}

/// The header block of a record of the segment with this number.
pub fn encode_header(segment: u64, record: &Record) -> [u8; BLOCK_BYTES] {
    let Record {
        name,
        parent,
        tokens,
        saved_us,
        length,
        xxh3,
    } = record;
    let mut block = [0; BLOCK_BYTES];
    let mut at = 0;
    let mut put = |field: &[u8]| {
        block[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    };
    put(&MAGIC);
    put(&VERSION.to_le_bytes());
    put(&name.group.to_le_bytes());
    put(&segment.to_le_bytes());
    put(&length.to_le_bytes());
    put(&xxh3.to_le_bytes());
    put(&tokens.to_le_bytes());
    put(&saved_us.to_le_bytes());
    put(&name.tag);
    put(&name.key);
    put(parent);
    let crc = crc32c::crc32c(&block[..FIELDS_BYTES - 4]);
    block[FIELDS_BYTES - 4..FIELDS_BYTES].copy_from_slice(&crc.to_le_bytes());
    block
}

/// None: no header, a damaged one, one of another version or segment.
pub fn decode_header(segment: u64, block: &[u8; BLOCK_BYTES]) -> Option<Record> {
    let record = Record {
        name: RecordName {
            key: field(block, 64),
            tag: field(block, 48),
            group: u32::from_le_bytes(field(block, 12)),
        },
        parent: field(block, 96),
        tokens: u32::from_le_bytes(field(block, 40)),
        saved_us: u32::from_le_bytes(field(block, 44)),
        length: u64::from_le_bytes(field(block, 24)),
        xxh3: u64::from_le_bytes(field(block, 32)),
    };
    // All bytes of the block are accounted for: what encodes to these very bytes was not damaged.
    (encode_header(segment, &record) == *block).then_some(record)
}

/// The version that a block says, if it is the header of a record of any.
pub fn version(block: &[u8; BLOCK_BYTES]) -> Option<u32> {
    let is_header = block.starts_with(&MAGIC);
    is_header.then(|| u32::from_le_bytes(field(block, 8)))
}

fn field<const N: usize>(block: &[u8; BLOCK_BYTES], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&block[at..at + N]);
    field
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::any_record;

    #[test]
    fn the_bytes_are_these() {
        let record = Record {
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
        };
        let block = encode_header(9, &record);
        assert_eq!(&block[..16], b"VTRLKVRC\x01\0\0\0\x05\0\0\0");
        let numbers = [9, 0, 0x34, 0x12, 0x78, 0x56, 64, 8];
        assert_eq!(
            [16, 17, 24, 25, 32, 33, 40, 44].map(|at| block[at]),
            numbers
        );
        assert_eq!(
            [48, 64, 96, 127].map(|at| block[at]),
            [0xdd, 0xcc, 0xee, 0xee]
        );
        assert!(block[FIELDS_BYTES..].iter().all(|&byte| byte == 0));
        assert_eq!(stored_bytes(0), 4096);
        assert_eq!(stored_bytes(4097), 3 * 4096);
        assert_eq!([u64::MAX, u64::MAX - 4096].map(stored_bytes), [u64::MAX; 2]);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(record in any_record(), segment in any::<u64>()) {
            let block = encode_header(segment, &record);
            prop_assert_eq!(decode_header(segment, &block), Some(record));
            prop_assert_eq!(decode_header(segment ^ 1, &block), None);
        }

        #[test]
        fn every_flipped_bit_is_found(record in any_record(), bit in 0..BLOCK_BYTES * 8) {
            let mut block = encode_header(1, &record);
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(decode_header(1, &block), None);
        }

        #[test]
        fn another_version_is_no_header(record in any_record(), version in 2u32..) {
            let mut block = encode_header(1, &record);
            block[8..12].copy_from_slice(&version.to_le_bytes());
            let crc = crc32c::crc32c(&block[..FIELDS_BYTES - 4]);
            block[FIELDS_BYTES - 4..FIELDS_BYTES].copy_from_slice(&crc.to_le_bytes());
            prop_assert_eq!(decode_header(1, &block), None);
            prop_assert_eq!(super::version(&block), Some(version));
        }
    }
}
