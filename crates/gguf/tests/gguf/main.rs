//! The reader against files built byte by byte, damaged files, and random damage.

mod damaged;
mod properties;
mod reading;
mod writer;
