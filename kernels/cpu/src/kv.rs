mod loan;

use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;
use vitriol_kernels_core::kv::Rotation;
use vitriol_kernels_core::{KvCodec, KvHeads, bytes_per_token};
use vitriol_shm::{EXTENT_BYTES, Reservation, ReservationError};

use crate::cpu::Cpu;
use crate::generic::attention::{CHUNK_PAGES, ChunkView};
use crate::generic::kv_write::HeadWrite;
use loan::Loans;
pub use loan::{PageFill, PageRead};

/// Tokens of a page.
pub const PAGE_TOKENS: usize = 64;

/// Longest head the attention kernels take: DeepSeek's compressed keys, the widest known.
pub const HEAD_DIM_MAX: usize = 576;

/// Size and encoding of a KV store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers.
    pub n_layers: usize,
    /// Key/value heads of each layer.
    pub n_kv_heads: usize,
    /// Elements of a key head, at most [`HEAD_DIM_MAX`].
    pub key_dim: usize,
    /// Elements of a value head, at most [`HEAD_DIM_MAX`].
    pub value_dim: usize,
    /// Encoding of the keys.
    pub key_codec: KvCodec,
    /// Encoding of the values.
    pub value_codec: KvCodec,
    /// Pages of [`PAGE_TOKENS`] tokens that address space is reserved for.
    pub pages: usize,
}

impl KvShape {
    /// Bytes of one page of one layer: keys, values.
    const fn tensor_page_bytes(&self) -> [usize; 2] {
        let page_heads = self.n_kv_heads * PAGE_TOKENS;
        [
            self.key_codec.head_bytes(self.key_dim) * page_heads,
            self.value_codec.head_bytes(self.value_dim) * page_heads,
        ]
    }

    /// What a token caches in a store of this shape.
    #[must_use]
    pub const fn heads(&self) -> KvHeads {
        KvHeads {
            n_layers: self.n_layers,
            n_kv_heads: self.n_kv_heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
        }
    }

    /// Bytes of one page over all layers and both sides.
    #[must_use]
    pub const fn bytes_per_page(&self) -> usize {
        PAGE_TOKENS * bytes_per_token(self.heads(), self.key_codec, self.value_codec) as usize
    }

    /// Bytes of memory that a store of `pages` pages takes with all of them committed, whole extents.
    #[must_use]
    pub const fn bytes_committed(&self, pages: usize) -> usize {
        let [keys, values] = self.tensor_page_bytes();
        let keys = keys.saturating_mul(pages).next_multiple_of(EXTENT_BYTES);
        let values = values.saturating_mul(pages).next_multiple_of(EXTENT_BYTES);
        keys.saturating_add(values).saturating_mul(self.n_layers)
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
        "no KV store of {} layers × {} heads × {} and {} elements × {} pages: sizes are at least 1, heads at most {HEAD_DIM_MAX} elements",
        .0.n_layers, .0.n_kv_heads, .0.key_dim, .0.value_dim, .0.pages
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
///   page of K: per kv head 4 tiles of 16 tokens, f32 and f16 as [key_dim][16]; quantised ones have
///              the tile's scales first, then per block of 32 elements words of four (or eight)
///              elements of one token, 16 tokens side by side, as an int8 dot product wants them
///   page of V: per kv head f32 and f16 as [64 tokens][value_dim]; quantised ones have the scales
///              of all 64 tokens first, block by block, then the rows
/// ```
/// Heads are padded with zeros to 16 elements, for quantised codecs to blocks of 32. What a kv head
/// takes of a page is a multiple of 64 bytes.
///
/// Memory is committed in extents up to a watermark of pages; pages below it may be used. The tensors
/// come to run ahead of it by different parts of an extent: pages come to all of them at once, and if
/// all crossed into their next extents with the same page, that page would wait for as many extents as
/// there are tensors.
///
/// Fresh memory is zero; a page that was used before holds leftovers until [`KvStore::zero_page`]. No
/// result depends on them: what a query does not see is masked before it is used.
#[derive(Debug)]
pub struct KvStore {
    shape: KvShape,
    /// Watermark in pages.
    pages: usize,
    /// By layer: keys, values.
    tensors: Vec<[Reservation; 2]>,
    loans: Arc<Loans>,
}

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Keys = 0,
    Values = 1,
}

impl KvStore {
    /// Reserves address space; no memory is used before [`KvStore::commit`].
    ///
    /// Errors: an impossible shape, or no address space
    pub fn new(shape: KvShape) -> Result<Self, KvError> {
        let dims = [shape.key_dim, shape.value_dim];
        let counts = [shape.n_layers, shape.n_kv_heads, shape.pages];
        if counts.contains(&0) || !dims.iter().all(|dim| (1..=HEAD_DIM_MAX).contains(dim)) {
            return Err(KvError::Shape(shape));
        }
        let (keys, values) = (
            shape.key_codec.head_bytes(shape.key_dim),
            shape.value_codec.head_bytes(shape.value_dim),
        );
        let tensor_bytes = |head: usize| {
            (head * PAGE_TOKENS)
                .checked_mul(shape.n_kv_heads)
                .and_then(|page| page.checked_mul(shape.pages))
                .filter(|&bytes| bytes <= isize::MAX as usize && u32::try_from(shape.pages).is_ok())
                .ok_or(KvError::Shape(shape))
        };
        let (keys, values) = (tensor_bytes(keys)?, tensor_bytes(values)?);
        let mut tensors = Vec::with_capacity(shape.n_layers);
        for _ in 0..shape.n_layers {
            tensors.push([Reservation::new(keys)?, Reservation::new(values)?]);
        }
        let page_bytes = shape.tensor_page_bytes();
        Ok(Self {
            shape,
            pages: 0,
            loans: Loans::new(tensors.iter().flatten(), page_bytes, shape.pages),
            tensors,
        })
    }

    /// Shape given at [`KvStore::new`].
    #[must_use]
    pub fn shape(&self) -> KvShape {
        self.shape
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

    /// Ranges of memory that a page is spread over: one for each layer and side.
    #[must_use]
    pub fn tensors(&self) -> usize {
        2 * self.tensors.len()
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
        self.check_reserved(pages)?;
        for (tensor, bytes) in sides_mut(&mut self.tensors, self.shape, pages) {
            tensor.commit(bytes)?;
        }
        self.pages = self.pages.max(pages);
        Ok(())
    }

    /// As [`KvStore::commit`], on all threads of `device`: memory that the machine has to find for many pages
    /// comes the sooner, which a virtual one may have to ask its host for.
    ///
    /// Errors: as [`KvStore::commit`]
    pub fn commit_on(&mut self, device: &Cpu, pages: usize) -> Result<(), KvError> {
        self.check_reserved(pages)?;
        let mut lacking = Vec::new();
        for (tensor, bytes) in sides_mut(&mut self.tensors, self.shape, pages) {
            if tensor.committed_bytes() < bytes {
                tensor.give_access(bytes)?;
                lacking.push(Mutex::new((tensor, bytes, Ok(()))));
            }
        }
        device.for_each(lacking.len(), |index| {
            let mut lacking = lacking[index]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let (tensor, bytes, outcome) = &mut *lacking;
            *outcome = tensor.commit(*bytes);
        });
        for lacking in lacking {
            lacking
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner)
                .2?;
        }
        self.pages = self.pages.max(pages);
        Ok(())
    }

    /// Does one tensor's part of raising the watermark to `pages`, no more than an extent of memory where it
    /// rises page by page; returns whether the watermark is there.
    ///
    /// Errors: as [`KvStore::commit`]
    pub fn commit_part(&mut self, pages: usize) -> Result<bool, KvError> {
        let within = pages.min(self.shape.pages);
        {
            let tensors = sides_mut(&mut self.tensors, self.shape, within);
            let mut lacking = tensors.filter(|(tensor, to)| tensor.committed_bytes() < *to);
            if let Some((tensor, bytes)) = lacking.next() {
                tensor.commit(bytes)?;
            }
            if lacking.next().is_some() {
                return Ok(false);
            }
        }
        self.commit(pages)?;
        Ok(true)
    }

    /// Lowers the watermark to `pages`: pages from there on lose their content, extents that hold
    /// none of the others are given back.
    ///
    /// Errors: the system refuses; the watermark is lowered all the same
    ///
    /// # Panics
    /// If one of the pages that go is lent.
    pub fn decommit(&mut self, pages: usize) -> Result<(), KvError> {
        if pages >= self.pages {
            return Ok(());
        }
        self.loans.check_none_from(pages);
        self.pages = pages;
        for (tensor, bytes) in sides_mut(&mut self.tensors, self.shape, pages) {
            tensor.decommit(bytes)?;
        }
        Ok(())
    }

    /// Lends a page to be read by another thread.
    ///
    /// # Panics
    /// If the page is not below the watermark, or is being filled.
    pub fn lend(&mut self, page: u32) -> PageRead {
        self.check_readable(page);
        PageRead::new(&self.loans, page)
    }

    /// Lends a page to be filled by another thread.
    ///
    /// # Panics
    /// If the page is not below the watermark, or is lent.
    pub fn lend_to_fill(&mut self, page: u32) -> PageFill {
        self.check_writable(page);
        PageFill::new(&self.loans, page)
    }

    /// Whether a page is lent; what was written to one that no longer is can be read.
    #[must_use]
    pub fn is_lent(&self, page: u32) -> bool {
        self.loans.is_lent(page)
    }

    /// Zeroes a page in all layers, both sides.
    ///
    /// # Panics
    /// If the page is not below the watermark, or is lent.
    pub fn zero_page(&mut self, page: u32) {
        self.check_writable(page);
        for (tensor, bytes) in self.sides() {
            let at = tensor.as_ptr().wrapping_add(page as usize * bytes);
            // SAFETY: the page is committed, and `&mut self` and that it is not lent make us its only user.
            unsafe { std::ptr::write_bytes(at, 0, bytes) };
        }
    }

    /// Copies a page over another in all layers, both sides (moves at step boundaries).
    ///
    /// # Panics
    /// If a page is not below the watermark, the first is being filled or the second lent.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        self.check_readable(from);
        self.check_writable(to);
        for (tensor, bytes) in self.sides() {
            let at = |page: u32| tensor.as_ptr().wrapping_add(page as usize * bytes);
            // SAFETY: both pages are committed, nobody writes to the first, and `&mut self` and that it is not
            // lent make us the second's only user; the same page twice is an overlap that `copy` allows.
            unsafe { std::ptr::copy(at(from), at(to), bytes) };
        }
    }

    /// # Panics
    /// If the page is not below the watermark, or is being filled.
    pub(crate) fn check_readable(&self, page: u32) {
        self.check_committed(page);
        self.loans.check_readable(page);
    }

    /// # Panics
    /// If the page is not below the watermark, or is lent.
    pub(crate) fn check_writable(&self, page: u32) {
        self.check_committed(page);
        self.loans.check_writable(page);
    }

    fn check_reserved(&self, pages: usize) -> Result<(), KvError> {
        let reserved = self.shape.pages;
        match pages <= reserved {
            true => Ok(()),
            false => Err(KvError::Reserved { pages, reserved }),
        }
    }

    fn check_committed(&self, page: u32) {
        assert!(
            (page as usize) < self.pages,
            "KV page {page} of {} committed",
            self.pages
        );
    }

    /// Elements of a stored key head, padding included.
    pub(crate) fn stored_key_dim(&self) -> usize {
        self.shape.key_codec.stored_dim(self.shape.key_dim)
    }

    /// Elements of a stored value head, padding included.
    pub(crate) fn stored_value_dim(&self) -> usize {
        self.shape.value_codec.stored_dim(self.shape.value_dim)
    }

    /// Rotation of keys and queries.
    pub(crate) fn key_rotation(&self) -> Rotation {
        self.shape.key_codec.key_rotation(self.shape.key_dim)
    }

    /// Rotation of values and of the attention's output.
    pub(crate) fn value_rotation(&self) -> Rotation {
        self.shape.value_codec.value_rotation(self.shape.value_dim)
    }

    /// All tensors, each with the bytes of its pages.
    fn sides(&self) -> impl Iterator<Item = (&Reservation, usize)> {
        let bytes = self.shape.tensor_page_bytes();
        self.tensors
            .iter()
            .flat_map(move |sides| sides.iter().zip(bytes))
    }

    /// What kv head `kv_head` has of a page; the address is meaningless where the page is not
    /// committed.
    fn head(&self, layer: usize, side: Side, page: u32, kv_head: usize) -> *mut u8 {
        let page_bytes = self.shape.tensor_page_bytes()[side as usize];
        let at = (page as usize).wrapping_mul(page_bytes);
        self.tensors[layer][side as usize]
            .as_ptr()
            .wrapping_add(at)
            .wrapping_add(kv_head * (page_bytes / self.shape.n_kv_heads))
    }

    /// The pages of chunk `chunk` of a sequence for one kv head.
    pub(crate) fn chunk(
        &self,
        layer: usize,
        kv_head: usize,
        pages: &[u32],
        chunk: usize,
    ) -> ChunkView {
        let mut keys = [std::ptr::null(); CHUNK_PAGES + 1];
        let mut values = [std::ptr::null(); CHUNK_PAGES + 1];
        let chunk_pages = pages.iter().skip(chunk * CHUNK_PAGES).take(CHUNK_PAGES + 1);
        for (i, &page) in chunk_pages.enumerate() {
            keys[i] = self.head(layer, Side::Keys, page, kv_head).cast_const();
            values[i] = self.head(layer, Side::Values, page, kv_head).cast_const();
        }
        ChunkView {
            keys,
            values,
            key_codec: self.shape.key_codec,
            value_codec: self.shape.value_codec,
            key_dim: self.stored_key_dim(),
            value_dim: self.stored_value_dim(),
        }
    }

    /// What the kernels need to write one side of one head of one token.
    pub(crate) fn head_write<'a>(
        &self,
        layer: usize,
        side: Side,
        kv_head: usize,
        place: KvPlace,
        head: &'a [f32],
    ) -> HeadWrite<'a> {
        let (codec, rotation) = match side {
            Side::Keys => (self.shape.key_codec, self.key_rotation()),
            Side::Values => (self.shape.value_codec, self.value_rotation()),
        };
        HeadWrite {
            codec,
            rotation,
            page: self.head(layer, side, place.page, kv_head),
            row: place.row as usize,
            head,
        }
    }
}

/// All tensors, each with the bytes to commit of it for a watermark of `pages`.
fn sides_mut(
    tensors: &mut [[Reservation; 2]],
    shape: KvShape,
    pages: usize,
) -> impl Iterator<Item = (&mut Reservation, usize)> {
    let page_bytes = shape.tensor_page_bytes();
    let sides = 2 * tensors.len();
    let tensors = tensors.iter_mut().flatten().enumerate();
    tensors.map(move |(index, tensor)| {
        let bytes = page_bytes[index % 2];
        // The part of an extent that it is ahead of the first tensor, when that has come to the next.
        let grown = pages.saturating_sub(1).min(EXTENT_BYTES / bytes);
        let pages = pages + grown * index / sides;
        (tensor, pages.min(shape.pages) * bytes)
    })
}
