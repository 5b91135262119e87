//! The tokenizer against llama.cpp's ids on the default model and the zoo, and its laws.

mod golden;
mod laws;
mod synthetic;

use std::sync::LazyLock;
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
