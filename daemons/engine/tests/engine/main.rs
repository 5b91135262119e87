//! The engine from outside: one program, so that the engine is linked into it once.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its functions too"
)]

mod bench;
mod damaged_models;
mod damaged_weights;
mod limits;
mod model_names;
mod refused_starts;
mod session;
mod speculation;
mod step_loop;
mod tier;
mod windows;
