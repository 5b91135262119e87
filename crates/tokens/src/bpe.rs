//! Byte-pair merging by rank.

use crate::{byte_level, error::TokenizerError, vocabulary::Vocabulary};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};
use vitriol_gguf::{Array, Value};

/// The merges of a vocabulary over symbols.
///
/// A symbol is a token id, or beyond the vocabulary one of `intermediates`: a byte or a merged
/// piece that has no token of its own and only leads to others.
#[derive(Debug)]
pub(crate) struct Bpe {
    byte_symbols: [u32; 256],
    merges: MergeTable,
    n_vocab: u32,
    /// Pieces of the symbols beyond the vocabulary.
    intermediates: Vec<Vec<u8>>,
}

impl Bpe {
    /// Reads `tokenizer.ggml.merges`, each "left right" in the byte-level alphabet, by rank.
    ///
    /// Errors: an entry that is not two pieces. A merge with a character that stands for no byte is
    /// left out: no text can reach it. Of a pair that is there twice the first counts.
    pub(crate) fn new(vocabulary: &Vocabulary, merges: Array<'_>) -> Result<Self, TokenizerError> {
        let mut symbols = Symbols::new(vocabulary);
        let byte_symbols = std::array::from_fn(|byte| symbols.of(&[byte as u8]));
        let mut table = MergeTable::with_capacity(merges.len());
        let (mut left, mut pair) = (Vec::new(), Vec::new());
        for (index, merge) in merges.iter().enumerate() {
            let syntax = TokenizerError::MergeSyntax { index };
            let Value::String(text) = merge else {
                return Err(syntax);
            };
            // A piece may itself start with the character that is the separator elsewhere.
            let separator = text
                .iter()
                .skip(1)
                .position(|&byte| byte == b' ')
                .map(|at| at + 1);
            let Some(separator) = separator.filter(|&at| at + 1 < text.len()) else {
                return Err(syntax);
            };
            left.clear();
            if !byte_level::decode(&text[..separator], &mut left) {
                continue;
            }
            pair.clone_from(&left);
            if !byte_level::decode(&text[separator + 1..], &mut pair) {
                continue;
            }
            let right = symbols.of(&pair[left.len()..]);
            let merge = Merge {
                rank: index as u32,
                result: symbols.of(&pair),
            };
            table.insert(symbols.of(&left), right, merge);
        }
        Ok(Self {
            byte_symbols,
            merges: table,
            n_vocab: vocabulary.len() as u32,
            intermediates: symbols.intermediates,
        })
    }

    /// Appends the ids of one word.
    ///
    /// The lowest rank merges first, among equals the leftmost. A byte that the vocabulary has no
    /// token for is left out. Cost: n log n in the word's length; `scratch` is reused.
    pub(crate) fn encode_word(&self, word: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        scratch.load(
            word.iter()
                .map(|&byte| self.byte_symbols[usize::from(byte)]),
        );
        for left in 0..word.len().saturating_sub(1) {
            self.propose(left as u32, scratch);
        }
        while let Some(Reverse(candidate)) = scratch.candidates.pop() {
            if let Some(left) = scratch.apply(&candidate) {
                self.propose(left, scratch);
                if let Some(before) = scratch.before(left) {
                    self.propose(before, scratch);
                }
            }
        }
        for symbol in scratch.symbols() {
            self.emit(symbol, ids);
        }
    }

    /// Puts the merge of the symbol at `left` with the one after it on the heap, if there is one.
    fn propose(&self, left: u32, scratch: &mut Scratch) {
        let Some((left_symbol, right_symbol)) = scratch.pair_at(left) else {
            return;
        };
        if let Some(merge) = self.merges.find(left_symbol, right_symbol) {
            scratch.candidates.push(Reverse(Candidate {
                rank: merge.rank,
                left,
                left_symbol,
                right_symbol,
                result: merge.result,
            }));
        }
    }

    fn emit(&self, symbol: u32, ids: &mut Vec<u32>) {
        match symbol.checked_sub(self.n_vocab) {
            None => ids.push(symbol),
            Some(intermediate) => ids.extend(
                self.intermediates[intermediate as usize]
                    .iter()
                    .map(|&byte| self.byte_symbols[usize::from(byte)])
                    .filter(|&symbol| symbol < self.n_vocab),
            ),
        }
    }
}

/// Gives each piece its symbol while the merges are read.
struct Symbols<'a> {
    vocabulary: &'a Vocabulary,
    beyond: HashMap<Vec<u8>, u32>,
    intermediates: Vec<Vec<u8>>,
}

impl<'a> Symbols<'a> {
    fn new(vocabulary: &'a Vocabulary) -> Self {
        Self {
            vocabulary,
            beyond: HashMap::new(),
            intermediates: Vec::new(),
        }
    }

    fn of(&mut self, piece: &[u8]) -> u32 {
        if let Some(id) = self
            .vocabulary
            .find(piece)
            .or_else(|| self.beyond.get(piece).copied())
        {
            return id;
        }
        let symbol = (self.vocabulary.len() + self.intermediates.len()) as u32;
        self.intermediates.push(piece.to_vec());
        self.beyond.insert(piece.to_vec(), symbol);
        symbol
    }
}

#[derive(Clone, Copy, Debug)]
struct Merge {
    rank: u32,
    result: u32,
}

/// Map from a pair of symbols to its merge: open addressing at most half full.
#[derive(Debug)]
struct MergeTable {
    keys: Vec<u64>,
    merges: Vec<Merge>,
}

/// No pair: the last symbol is never reached by as many merges as fit a file.
const NO_PAIR: u64 = u64::MAX;

impl MergeTable {
    fn with_capacity(n: usize) -> Self {
        let slots = (2 * n.max(1)).next_power_of_two();
        Self {
            keys: vec![NO_PAIR; slots],
            merges: vec![Merge { rank: 0, result: 0 }; slots],
        }
    }

    fn insert(&mut self, left: u32, right: u32, merge: Merge) {
        let slot = self.slot(key(left, right));
        if self.keys[slot] == NO_PAIR {
            self.keys[slot] = key(left, right);
            self.merges[slot] = merge;
        }
    }

    fn find(&self, left: u32, right: u32) -> Option<Merge> {
        let slot = self.slot(key(left, right));
        (self.keys[slot] != NO_PAIR).then(|| self.merges[slot])
    }

    /// The slot that holds `key`, or the empty one where it belongs.
    fn slot(&self, key: u64) -> usize {
        let mask = self.keys.len() - 1;
        // Fibonacci hashing: the high half of the product is well mixed.
        let mut slot = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        while self.keys[slot] != NO_PAIR && self.keys[slot] != key {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// A merge that was possible when it was proposed. Ordered by rank, then position.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    left_symbol: u32,
    right_symbol: u32,
    result: u32,
}

/// The word being merged: symbols as a linked list over positions, and the merges to try.
#[derive(Default)]
pub(crate) struct Scratch {
    links: Vec<Link>,
    candidates: BinaryHeap<Reverse<Candidate>>,
}

struct Link {
    symbol: u32,
    before: u32,
    after: u32,
}

/// No neighbour.
const END: u32 = u32::MAX;
/// Symbol of a position that was merged into the one before it.
const MERGED: u32 = u32::MAX;

impl Scratch {
    fn load(&mut self, symbols: impl ExactSizeIterator<Item = u32>) {
        let last = symbols.len().wrapping_sub(1) as u32;
        self.links.clear();
        self.candidates.clear();
        self.links.extend(symbols.zip(0..).map(|(symbol, at)| Link {
            symbol,
            before: if at == 0 { END } else { at - 1 },
            after: if at == last { END } else { at + 1 },
        }));
    }

    fn pair_at(&self, left: u32) -> Option<(u32, u32)> {
        let link = &self.links[left as usize];
        let right = self.links.get(link.after as usize)?;
        Some((link.symbol, right.symbol))
    }

    fn before(&self, at: u32) -> Option<u32> {
        let before = self.links[at as usize].before;
        (before != END).then_some(before)
    }

    /// Merges the pair if it is still there; its position.
    fn apply(&mut self, candidate: &Candidate) -> Option<u32> {
        let left = candidate.left;
        if self.pair_at(left) != Some((candidate.left_symbol, candidate.right_symbol)) {
            return None;
        }
        let right = self.links[left as usize].after;
        let after = self.links[right as usize].after;
        self.links[right as usize].symbol = MERGED;
        self.links[left as usize].symbol = candidate.result;
        self.links[left as usize].after = after;
        if let Some(link) = self.links.get_mut(after as usize) {
            link.before = left;
        }
        Some(left)
    }

    fn symbols(&self) -> impl Iterator<Item = u32> {
        self.links
            .iter()
            .map(|link| link.symbol)
            .filter(|&symbol| symbol != MERGED)
    }
}
