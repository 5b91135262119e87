//! Where a sequence's keys and values are: pages, block tables and the keys of reusable blocks.
//!
//! The bytes themselves are in `vitriol_kernels_cpu::KvStore`; everything here is bookkeeping on the
//! step thread, without I/O.

mod block_key;
mod block_table;
mod pages;

pub use block_key::{BlockKey, BlockKeys};
pub use block_table::BlockTable;
pub use pages::{PagePool, PageRef, PoolUse};

/// Tokens of one page of one (layer, side), and of one block.
pub const PAGE_TOKENS: usize = 64;
