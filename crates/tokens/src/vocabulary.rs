use crate::{byte_level, error::TokenizerError};
use vitriol_gguf::{Metadata, Value, ValueType};

/// What a token is for (`tokenizer.ggml.token_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenKind {
    Normal,
    /// Stands for what the vocabulary cannot spell.
    Unknown,
    /// Structures the prompt; never part of text.
    Control,
    /// Found in text before anything else, whole.
    UserDefined,
    Unused,
    Byte,
}

impl TokenKind {
    fn from_id(id: i32) -> Option<Self> {
        Some(match id {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }

    /// Whether the token's text in a prompt means the token only where special tokens are parsed.
    pub(crate) fn needs_parse_special(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }
}

/// How a file spells the pieces of normal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// In the printable alphabet of [`byte_level`].
    ByteLevel,
    /// As they are, with U+2581 for each space, and bytes as `<0xNN>`.
    Spaced,
}

/// What stands for a space in [`Spelling::Spaced`].
pub(crate) const SPACE_MARK: &[u8] = "\u{2581}".as_bytes();

/// All pieces of a vocabulary, end to end in one buffer.
///
/// Byte-level pieces are the bytes they stand for. Spaced ones keep U+2581, since merging tells it
/// from a space; [`write`](Vocabulary::write) gives the bytes.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    spelling: Spelling,
    pieces: Vec<u8>,
    /// Where each piece ends.
    ends: Vec<u32>,
    kinds: Vec<TokenKind>,
    /// Tokens of the type byte.
    bytes: [Option<u32>; 256],
    index: PieceIndex,
    /// Bytes of the longest piece in the index.
    len_max: usize,
}

impl Vocabulary {
    /// Reads tokens and their types.
    ///
    /// Errors: keys missing or of another type, counts that differ, more than 4 GiB of pieces, a
    /// spaced byte token that is not spelled `<0xNN>`.
    pub(crate) fn read(metadata: Metadata<'_>, spelling: Spelling) -> Result<Self, TokenizerError> {
        let tokens = metadata.get_array_of("tokenizer.ggml.tokens", ValueType::String)?;
        let Some(tokens) = tokens.filter(|tokens| !tokens.is_empty()) else {
            return Err(TokenizerError::Empty);
        };
        let kinds = match metadata.get_array("tokenizer.ggml.token_type")? {
            Some(types) => read_kinds(types.iter(), tokens.len())?,
            None => vec![TokenKind::Normal; tokens.len()],
        };
        let mut vocabulary = Self {
            spelling,
            pieces: Vec::with_capacity(tokens.len() * 8),
            ends: Vec::with_capacity(tokens.len()),
            index: PieceIndex::with_capacity(tokens.len()),
            kinds,
            bytes: [None; 256],
            len_max: 0,
        };
        for token in tokens.iter() {
            let Value::String(text) = token else { continue };
            vocabulary.push(text)?;
        }
        Ok(vocabulary)
    }

    /// Adds the next token. Its piece is what `text` spells if it is a normal or a byte token, else
    /// `text` itself.
    ///
    /// Only tokens that merges can end in are indexed: a control token is none, whatever its text,
    /// and neither is a spaced token with the text of a byte or one that would lose its text.
    fn push(&mut self, text: &[u8]) -> Result<(), TokenizerError> {
        let id = self.ends.len() as u32;
        let start = self.pieces.len();
        let kind = self.kinds[id as usize];
        let is_whole = match self.spelling {
            Spelling::ByteLevel => self.push_byte_level(text, kind),
            Spelling::Spaced => self.push_spaced(text, kind, id)?,
        };
        let end = u32::try_from(self.pieces.len()).map_err(|_| TokenizerError::TooLarge)?;
        self.ends.push(end);
        if is_whole && start < self.pieces.len() {
            self.len_max = self.len_max.max(self.pieces.len() - start);
            let Self {
                pieces,
                ends,
                index,
                ..
            } = self;
            index.insert(&pieces[start..], id, |id| piece(pieces, ends, id));
        }
        Ok(())
    }

    /// Whether merges can end in the token.
    fn push_byte_level(&mut self, text: &[u8], kind: TokenKind) -> bool {
        if kind == TokenKind::Normal && byte_level::decode(text, &mut self.pieces) {
            return true;
        }
        self.pieces.extend_from_slice(text);
        kind == TokenKind::UserDefined && text.iter().all(u8::is_ascii_graphic)
    }

    /// Whether merges can end in the token.
    fn push_spaced(
        &mut self,
        text: &[u8],
        kind: TokenKind,
        id: u32,
    ) -> Result<bool, TokenizerError> {
        if kind == TokenKind::Byte {
            let byte = byte_of(text).ok_or(TokenizerError::ByteSyntax { id })?;
            self.bytes[usize::from(byte)] = Some(id);
            self.pieces.push(byte);
            return Ok(false);
        }
        self.pieces.extend_from_slice(text);
        Ok(matches!(kind, TokenKind::Normal | TokenKind::UserDefined))
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The piece of a token; empty beyond the vocabulary.
    pub(crate) fn piece(&self, id: u32) -> &[u8] {
        if (id as usize) < self.len() {
            piece(&self.pieces, &self.ends, id)
        } else {
            &[]
        }
    }

    /// Appends the bytes that a token stands for.
    pub(crate) fn write(&self, id: u32, out: &mut Vec<u8>) {
        let mut rest = self.piece(id);
        if self.spelling == Spelling::Spaced && self.kind(id) == Some(TokenKind::Normal) {
            while let Some((at, mark)) = find_space_mark(rest) {
                out.extend_from_slice(&rest[..at]);
                out.push(b' ');
                rest = &rest[at + mark..];
            }
        }
        out.extend_from_slice(rest);
    }

    pub(crate) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    pub(crate) fn set_kind(&mut self, id: u32, kind: TokenKind) {
        self.kinds[id as usize] = kind;
    }

    pub(crate) fn ids(&self) -> std::ops::Range<u32> {
        0..self.len() as u32
    }

    /// The token of a single byte.
    pub(crate) fn byte_token(&self, byte: u8) -> Option<u32> {
        self.bytes[usize::from(byte)].or_else(|| self.find(&[byte]))
    }

    /// The token that merges end in when they have built `bytes`: never a control token, also if
    /// it became one after its piece was read.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<u32> {
        if bytes.len() > self.len_max {
            return None;
        }
        let found = self
            .index
            .find(bytes, |id| piece(&self.pieces, &self.ends, id));
        found.filter(|&id| self.kind(id) != Some(TokenKind::Control))
    }
}

fn piece<'a>(pieces: &'a [u8], ends: &[u32], id: u32) -> &'a [u8] {
    let start = if id == 0 { 0 } else { ends[id as usize - 1] };
    &pieces[start as usize..ends[id as usize] as usize]
}

/// The byte that `<0xNN>` stands for.
fn byte_of(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let hex = std::str::from_utf8(digits).ok()?;
    let is_pair = digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit);
    is_pair.then(|| u8::from_str_radix(hex, 16).ok())?
}

/// Where the first U+2581 is, and its length.
fn find_space_mark(text: &[u8]) -> Option<(usize, usize)> {
    let at = text
        .windows(SPACE_MARK.len())
        .position(|window| window == SPACE_MARK)?;
    Some((at, SPACE_MARK.len()))
}

fn read_kinds<'a>(
    types: impl Iterator<Item = Value<'a>>,
    n_tokens: usize,
) -> Result<Vec<TokenKind>, TokenizerError> {
    let kinds: Vec<TokenKind> = types
        .enumerate()
        .map(|(id, value)| {
            let token_type = value
                .as_integer()
                .and_then(|value| i32::try_from(value).ok());
            let token_type = token_type.unwrap_or(-1);
            TokenKind::from_id(token_type).ok_or(TokenizerError::UnknownType { id, token_type })
        })
        .collect::<Result<_, _>>()?;
    if kinds.len() != n_tokens {
        return Err(TokenizerError::TypeCount {
            n_tokens,
            n_types: kinds.len(),
        });
    }
    Ok(kinds)
}

/// Hash index from piece to id that stores ids only: open addressing at most half full.
#[derive(Debug)]
struct PieceIndex {
    slots: Vec<u32>,
}

const EMPTY: u32 = u32::MAX;

impl PieceIndex {
    fn with_capacity(n: usize) -> Self {
        Self {
            slots: vec![EMPTY; (2 * n).next_power_of_two()],
        }
    }

    /// Later tokens win over earlier ones of the same piece.
    fn insert<'a>(&mut self, bytes: &[u8], id: u32, piece: impl Fn(u32) -> &'a [u8]) {
        let slot = self.slot(bytes, piece);
        self.slots[slot] = id;
    }

    fn find<'a>(&self, bytes: &[u8], piece: impl Fn(u32) -> &'a [u8]) -> Option<u32> {
        let id = self.slots[self.slot(bytes, piece)];
        (id != EMPTY).then_some(id)
    }

    /// The slot that holds `bytes`, or the empty one where they belong.
    fn slot<'a>(&self, bytes: &[u8], piece: impl Fn(u32) -> &'a [u8]) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = hash(bytes) as usize & mask;
        while self.slots[slot] != EMPTY && piece(self.slots[slot]) != bytes {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

/// FNV-1a with a final mix, since its low bits alone are weak for short pieces.
fn hash(bytes: &[u8]) -> u64 {
    let folded = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    folded ^ folded >> 32
}
