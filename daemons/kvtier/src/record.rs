//! What is stored, as kvtier sees it: named bytes.

/// Names one stored record. Equal names mean interchangeable bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordName {
    /// Block key: the content, tokens and all before them.
    pub key: [u8; 32],
    /// Encoding tag: how the content is written down. Opaque.
    pub tag: [u8; 16],
    /// Which part of the block's state it is; engines number their KV groups. Opaque.
    pub group: u32,
}

/// A record without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    pub name: RecordName,
    /// Block key of the block before, or the engine's seed.
    pub parent: [u8; 32],
    /// Tokens of the block.
    pub tokens: u32,
    /// Prefill time that a reuse saves, microseconds; the engine's estimate.
    pub saved_us: u32,
    /// Payload, bytes.
    pub length: u64,
    /// XXH3-64 of the payload; means nothing before the record is sealed.
    pub xxh3: u64,
}

/// For properties of what holds records.
#[cfg(test)]
pub(crate) fn any_record() -> impl proptest::prelude::Strategy<Value = Record> {
    use proptest::prelude::*;

    let names = any::<([u8; 32], [u8; 16], u32, [u8; 32])>();
    let numbers = any::<(u32, u32, u64, u64)>();
    (names, numbers).prop_map(|((key, tag, group, parent), numbers)| {
        let (tokens, saved_us, length, xxh3) = numbers;
        Record {
            name: RecordName { key, tag, group },
            parent,
            tokens,
            saved_us,
            length,
            xxh3,
        }
    })
}
