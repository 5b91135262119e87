//! Where a sequence's keys and values are: pages, block tables and the keys of reusable blocks.
//!
//! The bytes themselves are in `vitriol_kernels_cpu::KvStore`; everything here is bookkeeping on the
//! step thread, without I/O. Layers that keep the same tokens form a KV group with pages of its own;
//! a sequence has one block table in each, and a windowed one gives back what it has passed.

mod block_key;
mod block_table;
mod block_tables;
mod group_pools;
mod page_plan;
mod pages;
mod window;

pub use block_key::{BlockKey, BlockKeys, PromptBlocks};
pub use block_table::BlockTable;
pub use block_tables::{BlockTables, Lacking, Storing};
pub use group_pools::{GroupPool, GroupPools, Growth, longest_prefix};
pub use page_plan::{PagePlan, tokens_within};
pub use pages::{FullBlock, PagePool, PageRef, PoolUse};
pub use window::Window;

use vitriol_kernels_core::KvCodec;

/// Tokens of one page of one (layer, side), and of one block.
pub const PAGE_TOKENS: usize = 64;

/// Stands in a block table for a page that its window has passed; no kernel reads it.
pub const NO_PAGE: u32 = u32::MAX;

/// How a KV store encodes its two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCodecs {
    pub keys: KvCodec,
    pub values: KvCodec,
}

impl KvCodecs {
    /// As computed, nothing rounded.
    pub const F32: Self = Self {
        keys: KvCodec::F32,
        values: KvCodec::F32,
    };
}
