//! The printable alphabet in which byte-level BPE vocabularies are written down.
//!
//! Each byte has one character: those that are printable in Latin-1 stand for themselves, the
//! other 68 take U+0100 and up in order of their value.
//!
//! Source: openai/gpt-2, `encoder.py`.

/// Whether a byte stands for itself.
const fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// First code point that no byte is written as.
const END: usize = 0x100 + 68;

const BYTES: [Option<u8>; END] = {
    let mut bytes = [None; END];
    let (mut byte, mut next) = (0, 0x100);
    while byte < 256 {
        if is_printable(byte as u8) {
            bytes[byte] = Some(byte as u8);
        } else {
            bytes[next] = Some(byte as u8);
            next += 1;
        }
        byte += 1;
    }
    bytes
};

/// Appends the bytes that `text` stands for; `false`, with `out` as it was, if a character of it
/// stands for no byte.
pub(crate) fn decode(text: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    let Ok(text) = std::str::from_utf8(text) else {
        return false;
    };
    for character in text.chars() {
        match BYTES.get(character as usize) {
            Some(&Some(byte)) => out.push(byte),
            _ => {
                out.truncate(start);
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Option<Vec<u8>> {
        let mut out = b"x".to_vec();
        let whole = decode(text.as_bytes(), &mut out);
        assert!(whole || out == b"x", "a refused text leaves nothing behind");
        whole.then(|| out[1..].to_vec())
    }

    #[test]
    fn decodes_the_alphabet() {
        assert_eq!(decoded("Ġthe").as_deref(), Some(&b" the"[..]));
        assert_eq!(decoded("Ċĉč").as_deref(), Some(&b"\n\t\r"[..]));
        assert_eq!(decoded("ä¸Ń").as_deref(), Some("中".as_bytes()));
        assert_eq!(decoded("a b"), None);
        assert_eq!(decoded("中"), None);
    }

    #[test]
    fn every_byte_has_one_character() {
        let mut seen: Vec<u8> = BYTES.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
    }
}
