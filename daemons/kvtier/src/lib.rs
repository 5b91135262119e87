//! kvtier: KV blocks of the engines in host RAM, beyond the life of the process that computed them.
//!
//! It keeps opaque bytes under the names that engines give them and knows of no model. Read on in
//! `slots` (who may write, read and reuse a slot, whoever crashes), `arena` (the memory they lie in),
//! `mirror` (the disk), `catalogue` (which records make up a conversation), `sessions` (what is done with
//! whole ones), `transfer` (those as files), `worth` (what makes room for what), `tier` (how they work together), `service`
//! (what engines see of it), `spill` (when records go to the disk) and `app` (the process).

mod app;
pub mod arena;
mod args;
pub mod catalogue;
mod config;
mod entry;
mod metrics;
pub mod mirror;
pub mod record;
pub mod service;
pub mod sessions;
pub mod slots;
mod spill;
pub mod tier;
pub mod transfer;
pub mod worth;

pub use config::{Config, ConfigError, MirrorConfig};
pub use entry::main;
