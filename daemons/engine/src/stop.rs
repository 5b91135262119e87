//! Stop strings over text that comes in pieces.

/// Watches a stream of text for the first occurrence of any stop string. Text that might be the
/// beginning of one is held back until it is decided.
#[derive(Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

/// What a piece of text brought.
#[derive(Debug, PartialEq, Eq)]
pub struct Passed {
    /// Text that may be shown.
    pub text: String,
    /// Index of the stop string that appeared; nothing after it counts.
    pub stopped_by: Option<usize>,
}

impl StopMatcher {
    /// Empty stop strings are ignored.
    pub fn new(stops: Vec<String>) -> Self {
        Self {
            stops: stops.into_iter().filter(|s| !s.is_empty()).collect(),
            held: String::new(),
        }
    }

    pub fn stop(&self, index: usize) -> &str {
        &self.stops[index]
    }

    /// Takes more text. The match that is complete first wins, as if characters came one by one;
    /// among those complete at one place the longest. So the pieces do not matter.
    pub fn push(&mut self, text: &str) -> Passed {
        self.held.push_str(text);
        let found = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(index, stop)| self.held.find(stop).map(|at| (at + stop.len(), at, index)))
            .min();
        if let Some((_, at, index)) = found {
            self.held.truncate(at);
            return Passed {
                text: std::mem::take(&mut self.held),
                stopped_by: Some(index),
            };
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| overlap(&self.held, stop))
            .max()
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        Passed {
            text: std::mem::replace(&mut self.held, rest),
            stopped_by: None,
        }
    }

    /// The stream has ended: what was held back is text after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes of the longest end of `text` that is a proper beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let most = text.len().min(stop.len() - 1);
    (1..=most)
        .rev()
        .find(|&n| {
            text.is_char_boundary(text.len() - n)
                && stop
                    .as_bytes()
                    .starts_with(&text.as_bytes()[text.len() - n..])
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let mut out = String::new();
        for piece in pieces {
            let passed = matcher.push(piece);
            out.push_str(&passed.text);
            if passed.stopped_by.is_some() {
                return (out, passed.stopped_by);
            }
        }
        out.push_str(&matcher.finish());
        (out, None)
    }

    #[test]
    fn a_stop_over_pieces_is_found_and_cut() {
        assert_eq!(
            run(&["\n\nUser:"], &["Hi\n", "\nUs", "er: x"]),
            ("Hi".into(), Some(0))
        );
        assert_eq!(
            run(&["\n\nUser:"], &["Hi\n", "\nUs", "ed"]),
            ("Hi\n\nUsed".into(), None)
        );
        assert_eq!(run(&["b", "ab"], &["xab"]), ("x".into(), Some(1)));
        assert_eq!(run(&["é!"], &["caf", "é", "?"]), ("café?".into(), None));
    }

    proptest! {
        /// In whatever pieces the text comes, the result is that of the whole text.
        #[test]
        fn pieces_do_not_matter(
            text in "[abé]{0,30}",
            stops in prop::collection::vec("[abé]{1,4}", 0..3),
            cuts in prop::collection::vec(0usize..30, 0..6),
        ) {
            let refs: Vec<&str> = stops.iter().map(String::as_str).collect();
            let whole = run(&refs, &[&text]);
            let chars: Vec<char> = text.chars().collect();
            let mut bounds: Vec<usize> = cuts.iter().map(|c| c % (chars.len() + 1)).collect();
            bounds.extend([0, chars.len()]);
            bounds.sort_unstable();
            let pieces: Vec<String> =
                bounds.windows(2).map(|w| chars[w[0]..w[1]].iter().collect()).collect();
            let refs_pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (out, stop) = run(&refs, &refs_pieces);
            let cut = refs.iter().filter_map(|s| text.find(s).map(|at| (at + s.len(), at))).min();
            prop_assert_eq!(&out, &text[..cut.map_or(text.len(), |c| c.1)]);
            prop_assert_eq!(stop.is_some(), cut.is_some());
            prop_assert_eq!(out, whole.0);
        }
    }
}
