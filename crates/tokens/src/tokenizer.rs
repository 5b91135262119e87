use crate::{
    bpe::{Bpe, Scratch},
    codepoints::normalise,
    error::TokenizerError,
    pretokenize::PreTokenizer,
    special::{Defaults, Fragment, SpecialMatcher, SpecialTokens},
    spm::{Spm, mark_spaces},
    vocabulary::{Spelling, TokenKind, Vocabulary},
};
use std::fmt;
use vitriol_gguf::{Gguf, Metadata, ValueType};

/// How a text becomes ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put the beginning- and end-of-sequence tokens that the vocabulary asks for around the ids.
    pub add_special: bool,
    /// Read the texts of control tokens as those tokens. Only for text we wrote ourselves: with
    /// this off no text gives a control token.
    pub parse_special: bool,
}

/// A model's vocabulary, to encode text and to decode ids. Shared by all request threads.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    merging: Merging,
    special: SpecialTokens,
    matcher: SpecialMatcher,
}

/// How text between special tokens becomes ids.
enum Merging {
    /// `gpt2`: words of bytes.
    Bytes(PreTokenizer, Bpe),
    /// `gemma4`: lines of characters.
    Lines(Bpe),
    /// `llama`: all of it at once.
    Scores(Spm),
}

impl Merging {
    fn read(
        metadata: Metadata<'_>,
        kind: ModelKind,
        vocabulary: &Vocabulary,
    ) -> Result<Self, TokenizerError> {
        let merges = || {
            let merges = metadata.get_array_of("tokenizer.ggml.merges", ValueType::String)?;
            Ok::<_, TokenizerError>(merges.unwrap_or_default())
        };
        Ok(match kind {
            ModelKind::Gpt2(pre) => Self::Bytes(pre, Bpe::of_bytes(vocabulary, merges()?)?),
            ModelKind::Gemma4 => Self::Lines(Bpe::of_characters(vocabulary, merges()?)?),
            ModelKind::Llama => Self::Scores(Spm::read(metadata, vocabulary)?),
        })
    }
}

/// What `tokenizer.ggml.model` says.
#[derive(Clone, Copy)]
enum ModelKind {
    Gpt2(PreTokenizer),
    Gemma4,
    Llama,
}

impl ModelKind {
    fn read(metadata: Metadata<'_>) -> Result<Self, TokenizerError> {
        let text = |key| {
            let bytes = metadata.get_bytes(key)?.unwrap_or_default();
            Ok::<_, TokenizerError>(String::from_utf8_lossy(bytes).into_owned())
        };
        let model = text("tokenizer.ggml.model")?;
        match &*model {
            "gpt2" => {
                let pre = text("tokenizer.ggml.pre")?;
                match PreTokenizer::from_name(&pre) {
                    Some(pre) => Ok(Self::Gpt2(pre)),
                    None => Err(TokenizerError::UnsupportedPreTokenizer { pre }),
                }
            }
            "gemma4" => Ok(Self::Gemma4),
            "llama" => Ok(Self::Llama),
            _ => Err(TokenizerError::UnsupportedModel { model }),
        }
    }

    fn spelling(self) -> Spelling {
        match self {
            Self::Gpt2(_) => Spelling::ByteLevel,
            Self::Gemma4 | Self::Llama => Spelling::Spaced,
        }
    }

    fn defaults(self) -> Defaults {
        match self {
            Self::Gpt2(pre) => Defaults {
                add_bos: pre.adds_bos(),
                ..Defaults::default()
            },
            Self::Gemma4 => Defaults::default(),
            Self::Llama => Defaults {
                bos: Some(1),
                eos: Some(2),
                unk: Some(0),
                add_bos: true,
            },
        }
    }
}

/// Whether special tokens swallow the white space after them. Files have no key for it; llama.cpp
/// goes by the model's name, and so do we.
fn swallows_space(metadata: Metadata<'_>) -> Result<bool, TokenizerError> {
    let name = metadata.get_bytes("general.name")?.unwrap_or_default();
    let name = name.to_ascii_lowercase();
    let contains = |part: &[u8]| name.windows(part.len()).any(|window| window == part);
    Ok(contains(b"phi-3") || contains(b"phi3"))
}

impl Tokenizer {
    /// Builds the tokenizer that `file` describes.
    ///
    /// Errors: keys missing or unsound; a vocabulary or a pre-tokenizer that this release does not
    /// read, by name. Cost: one pass over tokens and merges; some 20 ms and 4 MiB for 49,152 tokens
    /// with merges, 35 ms and 22 MiB for 262,144 with scores.
    pub fn from_gguf(file: &Gguf) -> Result<Self, TokenizerError> {
        let metadata = file.metadata();
        let kind = ModelKind::read(metadata)?;
        let mut vocabulary = Vocabulary::read(metadata, kind.spelling())?;
        let mut special = SpecialTokens::read(metadata, &mut vocabulary, kind.defaults())?;
        // Files of this family were published with the key off by mistake.
        special.add_bos |= matches!(kind, ModelKind::Gemma4);
        let merging = Merging::read(metadata, kind, &vocabulary)?;
        let matcher = SpecialMatcher::new(&vocabulary, swallows_space(metadata)?);
        let mut tokenizer = Self {
            vocabulary,
            merging,
            special,
            matcher,
        };
        tokenizer.special.nl = tokenizer.find_line_feed().or(tokenizer.special.pad);
        Ok(tokenizer)
    }

    fn find_line_feed(&self) -> Option<u32> {
        match self.merging {
            Merging::Scores(_) => self.byte_token(b'\n'),
            Merging::Bytes(..) | Merging::Lines(_) => self
                .encode(b"\n", EncodeOptions::default())
                .first()
                .copied(),
        }
    }

    /// How many tokens there are.
    pub fn n_vocab(&self) -> usize {
        self.vocabulary.len()
    }

    /// How text is cut into words; `None` for vocabularies that need no words.
    pub fn pre_tokenizer(&self) -> Option<PreTokenizer> {
        match self.merging {
            Merging::Bytes(pre, _) => Some(pre),
            Merging::Lines(_) | Merging::Scores(_) => None,
        }
    }

    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// Whether the token ends generation.
    pub fn is_eog(&self, id: u32) -> bool {
        self.special.is_eog(id)
    }

    /// Whether the token structures the prompt and is no text.
    pub fn is_control(&self, id: u32) -> bool {
        self.kind(id) == Some(TokenKind::Control)
    }

    /// What the token is for; `None` beyond the vocabulary.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.vocabulary.kind(id)
    }

    /// The tokens that text gives only with [`EncodeOptions::parse_special`], and their texts.
    pub fn control_tokens(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.matcher.control()
    }

    /// The token of a single byte. Vocabularies may lack some, and [`encode`](Self::encode) leaves
    /// those bytes out.
    pub fn byte_token(&self, byte: u8) -> Option<u32> {
        self.vocabulary.byte_token(byte)
    }

    /// The ids of `text`.
    pub fn encode(&self, text: &[u8], options: EncodeOptions) -> Vec<u32> {
        self.encode_with_breaks(text, &[], options)
    }

    /// The ids of `text`, where a control token's text is that token only if no position of
    /// `breaks` (byte offsets, ascending) falls inside it: what a prompt's writer puts into texts
    /// from elsewhere, so that they cannot forge control tokens.
    ///
    /// The stretches between control tokens get the ids that they have by themselves; breaks leave
    /// no trace in them.
    pub fn encode_with_breaks(
        &self,
        text: &[u8],
        breaks: &[usize],
        options: EncodeOptions,
    ) -> Vec<u32> {
        debug_assert!(breaks.is_sorted(), "breaks ascend");
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if options.add_special && self.special.add_bos {
            ids.extend(self.special.bos);
        }
        let mut scratch = Scratch::default();
        let mut is_start = true;
        for fragment in self.matcher.split(text, breaks, options.parse_special) {
            match fragment {
                Fragment::Token(id) => {
                    ids.push(id);
                    is_start = true;
                }
                Fragment::Text(range) => {
                    self.encode_text(&text[range], is_start, &mut scratch, &mut ids);
                    is_start = false;
                }
            }
        }
        if options.add_special && self.special.add_eos {
            ids.extend(self.special.eos);
        }
        ids
    }

    /// Appends the ids of text without special tokens. `is_start`: no text stands right before it.
    fn encode_text(&self, text: &[u8], is_start: bool, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let vocabulary = &self.vocabulary;
        match &self.merging {
            Merging::Bytes(pre, bpe) => pre.split(&normalise(text), |word| {
                let whole = pre.ignores_merges().then(|| vocabulary.find(word));
                match whole.flatten() {
                    Some(id) => ids.push(id),
                    None => bpe.encode_word(vocabulary, word, scratch, ids),
                }
            }),
            Merging::Lines(bpe) => {
                let text = mark_spaces(text);
                for line in normalise(&text).chunk_by(|a, b| (*a == b'\n') == (*b == b'\n')) {
                    let whole = (line[0] == b'\n').then(|| vocabulary.find(line));
                    match whole.flatten() {
                        Some(id) => ids.push(id),
                        None => bpe.encode_word(vocabulary, line, scratch, ids),
                    }
                }
            }
            Merging::Scores(spm) => spm.encode(vocabulary, text, is_start, ids),
        }
    }

    /// Appends the bytes of a token. Control and unknown tokens give theirs only with `special`;
    /// unused ones, and ids beyond the vocabulary, give none.
    pub fn piece(&self, id: u32, out: &mut Vec<u8>, special: bool) {
        match self.kind(id) {
            None | Some(TokenKind::Unused) => {}
            Some(kind) if kind.needs_parse_special() && !special => {}
            Some(_) => self.vocabulary.write(id, out),
        }
    }

    /// The bytes of a sequence, which may begin or end inside a character. A space that encoding
    /// put before the text stays.
    pub fn decode(&self, ids: &[u32], special: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            self.piece(id, &mut out, special);
        }
        out
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("n_vocab", &self.n_vocab())
            .field("pre_tokenizer", &self.pre_tokenizer())
            .field("special", &self.special)
            .finish()
    }
}
