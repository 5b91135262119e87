use super::{BlockKey, FullBlock, NO_PAGE, PagePool, PageRef, Window};

/// The pages of one sequence in one KV group, from position 0 on.
///
/// Dropping the table gives all pages back; full ones stay cached for the next sequence that starts
/// the same way.
#[derive(Debug)]
pub struct BlockTable {
    window: Window,
    /// Blocks before this one are passed.
    first: usize,
    /// Pages of the blocks from `first` on.
    refs: Vec<PageRef>,
    /// All blocks' pages as the plain indices the attention kernel reads.
    pages: Vec<u32>,
}

impl BlockTable {
    /// A table whose blocks are those named by `prefix`, as far as its window needs them; the pool has
    /// them all.
    pub fn with_prefix(pool: &PagePool, window: Window, prefix: &[BlockKey]) -> Self {
        let next = prefix.len() * super::PAGE_TOKENS;
        let first = window.first_block(next).min(prefix.len());
        let refs = pool.lookup(&prefix[first..]);
        debug_assert_eq!(refs.len(), prefix.len() - first, "the pool has the prefix");
        let mut pages = vec![NO_PAGE; first];
        pages.extend(refs.iter().map(PageRef::page));
        Self {
            window,
            first,
            refs,
            pages,
        }
    }

    /// A table for the blocks named by `prefix`, as far as its window needs them: those the pool has, and
    /// new pages for the others, whose numbers go into `lacking`. `None`: there are not enough pages.
    pub fn to_fill(
        pool: &PagePool,
        window: Window,
        prefix: &[BlockKey],
        lacking: &mut Vec<usize>,
    ) -> Option<Self> {
        let next = prefix.len() * super::PAGE_TOKENS;
        let first = window.first_block(next).min(prefix.len());
        // What there is is held before anything is allocated in its place.
        let found: Vec<_> = prefix[first..].iter().map(|key| pool.find(key)).collect();
        let mut refs = Vec::with_capacity(found.len());
        for (block, page) in (first..).zip(found) {
            refs.push(match page {
                Some(page) => page,
                None => {
                    lacking.push(block);
                    pool.allocate()?
                }
            });
        }
        let mut pages = vec![NO_PAGE; first];
        pages.extend(refs.iter().map(PageRef::page));
        Some(Self {
            window,
            first,
            refs,
            pages,
        })
    }

    /// Page indices, one for each block; [`NO_PAGE`] for those passed.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Pages held.
    pub fn held(&self) -> usize {
        self.refs.len()
    }

    /// Adds a page from the pool; its index, or `None` when every page is held.
    pub fn grow(&mut self, pool: &PagePool) -> Option<u32> {
        let page = pool.allocate()?;
        let index = page.page();
        self.pages.push(index);
        self.refs.push(page);
        Some(index)
    }

    /// A block is full, see [`PageRef::seal`].
    pub fn seal(&self, block: FullBlock, is_stored: bool) {
        if let Some(page) = self.held_page(block.depth as usize) {
            page.seal(block, is_stored);
        }
    }

    /// See [`PageRef::name`].
    pub fn name_pages(&self) {
        self.refs.iter().for_each(PageRef::name);
    }

    /// The page of block `block`, if the table holds it.
    pub fn held_page(&self, block: usize) -> Option<&PageRef> {
        self.refs.get(block.checked_sub(self.first)?)
    }

    /// `tokens` stand in the first rows of block `block`, which follows the one named `parent`.
    pub fn note(&self, block: usize, parent: BlockKey, tokens: &[u32]) {
        if let Some(page) = self.held_page(block) {
            page.note(parent, block as u32, tokens);
        }
    }

    /// Takes the last page back off.
    pub fn shrink(&mut self) {
        self.pages.pop();
        self.refs.pop();
    }

    /// KV of `computed` tokens stands: gives back the blocks that no later query sees.
    pub fn pass(&mut self, computed: usize) {
        let first = self.window.first_block(computed).min(self.pages.len());
        if first <= self.first {
            return;
        }
        self.pages[self.first..first].fill(NO_PAGE);
        for page in self.refs.drain(..first - self.first) {
            page.pass();
        }
        self.first = first;
    }
}
