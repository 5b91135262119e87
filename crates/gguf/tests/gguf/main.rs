//! The reader against files built byte by byte, damaged files, and random damage.

mod damaged;
#[allow(dead_code, reason = "the fuzz target's seeds use more of it")]
mod damages;
mod properties;
mod reading;
mod splits;
mod writer;
