//! SentencePiece merging: of all neighbours that make a piece together the one with the best score
//! merges first.
//!
//! Source: llama.cpp, `src/llama-vocab.cpp`; the algorithm is google/sentencepiece's BPE.

use crate::{
    error::TokenizerError,
    vocabulary::{SPACE_MARK, Vocabulary},
};
use std::{cmp::Reverse, collections::BinaryHeap};
use vitriol_gguf::{Metadata, Value, ValueType};

/// The scores of a vocabulary, and how it takes a text.
#[derive(Debug)]
pub(crate) struct Spm {
    /// By token; ordered as the scores are.
    ranks: Vec<i32>,
    adds_space_prefix: bool,
}

impl Spm {
    /// Reads `tokenizer.ggml.scores` (all equal where there are none) and
    /// `tokenizer.ggml.add_space_prefix` (on where it is missing).
    ///
    /// `tokenizer.ggml.remove_extra_whitespaces` is of other vocabularies: white space stays here.
    ///
    /// Errors: fewer scores than tokens, keys of another type.
    pub(crate) fn read(
        metadata: Metadata<'_>,
        vocabulary: &Vocabulary,
    ) -> Result<Self, TokenizerError> {
        let n_tokens = vocabulary.len();
        let ranks = match metadata.get_array_of("tokenizer.ggml.scores", ValueType::F32)? {
            Some(scores) => scores.iter().map(rank).take(n_tokens).collect(),
            None => vec![0; n_tokens],
        };
        if ranks.len() < n_tokens {
            let n_scores = ranks.len();
            return Err(TokenizerError::ScoreCount { n_tokens, n_scores });
        }
        let adds_space_prefix = metadata.get_bool("tokenizer.ggml.add_space_prefix")?;
        Ok(Self {
            ranks,
            adds_space_prefix: adds_space_prefix.unwrap_or(true),
        })
    }

    /// Appends the ids of `text`, which starts the sequence or follows a special token if
    /// `is_start`: then a space goes before it where the vocabulary wants one.
    ///
    /// Characters that are no piece become byte tokens; a byte without a token is left out. Bytes
    /// that are not UTF-8 stay what they are. Cost: n log n in the length of `text`.
    pub(crate) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &[u8],
        is_start: bool,
        ids: &mut Vec<u32>,
    ) {
        let prefix = if self.adds_space_prefix && is_start {
            &b" "[..]
        } else {
            &[]
        };
        let text = mark_spaces(&[prefix, text].concat());
        Merging::new(self, vocabulary, &text).run(ids);
    }
}

/// A number that is ordered as the score is; a score that is no number is the worst.
fn rank(score: Value<'_>) -> i32 {
    let score = match score {
        // Both zeros are the same score.
        Value::F32(score) if !score.is_nan() => score + 0.0,
        _ => f32::NEG_INFINITY,
    };
    let bits = score.to_bits() as i32;
    if bits < 0 { bits ^ i32::MAX } else { bits }
}

/// `text` with U+2581 for each space.
pub(crate) fn mark_spaces(text: &[u8]) -> Vec<u8> {
    let n_spaces = text.iter().filter(|&&byte| byte == b' ').count();
    let mut out = Vec::with_capacity(text.len() + 2 * n_spaces);
    for &byte in text {
        match byte {
            b' ' => out.extend_from_slice(SPACE_MARK),
            _ => out.push(byte),
        }
    }
    out
}

/// A text while it is merged: symbols as a linked list over the places where characters start.
struct Merging<'a> {
    spm: &'a Spm,
    vocabulary: &'a Vocabulary,
    text: &'a [u8],
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Candidate>,
}

struct Symbol {
    start: usize,
    /// Bytes; 0 once it was merged into the one before.
    len: usize,
    before: usize,
    after: usize,
}

/// No neighbour.
const END: usize = usize::MAX;

/// A merge that was possible when it was proposed. The best score is the greatest, among equals
/// the leftmost.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: i32,
    left: Reverse<usize>,
    len: usize,
}

impl<'a> Merging<'a> {
    fn new(spm: &'a Spm, vocabulary: &'a Vocabulary, text: &'a [u8]) -> Self {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        let mut start = 0;
        while start < text.len() {
            let len = character_len(text[start]).min(text.len() - start);
            let at = symbols.len();
            symbols.push(Symbol {
                start,
                len,
                before: at.checked_sub(1).unwrap_or(END),
                after: at + 1,
            });
            start += len;
        }
        if let Some(last) = symbols.last_mut() {
            last.after = END;
        }
        Self {
            spm,
            vocabulary,
            text,
            symbols,
            candidates: BinaryHeap::new(),
        }
    }

    fn run(mut self, ids: &mut Vec<u32>) {
        for left in 0..self.symbols.len() {
            self.propose(left);
        }
        while let Some(candidate) = self.candidates.pop() {
            if self.apply(&candidate) {
                let Reverse(left) = candidate.left;
                self.propose(left);
                self.propose(self.symbols[left].before);
            }
        }
        for symbol in self.symbols.iter().filter(|symbol| symbol.len > 0) {
            let piece = &self.text[symbol.start..symbol.start + symbol.len];
            match self.vocabulary.find(piece) {
                Some(id) => ids.push(id),
                None => ids.extend(
                    piece
                        .iter()
                        .filter_map(|&byte| self.vocabulary.byte_token(byte)),
                ),
            }
        }
    }

    /// Puts the merge of the symbol at `left` with the one after it on the heap, if there is one.
    fn propose(&mut self, left: usize) {
        let Some(symbol) = self.symbols.get(left) else {
            return;
        };
        let Some(right) = self.symbols.get(symbol.after) else {
            return;
        };
        let len = symbol.len + right.len;
        let piece = &self.text[symbol.start..symbol.start + len];
        if let Some(id) = self.vocabulary.find(piece) {
            self.candidates.push(Candidate {
                rank: self.spm.ranks[id as usize],
                left: Reverse(left),
                len,
            });
        }
    }

    /// Merges the pair if it is still there.
    fn apply(&mut self, candidate: &Candidate) -> bool {
        let Reverse(left) = candidate.left;
        let Symbol { len, after, .. } = self.symbols[left];
        let right_len = self.symbols.get(after).map_or(0, |right| right.len);
        // A symbol that grew took the right one in: the sum tells.
        if len == 0 || right_len == 0 || len + right_len != candidate.len {
            return false;
        }
        let beyond = self.symbols[after].after;
        self.symbols[after].len = 0;
        self.symbols[left].len = candidate.len;
        self.symbols[left].after = beyond;
        if let Some(symbol) = self.symbols.get_mut(beyond) {
            symbol.before = left;
        }
        true
    }
}

/// Length that a character's first byte announces; 1 for one that starts none.
fn character_len(first: u8) -> usize {
    match first {
        0x00..=0xbf => 1,
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xff => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranks_are_ordered_as_the_scores(a in any::<f32>(), b in any::<f32>()) {
            prop_assume!(!a.is_nan() && !b.is_nan());
            let (a, b) = (a + 0.0, b + 0.0);
            prop_assert_eq!(rank(Value::F32(a)).cmp(&rank(Value::F32(b))), a.total_cmp(&b));
        }
    }

    #[test]
    fn odd_scores_have_a_rank() {
        assert_eq!(rank(Value::F32(-0.0)), rank(Value::F32(0.0)));
        assert!(rank(Value::F32(f32::NAN)) < rank(Value::F32(f32::MIN)));
    }

    #[test]
    fn spaces_are_marked() {
        assert_eq!(mark_spaces(b" a  b\n"), "▁a▁▁b\n".as_bytes());
    }
}
