//! Demiurge as clients meet it: the real binary, in front of an engine that follows a script.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod backpressure;
mod cancel;
mod connections;
mod decisions;
mod demiurge;
mod drain;
mod engine_loss;
mod refusals;
mod resubmission;
mod scripted_engine;
mod slots;
mod wire;
