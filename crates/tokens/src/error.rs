use crate::PreTokenizer;
use vitriol_gguf::GgufError;

/// Why a model's vocabulary could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A key is missing or of another type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(
        "tokenizer.ggml.model is {model:?}; this release reads \"gpt2\" (byte-level BPE), \
         \"llama\" (SentencePiece) and \"gemma4\": prompts for this model must be token ids"
    )]
    UnsupportedModel { model: String },
    #[error(
        "tokenizer.ggml.pre is {pre:?}; this release knows {}: prompts for this model must be \
         token ids",
        PreTokenizer::known_names()
    )]
    UnsupportedPreTokenizer { pre: String },
    #[error("the vocabulary has {n_tokens} tokens and {n_types} token types")]
    TypeCount { n_tokens: usize, n_types: usize },
    #[error("the vocabulary has {n_tokens} tokens and {n_scores} scores")]
    ScoreCount { n_tokens: usize, n_scores: usize },
    #[error("token {id} is of the type byte and is not spelled <0xNN>")]
    ByteSyntax { id: u32 },
    #[error("token {id} has the unknown type {token_type}")]
    UnknownType { id: usize, token_type: i32 },
    #[error("the vocabulary is empty")]
    Empty,
    #[error("the vocabulary's pieces take more than 4 GiB")]
    TooLarge,
    #[error("{key} is {id}, and the vocabulary has {n_vocab} tokens")]
    IdOutOfRange {
        key: &'static str,
        id: u32,
        n_vocab: usize,
    },
    #[error("merge number {index} of tokenizer.ggml.merges is not two pieces with a space between")]
    MergeSyntax { index: usize },
}
