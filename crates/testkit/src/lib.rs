//! What the tests of the house stand on: the real binaries started in a directory of their own, a
//! small HTTP client that can be rude, reference records, seeds that are printed, and waiting with
//! deadlines. For tests only; no crate of the house is used here, so every layer may test with it.
#![allow(
    clippy::print_stderr,
    reason = "tests print seeds and logs where a failure shows them"
)]

pub mod gguf_file;
pub mod golden;
pub mod house;
pub mod http;
pub mod npy;
pub mod places;
pub mod process;

mod deadline;
mod not_run;
mod seed;

pub use deadline::{eventually, holds_for};
pub use house::{House, Setup};
pub use not_run::not_run;
pub use seed::Seed;
