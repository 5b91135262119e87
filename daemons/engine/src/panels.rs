//! Panels kept on disk, so that a restart repacks nothing.
//!
//! ```text
//! CACHE/vitriol/panels/
//!   DIGEST-v1.panels   the panels of the model with this digest, in layout 1 (panels/file.rs)
//!   PATH.json          what was found at a model's path, and its digest (panels/cache.rs)
//!   PID-0.new          a file that is being written; locked as long as its writer lives
//! ```
//! Files are written whole and renamed, never changed. They are read into memory of our own: mapped
//! pages would be shared and could be taken back, but are small ones, and decoding from those is
//! slower (ADR 8). What is computed with is what was checked, whatever happens to the file later.

mod cache;
mod digest;
mod file;

pub use cache::{CacheError, PanelCache, digest_model};
pub use digest::ModelDigest;
pub use file::{PanelFile, PanelFileError, PanelWriter};

/// The version of what panel files hold: the bytes of every kind of panel, and which matrices a
/// model's tensors become. Whoever changes either adds one here.
pub const LAYOUT_VERSION: u32 = 1;
