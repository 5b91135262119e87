//! Pre-tokenizers: cutting text into the words inside which merges happen.
//!
//! Each is the hand-written scanner of a regular expression that the vocabulary was trained with;
//! `\s`, `\p{L}`, `\p{N}` are Unicode's White_Space and general categories L and N.

use crate::codepoints::codepoint_at;
use unicode_general_category::{GeneralCategory, get_general_category};

/// How a vocabulary wants text cut into words (`tokenizer.ggml.pre`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreTokenizer {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// Every `\p{N}` a word of its own; between them as [`Gpt2`](Self::Gpt2).
    Smollm,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|`
    /// ` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    Llama3,
}

const NAMES: [(&str, PreTokenizer); 5] = [
    ("gpt-2", PreTokenizer::Gpt2),
    ("smollm", PreTokenizer::Smollm),
    ("llama-bpe", PreTokenizer::Llama3),
    ("llama3", PreTokenizer::Llama3),
    ("llama-v3", PreTokenizer::Llama3),
];

impl PreTokenizer {
    /// The pre-tokenizer that files call `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|&(_, pre)| pre)
    }

    /// The names that [`from_name`](Self::from_name) knows, for messages.
    pub(crate) fn known_names() -> String {
        NAMES.map(|(name, _)| format!("{name:?}")).join(", ")
    }

    /// Whether a word that is a piece of the vocabulary is that token, whatever the merges say.
    pub(crate) fn ignores_merges(self) -> bool {
        self == Self::Llama3
    }

    /// Whether a beginning-of-sequence token is put first if the file does not say.
    pub(crate) fn adds_bos(self) -> bool {
        self == Self::Llama3
    }

    /// Calls `word` with the words of `text` in order; together they are `text`.
    ///
    /// `text` is normalised (see [`crate::codepoints`]). Cost: one pass, no allocation.
    pub(crate) fn split<'a>(self, text: &'a [u8], mut word: impl FnMut(&'a [u8])) {
        match self {
            Self::Gpt2 => split_with(text, gpt2_word, word),
            Self::Smollm => split_digits(text, |part| split_with(part, gpt2_word, &mut word)),
            Self::Llama3 => split_with(text, llama3_word, word),
        }
    }
}

/// Cuts `text` before and after each number character.
fn split_digits<'a>(text: &'a [u8], mut part: impl FnMut(&'a [u8])) {
    let (mut start, mut at) = (0, 0);
    while let Some((class, len)) = class_at(text, at) {
        if class == Class::Number {
            if start < at {
                part(&text[start..at]);
            }
            part(&text[at..at + len]);
            start = at + len;
        }
        at += len;
    }
    if start < at {
        part(&text[start..]);
    }
}

fn split_with<'a>(
    text: &'a [u8],
    word_len: impl Fn(&[u8]) -> usize,
    mut word: impl FnMut(&'a [u8]),
) {
    let mut rest = text;
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(word_len(rest));
        word(head);
        rest = tail;
    }
}

/// Length of the first word of a text that is not empty.
fn gpt2_word(text: &[u8]) -> usize {
    const CONTRACTIONS: [&[u8]; 7] = [b"'s", b"'t", b"'re", b"'ve", b"'m", b"'ll", b"'d"];
    if let Some(found) = CONTRACTIONS
        .iter()
        .find(|contraction| text.starts_with(contraction))
    {
        return found.len();
    }
    let start = usize::from(text[0] == b' ');
    match class_at(text, start) {
        None | Some((Class::Space, _)) => space_word(text),
        Some((class, _)) => run_end(text, start, class),
    }
}

fn llama3_word(text: &[u8]) -> usize {
    if let Some(len) = contraction_of_any_case(text) {
        return len;
    }
    let Some((first, first_len)) = class_at(text, 0) else {
        return text.len();
    };
    let line_break = is_line_break(text[0]);
    if first == Class::Letter {
        return run_end(text, 0, Class::Letter);
    }
    if first != Class::Number && !line_break {
        let end = run_end(text, first_len, Class::Letter);
        if end > first_len {
            return end;
        }
    }
    if first == Class::Number {
        return (0..2).fold(first_len, |end, _| match class_at(text, end) {
            Some((Class::Number, len)) => end + len,
            _ => end,
        });
    }
    let start = usize::from(text[0] == b' ');
    let end = run_end(text, start, Class::Other);
    if end > start {
        return end
            + text[end..]
                .iter()
                .take_while(|&&byte| is_line_break(byte))
                .count();
    }
    let spaces = run_end(text, 0, Class::Space);
    match text[..spaces].iter().rposition(|&byte| is_line_break(byte)) {
        Some(last) => last + 1,
        None => space_word(text),
    }
}

fn contraction_of_any_case(text: &[u8]) -> Option<usize> {
    const ENDINGS: [&[u8]; 7] = [b"s", b"t", b"re", b"ve", b"m", b"ll", b"d"];
    let rest = text.strip_prefix(b"'")?;
    let matches = |ending: &&&[u8]| {
        rest.get(..ending.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(ending))
    };
    ENDINGS.iter().find(matches).map(|ending| 1 + ending.len())
}

fn is_line_break(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

/// `\s+(?!\S)|\s+`: a run of white space, less its last character if something follows that can
/// take it.
fn space_word(text: &[u8]) -> usize {
    let end = run_end(text, 0, Class::Space);
    if end == text.len() {
        return end;
    }
    let mut last = 0;
    let mut at = 0;
    while at < end {
        let Some((_, len)) = class_at(text, at) else {
            break;
        };
        last = at;
        at += len;
    }
    if last > 0 { last } else { end }
}

/// Where the run of `class` that starts at `at` ends.
fn run_end(text: &[u8], mut at: usize, class: Class) -> usize {
    while let Some((found, len)) = class_at(text, at) {
        if found != class {
            break;
        }
        at += len;
    }
    at
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

const ASCII: [Class; 128] = {
    let mut classes = [Class::Other; 128];
    let mut byte = 0;
    while byte < 128 {
        classes[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            b'0'..=b'9' => Class::Number,
            b'\t'..=b'\r' | b' ' => Class::Space,
            _ => Class::Other,
        };
        byte += 1;
    }
    classes
};

/// Class and length of the character at `at`; `None` at the end.
fn class_at(text: &[u8], at: usize) -> Option<(Class, usize)> {
    if let Some(&class) = ASCII.get(usize::from(*text.get(at)?)) {
        return Some((class, 1));
    }
    let (codepoint, len) = codepoint_at(text, at)?;
    Some((class_of(codepoint), len))
}

fn class_of(codepoint: u32) -> Class {
    use GeneralCategory::*;
    // Surrogates are no characters and of no class that the expressions name.
    let Some(character) = char::from_u32(codepoint) else {
        return Class::Other;
    };
    if character.is_whitespace() {
        return Class::Space;
    }
    match get_general_category(character) {
        UppercaseLetter | LowercaseLetter | TitlecaseLetter | ModifierLetter | OtherLetter => {
            Class::Letter
        }
        DecimalNumber | LetterNumber | OtherNumber => Class::Number,
        _ => Class::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codepoints::normalise;
    use proptest::prelude::*;

    fn words(pre: PreTokenizer, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        pre.split(text.as_bytes(), |word| {
            words.push(String::from_utf8_lossy(word).into_owned())
        });
        words
    }

    #[test]
    fn gpt2_cuts_as_its_expression() {
        let cut = |text| words(PreTokenizer::Gpt2, text);
        assert_eq!(
            cut("Hello world, it's 1234!"),
            ["Hello", " world", ",", " it", "'s", " 1234", "!"]
        );
        assert_eq!(cut("a   b"), ["a", "  ", " b"]);
        assert_eq!(cut("a \n b  "), ["a", " \n", " b", "  "]);
        assert_eq!(
            cut("a\u{3000}\u{3000}b"),
            ["a", "\u{3000}", "\u{3000}", "b"]
        );
        assert_eq!(cut("'S 'll'x"), ["'", "S", " '", "ll", "'", "x"]);
        assert_eq!(cut("é½Ⅷ…"), ["é", "½Ⅷ", "…"]);
        assert_eq!(cut(" "), [" "]);
        assert_eq!(cut("\n"), ["\n"]);
    }

    #[test]
    fn smollm_gives_each_digit_a_word() {
        let cut = |text| words(PreTokenizer::Smollm, text);
        assert_eq!(
            cut("in 2024  3"),
            ["in", " ", "2", "0", "2", "4", "  ", "3"]
        );
        assert_eq!(cut("x½٣"), ["x", "½", "٣"]);
        assert_eq!(cut("'1s 's"), ["'", "1", "s", " '", "s"]);
    }

    #[test]
    fn llama3_cuts_as_its_expression() {
        let cut = |text| words(PreTokenizer::Llama3, text);
        assert_eq!(
            cut("It'S 12345 (abc) x"),
            ["It", "'S", " ", "123", "45", " (", "abc", ")", " x"]
        );
        assert_eq!(cut("a\n\n  b"), ["a", "\n\n", " ", " b"]);
        assert_eq!(cut("  \n \n x"), ["  \n \n", " x"]);
        assert_eq!(cut("!!\r\n!x"), ["!!\r\n", "!x"]);
        assert_eq!(cut("\tif"), ["\tif"]);
        assert_eq!(cut("\nif"), ["\n", "if"]);
        assert_eq!(cut("a   "), ["a", "   "]);
    }

    proptest! {
        #[test]
        fn words_are_the_text(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            pieces_join(&normalise(&bytes))?;
        }

        #[test]
        fn words_of_text_are_the_text(text in "[ \\n\\r\\t'a-eA-Estrvlmd0-9!?\u{a0}\u{3000}é½中]{0,40}") {
            pieces_join(text.as_bytes())?;
        }
    }

    fn pieces_join(text: &[u8]) -> Result<(), TestCaseError> {
        for pre in [
            PreTokenizer::Gpt2,
            PreTokenizer::Smollm,
            PreTokenizer::Llama3,
        ] {
            let mut joined = Vec::new();
            pre.split(text, |word| {
                assert!(!word.is_empty());
                joined.extend_from_slice(word);
            });
            prop_assert_eq!(&joined, text);
        }
        Ok(())
    }
}
