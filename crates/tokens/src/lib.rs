//! Tokenizer: bytes to token ids and back, from the vocabulary inside a model file.
//!
//! ```text
//! text ── special tokens cut out ── pre-tokenizer: words ── bytes as symbols ── merges ── ids
//! ids ── pieces (bytes) ── Utf8Stream: whole characters
//! ```
//!
//! This release reads byte-level BPE vocabularies (`tokenizer.ggml.model = "gpt2"`) with the
//! pre-tokenizers of [`PreTokenizer`]; anything else is refused by name. The vocabulary is flat:
//! all pieces in one buffer, looked up by a hash index that stores ids only.
//!
//! Text is any bytes. What is not UTF-8 becomes U+FFFD, one per byte that starts no character;
//! surrogates and overlong forms pass as the code point they spell. That is how llama.cpp reads
//! text, whose ids are the reference. A byte for which the vocabulary has no token is left out
//! ([`Tokenizer::byte_token`]); all other text comes back from its ids byte for byte.
//!
//! GGUF has no keys for tokens that swallow the white space around them; such vocabularies are not
//! among those read.

mod bpe;
mod byte_level;
mod codepoints;
mod error;
mod pretokenize;
mod special;
mod tokenizer;
mod utf8_stream;
mod vocabulary;

pub use error::TokenizerError;
pub use pretokenize::PreTokenizer;
pub use special::SpecialTokens;
pub use tokenizer::{EncodeOptions, Tokenizer};
pub use utf8_stream::Utf8Stream;
pub use vocabulary::TokenKind;
