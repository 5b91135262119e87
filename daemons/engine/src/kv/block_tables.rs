use super::{BlockKey, BlockKeys, BlockTable, FullBlock, GroupPools, PAGE_TOKENS, PageRef};

/// A sequence's block tables, one in each KV group, and the keys of its full blocks.
#[derive(Debug)]
pub struct BlockTables {
    keys: BlockKeys,
    /// Keys of the sealed blocks, from the first on.
    sealed: Vec<BlockKey>,
    tables: Vec<BlockTable>,
    storing: Storing,
}

/// What becomes of a sequence's full pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storing {
    /// Nobody stores any.
    Never,
    /// They are to be stored; `named`: as those of a conversation that has a name.
    Each { named: bool },
}

/// A page of a group that is to be filled: its block's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lacking {
    pub group: usize,
    pub block: usize,
}

impl BlockTables {
    /// Tables that begin with the blocks named by `prefix`, which the pools have.
    /// Returns the tables and the tokens reused.
    pub fn with_prefix(
        pools: &GroupPools,
        keys: BlockKeys,
        prefix: &[BlockKey],
        storing: Storing,
    ) -> (Self, usize) {
        let groups = pools.groups().iter();
        let tables: Vec<_> = groups
            .map(|group| BlockTable::with_prefix(&group.pool, group.window, prefix))
            .collect();
        if storing == (Storing::Each { named: true }) {
            tables.iter().for_each(BlockTable::name_pages);
        }
        let tables = Self {
            keys,
            sealed: prefix.to_vec(),
            tables,
            storing,
        };
        (tables, prefix.len() * PAGE_TOKENS)
    }

    /// Tables for the blocks named by `prefix`, and those of their pages that the pools do not have, which are
    /// to be filled. `None`: there are not enough pages.
    pub fn to_fill(
        pools: &GroupPools,
        keys: BlockKeys,
        prefix: &[BlockKey],
        storing: Storing,
    ) -> Option<(Self, Vec<Lacking>)> {
        let (mut tables, mut lacking) = (Vec::new(), Vec::new());
        for (group, pool) in pools.groups().iter().enumerate() {
            let mut blocks = Vec::new();
            let table = BlockTable::to_fill(&pool.pool, pool.window, prefix, &mut blocks)?;
            tables.push(table);
            lacking.extend(blocks.into_iter().map(|block| Lacking { group, block }));
        }
        let tables = Self {
            keys,
            sealed: prefix.to_vec(),
            tables,
            storing,
        };
        Some((tables, lacking))
    }

    /// The page of a block that is lacking.
    pub fn lacking_page(&self, lacking: Lacking) -> Option<&PageRef> {
        self.tables.get(lacking.group)?.held_page(lacking.block)
    }

    /// The page of a block that was lacking has been filled: the pool has the block from now on.
    pub fn seal_filled(&self, lacking: Lacking) {
        let Some(&key) = self.sealed.get(lacking.block) else {
            return;
        };
        let before = lacking.block.checked_sub(1);
        let block = self.full_block(before.map(|before| self.sealed[before]), key, lacking.block);
        if let Some(table) = self.tables.get(lacking.group) {
            table.seal(block, true);
        }
    }

    fn full_block(&self, before: Option<BlockKey>, key: BlockKey, depth: usize) -> FullBlock {
        FullBlock {
            key,
            parent: self.keys.parent(before),
            depth: depth as u32,
            is_named: self.storing == Storing::Each { named: true },
        }
    }

    /// By group, the pages from position 0 on.
    pub fn pages(&self) -> impl Iterator<Item = &[u32]> {
        self.tables.iter().map(BlockTable::pages)
    }

    /// Blocks with room for tokens, passed ones included.
    pub fn blocks(&self) -> usize {
        self.tables.first().map_or(0, |table| table.pages().len())
    }

    /// By group, the pages held.
    pub fn held(&self) -> impl Iterator<Item = usize> {
        self.tables.iter().map(BlockTable::held)
    }

    /// Keys of the blocks that are full, from the first on.
    pub fn sealed(&self) -> &[BlockKey] {
        &self.sealed
    }

    /// Gives all pages back; the keys of those that were full stay known.
    pub fn give_back(&mut self) {
        self.tables.clear();
    }

    /// Adds a block: calls `prepare` with each group and its new page. Errors: that of `prepare`, or
    /// `None` when every page of a group is held; the sequence cannot go on then.
    pub fn grow<E>(
        &mut self,
        pools: &GroupPools,
        mut prepare: impl FnMut(usize, u32) -> Result<(), E>,
    ) -> Result<(), Option<E>> {
        for (index, (table, group)) in self.tables.iter_mut().zip(pools.groups()).enumerate() {
            let page = table.grow(&group.pool).ok_or(None)?;
            prepare(index, page)?;
        }
        Ok(())
    }

    /// Tables of full blocks only: goes on with a copy of a page that was begun, or filled, with the
    /// first of `wanted`, if every group has one. `copy` gets the group, the page there is and the new
    /// one. Returns the tokens reused; 0 too where `copy` fails: who grows the tables then learns why.
    pub fn begin_as<E>(
        &mut self,
        pools: &GroupPools,
        wanted: &[u32],
        mut copy: impl FnMut(usize, u32, u32) -> Result<(), E>,
    ) -> usize {
        // A whole block would have been found by its key.
        let wanted = &wanted[..wanted.len().min(PAGE_TOKENS - 1)];
        let parent = self.keys.parent(self.sealed.last().copied());
        let groups = pools.groups();
        let found: Option<Vec<_>> = groups
            .iter()
            .map(|group| group.pool.lookup_beginning(parent, wanted))
            .collect();
        let Some(found) = found else { return 0 };
        // While they are held, the pages copied from are none that can be copied to.
        if groups.iter().any(|group| group.pool.available() == 0) {
            return 0;
        }
        let same = found.iter().map(|(_, same)| *same).min().unwrap_or(0);
        for (index, (from, _)) in found.iter().enumerate() {
            let to = self.tables[index].grow(&groups[index].pool);
            if to.is_none_or(|to| copy(index, from.page(), to).is_err()) {
                let grown = if to.is_some() { index + 1 } else { index };
                self.tables[..grown].iter_mut().for_each(BlockTable::shrink);
                return 0;
            }
        }
        same
    }

    /// KV of all `tokens` of the sequence, from position 0 on, stands: seals the blocks they fill and
    /// gives back those that windows have passed.
    pub fn advance(&mut self, tokens: &[u32]) {
        for block in tokens.chunks(PAGE_TOKENS).skip(self.sealed.len()) {
            let before = self.sealed.last().copied();
            let (index, parent) = (self.sealed.len(), self.keys.parent(before));
            let key = (block.len() == PAGE_TOKENS).then(|| self.keys.next(before, block));
            for table in &self.tables {
                table.note(index, parent, block);
                if let Some(key) = key {
                    let is_stored = self.storing == Storing::Never;
                    table.seal(self.full_block(before, key, index), is_stored);
                }
            }
            self.sealed.extend(key);
        }
        for table in &mut self.tables {
            table.pass(tokens.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Window;
    use super::*;

    const FULL: Window = Window { tokens: None };
    const KEYS: [u8; 32] = [0; 32];

    fn start(pools: &GroupPools, tokens: &[u32]) -> (BlockTables, usize) {
        let keys = BlockKeys::new(&KEYS, b"");
        let chain = keys.chain(BlockKeys::reusable(tokens));
        let prefix = &chain[..pools.longest_prefix(&chain)];
        BlockTables::with_prefix(pools, keys, prefix, Storing::Never)
    }

    /// Runs a sequence to `tokens`, a block at a time.
    fn compute(tables: &mut BlockTables, pools: &GroupPools, tokens: &[u32], from: usize) {
        let mut computed = from;
        while computed < tokens.len() {
            computed = (computed + PAGE_TOKENS).min(tokens.len());
            while tables.blocks() * PAGE_TOKENS < computed {
                tables.grow(pools, |_, _| Ok::<_, ()>(())).unwrap();
            }
            tables.advance(&tokens[..computed]);
        }
    }

    #[test]
    fn the_same_prompt_again_computes_only_its_tail() {
        let pools = GroupPools::new(&[(FULL, 8)], 64);
        let tokens: Vec<u32> = (0..150).collect();
        let (mut table, cached) = start(&pools, &tokens);
        assert_eq!(cached, 0);
        compute(&mut table, &pools, &tokens, 0);
        let (again, cached) = start(&pools, &tokens);
        assert_eq!(cached, 128);
        let first: Vec<_> = table.pages().next().unwrap()[..2].to_vec();
        assert_eq!(again.pages().next().unwrap(), first);
        // A prompt of exactly two blocks must leave one token to compute.
        let (_, cached) = start(&pools, &tokens[..128]);
        assert_eq!(cached, 64);
    }

    #[test]
    fn another_continuation_shares_the_common_blocks_only() {
        let pools = GroupPools::new(&[(FULL, 8)], 64);
        let mut tokens: Vec<u32> = (0..200).collect();
        let (mut table, _) = start(&pools, &tokens);
        compute(&mut table, &pools, &tokens, 0);
        tokens[130] = 7;
        let (mut other, cached) = start(&pools, &tokens);
        assert_eq!(cached, 128);
        compute(&mut other, &pools, &tokens, cached);
        let (third, cached) = start(&pools, &tokens);
        assert_eq!(cached, 192);
        let shared = other.pages().next().unwrap()[..3].to_vec();
        assert_eq!(third.pages().next().unwrap(), shared);
    }

    #[test]
    fn a_window_gives_back_what_it_has_passed_and_the_end_can_be_reused() {
        let windowed = Window { tokens: Some(100) };
        let pools = GroupPools::new(&[(FULL, 32), (windowed, 8)], 64);
        let tokens: Vec<u32> = (0..1000).collect();
        let (mut table, _) = start(&pools, &tokens);
        compute(&mut table, &pools, &tokens, 0);
        let held: Vec<usize> = pools.groups().iter().map(|g| g.pool.usage().held).collect();
        assert_eq!(held, [16, 2], "the query at 1000 sees keys 901 to 1000");
        drop(table);
        let (again, cached) = start(&pools, &tokens);
        assert_eq!(cached, 960);
        let pages: Vec<Vec<u32>> = again.pages().map(<[u32]>::to_vec).collect();
        assert!(!pages[0].contains(&super::super::NO_PAGE));
        let held = pages[1].iter().filter(|&&p| p != super::super::NO_PAGE);
        assert_eq!(held.count(), 2, "the query at 960 sees keys 861 to 960");
    }

    #[test]
    fn full_pages_wait_to_be_stored_once_also_those_a_window_has_passed() {
        let windowed = Window { tokens: Some(65) };
        let pools = GroupPools::new(&[(FULL, 32), (windowed, 8)], 64);
        let tokens: Vec<u32> = (0..200).collect();
        let (mut unwanted, _) = start(&pools, &tokens[..65]);
        compute(&mut unwanted, &pools, &tokens[..65], 0);
        drop(unwanted);
        assert_eq!(pools.groups()[0].pool.unstored(), 0);

        let (keys, named) = (
            BlockKeys::new(&KEYS, b"salt"),
            Storing::Each { named: true },
        );
        let (mut table, _) = BlockTables::with_prefix(&pools, keys, &[], named);
        compute(&mut table, &pools, &tokens, 0);
        // Who computes the same beside it fills nothing that is new.
        let (mut other, _) = BlockTables::with_prefix(&pools, keys, &[], named);
        compute(&mut other, &pools, &tokens, 0);
        let chain = keys.chain(&tokens);
        for group in pools.groups() {
            let next = || group.pool.next_unstored(true).map(|(block, _)| block);
            let blocks: Vec<FullBlock> = std::iter::from_fn(next).collect();
            let parents = [keys.parent(None), chain[0], chain[1]];
            let expected = (0..3).map(|depth| FullBlock {
                key: chain[depth],
                parent: parents[depth],
                depth: depth as u32,
                is_named: true,
            });
            assert!(blocks.into_iter().eq(expected));
        }
    }

    #[test]
    fn what_is_lacking_gets_pages_and_is_found_once_it_is_filled() {
        let windowed = Window { tokens: Some(65) };
        let pools = GroupPools::new(&[(FULL, 4), (windowed, 3)], 64);
        let keys = BlockKeys::new(&KEYS, b"");
        let tokens: Vec<u32> = (0..256).collect();
        let chain = keys.chain(&tokens);
        let (mut table, _) = start(&pools, &tokens[..66]);
        compute(&mut table, &pools, &tokens[..66], 0);
        drop(table);
        let (table, lacking) = BlockTables::to_fill(&pools, keys, &chain, Storing::Never).unwrap();
        let of = |group, block| Lacking { group, block };
        assert_eq!(lacking, [of(0, 1), of(0, 2), of(0, 3), of(1, 3)]);
        assert_eq!(pools.longest_prefix(&chain), 1);
        for &page in &lacking {
            assert!(table.lacking_page(page).is_some());
            table.seal_filled(page);
        }
        assert_eq!(pools.longest_prefix(&chain), 4);
        let (again, _) = BlockTables::with_prefix(&pools, keys, &chain, Storing::Never);
        drop(table);
        assert_eq!(again.held().collect::<Vec<_>>(), [4, 1]);
        let longer = keys.chain(&(0..320).collect::<Vec<_>>());
        assert!(BlockTables::to_fill(&pools, keys, &longer, Storing::Never).is_none());
        assert_eq!(pools.usage().held, 5, "nothing is kept of what cannot be");
    }

    #[test]
    fn a_prefix_whose_window_is_gone_is_found_where_the_window_is_still_there() {
        let windowed = Window { tokens: Some(65) };
        // The windowed group has room for three blocks: of those passed it forgets the oldest first.
        let pools = GroupPools::new(&[(FULL, 32), (windowed, 3)], 64);
        let tokens: Vec<u32> = (0..400).collect();
        let (mut table, _) = start(&pools, &tokens);
        compute(&mut table, &pools, &tokens, 0);
        drop(table);
        let mut other = tokens[..200].to_vec();
        other.extend([9; 100]);
        let (_, cached) = start(&pools, &other);
        assert_eq!(
            cached, 64,
            "three blocks are common, the window is left for one"
        );
        let (_, cached) = start(&pools, &tokens);
        assert_eq!(cached, 384);
    }
}
