//! The engine: GGUF inference on this machine, served to Demiurge over a Unix socket.
//!
//! One thread owns the KV pages and the scheduler ([`step`]); request threads turn messages into
//! tokens ([`request`]) and the session turns tokens into text ([`answer`]). `step.rs` is the map of
//! a step: plan, batch, forward, sample, emit.

pub mod answer;
pub mod bench;
pub mod commands;
pub mod divergence;
pub mod engine;
pub mod forward;
pub mod generate;
pub mod kv;
pub mod kv_ahead;
pub mod load;
pub mod metrics;
pub mod model;
pub mod panels;
pub mod request;
pub mod sampler;
pub mod scheduler;
pub mod sequence;
pub mod service;
pub mod session;
pub mod shedding;
pub mod speculation;
pub mod step;
pub mod stop;
pub mod template;
pub mod tier;
