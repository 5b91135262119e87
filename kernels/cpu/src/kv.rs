use thiserror::Error;
use vitriol_shm::{EXTENT_BYTES, Reservation, ReservationError};

use crate::generic::attention::{CHUNK_PAGES, ChunkView};

/// Tokens of a page.
pub const PAGE_TOKENS: usize = 64;

/// Longest head the attention kernels take.
pub const HEAD_DIM_MAX: usize = 256;

/// How keys or values are encoded in their pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvCodec {
    /// IEEE binary32, as computed.
    F32,
}

/// Size of a KV store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers.
    pub n_layers: usize,
    /// Key/value heads of each layer.
    pub n_kv_heads: usize,
    /// Elements of a head, at most 256; stored padded to 16.
    pub head_dim: usize,
    /// Pages of [`PAGE_TOKENS`] tokens that address space is reserved for.
    pub pages: usize,
}

impl KvShape {
    /// Bytes of one page of one (layer, side).
    const fn tensor_page_bytes(&self) -> usize {
        self.head_dim.next_multiple_of(16) * PAGE_TOKENS * size_of::<f32>() * self.n_kv_heads
    }

    /// Bytes of one page over all layers and both sides.
    #[must_use]
    pub const fn bytes_per_page(&self) -> usize {
        self.tensor_page_bytes() * 2 * self.n_layers
    }

    /// Bytes of memory that committing `pages` pages takes, whole extents.
    #[must_use]
    pub const fn bytes_committed(&self, pages: usize) -> usize {
        let tensor = self.tensor_page_bytes().saturating_mul(pages);
        tensor
            .next_multiple_of(EXTENT_BYTES)
            .saturating_mul(2 * self.n_layers)
    }

    /// Most pages whose memory, in whole extents, is within `bytes`.
    #[must_use]
    pub fn pages_within(&self, bytes: u64) -> usize {
        let tensor = bytes / (2 * self.n_layers as u64);
        let extents = tensor / EXTENT_BYTES as u64;
        let pages = extents * EXTENT_BYTES as u64 / self.tensor_page_bytes() as u64;
        usize::try_from(pages).unwrap_or(usize::MAX)
    }
}

/// Where a token's keys and values go, in every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPlace {
    /// Page index.
    pub page: u32,
    /// Token inside the page, below [`PAGE_TOKENS`].
    pub row: u32,
}

/// Why a KV store could not be made, grown or shrunk.
#[derive(Debug, Error)]
pub enum KvError {
    /// A size is zero, too large, or overflows the address space.
    #[error(
        "no KV store of {} layers × {} heads × {} elements × {} pages: sizes are at least 1, heads at most 256 elements",
        .0.n_layers, .0.n_kv_heads, .0.head_dim, .0.pages
    )]
    Shape(KvShape),
    /// More pages than were reserved.
    #[error("cannot commit {pages} KV pages: {reserved} are reserved; raise kv_bytes_max")]
    Reserved {
        /// Pages asked for.
        pages: usize,
        /// Pages reserved.
        reserved: usize,
    },
    /// The system refuses address space or memory.
    #[error("cannot map KV pages")]
    Map(#[from] ReservationError),
}

/// Keys and values of all layers in pages of 64 tokens.
///
/// ```text
///   (layer 0, K) |page 0|page 1|…| reserved |   one fixed range per (layer, side); page i names
///   (layer 0, V) |page 0|page 1|…| reserved |   the same tokens in all of them
///   …
///   page of K: per kv head 4 tiles of [head_dim][16 tokens]     head_dim padded to 16
///   page of V: per kv head [64 tokens][head_dim]
/// ```
/// Memory is committed in extents up to a watermark of pages; pages below it may be used. Fresh
/// memory is zero; a page that was used before holds leftovers until [`KvStore::zero_page`]. No
/// result depends on them: what a query does not see is masked before it is used.
#[derive(Debug)]
pub struct KvStore {
    shape: KvShape,
    dim: usize,
    /// Watermark in pages.
    pages: usize,
    /// By layer: keys, values.
    tensors: Vec<[Reservation; 2]>,
}

#[derive(Clone, Copy)]
enum Side {
    Keys = 0,
    Values = 1,
}

impl KvStore {
    /// Reserves address space; no memory is used before [`KvStore::commit`].
    ///
    /// Errors: an impossible shape, or no address space
    pub fn new(shape: KvShape) -> Result<Self, KvError> {
        let KvShape {
            n_layers,
            n_kv_heads,
            head_dim,
            pages,
        } = shape;
        if n_layers == 0 || n_kv_heads == 0 || pages == 0 || !(1..=HEAD_DIM_MAX).contains(&head_dim)
        {
            return Err(KvError::Shape(shape));
        }
        let dim = head_dim.next_multiple_of(16);
        let tensor_bytes = (dim * PAGE_TOKENS * size_of::<f32>())
            .checked_mul(n_kv_heads)
            .and_then(|page| page.checked_mul(pages))
            .filter(|&bytes| bytes <= isize::MAX as usize && u32::try_from(pages).is_ok())
            .ok_or(KvError::Shape(shape))?;
        let mut tensors = Vec::with_capacity(n_layers);
        for _ in 0..n_layers {
            tensors.push([
                Reservation::new(tensor_bytes)?,
                Reservation::new(tensor_bytes)?,
            ]);
        }
        Ok(Self {
            shape,
            dim,
            pages: 0,
            tensors,
        })
    }

    /// Shape given at [`KvStore::new`].
    #[must_use]
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Encoding of every layer and side.
    #[must_use]
    pub fn codec(&self) -> KvCodec {
        KvCodec::F32
    }

    /// Pages that may be used now.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Bytes of one page over all layers and both sides.
    #[must_use]
    pub fn bytes_per_page(&self) -> usize {
        self.shape.bytes_per_page()
    }

    /// Bytes of memory committed, whole extents.
    #[must_use]
    pub fn bytes_committed(&self) -> usize {
        self.tensors
            .iter()
            .flatten()
            .map(Reservation::committed_bytes)
            .sum()
    }

    /// Raises the watermark to `pages` (no effect if it is there already).
    ///
    /// Errors: beyond the reservation, or the system refuses memory; the watermark then stays,
    /// extents already committed are kept for the next try
    pub fn commit(&mut self, pages: usize) -> Result<(), KvError> {
        if pages > self.shape.pages {
            return Err(KvError::Reserved {
                pages,
                reserved: self.shape.pages,
            });
        }
        let bytes = pages * self.page_bytes();
        for tensor in self.tensors.iter_mut().flatten() {
            tensor.commit(0..bytes)?;
        }
        self.pages = self.pages.max(pages);
        Ok(())
    }

    /// Lowers the watermark to `pages`: pages from there on lose their content, extents that hold
    /// none of the others are given back.
    ///
    /// Errors: the system refuses; the watermark is lowered all the same
    pub fn decommit(&mut self, pages: usize) -> Result<(), KvError> {
        if pages >= self.pages {
            return Ok(());
        }
        self.pages = pages;
        let kept = (pages * self.page_bytes()).next_multiple_of(EXTENT_BYTES);
        for tensor in self.tensors.iter_mut().flatten() {
            let len = tensor.len();
            tensor.decommit(kept.min(len)..len)?;
        }
        Ok(())
    }

    /// Zeroes a page in all layers, both sides.
    ///
    /// # Panics
    /// If the page is not below the watermark.
    pub fn zero_page(&mut self, page: u32) {
        self.check_page(page);
        let bytes = self.page_bytes();
        for tensor in self.tensors.iter().flatten() {
            let at = tensor.as_ptr().wrapping_add(page as usize * bytes);
            // SAFETY: the page is committed and `&mut self` makes us its only user.
            unsafe { std::ptr::write_bytes(at, 0, bytes) };
        }
    }

    /// Copies a page over another in all layers, both sides (moves at step boundaries).
    ///
    /// # Panics
    /// If a page is not below the watermark.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        self.check_page(from);
        self.check_page(to);
        let bytes = self.page_bytes();
        for tensor in self.tensors.iter().flatten() {
            let at = |page: u32| tensor.as_ptr().wrapping_add(page as usize * bytes);
            // SAFETY: both pages are committed and `&mut self` makes us their only user; the same
            // page twice is an overlap that `copy` allows.
            unsafe { std::ptr::copy(at(from), at(to), bytes) };
        }
    }

    /// # Panics
    /// If the page is not below the watermark.
    pub(crate) fn check_page(&self, page: u32) {
        assert!(
            (page as usize) < self.pages,
            "KV page {page} of {} committed",
            self.pages
        );
    }

    /// head_dim padded to 16.
    pub(crate) fn dim(&self) -> usize {
        self.dim
    }

    fn page_bytes(&self) -> usize {
        self.shape.tensor_page_bytes()
    }

    fn head(&self, layer: usize, side: Side, page: u32, kv_head: usize) -> *mut f32 {
        let base = self.tensors[layer][side as usize].as_ptr().cast::<f32>();
        let head_len = self.dim * PAGE_TOKENS;
        base.wrapping_add((page as usize * self.shape.n_kv_heads + kv_head) * head_len)
    }

    /// The pages of chunk `chunk` of a sequence for one kv head.
    pub(crate) fn chunk(
        &self,
        layer: usize,
        kv_head: usize,
        pages: &[u32],
        chunk: usize,
    ) -> ChunkView {
        let mut keys = [std::ptr::null(); CHUNK_PAGES];
        let mut values = [std::ptr::null(); CHUNK_PAGES];
        for (i, &page) in pages
            .iter()
            .skip(chunk * CHUNK_PAGES)
            .take(CHUNK_PAGES)
            .enumerate()
        {
            keys[i] = self.head(layer, Side::Keys, page, kv_head).cast_const();
            values[i] = self.head(layer, Side::Values, page, kv_head).cast_const();
        }
        ChunkView {
            keys,
            values,
            dim: self.dim,
        }
    }

    /// Writes one head of one token.
    ///
    /// # Safety
    /// Nobody else reads or writes this kv head of this page. The page is committed, the row below
    /// [`PAGE_TOKENS`], k and v are head_dim long.
    pub(crate) unsafe fn write_head(
        &self,
        layer: usize,
        kv_head: usize,
        place: KvPlace,
        k: &[f32],
        v: &[f32],
    ) {
        let row = place.row as usize;
        let keys = self.head(layer, Side::Keys, place.page, kv_head);
        let column = keys.wrapping_add(row / 16 * self.dim * 16 + row % 16);
        for (d, &value) in k.iter().enumerate() {
            // SAFETY: tile row/16 holds dim rows of 16 keys.
            unsafe { column.wrapping_add(d * 16).write(value) };
        }
        let values = self.head(layer, Side::Values, place.page, kv_head);
        // SAFETY: row `row` of [64][dim].
        unsafe {
            std::ptr::copy_nonoverlapping(v.as_ptr(), values.wrapping_add(row * self.dim), v.len());
        }
    }
}
