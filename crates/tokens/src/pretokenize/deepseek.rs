//! Expressions of the DeepSeek families and of vocabularies without a name: each finds its words in
//! what the one before left, and gives 0 where there is none.

use super::{
    class::{Classes, class_at, run_end},
    words::{blank, is_line_break},
};
use crate::codepoints::codepoint_at;

/// `[\r\n]`
pub(super) fn line_break(text: &[u8]) -> usize {
    usize::from(text.first().is_some_and(|&byte| is_line_break(byte)))
}

/// `\s?\p{L}+`
pub(super) fn spaced_letters(text: &[u8]) -> usize {
    after_space(text, |at| run_end(text, at, Classes::LETTER))
}

/// `\s?\p{P}+`
pub(super) fn spaced_punctuation(text: &[u8]) -> usize {
    after_space(text, |at| run_end(text, at, Classes::PUNCTUATION))
}

/// `\s?[A-Za-zµÀ-Ö…]+`: the letters of [`CASED`].
pub(super) fn spaced_cased_letters(text: &[u8]) -> usize {
    after_space(text, |at| range_end(text, at, &CASED))
}

/// `\s?[!-/:-~！-／：-～‘-‟　-。]+`
pub(super) fn spaced_marks(text: &[u8]) -> usize {
    const MARKS: [(u32, u32); 6] = [
        (0x21, 0x2f),
        (0x3a, 0x7e),
        (0x2018, 0x201f),
        (0x3000, 0x3002),
        (0xff01, 0xff0f),
        (0xff1a, 0xff5e),
    ];
    after_space(text, |at| range_end(text, at, &MARKS))
}

/// `[一-龥ࠀ-一가-퟿]+`
pub(super) fn east_asian(text: &[u8]) -> usize {
    range_end(text, 0, &[(0x0800, 0x9fa5), (0xac00, 0xd7ff)])
}

/// `[一-龥぀-ゟ゠-ヿ]+`
pub(super) fn han_and_kana(text: &[u8]) -> usize {
    range_end(text, 0, &[(0x3040, 0x30ff), (0x4e00, 0x9fa5)])
}

/// ``[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|``
/// `` ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+``
pub(super) fn v3_word(text: &[u8]) -> usize {
    let letters = Classes::LETTER | Classes::MARK;
    let marks = Classes::PUNCTUATION | Classes::SYMBOL;
    let Some((first, first_len)) = class_at(text, 0) else {
        return 0;
    };
    if text[0].is_ascii_punctuation() {
        let name = text[1..]
            .iter()
            .take_while(|byte| byte.is_ascii_alphabetic());
        let name_len = name.count();
        if name_len > 0 {
            return 1 + name_len;
        }
    }
    if !first.meets(Classes::LETTER | marks) && !is_line_break(text[0]) {
        let end = run_end(text, first_len, letters);
        if end > first_len {
            return end;
        }
    }
    if first.meets(letters) {
        return run_end(text, 0, letters);
    }
    let start = usize::from(text[0] == b' ');
    let end = run_end(text, start, marks);
    if end > start {
        let line_breaks = text[end..].iter().take_while(|&&byte| is_line_break(byte));
        return end + line_breaks.count();
    }
    blank(text)
}

/// `[\p{P}\$\+<=>\^~\|]+`
pub(super) fn marks(text: &[u8]) -> usize {
    marks_end(text, b"$+<=>^~|")
}

/// ``[\p{P}\$\+<=>\^~\|`]+``
pub(super) fn marks_and_backtick(text: &[u8]) -> usize {
    marks_end(text, b"$+<=>^~|`")
}

fn marks_end(text: &[u8], symbols: &[u8]) -> usize {
    let mut at = 0;
    while let Some((class, len)) = class_at(text, at) {
        if !class.meets(Classes::PUNCTUATION) && !symbols.contains(&text[at]) {
            break;
        }
        at += len;
    }
    at
}

/// `\p{N}+`
pub(super) fn numbers(text: &[u8]) -> usize {
    run_end(text, 0, Classes::NUMBER)
}

/// `[0-9][0-9][0-9]`
pub(super) fn three_digits(text: &[u8]) -> usize {
    let group = text.get(..3);
    group.map_or(0, |group| {
        if group.iter().all(u8::is_ascii_digit) {
            3
        } else {
            0
        }
    })
}

/// One white-space character, if there is one, and the run after it that `end_of` finds.
fn after_space(text: &[u8], end_of: impl Fn(usize) -> usize) -> usize {
    let start = match class_at(text, 0) {
        Some((class, len)) if class.meets(Classes::SPACE) => len,
        _ => 0,
    };
    let end = end_of(start);
    if end > start { end } else { end_of(0) }
}

fn range_end(text: &[u8], mut at: usize, ranges: &[(u32, u32)]) -> usize {
    while let Some((codepoint, len)) = codepoint_at(text, at) {
        let next = ranges.partition_point(|&(_, last)| last < codepoint);
        if ranges.get(next).is_none_or(|&(first, _)| codepoint < first) {
            break;
        }
        at += len;
    }
    at
}

/// The letters with case that the DeepSeek LLM expression lists, first and last of each range.
#[rustfmt::skip]
const CASED: [(u32, u32); 87] = [
    (0x0041, 0x005a), (0x0061, 0x007a), (0x00b5, 0x00b5), (0x00c0, 0x00d6),
    (0x00d8, 0x00f6), (0x00f8, 0x01ba), (0x01bc, 0x01bf), (0x01c4, 0x0293),
    (0x0295, 0x02af), (0x0370, 0x0373), (0x0376, 0x0376), (0x0377, 0x0377),
    (0x037b, 0x037d), (0x037f, 0x037f), (0x0386, 0x0386), (0x0388, 0x038a),
    (0x038c, 0x038c), (0x038e, 0x03a1), (0x03a3, 0x03f5), (0x03f7, 0x0481),
    (0x048a, 0x052f), (0x0531, 0x0556), (0x10a0, 0x10c5), (0x13a0, 0x13f5),
    (0x13f8, 0x13fd), (0x1c90, 0x1cba), (0x1cbd, 0x1cbf), (0x1d00, 0x1d2b),
    (0x1d6b, 0x1d77), (0x1d79, 0x1d9a), (0x1e00, 0x1f15), (0x1f18, 0x1f1d),
    (0x1f20, 0x1f45), (0x1f48, 0x1f4d), (0x1f50, 0x1f57), (0x1f59, 0x1f59),
    (0x1f5b, 0x1f5b), (0x1f5d, 0x1f5d), (0x1f5f, 0x1f7d), (0x1f80, 0x1fb4),
    (0x1fb6, 0x1fbc), (0x1fbe, 0x1fbe), (0x1fc2, 0x1fc4), (0x1fc6, 0x1fcc),
    (0x1fd0, 0x1fd3), (0x1fd6, 0x1fdb), (0x1fe0, 0x1fec), (0x1ff2, 0x1ff4),
    (0x1ff6, 0x1ffc), (0x2102, 0x2102), (0x2107, 0x2107), (0x210a, 0x2113),
    (0x2115, 0x2115), (0x2119, 0x211d), (0x2124, 0x2124), (0x2126, 0x2126),
    (0x2128, 0x2128), (0x212a, 0x212d), (0x212f, 0x2134), (0x2139, 0x2139),
    (0x213c, 0x213f), (0x2145, 0x2149), (0x214e, 0x214e), (0x2183, 0x2183),
    (0x2184, 0x2184), (0x2c00, 0x2c7b), (0x2c7e, 0x2ce4), (0x2ceb, 0x2cee),
    (0x2cf2, 0x2cf2), (0x2cf3, 0x2cf3), (0xa640, 0xa66d), (0xa680, 0xa69b),
    (0xa722, 0xa76f), (0xa771, 0xa787), (0xa78b, 0xa78e), (0xab70, 0xabbf),
    (0xfb00, 0xfb06), (0xfb13, 0xfb17), (0xff21, 0xff3a), (0xff41, 0xff5a),
    (0x10400, 0x1044f), (0x104b0, 0x104d3), (0x104d8, 0x104fb), (0x10c80, 0x10cb2),
    (0x10cc0, 0x10cf2), (0x118a0, 0x118df), (0x1e900, 0x1e943),
];
