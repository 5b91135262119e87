//! Matches of the expressions that cover any text: a text that is not empty has a match at its
//! start.

use super::class::{Classes, class_at, run_end};

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
pub(super) fn gpt2(text: &[u8]) -> usize {
    const CONTRACTIONS: [&[u8]; 7] = [b"'s", b"'t", b"'re", b"'ve", b"'m", b"'ll", b"'d"];
    if let Some(found) = CONTRACTIONS
        .iter()
        .find(|contraction| text.starts_with(contraction))
    {
        return found.len();
    }
    let start = usize::from(text[0] == b' ');
    let Some((class, _)) = class_at(text, start) else {
        return space(text);
    };
    if class.meets(Classes::SPACE) {
        space(text)
    } else if class.meets(Classes::LETTER) {
        run_end(text, start, Classes::LETTER)
    } else if class.meets(Classes::NUMBER) {
        run_end(text, start, Classes::NUMBER)
    } else {
        run_end(text, start, !wordlike())
    }
}

/// What is neither punctuation nor a symbol to most expressions: `[\s\p{L}\p{N}]`.
fn wordlike() -> Classes {
    Classes::SPACE | Classes::LETTER | Classes::NUMBER
}

/// Where the expressions of the cl100k kind differ.
pub(super) struct Cl100k {
    pub(super) contractions: Contractions,
    pub(super) letters: Letters,
    /// The most number characters of a word.
    pub(super) digits_max: usize,
    /// What a run of punctuation takes with it besides line breaks.
    pub(super) slash_ends_punctuation: bool,
}

#[derive(PartialEq, Eq)]
pub(super) enum Contractions {
    /// Words of their own.
    Apart,
    /// The end of the word before.
    Attached,
    None,
}

#[derive(PartialEq, Eq)]
pub(super) enum Letters {
    /// `\p{L}+`
    Any,
    /// `[\p{L}\p{M}]+`; marks are then no punctuation.
    WithMarks,
    /// An upper-case start, then lower case: `HTMLParser` is `HTMLParser`, `parserHTML` two words.
    ///
    /// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` or, if that finds nothing,
    /// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`
    Cased,
}

impl Cl100k {
    /// Length of the first word.
    pub(super) fn word(&self, text: &[u8]) -> usize {
        if self.contractions == Contractions::Apart
            && let Some(len) = contraction(text)
        {
            return len;
        }
        let Some((first, first_len)) = class_at(text, 0) else {
            return text.len();
        };
        if let Some(end) = self.letter_word(text, first, first_len) {
            return match contraction(&text[end..]) {
                Some(len) if self.contractions == Contractions::Attached => end + len,
                _ => end,
            };
        }
        if first.meets(Classes::NUMBER) {
            return number_group(text, self.digits_max);
        }
        self.punctuation(text).unwrap_or_else(|| blank(text))
    }

    /// Letters, and one character before them that is neither letter, number nor line break.
    fn letter_word(&self, text: &[u8], first: Classes, first_len: usize) -> Option<usize> {
        let may_lead = !first.meets(Classes::LETTER | Classes::NUMBER) && !is_line_break(text[0]);
        let starts = [may_lead.then_some(first_len), Some(0)];
        let mut starts = starts.into_iter().flatten();
        match self.letters {
            Letters::Any => starts.find_map(|start| run(text, start, Classes::LETTER)),
            Letters::WithMarks => {
                starts.find_map(|start| run(text, start, Classes::LETTER | Classes::MARK))
            }
            Letters::Cased => starts
                .clone()
                .find_map(|start| capitalised(text, start))
                .or_else(|| starts.find_map(|start| run(text, start, upper()))),
        }
    }

    fn punctuation(&self, text: &[u8]) -> Option<usize> {
        let excluded = match self.letters {
            Letters::WithMarks => wordlike() | Classes::MARK,
            Letters::Any | Letters::Cased => wordlike(),
        };
        let end = run(text, usize::from(text[0] == b' '), !excluded)?;
        let ends =
            |byte: &&u8| is_line_break(**byte) || (self.slash_ends_punctuation && **byte == b'/');
        Some(end + text[end..].iter().take_while(ends).count())
    }
}

fn upper() -> Classes {
    Classes::UPPER | Classes::UNCASED | Classes::MARK
}

fn lower() -> Classes {
    Classes::LOWER | Classes::UNCASED | Classes::MARK
}

/// The first form of [`Letters::Cased`] at `start`. Where no lower-case letter follows the upper
/// case, the expression gives back as much of it as it must: to the last character of no case.
fn capitalised(text: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    let mut caseless_end = None;
    while let Some((class, len)) = class_at(text, at) {
        if !class.meets(upper()) {
            break;
        }
        at += len;
        if class.meets(lower()) {
            caseless_end = Some(at);
        }
    }
    run(text, at, lower()).or(caseless_end)
}

/// Where the run of `classes` at `start` ends, if there is one.
fn run(text: &[u8], start: usize, classes: Classes) -> Option<usize> {
    let end = run_end(text, start, classes);
    (end > start).then_some(end)
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)`, of ASCII letters.
fn contraction(text: &[u8]) -> Option<usize> {
    const ENDINGS: [&[u8]; 7] = [b"s", b"t", b"re", b"ve", b"m", b"ll", b"d"];
    let rest = text.strip_prefix(b"'")?;
    let matches = |ending: &&&[u8]| {
        rest.get(..ending.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(ending))
    };
    ENDINGS.iter().find(matches).map(|ending| 1 + ending.len())
}

/// `\p{N}{1,most}`; 0 where there is none.
pub(super) fn number_group(text: &[u8], most: usize) -> usize {
    (0..most).fold(0, |end, _| match class_at(text, end) {
        Some((class, len)) if class.meets(Classes::NUMBER) => end + len,
        _ => end,
    })
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`; 0 where there is no white space.
pub(super) fn blank(text: &[u8]) -> usize {
    let spaces = run_end(text, 0, Classes::SPACE);
    match text[..spaces].iter().rposition(|&byte| is_line_break(byte)) {
        Some(last) => last + 1,
        None => space(text),
    }
}

/// `\s+(?!\S)|\s+`: a run of white space, less its last character if something follows that can
/// take it.
fn space(text: &[u8]) -> usize {
    let end = run_end(text, 0, Classes::SPACE);
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

pub(super) fn is_line_break(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}
