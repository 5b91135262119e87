//! The tokenizer against llama.cpp's ids on the default model and the zoo, and its laws.

mod golden;
mod laws;
mod spaced;
mod synthetic;

use std::{
    io::{self, Write as _},
    path::PathBuf,
    sync::LazyLock,
};
use vitriol_gguf::Gguf;
use vitriol_testkit::places::default_model;
use vitriol_tokens::{EncodeOptions, Tokenizer};

/// The default model's tokenizer.
static SMOLLM2: LazyLock<Tokenizer> = LazyLock::new(|| {
    let load = || -> anyhow::Result<Tokenizer> {
        Ok(Tokenizer::from_gguf(&Gguf::open(&default_model()?)?)?)
    };
    load().unwrap_or_else(|error| panic!("{error:#}"))
});

const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};
const PARSED: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};

#[expect(
    clippy::disallowed_methods,
    reason = "tests have no main; this is where they read it"
)]
fn variable(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name);
    value.filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Says on the terminal, whether the test's output is captured or not, that it did not run.
fn say_not_run(test: &str, remedy: &str) {
    let line = format!("NOT RUN: {test}: {remedy}\n");
    io::stderr()
        .write_all(line.as_bytes())
        .unwrap_or_else(|error| panic!("{line}: {error}"));
}

/// The tokenizer of Gemma 3 270M: `$VITRIOL_TEST_GEMMA`, else beside the default model. `None`,
/// said on the terminal, where the file is missing.
fn gemma(test: &str) -> anyhow::Result<Option<Tokenizer>> {
    let path = match variable("VITRIOL_TEST_GEMMA") {
        Some(path) => path,
        None => default_model()?.with_file_name("gemma-3-270m-q4_k_m.gguf"),
    };
    if !path.is_file() {
        let remedy = format!("{}: no such model; set VITRIOL_TEST_GEMMA", path.display());
        say_not_run(test, &remedy);
        return Ok(None);
    }
    Ok(Some(Tokenizer::from_gguf(&Gguf::open(&path)?)?))
}
