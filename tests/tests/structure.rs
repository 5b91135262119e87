//! The house's structure: layers, proto edges, where unsafe lies, generated documents.

use xtask::{layers, profile_docs, workspace_root};

#[test]
fn layers_and_api_map_hold() {
    let broken = layers::check(&workspace_root()).unwrap();
    assert!(
        broken.is_empty(),
        "the structure is broken:\n{}",
        broken.join("\n")
    );
}

#[test]
fn profile_reference_is_what_the_schema_says() {
    let path = profile_docs::path(&workspace_root());
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == profile_docs::expected(),
        "{} is stale: run `cargo xtask profile-docs`",
        path.display()
    );
}
