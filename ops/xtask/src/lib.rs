//! Checks of the house's own structure, and the documents generated from code. `cargo xtask` runs
//! them by hand; the tests in `tests/` run them with everything else.

pub mod api_map;
pub mod layers;
pub mod profile_docs;
pub mod rust_source;
pub mod workspace;

use std::path::{Path, PathBuf};

/// The root of the checkout that this binary was built from.
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}
