//! Keeping texts from clients from forging control tokens.
//!
//! A prompt is written by the model's template, which joins its own control tokens (`<|im_start|>`)
//! with texts that came from the client. Afterwards nobody can tell which is which. So before the
//! template sees a text, a **mark** is put into every place where a control token could come about
//! through it: a short run of private-use characters, random per request, that occurs in no text of
//! the request. Marks found in the written prompt become [breaks](Tokenizer::encode_with_breaks)
//! and vanish, so the model sees the client's text unchanged, spelled in plain tokens.
//!
//! A control token `T` can come about through a text in these ways, and is marked there:
//!
//! 1. the text contains `T`: after the first character of it;
//! 2. the text ends in a beginning of `T`, which what follows in the prompt may complete: after the
//!    first character of that beginning. White space after it does not count, templates trim;
//! 3. the text starts with an end of `T`, or lies within `T`, and what is before it in the prompt may
//!    complete it: before its first character that is not white space. A lone word (`name`) is
//!    marked only if it is the whole of `T` but for `T`'s brackets, and no word of the request
//!    schema: templates ask for those, and none writes the rest of `T` around a part of a word.
//!
//! Letters are compared without regard to ASCII case. What no mark helps against is a template that
//! deletes characters from the inside of a text; that it is the operator's choice of model.

use super::TemplateError;
use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
};
use vitriol_tokens::Tokenizer;

/// Keys and values of the request schema that templates look for by name.
const SCHEMA_WORDS: [&str; 34] = [
    "additionalproperties",
    "anyof",
    "arguments",
    "array",
    "boolean",
    "content",
    "default",
    "description",
    "enum",
    "format",
    "function",
    "id",
    "integer",
    "items",
    "name",
    "null",
    "number",
    "object",
    "parameters",
    "properties",
    "reasoning_content",
    "refusal",
    "required",
    "result",
    "role",
    "strict",
    "string",
    "text",
    "thinking",
    "title",
    "tool_call_id",
    "tool_calls",
    "tools",
    "type",
];

/// Characters of a mark. Six of the 6,400 private-use characters: 75 bits.
const MARK_CHARS: usize = 6;
const PRIVATE_USE: std::ops::Range<u32> = 0xe000..0xf900;

/// What is to be kept from being forged: a model's control tokens.
#[derive(Debug)]
pub(super) struct Guard {
    tokens: Texts,
    /// Every proper end of every control token.
    endings: Texts,
    /// Control tokens without the brackets around them.
    cores: HashSet<String>,
}

impl Guard {
    /// Errors: a control token of one character, inside which no mark fits.
    pub(super) fn new(tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let texts = tokenizer
            .control_tokens()
            .filter_map(|(_, text)| std::str::from_utf8(text).ok());
        Self::of(texts)
    }

    fn of<'t>(texts: impl Iterator<Item = &'t str>) -> Result<Self, TemplateError> {
        let tokens: Vec<String> = texts.map(str::to_ascii_lowercase).collect();
        if let Some(text) = tokens.iter().find(|text| text.chars().count() < 2) {
            return Err(TemplateError::Unguardable { text: text.clone() });
        }
        let endings = tokens.iter().flat_map(|text| {
            text.char_indices()
                .skip(1)
                .map(|(at, _)| text[at..].to_owned())
        });
        let cores = tokens
            .iter()
            .map(|text| text.trim_matches(|c| !is_word_char(c)).to_owned());
        Ok(Self {
            endings: Texts::new(endings.collect()),
            cores: cores.collect(),
            tokens: Texts::new(tokens),
        })
    }

    /// Where `text` needs a mark: byte offsets, ascending.
    fn places(&self, text: &str) -> Vec<usize> {
        let mut places = Vec::new();
        if let Some(start) = self.start_to_mark(text) {
            places.push(start);
        }
        let trimmed = text.trim_end().len();
        for (at, first) in text.char_indices() {
            if !self.tokens.starts_with_byte(text.as_bytes()[at]) {
                continue;
            }
            let walk = self.tokens.walk(&text.as_bytes()[at..]);
            let open = at < trimmed && self.tokens.walk(&text.as_bytes()[at..trimmed]).open;
            if walk.whole || walk.open || open {
                places.push(at + first.len_utf8());
            }
        }
        places.sort_unstable();
        places.dedup();
        places
    }

    /// The third way: where the text continues a control token that began before it.
    fn start_to_mark(&self, text: &str) -> Option<usize> {
        let body = text.trim();
        let start = text.len() - text.trim_start().len();
        let walk = self.endings.walk(body.as_bytes());
        if body.is_empty() || !(walk.whole || walk.open) {
            return None;
        }
        let forges = !body.chars().all(is_word_char) || self.is_core(body);
        forges.then_some(start)
    }

    fn is_core(&self, word: &str) -> bool {
        let word = word.to_ascii_lowercase();
        self.cores.contains(&word) && !SCHEMA_WORDS.contains(&word.as_str())
    }
}

fn is_word_char(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-')
}

/// Sorted texts in ASCII lower case, walked as a trie.
#[derive(Debug)]
struct Texts {
    sorted: Vec<Box<[u8]>>,
    starts: [bool; 256],
}

/// How a set of texts meets another text.
struct Walk {
    /// One of them is at its start.
    whole: bool,
    /// It is the beginning of one of them and ends before it.
    open: bool,
}

impl Texts {
    fn new(texts: Vec<String>) -> Self {
        let mut sorted: Vec<Box<[u8]>> = texts
            .into_iter()
            .map(|text| text.into_bytes().into())
            .collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut starts = [false; 256];
        for first in sorted.iter().filter_map(|text| text.first()) {
            starts[usize::from(*first)] = true;
            starts[usize::from(first.to_ascii_uppercase())] = true;
        }
        Self { sorted, starts }
    }

    fn starts_with_byte(&self, byte: u8) -> bool {
        self.starts[usize::from(byte)]
    }

    fn walk(&self, text: &[u8]) -> Walk {
        let mut within = &self.sorted[..];
        for (depth, byte) in text.iter().enumerate() {
            let byte = Some(byte.to_ascii_lowercase());
            let at_depth = |candidate: &[u8]| candidate.get(depth).copied();
            let start = within.partition_point(|candidate| at_depth(candidate) < byte);
            let end = within.partition_point(|candidate| at_depth(candidate) <= byte);
            within = &within[start..end];
            match within.first() {
                None => {
                    return Walk {
                        whole: false,
                        open: false,
                    };
                }
                Some(shortest) if shortest.len() == depth + 1 => {
                    let open = depth + 1 == text.len() && within.len() > 1;
                    return Walk { whole: true, open };
                }
                Some(_) => {}
            }
        }
        Walk {
            whole: false,
            open: !within.is_empty() && !text.is_empty(),
        }
    }
}

/// The mark of one request.
pub(super) struct Mark<'g> {
    guard: &'g Guard,
    mark: String,
}

impl<'g> Mark<'g> {
    /// A mark that `occurs` finds nowhere among the request's texts.
    pub(super) fn new(guard: &'g Guard, occurs: impl Fn(&str) -> bool) -> Self {
        // Seeded by the system per process and different for each value: a client cannot know it.
        let random = RandomState::new();
        let mut draws = (0u64..).map(|draw| random.hash_one(draw));
        loop {
            let mark = draw_mark(&mut draws);
            if !occurs(&mark) {
                return Self { guard, mark };
            }
        }
    }

    /// `text` with marks where a control token could come about through it.
    pub(super) fn guarded(&self, text: &str) -> String {
        let places = self.guard.places(text);
        let mut out = String::with_capacity(text.len() + places.len() * self.mark.len());
        let mut from = 0;
        for place in places {
            out.push_str(&text[from..place]);
            out.push_str(&self.mark);
            from = place;
        }
        out.push_str(&text[from..]);
        out
    }

    /// `text` without marks, and where they were: byte offsets, ascending.
    pub(super) fn removed(&self, text: &str) -> (String, Vec<usize>) {
        let mut out = String::with_capacity(text.len());
        let mut breaks = Vec::new();
        let mut parts = text.split(&self.mark);
        out.push_str(parts.next().unwrap_or_default());
        for part in parts {
            breaks.push(out.len());
            out.push_str(part);
        }
        (out, breaks)
    }
}

/// Private-use characters, all different: such a run never overlaps itself, so that what is next to
/// a mark cannot hide it.
fn draw_mark(draws: &mut impl Iterator<Item = u64>) -> String {
    let mut mark = String::new();
    let characters = draws.filter_map(|draw| {
        let offset = draw % u64::from(PRIVATE_USE.end - PRIVATE_USE.start);
        char::from_u32(PRIVATE_USE.start + offset as u32)
    });
    for character in characters {
        if !mark.contains(character) {
            mark.push(character);
        }
        if mark.chars().count() == MARK_CHARS {
            break;
        }
    }
    mark
}

#[cfg(test)]
mod tests;
