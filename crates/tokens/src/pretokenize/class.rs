//! Character classes that the expressions name, as sets.

use crate::codepoints::codepoint_at;
use std::ops::{BitOr, Not};
use unicode_general_category::{GeneralCategory, get_general_category};

/// A set of character classes. Each character is of exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Classes(u16);

impl Classes {
    /// `\p{Lu}`, `\p{Lt}`
    pub(super) const UPPER: Self = Self(1);
    /// `\p{Ll}`
    pub(super) const LOWER: Self = Self(1 << 1);
    /// `\p{Lm}`, `\p{Lo}`
    pub(super) const UNCASED: Self = Self(1 << 2);
    /// `\p{M}`
    pub(super) const MARK: Self = Self(1 << 3);
    /// `\p{N}`
    pub(super) const NUMBER: Self = Self(1 << 4);
    /// `\s`: Unicode's White_Space
    pub(super) const SPACE: Self = Self(1 << 5);
    /// `\p{P}`
    pub(super) const PUNCTUATION: Self = Self(1 << 6);
    /// `\p{S}`
    pub(super) const SYMBOL: Self = Self(1 << 7);
    /// Whatever is none of the above: control characters, unassigned ones, surrogates.
    const REST: Self = Self(1 << 8);
    /// `\p{L}`
    pub(super) const LETTER: Self = Self(Self::UPPER.0 | Self::LOWER.0 | Self::UNCASED.0);

    /// Whether they have a class in common; for the class of one character, whether it is in.
    pub(super) const fn meets(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }
}

impl BitOr for Classes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Not for Classes {
    type Output = Self;

    fn not(self) -> Self {
        Self(!self.0)
    }
}

const ASCII: [Classes; 128] = {
    let mut classes = [Classes::REST; 128];
    let mut byte = 0;
    while byte < 128 {
        classes[byte] = match byte as u8 {
            b'a'..=b'z' => Classes::LOWER,
            b'A'..=b'Z' => Classes::UPPER,
            b'0'..=b'9' => Classes::NUMBER,
            b'\t'..=b'\r' | b' ' => Classes::SPACE,
            b'$' | b'+' | b'<' | b'=' | b'>' | b'^' | b'`' | b'|' | b'~' => Classes::SYMBOL,
            b'!'..=b'~' => Classes::PUNCTUATION,
            _ => Classes::REST,
        };
        byte += 1;
    }
    classes
};

/// Class and length of the character at `at`; `None` at the end.
pub(super) fn class_at(text: &[u8], at: usize) -> Option<(Classes, usize)> {
    if let Some(&class) = ASCII.get(usize::from(*text.get(at)?)) {
        return Some((class, 1));
    }
    let (codepoint, len) = codepoint_at(text, at)?;
    Some((class_of(codepoint), len))
}

/// Where the run of characters of `classes` that starts at `at` ends.
pub(super) fn run_end(text: &[u8], mut at: usize, classes: Classes) -> usize {
    while let Some((class, len)) = class_at(text, at) {
        if !class.meets(classes) {
            break;
        }
        at += len;
    }
    at
}

fn class_of(codepoint: u32) -> Classes {
    use GeneralCategory::*;
    let Some(character) = char::from_u32(codepoint) else {
        return Classes::REST;
    };
    if character.is_whitespace() {
        return Classes::SPACE;
    }
    match get_general_category(character) {
        UppercaseLetter | TitlecaseLetter => Classes::UPPER,
        LowercaseLetter => Classes::LOWER,
        ModifierLetter | OtherLetter => Classes::UNCASED,
        NonspacingMark | SpacingMark | EnclosingMark => Classes::MARK,
        DecimalNumber | LetterNumber | OtherNumber => Classes::NUMBER,
        ConnectorPunctuation | DashPunctuation | OpenPunctuation | ClosePunctuation
        | InitialPunctuation | FinalPunctuation | OtherPunctuation => Classes::PUNCTUATION,
        MathSymbol | CurrencySymbol | ModifierSymbol | OtherSymbol => Classes::SYMBOL,
        _ => Classes::REST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_ascii_says_what_unicode_says() {
        for byte in 0..128u8 {
            assert_eq!(ASCII[usize::from(byte)], class_of(byte.into()), "{byte:#x}");
        }
    }
}
