//! Each op once, over any [`crate::simd::Simd`].

#![allow(
    clippy::needless_range_loop,
    reason = "tiles are arrays over const generic indices; iterators would hide which is which"
)]

pub(crate) mod attention;
pub(crate) mod dot;
pub(crate) mod elementwise;
pub(crate) mod formats;
pub(crate) mod kv_write;
pub(crate) mod machine;
pub(crate) mod matmul;
pub(crate) mod quants;
pub(crate) mod rows;
pub(crate) mod tokens;
pub(crate) mod values;
