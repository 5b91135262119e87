//! Persist's decisions: when a daemon that hangs is restarted, when an engine is restarted before memory
//! runs out, whether a checkpoint is worth writing, and what a launch differs in from the one before.
//!
//! All of it is pure: polls, clocks and files come as arguments, and what is to be done comes back. Times
//! are of any clock that only goes forward.

pub mod checkpoint;
pub mod fingerprint;
pub mod hang;
pub mod memory;
pub mod restarts;
