//! Each op once, over any [`crate::simd::Simd`].

pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod formats;
pub(crate) mod matmul;
