use std::str;

/// Turns a stream of bytes into whole characters: a token may end inside a character, and what a
/// client gets must not.
///
/// Bytes that can still become a character are held back (at most three); bytes that cannot are
/// replaced by U+FFFD, one for each longest broken sequence, as Unicode recommends.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    held: Vec<u8>,
}

impl Utf8Stream {
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends to `out` the characters that `bytes` completes.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.held.extend_from_slice(bytes);
        let mut rest = &self.held[..];
        loop {
            match str::from_utf8(rest) {
                Ok(whole) => {
                    out.push_str(whole);
                    self.held.clear();
                    return;
                }
                Err(error) => {
                    let (valid, broken) = rest.split_at(error.valid_up_to());
                    out.push_str(str::from_utf8(valid).unwrap_or_default());
                    let Some(len) = error.error_len() else {
                        let start = self.held.len() - broken.len();
                        self.held.drain(..start);
                        return;
                    };
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &broken[len..];
                }
            }
        }
    }

    /// Whether bytes are held back.
    pub fn is_pending(&self) -> bool {
        !self.held.is_empty()
    }

    /// Ends the stream: bytes still held back become one U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if !self.held.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            self.held.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn holds_back_what_may_become_a_character() {
        let mut stream = Utf8Stream::new();
        let mut out = String::new();
        let mut pushed = |bytes: &[u8]| {
            out.clear();
            stream.push(bytes, &mut out);
            out.clone()
        };
        assert_eq!(pushed(b"a\xf0\x9f"), "a");
        assert_eq!(pushed(b"\x98"), "");
        assert_eq!(pushed(b"\x80!"), "😀!");
        assert_eq!(pushed(b"\xe4\xb8a"), "\u{fffd}a");
        assert_eq!(pushed(b"\xe4"), "");
        assert!(stream.is_pending());
        let mut rest = String::new();
        stream.finish(&mut rest);
        assert_eq!(rest, "\u{fffd}");
        assert!(!stream.is_pending());
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_text(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0x80u8..=0xf4], 0..60),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut stream = Utf8Stream::new();
            let mut out = String::new();
            for pair in cuts.windows(2) {
                stream.push(&bytes[pair[0]..pair[1]], &mut out);
                prop_assert!(stream.held.len() <= 3);
            }
            stream.finish(&mut out);
            prop_assert_eq!(out, String::from_utf8_lossy(&bytes));
        }
    }
}
