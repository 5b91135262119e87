//! Tokenizer: bytes to token ids and back, from the vocabulary inside a model file.
//!
//! ```text
//! text ── special tokens cut out ─┬─ gpt2: words ── bytes as symbols ── merges by rank ─────┬─ ids
//!                                 ├─ llama: U+2581 for spaces ── merges by piece's score ───┤
//!                                 └─ gemma4: U+2581, lines ── characters ── merges by rank ─┘
//! ids ── pieces (bytes) ── Utf8Stream: whole characters
//! ```
//!
//! This release reads byte-level BPE vocabularies (`tokenizer.ggml.model = "gpt2"`) with the
//! pre-tokenizers of [`PreTokenizer`], SentencePiece's (`"llama"`) and Gemma 4's (`"gemma4"`);
//! anything else is refused by name. The vocabulary is flat: all pieces in one buffer, looked up by
//! a hash index that stores ids only.
//!
//! Text is any bytes. For `"llama"` they are taken as they are. For the others what is not UTF-8
//! becomes U+FFFD, one per byte that starts no character; surrogates and overlong forms pass as the
//! code point they spell. That is how llama.cpp reads text, whose ids are the reference. A byte for
//! which the vocabulary has no token is left out ([`Tokenizer::byte_token`]); all other text comes
//! back from its ids byte for byte, but that `"llama"` and `"gemma4"` give U+2581 back as a space
//! and that `"llama"` may want a space before the text.
//!
//! We leave the reference in one thing: merges end in no control, unknown, unused or `<0xNN>`
//! token, so that plain text never becomes one of those.

mod bpe;
mod byte_level;
mod codepoints;
mod error;
mod pretokenize;
mod special;
mod spm;
mod tokenizer;
mod utf8_stream;
mod vocabulary;

pub use error::TokenizerError;
pub use pretokenize::PreTokenizer;
pub use special::SpecialTokens;
pub use tokenizer::{EncodeOptions, Tokenizer};
pub use utf8_stream::Utf8Stream;
pub use vocabulary::TokenKind;
