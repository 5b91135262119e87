//! Persist watches the daemons of the house: one in which nothing moves any more is ended, and its
//! supervisor starts it again. Its decisions are pure: polls, clocks and files come as arguments, and what
//! is to be done comes back. Times are of any clock that only goes forward. Beside that it keeps a record of
//! what the daemons were launched with.
//!
//! Read on in `hang` and `restarts` (when), `watch` and `ending` (how); `memory` and
//! `bounce` (a restart for want of memory); `warmup` and `warmer` (what a KV tier that lost its memory
//! gets back); `journal` and `launches` (the record), `service` (what the CLI
//! sees of it).

mod app;
mod args;
pub mod bounce;
mod config;
mod deadline;
mod ending;
mod entry;
pub mod hang;
pub mod journal;
mod launches;
pub mod memory;
pub mod metrics;
pub mod restarts;
mod service;
mod threads;
mod warmer;
pub mod warmup;
mod watch;

pub use config::{Config, Watched};
pub use entry::main;
