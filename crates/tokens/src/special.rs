//! Special tokens: which there are, and where they stand in a text.

use crate::{
    error::TokenizerError,
    vocabulary::{TokenKind, Vocabulary},
};
use std::ops::Range;
use vitriol_gguf::Metadata;

/// Texts of tokens that end an answer. Files name one end-of-sequence token at most, models end
/// their turns with several.
const END_OF_GENERATION: [&str; 20] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
];

/// Texts of end-of-turn tokens, for files without `tokenizer.ggml.eot_token_id`.
const END_OF_TURN: [&str; 13] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
    "<|eom_id|>",
];

/// Texts of the tokens that part files in code models. An answer that reaches one has left the
/// text asked for. Of each group the first in the vocabulary counts.
const FILE_BORDERS: [&[&str]; 3] = [
    &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    &[
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
    ],
    &["<|file_sep|>"],
];

/// The tokens with a part to play, as the file names them or their texts tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialTokens {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub eot: Option<u32>,
    pub eom: Option<u32>,
    pub unk: Option<u32>,
    pub pad: Option<u32>,
    /// The token of a line feed.
    pub nl: Option<u32>,
    /// Whether a sequence starts with `bos`.
    pub add_bos: bool,
    /// Whether a sequence ends with `eos`.
    pub add_eos: bool,
    eog: Vec<u32>,
}

/// What counts where the file does not say.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Defaults {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) unk: Option<u32>,
    pub(crate) add_bos: bool,
}

impl SpecialTokens {
    /// Reads the named tokens and finds the others by their texts. Tokens that end generation are
    /// made control tokens: a file that calls them plain would let text end an answer.
    ///
    /// Errors: an id beyond the vocabulary.
    pub(crate) fn read(
        metadata: Metadata<'_>,
        vocabulary: &mut Vocabulary,
        defaults: Defaults,
    ) -> Result<Self, TokenizerError> {
        let n_vocab = vocabulary.len();
        let named = |key: &'static str| match metadata.get_u32(key)? {
            Some(id) if id as usize >= n_vocab => {
                Err(TokenizerError::IdOutOfRange { key, id, n_vocab })
            }
            id => Ok(id),
        };
        let known = |id: Option<u32>| id.filter(|&id| (id as usize) < n_vocab);
        let add =
            |key, default| Ok::<_, TokenizerError>(metadata.get_bool(key)?.unwrap_or(default));
        let mut special = Self {
            bos: named("tokenizer.ggml.bos_token_id")?.or(known(defaults.bos)),
            eos: named("tokenizer.ggml.eos_token_id")?.or(known(defaults.eos)),
            eot: named("tokenizer.ggml.eot_token_id")?,
            eom: named("tokenizer.ggml.eom_token_id")?,
            unk: named("tokenizer.ggml.unknown_token_id")?.or(known(defaults.unk)),
            pad: named("tokenizer.ggml.padding_token_id")?,
            nl: None,
            add_bos: add("tokenizer.ggml.add_bos_token", defaults.add_bos)?,
            add_eos: add("tokenizer.ggml.add_eos_token", false)?,
            eog: Vec::new(),
        };
        let marked = MarkedTokens::of(vocabulary);
        special.eot = special.eot.or_else(|| marked.first_of(&END_OF_TURN));
        special.eom = special.eom.or_else(|| marked.first_of(&["<|eom_id|>"]));
        special.eog = special.find_end_of_generation(&marked);
        for &id in &special.eog {
            vocabulary.set_kind(id, TokenKind::Control);
        }
        Ok(special)
    }

    fn find_end_of_generation(&self, marked: &MarkedTokens<'_>) -> Vec<u32> {
        let has = |text| marked.first_of(&[text]).is_some();
        // Where these are, `<|end|>` ends a message inside an answer, and `</s>` is plain text.
        let end_is_inner = (has("<|return|>") && has("<|call|>"))
            || (has("<|flush|>") && (has("<|call|>") || has("<|calls|>")));
        let excluded = |piece: &[u8]| {
            (end_is_inner && piece == b"<|end|>") || (piece == b"</s>" && has("<|tool_response>"))
        };
        let by_text = marked.all_of(&END_OF_GENERATION);
        let borders = FILE_BORDERS
            .iter()
            .filter_map(|texts| marked.first_of(texts));
        let mut eog: Vec<u32> = by_text
            .chain(borders)
            .chain([self.eos, self.eot, self.eom].into_iter().flatten())
            .filter(|&id| !excluded(marked.vocabulary.piece(id)))
            .collect();
        eog.sort_unstable();
        eog.dedup();
        eog
    }

    /// The tokens that end generation, ascending.
    pub fn eog(&self) -> &[u32] {
        &self.eog
    }

    /// Whether the token ends generation.
    pub fn is_eog(&self, id: u32) -> bool {
        self.eog.binary_search(&id).is_ok()
    }
}

/// The tokens whose texts look as those of special tokens do. They are a few thousand, which keeps
/// the many questions cheap for a large vocabulary.
struct MarkedTokens<'a> {
    vocabulary: &'a Vocabulary,
    ids: Vec<u32>,
}

impl<'a> MarkedTokens<'a> {
    fn of(vocabulary: &'a Vocabulary) -> Self {
        let is_marked = |&id: &u32| matches!(vocabulary.piece(id), [b'<' | b'[' | b'_', _, ..]);
        Self {
            vocabulary,
            ids: vocabulary.ids().filter(is_marked).collect(),
        }
    }

    fn all_of(&self, texts: &[&str]) -> impl Iterator<Item = u32> {
        let is_one = |&id: &u32| {
            let piece = self.vocabulary.piece(id);
            texts.iter().any(|text| text.as_bytes() == piece)
        };
        self.ids.iter().copied().filter(is_one)
    }

    /// The token with the lowest id whose text is one of `texts`.
    fn first_of(&self, texts: &[&str]) -> Option<u32> {
        self.all_of(texts).next()
    }
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fragment {
    Text(Range<usize>),
    Token(u32),
}

/// Finds special tokens in text.
#[derive(Debug)]
pub(crate) struct SpecialMatcher {
    /// Longest first, equals by id: the order in which they claim their places.
    patterns: Vec<Pattern>,
    /// Indices into `patterns`, by text.
    by_text: Vec<u32>,
    starts: [bool; 256],
}

#[derive(Debug)]
struct Pattern {
    text: Box<[u8]>,
    id: u32,
    needs_parse_special: bool,
    swallows_space: bool,
}

/// Texts of special tokens that leave the white space after them, in vocabularies whose others
/// swallow it.
const LEAVE_SPACE: [&[u8]; 3] = [b"<unk>", b"<s>", b"<|endoftext|>"];

impl SpecialMatcher {
    /// With `swallow_space` special tokens take the ASCII white space after them, but for a few.
    pub(crate) fn new(vocabulary: &Vocabulary, swallow_space: bool) -> Self {
        let mut patterns: Vec<Pattern> = vocabulary
            .ids()
            .filter_map(|id| {
                let kind = vocabulary.kind(id)?;
                let text = vocabulary.piece(id);
                let special = kind.needs_parse_special() || kind == TokenKind::UserDefined;
                (special && !text.is_empty()).then(|| Pattern {
                    text: text.into(),
                    id,
                    needs_parse_special: kind.needs_parse_special(),
                    swallows_space: swallow_space && !LEAVE_SPACE.contains(&text),
                })
            })
            .collect();
        patterns.sort_by_key(|pattern| std::cmp::Reverse(pattern.text.len()));
        let mut by_text: Vec<u32> = (0..patterns.len() as u32).collect();
        by_text.sort_by_key(|&index| &patterns[index as usize].text);
        let mut starts = [false; 256];
        for pattern in &patterns {
            starts[usize::from(pattern.text[0])] = true;
        }
        Self {
            patterns,
            by_text,
            starts,
        }
    }

    /// Tokens whose text means them only where special tokens are parsed.
    pub(crate) fn control(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let control = self
            .patterns
            .iter()
            .filter(|pattern| pattern.needs_parse_special);
        control.map(|pattern| (pattern.id, &pattern.text[..]))
    }

    /// Cuts `text` at its special tokens. Longer tokens claim their places before shorter ones, the
    /// same token from left to right. A control token that a position of `breaks` (ascending) falls
    /// inside is none.
    ///
    /// Cost: one pass, and one more for each token that occurs at all.
    pub(crate) fn split(
        &self,
        text: &[u8],
        breaks: &[usize],
        parse_special: bool,
    ) -> Vec<Fragment> {
        let mut fragments = vec![Fragment::Text(0..text.len())];
        for index in self.occurring(text) {
            let pattern = &self.patterns[index];
            if parse_special || !pattern.needs_parse_special {
                fragments = pattern.claim(text, breaks, fragments);
            }
        }
        fragments.retain(|fragment| *fragment != Fragment::Text(0..0));
        fragments
    }

    /// Indices of the patterns that occur in `text`, ascending.
    fn occurring(&self, text: &[u8]) -> Vec<usize> {
        let mut found = vec![false; self.patterns.len()];
        for (at, &byte) in text.iter().enumerate() {
            if self.starts[usize::from(byte)] {
                self.mark_at(&text[at..], &mut found);
            }
        }
        (0..found.len()).filter(|&index| found[index]).collect()
    }

    /// Marks the patterns that `text` starts with: `by_text` is walked as a trie.
    fn mark_at(&self, text: &[u8], found: &mut [bool]) {
        let mut candidates = &self.by_text[..];
        for (depth, byte) in text.iter().enumerate() {
            let at_depth = |index: &u32| self.patterns[*index as usize].text.get(depth).copied();
            let start = candidates.partition_point(|index| at_depth(index) < Some(*byte));
            let end = candidates.partition_point(|index| at_depth(index) <= Some(*byte));
            candidates = &candidates[start..end];
            for &index in candidates {
                if self.patterns[index as usize].text.len() > depth + 1 {
                    break;
                }
                found[index as usize] = true;
            }
            if candidates.is_empty() {
                return;
            }
        }
    }
}

impl Pattern {
    /// Cuts the text fragments where the pattern stands.
    fn claim(&self, text: &[u8], breaks: &[usize], fragments: Vec<Fragment>) -> Vec<Fragment> {
        let mut out = Vec::with_capacity(fragments.len());
        for fragment in fragments {
            let Fragment::Text(range) = fragment else {
                out.push(fragment);
                continue;
            };
            let (mut start, mut at) = (range.start, range.start);
            while let Some(offset) = self.find(&text[at..range.end]) {
                let place = at + offset..at + offset + self.text.len();
                if self.needs_parse_special && is_broken(&place, breaks) {
                    at = place.start + 1;
                    continue;
                }
                if start < place.start {
                    out.push(Fragment::Text(start..place.start));
                }
                out.push(Fragment::Token(self.id));
                let end = place.end + self.swallowed_len(&text[place.end..range.end]);
                (start, at) = (end, end);
            }
            if start < range.end {
                out.push(Fragment::Text(start..range.end));
            }
        }
        out
    }

    /// How much of what follows the token is part of it.
    fn swallowed_len(&self, text: &[u8]) -> usize {
        let is_space = |byte: &&u8| matches!(byte, b'\t'..=b'\r' | b' ');
        if self.swallows_space {
            text.iter().take_while(is_space).count()
        } else {
            0
        }
    }

    fn find(&self, text: &[u8]) -> Option<usize> {
        let last = text.len().checked_sub(self.text.len())?;
        let mut at = 0;
        while at <= last {
            at += text[at..=last]
                .iter()
                .position(|byte| *byte == self.text[0])?;
            if text[at..].starts_with(&self.text) {
                return Some(at);
            }
            at += 1;
        }
        None
    }
}

/// Whether a break lies inside `place`, not at its ends.
fn is_broken(place: &Range<usize>, breaks: &[usize]) -> bool {
    let next = breaks.partition_point(|&at| at <= place.start);
    breaks.get(next).is_some_and(|&at| at < place.end)
}
