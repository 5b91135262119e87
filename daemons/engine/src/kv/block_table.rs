use super::{BlockKey, BlockKeys, PAGE_TOKENS, PagePool, PageRef};

/// The pages of one sequence in one KV group, from position 0 on, and the keys of its full blocks.
///
/// Dropping the table gives all pages back; full ones stay cached for the next sequence that starts
/// the same way.
#[derive(Debug)]
pub struct BlockTable {
    keys: BlockKeys,
    last_key: Option<BlockKey>,
    sealed: usize,
    refs: Vec<PageRef>,
    /// `refs` as the plain indices the attention kernel reads.
    pages: Vec<u32>,
}

impl BlockTable {
    /// A table whose first blocks are the longest cached prefix of `tokens`; at least one token of
    /// them is left to compute, because the logits after the last one are needed.
    /// Returns the table and the tokens reused.
    pub fn with_cached_prefix(pool: &PagePool, keys: BlockKeys, tokens: &[u32]) -> (Self, usize) {
        let chain = keys.chain(reusable(tokens));
        let refs = pool.lookup(&chain);
        let found = refs.len();
        let table = Self {
            keys,
            last_key: found.checked_sub(1).map(|last| chain[last]),
            sealed: found,
            pages: refs.iter().map(PageRef::page).collect(),
            refs,
        };
        (table, found * PAGE_TOKENS)
    }

    /// Pages a sequence of `tokens` prompt tokens that may grow to `tokens_max` needs from the pool:
    /// new ones, and cached ones it would hold.
    pub fn demand(pool: &PagePool, keys: &BlockKeys, tokens: &[u32], tokens_max: usize) -> usize {
        let (found, cached) = pool.peek(&keys.chain(reusable(tokens)));
        tokens_max.div_ceil(PAGE_TOKENS) - found + cached
    }

    /// Page indices, one per [`PAGE_TOKENS`] positions.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Adds a page from the pool; its index, or `None` when every page is held.
    pub fn grow(&mut self, pool: &PagePool) -> Option<u32> {
        let page = pool.allocate()?;
        let index = page.page();
        self.pages.push(index);
        self.refs.push(page);
        Some(index)
    }

    /// Seals every block that `tokens` (all tokens whose KV stands, from position 0) fills.
    pub fn seal_full_blocks(&mut self, tokens: &[u32]) {
        while (self.sealed + 1) * PAGE_TOKENS <= tokens.len() {
            let block = &tokens[self.sealed * PAGE_TOKENS..(self.sealed + 1) * PAGE_TOKENS];
            let key = self.keys.next(self.last_key, block);
            self.refs[self.sealed].seal(key, self.sealed as u32);
            self.last_key = Some(key);
            self.sealed += 1;
        }
    }
}

fn reusable(tokens: &[u32]) -> &[u32] {
    let full = tokens.len().saturating_sub(1) / PAGE_TOKENS * PAGE_TOKENS;
    &tokens[..full]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_prompt_again_computes_only_its_tail() {
        let pool = PagePool::new(8);
        let keys = BlockKeys::new(&[0; 32], b"");
        let tokens: Vec<u32> = (0..150).collect();
        let (mut table, cached) = BlockTable::with_cached_prefix(&pool, keys, &tokens);
        assert_eq!(cached, 0);
        assert_eq!(BlockTable::demand(&pool, &keys, &tokens, 200), 4);
        for _ in 0..3 {
            table.grow(&pool).unwrap();
        }
        table.seal_full_blocks(&tokens);
        let (again, cached) = BlockTable::with_cached_prefix(&pool, keys, &tokens);
        assert_eq!(cached, 128);
        assert_eq!(again.pages(), &table.pages()[..2]);
        assert_eq!(
            BlockTable::demand(&pool, &keys, &tokens, 200),
            2,
            "held pages cost nothing"
        );
        drop(again);
        drop(table);
        assert_eq!(
            BlockTable::demand(&pool, &keys, &tokens, 200),
            4,
            "cached ones must be held"
        );
        // A prompt of exactly two blocks must leave one token to compute.
        let (_, cached) = BlockTable::with_cached_prefix(&pool, keys, &tokens[..128]);
        assert_eq!(cached, 64);
    }

    #[test]
    fn another_continuation_shares_the_common_blocks_only() {
        let pool = PagePool::new(8);
        let keys = BlockKeys::new(&[0; 32], b"");
        let mut tokens: Vec<u32> = (0..200).collect();
        let (mut table, _) = BlockTable::with_cached_prefix(&pool, keys, &tokens);
        for _ in 0..4 {
            table.grow(&pool).unwrap();
        }
        table.seal_full_blocks(&tokens);
        tokens[130] = 7;
        let (mut other, cached) = BlockTable::with_cached_prefix(&pool, keys, &tokens);
        assert_eq!(cached, 128);
        other.grow(&pool).unwrap();
        other.seal_full_blocks(&tokens[..192]);
        let (third, cached) = BlockTable::with_cached_prefix(&pool, keys, &tokens);
        assert_eq!(cached, 192);
        assert_eq!(third.pages(), other.pages());
    }
}
