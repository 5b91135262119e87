//! Byte-pair merging by rank.

use crate::{
    byte_level,
    codepoints::{codepoint_at, push_codepoint},
    error::TokenizerError,
    vocabulary::Vocabulary,
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};
use vitriol_gguf::{Array, Value};

/// The merges of a vocabulary over symbols.
///
/// A symbol is a token id, or beyond the vocabulary one of `intermediates`: a piece that has no
/// token of its own and only leads to others. Beyond those it is a character of no merge.
#[derive(Debug)]
pub(crate) struct Bpe {
    alphabet: Alphabet,
    merges: MergeTable,
    n_vocab: u32,
    /// Pieces of the symbols beyond the vocabulary.
    intermediates: Vec<Vec<u8>>,
}

/// What merging starts from.
#[derive(Debug)]
enum Alphabet {
    /// Bytes, written in the byte-level alphabet; their symbols.
    Bytes(Box<[u32; 256]>),
    /// Characters, written as they are; the symbols of those that merge but have no token.
    Characters(HashMap<u32, u32>),
}

impl Bpe {
    /// Reads `tokenizer.ggml.merges`, each "left right" in the byte-level alphabet, by rank. Words
    /// are merged from their bytes.
    ///
    /// Errors: an entry that is not two pieces. A merge with a character that stands for no byte is
    /// left out: no text can reach it. Of a pair that is there twice the first counts.
    pub(crate) fn of_bytes(
        vocabulary: &Vocabulary,
        merges: Array<'_>,
    ) -> Result<Self, TokenizerError> {
        let mut symbols = Symbols::new(vocabulary);
        let bytes = Box::new(std::array::from_fn(|byte| symbols.of(&[byte as u8])));
        let merges = read_merges(&mut symbols, merges, byte_level::decode)?;
        Ok(Self::new(symbols, Alphabet::Bytes(bytes), merges))
    }

    /// As [`of_bytes`](Self::of_bytes), with merges written as they are and words merged from their
    /// characters.
    pub(crate) fn of_characters(
        vocabulary: &Vocabulary,
        merges: Array<'_>,
    ) -> Result<Self, TokenizerError> {
        let mut symbols = Symbols::new(vocabulary);
        let merges = read_merges(&mut symbols, merges, |text, out| {
            out.extend_from_slice(text);
            true
        })?;
        let characters = symbols.beyond.iter().filter_map(|(piece, &symbol)| {
            let (codepoint, len) = codepoint_at(piece, 0)?;
            (len == piece.len()).then_some((codepoint, symbol))
        });
        let characters = characters.collect();
        Ok(Self::new(symbols, Alphabet::Characters(characters), merges))
    }

    fn new(symbols: Symbols<'_>, alphabet: Alphabet, merges: MergeTable) -> Self {
        Self {
            alphabet,
            merges,
            n_vocab: symbols.vocabulary.len() as u32,
            intermediates: symbols.intermediates,
        }
    }

    /// Appends the ids of one word.
    ///
    /// The lowest rank merges first, among equals the leftmost. A byte that the vocabulary has no
    /// token for is left out. Cost: n log n in the word's length; `scratch` is reused.
    pub(crate) fn encode_word(
        &self,
        vocabulary: &Vocabulary,
        word: &[u8],
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) {
        match &self.alphabet {
            Alphabet::Bytes(symbols) => {
                scratch.load(word.iter().map(|&byte| symbols[usize::from(byte)]));
            }
            Alphabet::Characters(known) => {
                scratch.load(Characters { text: word }.map(|(codepoint, bytes)| {
                    let symbol = vocabulary.find(bytes);
                    symbol
                        .or_else(|| known.get(&codepoint).copied())
                        .unwrap_or_else(|| {
                            self.n_vocab + self.intermediates.len() as u32 + codepoint
                        })
                }));
            }
        }
        for left in 0..scratch.links.len().saturating_sub(1) {
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
            self.emit(vocabulary, symbol, ids);
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

    fn emit(&self, vocabulary: &Vocabulary, symbol: u32, ids: &mut Vec<u32>) {
        let Some(beyond) = symbol.checked_sub(self.n_vocab) else {
            ids.push(symbol);
            return;
        };
        let mut character = Vec::new();
        let bytes = self.intermediates.get(beyond as usize).unwrap_or_else(|| {
            push_codepoint(beyond - self.intermediates.len() as u32, &mut character);
            &character
        });
        ids.extend(bytes.iter().filter_map(|&byte| vocabulary.byte_token(byte)));
    }
}

/// The characters of a text that is normalised, and their bytes.
struct Characters<'a> {
    text: &'a [u8],
}

impl<'a> Iterator for Characters<'a> {
    type Item = (u32, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (codepoint, len) = codepoint_at(self.text, 0)?;
        let (character, rest) = self.text.split_at(len);
        self.text = rest;
        Some((codepoint, character))
    }
}

/// Reads merges whose pieces `decode` appends to a buffer, or refuses.
fn read_merges(
    symbols: &mut Symbols<'_>,
    merges: Array<'_>,
    decode: impl Fn(&[u8], &mut Vec<u8>) -> bool,
) -> Result<MergeTable, TokenizerError> {
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
        if !decode(&text[..separator], &mut left) {
            continue;
        }
        pair.clone_from(&left);
        if !decode(&text[separator + 1..], &mut pair) {
            continue;
        }
        let right = symbols.of(&pair[left.len()..]);
        let merge = Merge {
            rank: index as u32,
            result: symbols.of(&pair),
        };
        table.insert(symbols.of(&left), right, merge);
    }
    Ok(table)
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
    fn load(&mut self, symbols: impl Iterator<Item = u32>) {
        self.links.clear();
        self.candidates.clear();
        self.links.extend(symbols.zip(0..).map(|(symbol, at)| Link {
            symbol,
            before: if at == 0 { END } else { at - 1 },
            after: at + 1,
        }));
        if let Some(last) = self.links.last_mut() {
            last.after = END;
        }
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
