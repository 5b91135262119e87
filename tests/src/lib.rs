//! Tests of the house as a whole, one file below `tests/` for each kind. This library holds what the
//! golden tests share: a model in this process, and sequences fed to its forward pass by hand.

pub mod golden;
pub mod judge;
pub mod models;
pub mod zoo;

mod runner;

pub use runner::{Feed, Runner, RunnerOptions, Sequence, Trace};
