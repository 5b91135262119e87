use std::collections::HashSet;

use crate::record::RecordName;

/// Longest id, bytes.
pub const ID_BYTES_MAX: usize = 256;

/// Most blocks of one conversation.
pub const BLOCKS_MAX: usize = 1 << 16;

/// Most records of one block.
const PARTS_MAX: usize = 1 << 10;

/// Most records of one conversation.
const RECORDS_MAX: usize = 1 << 20;

/// Most blocks that are remembered of what a conversation left; of more the oldest are forgotten, and then they are
/// destroyed by their age alone.
const LEFT_MAX: usize = 1 << 13;

/// Records that a block may have, by their number in [`RecordName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    pub group: u32,
    /// To go on from the end of the list, blocks from this one on must have it.
    pub needed_from: u32,
}

/// Blocks of one encoding and the records that each has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct BlockList {
    pub tag: [u8; 16],
    pub parts: Vec<Part>,
    /// Block keys.
    pub keys: Vec<[u8; 32]>,
}

/// What is known of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionEntry {
    /// Opaque; 1 to [`ID_BYTES_MAX`] bytes.
    pub id: String,
    /// Its full blocks, from the first on.
    pub chain: BlockList,
    /// Blocks that were its own before a turn went another way, the oldest first.
    pub left: Vec<BlockList>,
    /// Prompt and answer of the last turn.
    pub tokens: u64,
    /// Unix time, milliseconds.
    pub last_turn_ms: u64,
}

/// Why what a turn is said to have ended with cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    #[error("a session id of {0} bytes; it has 1 to {ID_BYTES_MAX}")]
    Id(usize),
    #[error("{0} blocks, {BLOCKS_MAX} at most")]
    Blocks(usize),
    #[error("{0} records a block, 1 to {PARTS_MAX}")]
    Parts(usize),
    #[error("{0} records, {RECORDS_MAX} at most")]
    Records(usize),
}

impl BlockList {
    /// Of all records, block by block.
    pub fn names(&self) -> impl Iterator<Item = RecordName> {
        self.named(|_, _| true)
    }

    /// Of the records without which a conversation cannot go on from the end of the list.
    pub fn needed(&self) -> impl Iterator<Item = RecordName> {
        self.named(|block, part| block >= part.needed_from as usize)
    }

    fn named(
        &self,
        is_wanted: impl Fn(usize, &Part) -> bool + Copy,
    ) -> impl Iterator<Item = RecordName> {
        self.keys.iter().enumerate().flat_map(move |(block, &key)| {
            let parts = self.parts.iter().filter(move |part| is_wanted(block, part));
            parts.map(move |part| RecordName {
                key,
                tag: self.tag,
                group: part.group,
            })
        })
    }

    /// Whether records of both have the same names where the keys are the same.
    fn is_alike(&self, other: &Self) -> bool {
        let groups = |list: &Self| list.parts.iter().map(|part| part.group).collect::<Vec<_>>();
        self.tag == other.tag && groups(self) == groups(other)
    }

    /// Whether one of them is a beginning of the other.
    pub(super) fn is_one_way_with(&self, other: &Self) -> bool {
        self.begins_with(other) || other.begins_with(self)
    }

    fn begins_with(&self, other: &Self) -> bool {
        self.keys.starts_with(&other.keys) && (other.keys.is_empty() || self.is_alike(other))
    }
}

impl SessionEntry {
    /// Errors: a bound is not kept.
    pub fn check(&self) -> Result<(), EntryError> {
        if !(1..=ID_BYTES_MAX).contains(&self.id.len()) {
            return Err(EntryError::Id(self.id.len()));
        }
        for list in self.left.iter().chain([&self.chain]) {
            let (keys, parts) = (list.keys.len(), list.parts.len());
            if keys > BLOCKS_MAX {
                return Err(EntryError::Blocks(keys));
            }
            if parts > PARTS_MAX || (parts == 0 && keys > 0) {
                return Err(EntryError::Parts(parts));
            }
            if keys * parts > RECORDS_MAX {
                return Err(EntryError::Records(keys * parts));
            }
        }
        Ok(())
    }

    /// Of all records, also of blocks that it left.
    pub fn all_names(&self) -> impl Iterator<Item = RecordName> {
        let left = self.left.iter().flat_map(BlockList::names);
        self.chain.names().chain(left)
    }

    pub(super) fn blocks(&self) -> usize {
        let left: usize = self.left.iter().map(|list| list.keys.len()).sum();
        self.chain.keys.len() + left
    }
}

/// The entry after a turn that ended with `turn`; None when there is nothing to write.
///
/// A turn may end early: one whose blocks are a beginning of what is known takes nothing away. One that goes another
/// way replaces it, and what it leaves is remembered, so that it can be destroyed with the rest.
pub fn plan_put(before: Option<&SessionEntry>, mut turn: SessionEntry) -> Option<SessionEntry> {
    let Some(before) = before else {
        return (!turn.chain.keys.is_empty()).then_some(turn);
    };
    if before.chain.begins_with(&turn.chain) {
        return None;
    }
    let mut left = before.left.clone();
    left.append(&mut turn.left);
    if !turn.chain.begins_with(&before.chain) {
        left.push(before.chain.clone());
    }
    turn.left = plan_left(left, &turn.chain);
    Some(turn)
}

/// What of `left` is not in `chain`, each block once, the newest [`LEFT_MAX`].
fn plan_left(left: Vec<BlockList>, chain: &BlockList) -> Vec<BlockList> {
    let mut kept: Vec<BlockList> = Vec::new();
    let mut room = LEFT_MAX;
    for mut list in left.into_iter().rev() {
        let newer = kept.iter().position(|newer| newer.is_alike(&list));
        let known = newer.map(|newer| &kept[newer]).into_iter();
        let known = known.chain(list.is_alike(chain).then_some(chain));
        let known: HashSet<[u8; 32]> = known.flat_map(|list| list.keys.iter().copied()).collect();
        list.keys.retain(|key| !known.contains(key));
        list.keys.truncate(room);
        room -= list.keys.len();
        // Destroyed, and never gone on from.
        list.parts.iter_mut().for_each(|part| part.needed_from = 0);
        match newer {
            Some(newer) => kept[newer].keys.append(&mut list.keys),
            None if list.keys.is_empty() => {}
            None => kept.push(list),
        }
    }
    kept.reverse();
    kept
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn entry(id: &str, keys: &[u8]) -> SessionEntry {
        SessionEntry {
            id: id.to_owned(),
            chain: list(keys),
            left: Vec::new(),
            tokens: 64 * keys.len() as u64,
            last_turn_ms: 1_000,
        }
    }

    fn list(keys: &[u8]) -> BlockList {
        let part = |group| Part {
            group,
            needed_from: 0,
        };
        BlockList {
            tag: [2; 16],
            parts: vec![part(0)],
            keys: keys.iter().map(|&key| [key; 32]).collect(),
        }
    }

    fn keys(list: &BlockList) -> Vec<u8> {
        list.keys.iter().map(|key| key[0]).collect()
    }

    fn put(before: &[u8], turn: &[u8]) -> Option<SessionEntry> {
        plan_put(Some(&entry("a", before)), entry("a", turn))
    }

    #[test]
    fn a_turn_that_ended_early_takes_nothing_away() {
        assert_eq!(put(&[1, 2, 3], &[1, 2, 3]), None);
        assert_eq!(put(&[1, 2, 3], &[1, 2]), None);
        assert_eq!(put(&[1, 2, 3], &[]), None);
        assert_eq!(plan_put(None, entry("a", &[])), None);
    }

    #[test]
    fn a_turn_that_goes_on_or_another_way_replaces() {
        let longer = put(&[1, 2], &[1, 2, 3]).unwrap();
        assert_eq!((keys(&longer.chain), longer.left), (vec![1, 2, 3], vec![]));
        let other = put(&[1, 2, 3], &[1, 7]).unwrap();
        assert_eq!(keys(&other.chain), [1, 7]);
        assert_eq!(other.left, [list(&[2, 3])], "to be destroyed with the rest");
        // Back on the first way: the second is the one that was left.
        let back = plan_put(Some(&other), entry("a", &[1, 2, 3, 4])).unwrap();
        assert_eq!(back.left, [list(&[7])]);
    }

    #[test]
    fn another_encoding_of_the_same_blocks_is_another_way() {
        let mut turn = entry("a", &[1, 2]);
        turn.chain.tag = [3; 16];
        let changed = plan_put(Some(&entry("a", &[1, 2])), turn).unwrap();
        assert_eq!(changed.left, [list(&[1, 2])]);
        assert_eq!(changed.all_names().count(), 4);
    }

    #[test]
    fn what_is_remembered_of_left_blocks_is_bounded_and_the_newest() {
        let mut before = entry("a", &[1]);
        let old: Vec<[u8; 32]> = (0..LEFT_MAX as u32).map(|n| key(n + 10)).collect();
        before.left = vec![BlockList {
            keys: old,
            ..list(&[])
        }];
        let changed = plan_put(Some(&before), entry("a", &[9])).unwrap();
        let left: usize = changed.left.iter().map(|list| list.keys.len()).sum();
        assert_eq!(left, LEFT_MAX);
        assert!(changed.left.iter().any(|list| list.keys.contains(&[1; 32])));
    }

    fn key(n: u32) -> [u8; 32] {
        let mut key = [0xee; 32];
        key[..4].copy_from_slice(&n.to_le_bytes());
        key
    }

    #[test]
    fn a_window_needs_its_last_blocks_and_has_all() {
        let mut list = list(&[1, 2, 3]);
        list.parts.push(Part {
            group: 0x1_0000,
            needed_from: 2,
        });
        assert_eq!(list.names().count(), 6);
        let needed: Vec<_> = list
            .needed()
            .map(|name| (name.key[0], name.group))
            .collect();
        assert_eq!(needed, [(1, 0), (2, 0), (3, 0), (3, 0x1_0000)]);
    }

    #[test]
    fn bounds_are_told() {
        assert_eq!(entry("", &[1]).check(), Err(EntryError::Id(0)));
        let long = "x".repeat(257);
        assert_eq!(entry(&long, &[1]).check(), Err(EntryError::Id(257)));
        let mut many = entry("a", &[]);
        many.chain.keys = vec![[1; 32]; BLOCKS_MAX + 1];
        assert_eq!(many.check(), Err(EntryError::Blocks(BLOCKS_MAX + 1)));
        let mut none = entry("a", &[1]);
        none.chain.parts.clear();
        assert_eq!(none.check(), Err(EntryError::Parts(0)));
        assert_eq!(entry("a", &[1]).check(), Ok(()));
    }

    proptest! {
        /// No name is lost but by the bound, and none is both used and left.
        #[test]
        fn every_block_is_used_or_left(turns in proptest::collection::vec(
            proptest::collection::vec(0u8..4, 0..5), 1..12,
        )) {
            let mut now: Option<SessionEntry> = None;
            let mut seen = HashSet::new();
            for turn in &turns {
                // A key names all before it.
                let mut way = Vec::new();
                let keys = turn.iter().map(|&step| {
                    way.push(step);
                    let mut key = [0xff; 32];
                    key[..way.len()].copy_from_slice(&way);
                    key
                });
                let chain = BlockList { keys: keys.collect(), ..list(&[]) };
                seen.extend(chain.keys.iter().copied());
                let turn = SessionEntry { chain, ..entry("a", &[]) };
                now = plan_put(now.as_ref(), turn).or(now);
            }
            let Some(now) = now else { return Ok(()) };
            let names: Vec<_> = now.all_names().map(|name| name.key).collect();
            let distinct: HashSet<_> = names.iter().copied().collect();
            prop_assert_eq!(names.len(), distinct.len());
            prop_assert_eq!(distinct, seen);
        }
    }
}
