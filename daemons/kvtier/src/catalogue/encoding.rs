//! The bytes of an entry, in a file of its own and at the beginning of an export; docs/formats/segment.md draws them.

use xxhash_rust::xxh3::xxh3_64;

use super::entry::{BlockList, Part, SessionEntry};
use crate::mirror::segment::BLOCK_BYTES;

/// Layout version; whoever changes a byte raises it.
pub const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"VTRLKVSE";

/// Bytes of the header's fields; zero from there to the end of its block.
const FIELDS_BYTES: usize = 36;

/// Longest payload: lists within their bounds have fewer bytes.
const PAYLOAD_MAX: u64 = 64 << 20;

/// Why bytes are no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("no catalogue entry, or a damaged one")]
    Damaged,
    #[error("a catalogue entry of version {0}; this release reads version {VERSION}")]
    Version(u32),
}

/// The bytes of an entry, a multiple of [`BLOCK_BYTES`].
pub fn encode(entry: &SessionEntry) -> Vec<u8> {
    let mut payload = Vec::new();
    put_bytes(&mut payload, entry.id.as_bytes());
    payload.extend(entry.last_turn_ms.to_le_bytes());
    payload.extend(entry.tokens.to_le_bytes());
    put_count(&mut payload, entry.left.len());
    for list in entry.left.iter().chain([&entry.chain]) {
        payload.extend(list.tag);
        put_count(&mut payload, list.parts.len());
        for part in &list.parts {
            payload.extend(part.group.to_le_bytes());
            payload.extend(part.needed_from.to_le_bytes());
        }
        put_count(&mut payload, list.keys.len());
        payload.extend(list.keys.as_flattened());
    }
    let mut bytes = header(&payload).to_vec();
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    bytes
}

fn put_count(to: &mut Vec<u8>, count: usize) {
    to.extend((count as u32).to_le_bytes());
}

fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    put_count(to, bytes.len());
    to.extend(bytes);
}

fn header(payload: &[u8]) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    block[..8].copy_from_slice(&MAGIC);
    block[8..12].copy_from_slice(&VERSION.to_le_bytes());
    block[16..24].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    block[24..32].copy_from_slice(&xxh3_64(payload).to_le_bytes());
    let crc = crc32c::crc32c(&block[..FIELDS_BYTES - 4]);
    block[FIELDS_BYTES - 4..FIELDS_BYTES].copy_from_slice(&crc.to_le_bytes());
    block
}

/// Bytes of the payload behind a header, and with its padding.
///
/// Errors: no header, a damaged one, one of another version.
pub fn payload_bytes(block: &[u8; BLOCK_BYTES]) -> Result<(usize, usize), DecodeError> {
    let mut fields = Reader(block);
    if fields.take::<8>()? != MAGIC {
        return Err(DecodeError::Damaged);
    }
    let version = fields.number()?;
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let crc = crc32c::crc32c(&block[..FIELDS_BYTES - 4]).to_le_bytes();
    fields.number()?;
    let length = u64::from_le_bytes(fields.take()?);
    if block[FIELDS_BYTES - 4..FIELDS_BYTES] != crc || length > PAYLOAD_MAX {
        return Err(DecodeError::Damaged);
    }
    let length = length as usize;
    Ok((length, length.next_multiple_of(BLOCK_BYTES)))
}

/// The entry in `bytes`, which has nothing else.
///
/// Errors: any byte is not what [`encode`] makes of it, or it is of another version.
pub fn decode(bytes: &[u8]) -> Result<SessionEntry, DecodeError> {
    let block = bytes.first_chunk().ok_or(DecodeError::Damaged)?;
    let (length, padded) = payload_bytes(block)?;
    let payload = bytes
        .get(BLOCK_BYTES..BLOCK_BYTES + length)
        .ok_or(DecodeError::Damaged)?;
    if bytes.len() != BLOCK_BYTES + padded {
        return Err(DecodeError::Damaged);
    }
    let mut fields = Reader(payload);
    let id = fields.bytes()?.to_vec();
    let id = String::from_utf8(id).map_err(|_| DecodeError::Damaged)?;
    let last_turn_ms = u64::from_le_bytes(fields.take()?);
    let tokens = u64::from_le_bytes(fields.take()?);
    let mut left = Vec::new();
    for _ in 0..fields.number()? {
        left.push(fields.list()?);
    }
    let chain = fields.list()?;
    let entry = SessionEntry {
        id,
        chain,
        left,
        tokens,
        last_turn_ms,
    };
    // All bytes are accounted for: what encodes to these very bytes was not damaged.
    let is_whole = entry.check().is_ok() && encode(&entry) == bytes;
    is_whole.then_some(entry).ok_or(DecodeError::Damaged)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(DecodeError::Damaged)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn number(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let count = self.number()? as usize;
        let (taken, rest) = self.0.split_at_checked(count).ok_or(DecodeError::Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn list(&mut self) -> Result<BlockList, DecodeError> {
        let tag = self.take()?;
        let (mut parts, mut keys) = (Vec::new(), Vec::new());
        for _ in 0..self.number()? {
            parts.push(Part {
                group: self.number()?,
                needed_from: self.number()?,
            });
        }
        for _ in 0..self.number()? {
            keys.push(self.take()?);
        }
        Ok(BlockList { tag, parts, keys })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::catalogue::{entry::tests::entry, plan_put};

    fn sample() -> SessionEntry {
        let before = entry("a chat", &[1, 2, 3]);
        plan_put(Some(&before), entry("a chat", &[1, 4])).unwrap()
    }

    #[test]
    fn the_bytes_are_these() {
        let bytes = encode(&entry("id", &[7]));
        assert_eq!(bytes.len(), 2 * BLOCK_BYTES);
        assert_eq!(&bytes[..16], b"VTRLKVSE\x01\0\0\0\0\0\0\0");
        let payload = &bytes[BLOCK_BYTES..];
        assert_eq!(payload[..6], *b"\x02\0\0\0id");
        assert_eq!(
            u64::from_le_bytes(payload[6..14].try_into().unwrap()),
            1_000
        );
        assert_eq!(u64::from_le_bytes(payload[14..22].try_into().unwrap()), 64);
        // No lists that were left; the chain: tag, a part, a key.
        assert_eq!(payload[22..26], [0; 4]);
        assert_eq!(payload[26..42], [2; 16]);
        assert_eq!(
            payload[42..58],
            [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]
        );
        assert_eq!(payload[58..90], [7; 32]);
        assert!(payload[90..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn what_is_written_reads_back_and_other_versions_are_named() {
        let bytes = encode(&sample());
        assert_eq!(decode(&bytes), Ok(sample()));
        let mut newer = bytes.clone();
        newer[8] = 2;
        assert_eq!(decode(&newer), Err(DecodeError::Version(2)));
        for end in [0, 100, BLOCK_BYTES, bytes.len() - 1] {
            assert_eq!(decode(&bytes[..end]), Err(DecodeError::Damaged), "{end}");
        }
        let longer = [&bytes[..], &[0; BLOCK_BYTES]].concat();
        assert_eq!(decode(&longer), Err(DecodeError::Damaged));
    }

    #[test]
    fn counts_that_lie_are_no_room_asked_for() {
        let mut payload = encode(&entry("id", &[7]))[BLOCK_BYTES..][..90].to_vec();
        payload[54..58].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut bytes = header(&payload).to_vec();
        bytes.extend(payload);
        bytes.resize(2 * BLOCK_BYTES, 0);
        assert_eq!(decode(&bytes), Err(DecodeError::Damaged));
    }

    proptest! {
        #[test]
        fn every_flipped_bit_is_found(bit in 0..2 * BLOCK_BYTES * 8) {
            let mut bytes = encode(&sample());
            prop_assert_eq!(bytes.len(), 2 * BLOCK_BYTES);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&bytes).is_err());
        }

        #[test]
        fn any_bytes_are_refused_without_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), version in 0u32..3) {
            let mut whole = header(&bytes).to_vec();
            whole[8..12].copy_from_slice(&version.to_le_bytes());
            let crc = crc32c::crc32c(&whole[..FIELDS_BYTES - 4]);
            whole[FIELDS_BYTES - 4..FIELDS_BYTES].copy_from_slice(&crc.to_le_bytes());
            whole.append(&mut bytes);
            whole.resize(whole.len().next_multiple_of(BLOCK_BYTES), 0);
            prop_assert!(decode(&whole).is_err());
        }
    }
}
