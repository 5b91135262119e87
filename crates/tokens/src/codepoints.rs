//! Reading text that may not be UTF-8, as llama.cpp reads it.

use std::borrow::Cow;

const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// `text` with each byte that starts no character replaced by U+FFFD and overlong forms spelled
/// shortest. Surrogates stay: the result is UTF-8 but for those.
pub(crate) fn normalise(text: &[u8]) -> Cow<'_, [u8]> {
    if std::str::from_utf8(text).is_ok() {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len() + text.len() / 8);
    let mut rest = text;
    while let [first, ..] = rest {
        let len = match decode_loosely(rest) {
            Some((codepoint, len)) => {
                push_codepoint(codepoint, &mut out);
                len
            }
            None => {
                out.extend_from_slice(REPLACEMENT);
                1
            }
        };
        debug_assert!(*first >= 0x80 || len == 1, "ASCII stands for itself");
        rest = &rest[len..];
    }
    Cow::Owned(out)
}

/// The code point at the start of `bytes` and its length, with only the shape of the sequence
/// checked. Beyond U+10FFFF there is no code point.
fn decode_loosely(bytes: &[u8]) -> Option<(u32, usize)> {
    let first = *bytes.first()?;
    let (len, bits) = match first {
        0x00..=0x7f => return Some((first.into(), 1)),
        0xc0..=0xdf => (2, first & 0x1f),
        0xe0..=0xef => (3, first & 0x0f),
        0xf0..=0xf7 => (4, first & 0x07),
        _ => return None,
    };
    let codepoint = bytes
        .get(1..len)?
        .iter()
        .try_fold(u32::from(bits), |codepoint, &byte| {
            (byte & 0xc0 == 0x80).then_some(codepoint << 6 | u32::from(byte & 0x3f))
        })?;
    (codepoint <= char::MAX as u32).then_some((codepoint, len))
}

/// Appends a code point as [`normalise`] spells it.
pub(crate) fn push_codepoint(codepoint: u32, out: &mut Vec<u8>) {
    match char::from_u32(codepoint) {
        Some(character) => {
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
        // A surrogate: three bytes, as if it were a character.
        None => out.extend([
            0xe0 | (codepoint >> 12) as u8,
            0x80 | (codepoint >> 6 & 0x3f) as u8,
            0x80 | (codepoint & 0x3f) as u8,
        ]),
    }
}

/// The code point at `at` and its length in a text that [`normalise`] returned; `None` at its end.
pub(crate) fn codepoint_at(text: &[u8], at: usize) -> Option<(u32, usize)> {
    decode_loosely(text.get(at..)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn broken_bytes_become_replacement_characters() {
        let cases: [(&[u8], &[u8]); 7] = [
            (b"\xff", "\u{fffd}".as_bytes()),
            (b"a\xc3", "a\u{fffd}".as_bytes()),
            (b"\xe2\x82", "\u{fffd}\u{fffd}".as_bytes()),
            (b"\xe2(\xa1", "\u{fffd}(\u{fffd}".as_bytes()),
            (b"\xed\xa0\x80", b"\xed\xa0\x80"),
            (b"\xc0\xaf", b"/"),
            (
                b"\xf4\x90\x80\x80",
                "\u{fffd}\u{fffd}\u{fffd}\u{fffd}".as_bytes(),
            ),
        ];
        for (text, wanted) in cases {
            assert_eq!(normalise(text), wanted, "{text:02x?}");
        }
    }

    proptest! {
        #[test]
        fn normal_text_stays_and_can_be_walked(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let normal = normalise(&bytes);
            prop_assert_eq!(&*normalise(&normal), &*normal);
            let mut at = 0;
            while let Some((_, len)) = codepoint_at(&normal, at) {
                at += len;
            }
            prop_assert_eq!(at, normal.len());
        }
    }
}
