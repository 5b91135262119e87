use super::BlockKey;
use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap},
    rc::Rc,
};

/// The page index space of one KV group: who holds which page, and which full pages can be reused.
///
/// ```text
///            allocate                 seal                    last PageRef dropped
///   Free ---------------> Held(open) -------> Held(sealed) ---------------------> Cached
///    ^                       |                     ^                                |  |
///    |  last PageRef dropped |                     +--------- lookup ---------------+  |
///    +-----------------------+                                                         |
///    +------------------------------ evicted by allocate (least recently used) --------+
/// ```
/// A page may be *noted* with the tokens that stand in it, sealed or not: then it is cached too when it
/// is dropped, and [`Self::lookup_beginning`] finds it for a sequence that begins its block the same way.
/// Of the pages that follow one block the latest noted is found.
///
/// A page that is sealed to be stored waits for that, in the order of sealing, until somebody takes it
/// ([`Self::next_unstored`]); whoever could not store it puts it back. One that is given up before is lost.
///
/// The pool hands out the lowest free index, so that memory below a low watermark suffices. Cached
/// pages are given up least recently used first, deeper blocks of one chain before its beginning
/// (a block is of no use without those before it). Clones share the pool; it lives on the step
/// thread.
#[derive(Clone, Debug)]
pub struct PagePool {
    inner: Rc<RefCell<Inner>>,
}

#[derive(Debug)]
struct Inner {
    pages: Vec<PageState>,
    free: BinaryHeap<Reverse<u32>>,
    by_key: HashMap<BlockKey, u32>,
    /// By the key of the block before it, the page noted last.
    by_parent: HashMap<BlockKey, u32>,
    cached: BTreeSet<CacheRank>,
    tick: u64,
    /// Full pages that are to be stored, the first one first.
    unstored: BTreeSet<(u64, u32)>,
    /// How often a page has been put there.
    turns: u64,
    /// Pages that were given up while they waited there.
    lost: u64,
}

#[derive(Clone, Debug, Default)]
struct PageState {
    holders: u32,
    sealed: Option<Sealed>,
    /// What stands in it; if so, `by_parent` names the page.
    noted: Option<Noted>,
    used_at: u64,
    /// A window passed it: hardly wanted again.
    passed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Sealed {
    block: FullBlock,
    /// Since when it waits to be stored, if it does.
    unstored: Option<u64>,
}

/// What a full page is to be known as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullBlock {
    pub key: BlockKey,
    /// Key of the block before.
    pub parent: BlockKey,
    /// Index of the block in its chain.
    pub depth: u32,
    /// Of a conversation that has a name.
    pub is_named: bool,
}

#[derive(Clone, Debug)]
struct Noted {
    parent: BlockKey,
    depth: u32,
    tokens: Vec<u32>,
}

/// Order in which cached pages are given up, smallest first: what windows have passed before what
/// sequences held to their end; then the longest unused; then the deepest of its chain.
type CacheRank = (Reverse<bool>, u64, Reverse<u32>, u32);

/// Counts of [`PagePool::usage`]; `held + cached + free == all`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUse {
    pub held: usize,
    /// Sealed pages that no sequence holds.
    pub cached: usize,
    pub free: usize,
    pub all: usize,
}

/// One holder's share of a page; dropping it gives the share back.
#[derive(Debug)]
pub struct PageRef {
    page: u32,
    pool: PagePool,
    release: Release,
}

/// What a share that is given back says of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    /// It was used until now.
    Used,
    /// It is hardly wanted again.
    Passed,
    /// Nothing: who had it only kept it from being given out.
    Kept,
}

impl PagePool {
    pub fn new(pages: u32) -> Self {
        Self {
            inner: Rc::new(RefCell::new(Inner {
                pages: vec![PageState::default(); pages as usize],
                free: (0..pages).map(Reverse).collect(),
                by_key: HashMap::new(),
                by_parent: HashMap::new(),
                cached: BTreeSet::new(),
                tick: 0,
                unstored: BTreeSet::new(),
                turns: 0,
                lost: 0,
            })),
        }
    }

    /// An open page for new tokens: the lowest free one, else the page of the cached block that was
    /// used least recently. `None`: every page is held.
    pub fn allocate(&self) -> Option<PageRef> {
        let mut inner = self.inner.borrow_mut();
        let page = match inner.free.pop() {
            Some(Reverse(page)) => page,
            None => inner.evict()?,
        };
        inner.hold(page);
        drop(inner);
        Some(self.share_of(page))
    }

    /// Holds the pages of the longest run of `keys`, from the first on, that the pool has.
    pub fn lookup(&self, keys: &[BlockKey]) -> Vec<PageRef> {
        let mut inner = self.inner.borrow_mut();
        let mut pages = Vec::new();
        for key in keys {
            let Some(&page) = inner.by_key.get(key) else {
                break;
            };
            inner.hold(page);
            pages.push(page);
        }
        drop(inner);
        pages.into_iter().map(|page| self.share_of(page)).collect()
    }

    /// The share of a page that has just been held.
    fn share_of(&self, page: u32) -> PageRef {
        PageRef {
            page,
            pool: self.clone(),
            release: Release::Used,
        }
    }

    /// Holds the page noted last behind the block `parent`, if its tokens begin as `wanted`; and how many
    /// of them are the same.
    pub fn lookup_beginning(&self, parent: BlockKey, wanted: &[u32]) -> Option<(PageRef, usize)> {
        let mut inner = self.inner.borrow_mut();
        let &page = inner.by_parent.get(&parent)?;
        let noted = inner.pages[page as usize].noted.as_ref()?;
        let same = noted.tokens.iter().zip(wanted);
        let same = same.take_while(|(a, b)| a == b).count();
        if same == 0 {
            return None;
        }
        inner.hold(page);
        drop(inner);
        Some((self.share_of(page), same))
    }

    /// How many of `keys`, from the first on, [`Self::lookup`] would find, and how many of those
    /// pages are only cached now (holding them takes them from what `allocate` can use).
    pub fn peek(&self, keys: &[BlockKey]) -> (usize, usize) {
        let inner = self.inner.borrow();
        let found: Vec<u32> = keys
            .iter()
            .map_while(|k| inner.by_key.get(k).copied())
            .collect();
        let cached = found
            .iter()
            .filter(|&&p| inner.pages[p as usize].holders == 0)
            .count();
        (found.len(), cached)
    }

    /// Holds the page of `key`.
    pub fn find(&self, key: &BlockKey) -> Option<PageRef> {
        self.lookup(std::slice::from_ref(key)).pop()
    }

    /// Whether the pool has each of `keys`.
    pub fn has(&self, keys: &[BlockKey]) -> Vec<bool> {
        let inner = self.inner.borrow();
        keys.iter()
            .map(|key| inner.by_key.contains_key(key))
            .collect()
    }

    /// Takes the page that has waited longest to be stored, and keeps it. `also_idle`: also one that nobody
    /// else holds, and that so cannot be given out meanwhile.
    pub fn next_unstored(&self, also_idle: bool) -> Option<(FullBlock, PageRef)> {
        let mut inner = self.inner.borrow_mut();
        let is_meant =
            |&&(_, page): &&(u64, u32)| also_idle || inner.pages[page as usize].holders > 0;
        let next @ (_, page) = *inner.unstored.iter().find(is_meant)?;
        inner.unstored.remove(&next);
        let sealed = inner.pages[page as usize].sealed.as_mut()?;
        sealed.unstored = None;
        let block = sealed.block;
        inner.hold(page);
        drop(inner);
        let mut page = self.share_of(page);
        page.release = Release::Kept;
        Some((block, page))
    }

    /// The page of `key` is to be stored after all: it waits again, behind all others.
    pub fn not_stored(&self, key: &BlockKey) {
        let mut inner = self.inner.borrow_mut();
        if let Some(&page) = inner.by_key.get(key) {
            inner.put_unstored(page);
        }
    }

    /// Whatever was stored is not any more: every full page is to be.
    pub fn none_stored(&self) {
        let mut inner = self.inner.borrow_mut();
        let mut pages: Vec<u32> = inner.by_key.values().copied().collect();
        // The beginnings of chains first: without them nothing is of use.
        pages.sort_by_key(|&page| (inner.pages[page as usize].depth(), page));
        for page in pages {
            inner.put_unstored(page);
        }
    }

    /// How many pages wait to be stored.
    pub fn unstored(&self) -> usize {
        self.inner.borrow().unstored.len()
    }

    /// How many pages were given up while they waited to be stored, since the last time.
    pub fn take_lost(&self) -> u64 {
        std::mem::take(&mut self.inner.borrow_mut().lost)
    }

    /// Whether a page is held by one alone.
    pub fn has_one_holder(&self, page: u32) -> bool {
        self.inner.borrow().pages[page as usize].holders == 1
    }

    /// Pages that `allocate` can hand out: free and cached ones.
    pub fn available(&self) -> usize {
        let inner = self.inner.borrow();
        inner.free.len() + inner.cached.len()
    }

    pub fn usage(&self) -> PoolUse {
        let inner = self.inner.borrow();
        let (cached, free, all) = (inner.cached.len(), inner.free.len(), inner.pages.len());
        PoolUse {
            held: all - cached - free,
            cached,
            free,
            all,
        }
    }
}

impl Inner {
    fn hold(&mut self, page: u32) {
        let rank = self.rank(page);
        let state = &mut self.pages[page as usize];
        if state.holders == 0 {
            self.cached.remove(&rank);
        }
        state.holders += 1;
    }

    fn rank(&self, page: u32) -> CacheRank {
        let state = &self.pages[page as usize];
        (
            Reverse(state.passed),
            state.used_at,
            Reverse(state.depth()),
            page,
        )
    }

    fn evict(&mut self) -> Option<u32> {
        let (.., page) = self.cached.pop_first()?;
        if let Some(sealed) = self.pages[page as usize].sealed.take() {
            self.by_key.remove(&sealed.block.key);
            if let Some(turn) = sealed.unstored {
                self.unstored.remove(&(turn, page));
                self.lost += 1;
            }
        }
        self.forget(page);
        Some(page)
    }

    fn note(&mut self, page: u32, parent: BlockKey, depth: u32, tokens: &[u32]) {
        let noted = &mut self.pages[page as usize].noted;
        match noted {
            Some(noted) if noted.parent == parent && tokens.starts_with(&noted.tokens) => {
                let new = &tokens[noted.tokens.len()..];
                noted.tokens.extend_from_slice(new);
                return;
            }
            _ => self.forget(page),
        }
        if let Some(&other) = self.by_parent.get(&parent) {
            self.forget_cached(other);
        }
        self.by_parent.insert(parent, page);
        self.pages[page as usize].noted = Some(Noted {
            parent,
            depth,
            tokens: tokens.to_vec(),
        });
    }

    /// What stands in a page is not looked for any more.
    fn forget(&mut self, page: u32) {
        if let Some(noted) = self.pages[page as usize].noted.take() {
            self.by_parent.remove(&noted.parent);
        }
    }

    /// As [`Self::forget`]; a page that nothing else wants becomes free.
    fn forget_cached(&mut self, page: u32) {
        let rank = self.rank(page);
        let is_cached = self.cached.remove(&rank);
        self.forget(page);
        if !is_cached {
            return;
        }
        if self.pages[page as usize].sealed.is_some() {
            let rank = self.rank(page);
            self.cached.insert(rank);
        } else {
            self.free.push(Reverse(page));
        }
    }

    fn seal(&mut self, page: u32, block: FullBlock, is_stored: bool) {
        // Two sequences may compute the same block side by side: the first one is kept for reuse,
        // the other stays its holder's own and is free when dropped.
        match self.by_key.get(&block.key) {
            None => {
                self.by_key.insert(block.key, page);
                let unstored = None;
                self.pages[page as usize].sealed = Some(Sealed { block, unstored });
                if !is_stored {
                    self.put_unstored(page);
                }
            }
            Some(&first) if first != page => self.forget(page),
            Some(_) => {}
        }
    }

    fn put_unstored(&mut self, page: u32) {
        let Some(sealed) = &mut self.pages[page as usize].sealed else {
            return;
        };
        if sealed.unstored.is_none() {
            self.turns += 1;
            sealed.unstored = Some(self.turns);
            self.unstored.insert((self.turns, page));
        }
    }

    fn release(&mut self, page: u32, release: Release) {
        let used_at = self.tick;
        let state = &mut self.pages[page as usize];
        state.holders -= 1;
        if release != Release::Kept {
            (state.used_at, state.passed) = (used_at, release == Release::Passed);
        }
        if state.holders > 0 {
            return;
        }
        if state.sealed.is_some() || state.noted.is_some() {
            let rank = self.rank(page);
            self.cached.insert(rank);
        } else {
            self.free.push(Reverse(page));
        }
    }
}

impl PageState {
    /// Index of its block in its chain.
    fn depth(&self) -> u32 {
        let sealed = self.sealed.map(|sealed| sealed.block.depth);
        let noted = self.noted.as_ref().map(|noted| noted.depth);
        sealed.or(noted).unwrap_or(0)
    }
}

impl PageRef {
    /// Index of the page, the same in every layer and side of the group.
    pub fn page(&self) -> u32 {
        self.page
    }

    /// The page is full: its content never changes again and serves every sequence that has this block.
    /// `is_stored`: it is not to be stored, any more or at all.
    pub fn seal(&self, block: FullBlock, is_stored: bool) {
        let mut inner = self.pool.inner.borrow_mut();
        inner.seal(self.page, block, is_stored);
    }

    /// The page belongs to a conversation with a name, if it did not before: it is to be stored as such, whatever became
    /// of it without.
    pub fn name(&self) {
        let mut inner = self.pool.inner.borrow_mut();
        let sealed = inner.pages[self.page as usize].sealed.as_mut();
        if let Some(sealed) = sealed.filter(|sealed| !sealed.block.is_named) {
            sealed.block.is_named = true;
            inner.put_unstored(self.page);
        }
    }

    /// Another share, which keeps the page from being given out and otherwise says nothing of it.
    pub fn keep(&self) -> Self {
        self.pool.inner.borrow_mut().hold(self.page);
        Self {
            page: self.page,
            pool: self.pool.clone(),
            release: Release::Kept,
        }
    }

    /// `tokens` stand in the page, its first rows, behind the block `parent`; block `depth` of its chain.
    pub fn note(&self, parent: BlockKey, depth: u32, tokens: &[u32]) {
        let mut inner = self.pool.inner.borrow_mut();
        inner.note(self.page, parent, depth, tokens);
    }

    /// Gives the share back as one that is hardly wanted again: a window has passed the page. Cached, it
    /// is given up before any that a sequence held to its end.
    pub fn pass(mut self) {
        self.release = Release::Passed;
    }
}

impl Drop for PageRef {
    fn drop(&mut self) {
        let mut inner = self.pool.inner.borrow_mut();
        inner.release(self.page, self.release);
    }
}

impl PagePool {
    /// Advances the clock of the least-recently-used order; once a step.
    pub fn tick(&self) {
        self.inner.borrow_mut().tick += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::BlockKeys;
    use super::*;
    use proptest::prelude::*;

    fn keys(chain: u32, n: usize) -> Vec<BlockKey> {
        BlockKeys::new(&[0; 32], &chain.to_le_bytes()).chain(&vec![1; n * 64])
    }

    fn full(key: BlockKey, depth: u32) -> FullBlock {
        let (parent, is_named) = (key, false);
        FullBlock {
            key,
            parent,
            depth,
            is_named,
        }
    }

    #[test]
    fn lowest_page_first_and_back_again() {
        let pool = PagePool::new(3);
        let a = pool.allocate().unwrap();
        let b = pool.allocate().unwrap();
        assert_eq!((a.page(), b.page()), (0, 1));
        drop(a);
        assert_eq!(pool.allocate().unwrap().page(), 0);
        assert_eq!(
            pool.usage(),
            PoolUse {
                held: 1,
                cached: 0,
                free: 2,
                all: 3
            }
        );
    }

    #[test]
    fn a_page_that_was_begun_is_found_by_its_beginning() {
        let pool = PagePool::new(3);
        let [parent, key] = keys(1, 2)[..] else {
            unreachable!()
        };
        let begun = |wanted: &[u32]| pool.lookup_beginning(parent, wanted);
        let same = |wanted| begun(wanted).map(|(page, same)| (page.page(), same));
        let first = pool.allocate().unwrap();
        first.note(parent, 1, &[1, 2]);
        first.note(parent, 1, &[1, 2, 3]);
        assert_eq!(same(&[1, 2, 3, 4]), Some((0, 3)));
        assert_eq!(same(&[1, 2, 9]), Some((0, 2)));
        assert_eq!(same(&[2]), None);
        assert!(pool.lookup_beginning(key, &[1]).is_none());
        drop(first);
        assert_eq!((pool.usage().cached, same(&[1])), (1, Some((0, 1))));

        // The latest counts; what nobody finds any more is free.
        let second = pool.allocate().unwrap();
        second.note(parent, 1, &[7, 8]);
        assert_eq!((pool.usage().cached, pool.usage().free), (0, 2));
        assert_eq!((same(&[1]), same(&[7])), (None, Some((1, 1))));

        // A full one is found by either name, and by none once it is given up.
        second.seal(full(key, 1), true);
        drop(second);
        assert_eq!(pool.lookup(&[key])[0].page(), 1);
        let third = pool.allocate().unwrap();
        third.note(parent, 1, &[7, 8]);
        assert_eq!(pool.lookup(&[key]).len(), 1, "its key still names it");
        let all: Vec<_> = (0..2).map(|_| pool.allocate().unwrap()).collect();
        assert_eq!((all.len(), pool.lookup(&[key]).len()), (2, 0));
        drop((third, all));
        assert_eq!((pool.usage().cached, pool.usage().free), (1, 2));
        drop((0..3).map(|_| pool.allocate()).collect::<Vec<_>>());
        assert_eq!((same(&[7]), pool.usage().free), (None, 3));
    }

    #[test]
    fn of_two_that_compute_a_block_side_by_side_one_stays() {
        let pool = PagePool::new(2);
        let [parent, key] = keys(1, 2)[..] else {
            unreachable!()
        };
        let pages: Vec<_> = (0..2).map(|_| pool.allocate().unwrap()).collect();
        for page in &pages {
            page.note(parent, 1, &[1; 64]);
            page.seal(full(key, 1), true);
        }
        drop(pages);
        assert_eq!((pool.usage().cached, pool.usage().free), (1, 1));
    }

    #[test]
    fn sealed_blocks_are_found_again_and_shared() {
        let pool = PagePool::new(4);
        let chain = keys(7, 3);
        let first: Vec<PageRef> = (0..2).map(|_| pool.allocate().unwrap()).collect();
        for (depth, page) in first.iter().enumerate() {
            page.seal(full(chain[depth], depth as u32), true);
        }
        let shared = pool.lookup(&chain);
        assert_eq!(shared.len(), 2);
        assert_eq!(shared[1].page(), first[1].page());
        drop(first);
        assert_eq!(pool.usage().held, 2, "the second holder keeps them");
        drop(shared);
        assert_eq!(
            pool.usage(),
            PoolUse {
                held: 0,
                cached: 2,
                free: 2,
                all: 4
            }
        );
        assert_eq!(pool.peek(&chain), (2, 2));
        assert_eq!(pool.lookup(&chain).len(), 2);
    }

    #[test]
    fn the_deepest_block_of_the_oldest_chain_goes_first() {
        let pool = PagePool::new(4);
        for chain in [1, 2] {
            let ks = keys(chain, 2);
            let pages: Vec<_> = ks.iter().map(|_| pool.allocate().unwrap()).collect();
            for (d, p) in pages.iter().enumerate() {
                p.seal(full(ks[d], d as u32), true);
            }
            pool.tick();
            drop(pages);
        }
        let held = pool.allocate().unwrap();
        assert_eq!(
            pool.peek(&keys(1, 2)).0,
            1,
            "block 1 of the older chain is gone, block 0 stays"
        );
        assert_eq!(pool.peek(&keys(2, 2)).0, 2);
        let more = [
            pool.allocate().unwrap(),
            pool.allocate().unwrap(),
            pool.allocate().unwrap(),
        ];
        assert!(pool.allocate().is_none(), "all four are held");
        assert_eq!(pool.peek(&keys(2, 2)).0, 0);
        drop((held, more));
        assert_eq!(pool.usage().free, 4);
    }

    #[test]
    fn who_only_keeps_a_page_says_nothing_of_its_worth() {
        let pool = PagePool::new(2);
        let chain = keys(1, 2);
        let pages: Vec<_> = (0..2).map(|_| pool.allocate().unwrap()).collect();
        for (depth, page) in pages.iter().enumerate() {
            page.seal(full(chain[depth], depth as u32), true);
        }
        let kept = pages[0].keep();
        // A window passes the first; the second is deeper, and would go first otherwise.
        for (index, page) in pages.into_iter().enumerate() {
            if index == 0 { page.pass() } else { drop(page) }
        }
        assert_eq!((pool.usage().held, pool.usage().cached), (1, 1));
        pool.tick();
        drop(kept);
        let taken = pool.allocate().unwrap();
        assert_eq!((taken.page(), pool.has(&chain)), (0, vec![false, true]));
    }

    #[test]
    fn a_full_page_waits_to_be_stored_until_it_is_or_is_lost() {
        let pool = PagePool::new(3);
        let chain = keys(1, 3);
        let pages: Vec<_> = (0..3).map(|_| pool.allocate().unwrap()).collect();
        for (depth, page) in pages.iter().enumerate() {
            page.seal(full(chain[depth], depth as u32), depth == 1);
        }
        let next = |also_idle| pool.next_unstored(also_idle);
        let (block, first) = next(false).unwrap();
        assert_eq!((block.key, first.page()), (chain[0], 0));
        pool.not_stored(&chain[0]);
        // Whoever puts back what waits already changes nothing.
        pool.not_stored(&chain[0]);
        drop(first);
        assert_eq!(next(false).map(|(block, _)| block.key), Some(chain[2]));
        assert_eq!(pool.unstored(), 1);
        drop(pages);
        assert!(next(false).is_none(), "nobody else holds it");
        let (block, kept) = next(true).unwrap();
        assert_eq!(block.key, chain[0]);
        assert!(pool.has_one_holder(kept.page()));
        drop(kept);
        assert_eq!((pool.unstored(), pool.take_lost()), (0, 0));

        pool.none_stored();
        assert_eq!(pool.unstored(), 3);
        let all: Vec<_> = (0..2).map(|_| pool.allocate().unwrap()).collect();
        assert_eq!((pool.unstored(), pool.take_lost()), (1, 2));
        let kept = next(true).map(|(block, _)| block.key);
        assert_eq!(kept, Some(chain[0]), "the deepest are given up first");
        drop(all);
        // What is not full any more is not put back.
        pool.not_stored(&chain[2]);
        assert_eq!((pool.unstored(), pool.take_lost()), (0, 0));
    }

    #[test]
    fn what_becomes_a_conversations_is_stored_once_more() {
        let pool = PagePool::new(1);
        let page = pool.allocate().unwrap();
        page.name();
        assert_eq!(pool.unstored(), 0, "it is not full");
        page.seal(full(keys(1, 1)[0], 0), true);
        for _ in 0..2 {
            page.name();
        }
        let (block, _) = pool.next_unstored(false).unwrap();
        assert!(block.is_named && pool.unstored() == 0);
        page.name();
        assert_eq!(pool.unstored(), 0, "it has its name");
    }

    #[test]
    fn a_block_computed_twice_is_kept_once() {
        let pool = PagePool::new(2);
        let key = keys(1, 1);
        let (a, b) = (pool.allocate().unwrap(), pool.allocate().unwrap());
        a.seal(full(key[0], 0), true);
        b.seal(full(key[0], 0), true);
        drop(b);
        drop(a);
        assert_eq!(
            pool.usage(),
            PoolUse {
                held: 0,
                cached: 1,
                free: 1,
                all: 2
            }
        );
    }

    proptest! {
        /// Whatever is allocated, sealed, looked up and dropped: no page is lost or held twice by
        /// accident, and every found block is the one that was sealed under its key.
        #[test]
        fn no_page_is_lost(ops in prop::collection::vec((0u8..6, 0u32..4, 1usize..5), 1..200)) {
            let pool = PagePool::new(9);
            let mut tables: Vec<(u32, Vec<PageRef>)> = Vec::new();
            let mut sealed: HashMap<BlockKey, u32> = HashMap::new();
            for (op, chain, n) in ops {
                match op {
                    0 | 1 => {
                        let ks = keys(chain, n);
                        let mut pages = pool.lookup(&ks);
                        for (d, p) in pages.iter().enumerate() {
                            prop_assert_eq!(sealed.get(&ks[d]), Some(&p.page()));
                        }
                        while pages.len() < n {
                            let Some(page) = pool.allocate() else { break };
                            sealed.retain(|_, p| *p != page.page());
                            let d = pages.len();
                            page.seal(full(ks[d], d as u32), n % 2 == 0);
                            if pool.peek(&ks[..=d]).0 == d + 1 {
                                sealed.entry(ks[d]).or_insert(page.page());
                            }
                            pages.push(page);
                        }
                        tables.push((chain, pages));
                    }
                    2 => { if let Some(page) = pool.allocate() {
                        sealed.retain(|_, p| *p != page.page());
                        tables.push((99, vec![page]));
                    } }
                    4 => { if let Some((block, page)) = pool.next_unstored(true) {
                        prop_assert_eq!(sealed.get(&block.key), Some(&page.page()));
                        if n > 2 { pool.not_stored(&block.key) }
                    } }
                    3 => { if !tables.is_empty() { tables.remove(n % tables.len()); } }
                    _ => pool.tick(),
                }
                let held: std::collections::HashSet<u32> =
                    tables.iter().flat_map(|(_, t)| t.iter().map(PageRef::page)).collect();
                let usage = pool.usage();
                prop_assert_eq!(usage.held, held.len());
                prop_assert_eq!(usage.held + usage.cached + usage.free, 9);
                prop_assert!(pool.unstored() <= usage.held + usage.cached);
                prop_assert_eq!(pool.available(), usage.cached + usage.free);
            }
            tables.clear();
            prop_assert_eq!(pool.usage().held, 0);
        }
    }
}
