//! Requests as clients write them, parsed once into typed views.
//!
//! A body is scanned once into [`Fields`]: names and raw JSON values, borrowed from the body. Known
//! fields are taken out by type; what is left are the fields this release does not know, which are
//! kept and ignored. Messages stay raw JSON: the engine's template reads the client's own bytes.

mod chat;
mod completion;
mod fields;
mod generation;
mod messages;
mod slots;
mod tokens;

pub use chat::ChatRequest;
pub use completion::CompletionRequest;
pub use generation::Generation;
pub use slots::SlotBody;
pub use tokens::{DetokenizeBody, TokenizeBody};
