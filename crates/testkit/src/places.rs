//! Where tests find the checkout, the binaries of this build, models and golden records.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

const DEFAULT_MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

#[expect(
    clippy::disallowed_methods,
    reason = "tests have no main; this is where they read it"
)]
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// The root of the checkout.
pub fn checkout() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// The binary `name` of the build that the running test belongs to (`target/PROFILE/name`).
/// Errors: it was not built; the message has the command that builds it.
pub fn binary(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe().context("find the test's own executable")?;
    let directory = test
        .ancestors()
        .nth(2)
        .context("the test lies in target/PROFILE/deps")?;
    let path = directory.join(name);
    if !path.is_file() {
        bail!(
            "{}: not built; run `cargo build --release --workspace`",
            path.display()
        );
    }
    Ok(path)
}

/// The default model: `$VITRIOL_TEST_MODEL`, else where `vitriol model fetch` puts it.
/// Errors: the file is not there; the message has the command that fetches it.
pub fn default_model() -> Result<PathBuf> {
    let path = variable("VITRIOL_TEST_MODEL").map_or_else(fetched_model, Ok)?;
    if !path.is_file() {
        bail!(
            "{}: no such model; run `vitriol model fetch`",
            path.display()
        );
    }
    Ok(path)
}

fn fetched_model() -> Result<PathBuf> {
    let cache = variable("XDG_CACHE_HOME")
        .or_else(|| Some(variable("HOME")?.join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set: set VITRIOL_TEST_MODEL")?;
    Ok(cache.join("vitriol/models").join(DEFAULT_MODEL))
}

/// The zoo model `name` (e.g. `llama.f32`): `$VITRIOL_ZOO/out` if set, else `target/zoo`.
/// Errors: the file is not there; the message has the command that makes it.
pub fn zoo_model(name: &str) -> Result<PathBuf> {
    let file = format!("{name}.gguf");
    let made = checkout().join("target/zoo").join(&file);
    let path = match variable("VITRIOL_ZOO").map(|zoo| zoo.join("out").join(&file)) {
        Some(given) if given.is_file() => given,
        _ => made,
    };
    if !path.is_file() {
        bail!("{}: no such model; run `ops/test zoo`", path.display());
    }
    Ok(path)
}

/// The whole zoo, `$VITRIOL_ZOO`: models with their records beside them; none when it is not set.
pub fn whole_zoo() -> Option<PathBuf> {
    variable("VITRIOL_ZOO").map(|zoo| zoo.join("out"))
}

/// The large golden files (logits), `$VITRIOL_GOLDEN`; none when it is not set.
pub fn large_golden() -> Option<PathBuf> {
    variable("VITRIOL_GOLDEN").filter(|path| path.is_dir())
}

/// The interpreter that has the client packages, made by `ops/test` in `target/venv`.
/// Errors: it is not there; the message has the command that makes it.
pub fn client_python() -> Result<PathBuf> {
    let path = checkout().join("target/venv/bin/python");
    if !path.is_file() {
        bail!(
            "{}: no such interpreter; run `ops/test client`",
            path.display()
        );
    }
    Ok(path)
}
