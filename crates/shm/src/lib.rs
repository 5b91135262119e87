//! Every memory mapping of the house.
//!
//! [`MappedFile`] is a model file, read-only. [`Reservation`] is a fixed range of address space of
//! which parts are committed and given back as the need changes; KV tensors and repacked weights
//! live in one. [`Memfd`] is memory that processes share. Nothing outside this crate calls `mmap`.
#![allow(
    unsafe_code,
    reason = "this crate owns the house's mappings: mmap is FFI"
)]

mod mapped_file;
mod memfd;
mod reservation;

pub use mapped_file::{FileIdentity, MapError, MappedFile};
pub use memfd::{Memfd, MemfdError, Pages};
pub use reservation::{KeptRange, Reservation, ReservationError};

/// Size to which commits are rounded: one huge page of x86-64 and aarch64 with 4 KiB granules.
pub const EXTENT_BYTES: usize = 2 << 20;
