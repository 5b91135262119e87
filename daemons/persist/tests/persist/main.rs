//! Persist as a process, beside an engine that the test plays.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod house;
mod launches;
mod memory;
mod process;
