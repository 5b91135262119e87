//! Where tests find the checkout, the binaries of this build, models and golden records.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

const DEFAULT_MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const GEMMA: &str = "gemma-3-270m-q4_k_m.gguf";

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
    fetched("VITRIOL_TEST_MODEL", DEFAULT_MODEL, "vitriol model fetch")
}

/// Gemma 3 270M, the second real model: `$VITRIOL_TEST_GEMMA`, else where
/// `vitriol model fetch gemma-3-270m` puts it. Errors as of [`default_model`].
pub fn gemma() -> Result<PathBuf> {
    let command = "vitriol model fetch gemma-3-270m";
    fetched("VITRIOL_TEST_GEMMA", GEMMA, command)
}

fn fetched(override_by: &str, file: &str, command: &str) -> Result<PathBuf> {
    let path = match variable(override_by) {
        Some(path) => path,
        None => variable("XDG_CACHE_HOME")
            .or_else(|| Some(variable("HOME")?.join(".cache")))
            .with_context(|| format!("neither XDG_CACHE_HOME nor HOME is set: set {override_by}"))?
            .join("vitriol/models")
            .join(file),
    };
    if !path.is_file() {
        bail!("{}: no such model; run `{command}`", path.display());
    }
    Ok(path)
}

/// Whether the tests that take minutes are wanted: `$VITRIOL_TEST_FULL`, set by `ops/test --full`.
pub fn wants_full_tests() -> bool {
    variable("VITRIOL_TEST_FULL").is_some()
}

/// The zoo model `name` (e.g. `llama.f32`): made by `ops/test zoo` in `target/zoo`, stored in
/// `tests/zoo/stored`, or part of the whole zoo.
/// Errors: the file is in none of them; the message says how to get it.
pub fn zoo_model(name: &str) -> Result<PathBuf> {
    let file = format!("{name}.gguf");
    let own = ["target/zoo", "tests/zoo/stored"].map(|place| checkout().join(place));
    let whole = whole_zoo().map(|out| [out.with_file_name("variants"), out]);
    let mut places = own.into_iter().chain(whole.into_iter().flatten());
    match places.find(|place| place.join(&file).is_file()) {
        Some(place) => Ok(place.join(file)),
        None if whole_zoo().is_some() => {
            bail!("{file}: neither made by `ops/test zoo` nor in the zoo that VITRIOL_ZOO names")
        }
        None => bail!("{file}: no such model; run `ops/test zoo`, or set VITRIOL_ZOO"),
    }
}

/// The models of the whole zoo with their records beside them, `$VITRIOL_ZOO/out` (layouts of other
/// versions are in `variants` next to it); none when it is not set.
pub fn whole_zoo() -> Option<PathBuf> {
    variable("VITRIOL_ZOO").map(|zoo| zoo.join("out"))
}

/// The large golden files (logits), `$VITRIOL_GOLDEN`; none when it is not set.
pub fn large_golden() -> Option<PathBuf> {
    variable("VITRIOL_GOLDEN")
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
