//! kvtier as an engine meets it.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its functions too"
)]

mod engine;
mod process;
mod service;
