use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vitriol_shm::{KeptRange, Reservation};

/// Stands for the readers of a page that is being filled.
const FILLED: u32 = u32::MAX;

/// Which pages of a store others have, and where the pages are.
#[derive(Debug)]
pub(super) struct Loans {
    /// By page: who has it, [`FILLED`] or the number of readers.
    holders: Box<[AtomicU32]>,
    /// By layer: first byte of keys and of values.
    tensors: Vec<*mut u8>,
    /// Bytes of a page of keys and of values.
    page_bytes: [usize; 2],
    _kept: Vec<KeptRange>,
}

// SAFETY: the pointers are offsets into ranges that `_kept` keeps mapped; who may use them is what
// `holders` is for.
unsafe impl Send for Loans {}
// SAFETY: as above.
unsafe impl Sync for Loans {}

impl Loans {
    pub(super) fn new<'a>(
        tensors: impl Iterator<Item = &'a Reservation> + Clone,
        page_bytes: [usize; 2],
        pages: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            holders: (0..pages).map(|_| AtomicU32::new(0)).collect(),
            tensors: tensors.clone().map(Reservation::as_ptr).collect(),
            page_bytes,
            _kept: tensors.map(Reservation::keep).collect(),
        })
    }

    /// Whether somebody has the page. What they did with it before they gave it back is seen after this.
    pub(super) fn is_lent(&self, page: u32) -> bool {
        self.holders[page as usize].load(Ordering::Acquire) > 0
    }

    /// # Panics
    /// If somebody fills the page.
    pub(super) fn check_readable(&self, page: u32) {
        let holders = self.holders[page as usize].load(Ordering::Acquire);
        assert!(holders != FILLED, "KV page {page} is being filled");
    }

    /// # Panics
    /// If somebody has the page.
    pub(super) fn check_writable(&self, page: u32) {
        assert!(!self.is_lent(page), "KV page {page} is lent");
    }

    /// # Panics
    /// If one of the pages from `first` on is lent.
    pub(super) fn check_none_from(&self, first: usize) {
        for page in first..self.holders.len() {
            self.check_writable(page as u32);
        }
    }

    fn page_len(&self) -> usize {
        self.tensors.len() / 2 * (self.page_bytes[0] + self.page_bytes[1])
    }

    /// The bytes `of` a page, which lies there as one piece in each tensor: addresses and lengths.
    fn pieces(&self, page: u32, of: Range<usize>) -> impl Iterator<Item = (*mut u8, usize)> + '_ {
        assert!(
            of.end <= self.page_len(),
            "{of:?} of {} bytes",
            self.page_len()
        );
        let mut before = 0;
        let tensors = self.tensors.iter().zip(self.page_bytes.iter().cycle());
        tensors.filter_map(move |(tensor, &bytes)| {
            let whole = before..before + bytes;
            before = whole.end;
            let (from, to) = (of.start.max(whole.start), of.end.min(whole.end));
            let at = page as usize * bytes + from.saturating_sub(whole.start);
            (from < to).then(|| (tensor.wrapping_add(at), to - from))
        })
    }
}

/// A page lent to be read. As long as it lives nobody writes to the page, be it after the end of the
/// store. Whoever gives the page out again waits for [`super::KvStore::is_lent`] to say no.
#[derive(Debug)]
pub struct PageRead {
    loans: Arc<Loans>,
    page: u32,
}

/// A page lent to be filled. As long as it lives nobody else reads it or writes to it, be it after the end
/// of the store.
#[derive(Debug)]
pub struct PageFill {
    loans: Arc<Loans>,
    page: u32,
}

impl PageRead {
    /// `&mut` of the store: no op that might write to the page is under way.
    pub(super) fn new(loans: &Arc<Loans>, page: u32) -> Self {
        loans.check_readable(page);
        let before = loans.holders[page as usize].fetch_add(1, Ordering::AcqRel);
        assert!(before < FILLED - 1, "KV page {page} is lent too often");
        Self {
            loans: Arc::clone(loans),
            page,
        }
    }

    /// Index of the page.
    #[must_use]
    pub fn page(&self) -> u32 {
        self.page
    }

    /// Bytes of the page over all layers and both sides.
    #[must_use]
    pub fn page_len(&self) -> usize {
        self.loans.page_len()
    }

    /// The bytes `of` the page: layer by layer, keys before values, each a piece.
    ///
    /// # Panics
    /// If the page is shorter.
    pub fn pieces(&self, of: Range<usize>) -> impl Iterator<Item = &[u8]> {
        let pieces = self.loans.pieces(self.page, of);
        // SAFETY: the page was committed when it was lent, is mapped as long as `loans` lives, and nobody
        // writes to it or decommits it while it is lent.
        pieces.map(|(at, len)| unsafe { std::slice::from_raw_parts(at, len) })
    }
}

impl PageFill {
    /// `&mut` of the store: no op that might use the page is under way.
    pub(super) fn new(loans: &Arc<Loans>, page: u32) -> Self {
        loans.check_writable(page);
        loans.holders[page as usize].store(FILLED, Ordering::Release);
        Self {
            loans: Arc::clone(loans),
            page,
        }
    }

    /// Bytes of the page over all layers and both sides.
    #[must_use]
    pub fn page_len(&self) -> usize {
        self.loans.page_len()
    }

    /// The bytes `of` the page, as [`PageRead::pieces`].
    ///
    /// # Panics
    /// If the page is shorter.
    pub fn pieces_mut(&mut self, of: Range<usize>) -> impl Iterator<Item = &mut [u8]> {
        let pieces = self.loans.pieces(self.page, of);
        // SAFETY: as for `PageRead::pieces`, and nobody else uses the page; the pieces do not overlap.
        pieces.map(|(at, len)| unsafe { std::slice::from_raw_parts_mut(at, len) })
    }
}

impl Drop for PageRead {
    fn drop(&mut self) {
        self.loans.holders[self.page as usize].fetch_sub(1, Ordering::Release);
    }
}

impl Drop for PageFill {
    fn drop(&mut self) {
        self.loans.holders[self.page as usize].store(0, Ordering::Release);
    }
}
