//! The tokenizer against llama.cpp's ids on the default model and the zoo, and its laws.

mod golden;
mod laws;
mod spaced;
mod synthetic;

use std::sync::LazyLock;
use vitriol_gguf::Gguf;
use vitriol_testkit::{
    not_run,
    places::{self, default_model},
};
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

/// The tokenizer of Gemma 3 270M; `None`, said on the terminal, where the file is missing.
fn gemma(test: &str) -> anyhow::Result<Option<Tokenizer>> {
    match places::gemma() {
        Ok(path) => Ok(Some(Tokenizer::from_gguf(&Gguf::open(&path)?)?)),
        Err(missing) => {
            not_run(test, &missing.to_string());
            Ok(None)
        }
    }
}
