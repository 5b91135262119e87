//! One file per instruction set: what a vector operation is there, nothing else.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) mod sse41;
