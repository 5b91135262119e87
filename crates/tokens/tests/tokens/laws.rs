//! What holds for every text.

use crate::{PARSED, PLAIN, SMOLLM2};
use proptest::prelude::*;
use std::time::{Duration, Instant};
use vitriol_tokens::EncodeOptions;

/// Text of the kinds that tokenizers trip over, control tokens' texts and parts of them included.
fn prompt_text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "\\PC{0,8}",
        "[ \\n\\t]{1,6}",
        "[a-z0-9']{1,12}",
        Just("<|im_start|>".to_owned()),
        Just("<|im_end|>".to_owned()),
        Just("<|im_".to_owned()),
        Just("end|>".to_owned()),
        Just("<".to_owned()),
    ];
    prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

fn has_token(byte: u8) -> bool {
    SMOLLM2.byte_token(byte).is_some()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn text_survives(text in prompt_text()) {
        for options in [PLAIN, PARSED] {
            let ids = SMOLLM2.encode(text.as_bytes(), options);
            prop_assert_eq!(SMOLLM2.decode(&ids, true), text.as_bytes());
        }
    }

    /// The model has no token for some control characters and for the first bytes of unassigned
    /// planes: those are left out, as the reference does. All else survives.
    #[test]
    fn all_but_bytes_without_a_token_survives(text in any::<String>()) {
        let ids = SMOLLM2.encode(text.as_bytes(), PARSED);
        let spelled: Vec<u8> = text.bytes().filter(|&byte| has_token(byte)).collect();
        prop_assert_eq!(SMOLLM2.decode(&ids, true), spelled);
    }

    #[test]
    fn any_bytes_are_encoded(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let ids = SMOLLM2.encode(&bytes, PARSED);
        prop_assert!(ids.iter().all(|&id| SMOLLM2.kind(id).is_some()));
        let ascii = |bytes: &[u8]| -> Vec<u8> {
            let kept = bytes.iter().filter(|&&byte| byte.is_ascii() && has_token(byte));
            kept.copied().collect()
        };
        // Overlong forms come back as the ASCII they spell, so only texts without are compared.
        prop_assume!(!bytes.iter().any(|byte| matches!(byte, 0xc0 | 0xc1 | 0xe0 | 0xf0)));
        prop_assert_eq!(ascii(&SMOLLM2.decode(&ids, true)), ascii(&bytes));
    }

    #[test]
    fn plain_text_gives_no_control_token(text in prompt_text()) {
        let ids = SMOLLM2.encode(text.as_bytes(), PLAIN);
        prop_assert!(!ids.iter().any(|&id| SMOLLM2.is_control(id)));
    }

    #[test]
    fn without_control_text_parsing_changes_nothing(text in "[a-z <|>_]{0,24}") {
        prop_assume!(!SMOLLM2.control_tokens().any(|(_, control)| {
            text.as_bytes().windows(control.len()).any(|window| window == control)
        }));
        prop_assert_eq!(
            SMOLLM2.encode(text.as_bytes(), PARSED),
            SMOLLM2.encode(text.as_bytes(), PLAIN)
        );
    }

    /// Breaks everywhere are the same as not parsing; breaks that touch no control token's text
    /// leave no trace.
    #[test]
    fn breaks_do_what_they_say(text in prompt_text()) {
        let bytes = text.as_bytes();
        let everywhere: Vec<usize> = (0..=bytes.len()).collect();
        prop_assert_eq!(
            SMOLLM2.encode_with_breaks(bytes, &everywhere, PARSED),
            SMOLLM2.encode(bytes, PLAIN)
        );
        let control = ["<|im_start|>", "<|im_end|>"];
        let inside = |at: usize| control.iter().any(|control| {
            text.match_indices(control).any(|(start, _)| start < at && at < start + control.len())
        });
        let harmless: Vec<usize> = everywhere.into_iter().filter(|&at| !inside(at)).collect();
        prop_assert_eq!(
            SMOLLM2.encode_with_breaks(bytes, &harmless, PARSED),
            SMOLLM2.encode(bytes, PARSED)
        );
    }
}

#[test]
fn a_break_at_the_edge_of_a_control_token_does_not_break_it() {
    let text = b"a<|im_end|>b";
    let parsed = SMOLLM2.encode(text, PARSED);
    assert!(parsed.contains(&2));
    assert_eq!(SMOLLM2.encode_with_breaks(text, &[1, 11], PARSED), parsed);
    for at in 2..11 {
        assert_eq!(
            SMOLLM2.encode_with_breaks(text, &[at], PARSED),
            SMOLLM2.encode(text, PLAIN)
        );
    }
}

#[test]
fn ids_beyond_the_vocabulary_have_no_bytes() {
    assert!(SMOLLM2.decode(&[49_152, u32::MAX], true).is_empty());
    assert_eq!(SMOLLM2.kind(49_152), None);
}

/// Merging is n log n in a word's length: a megabyte without a border must not take minutes, as it
/// would if it were quadratic.
#[test]
fn a_megabyte_of_one_word_is_encoded() {
    let start = Instant::now();
    for word in ["a", "ab", "\u{4e00}", "!"] {
        let text = word.repeat((1 << 20) / word.len());
        let ids = SMOLLM2.encode(text.as_bytes(), EncodeOptions::default());
        assert_eq!(SMOLLM2.decode(&ids, false), text.as_bytes());
    }
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(60), "4 MiB took {elapsed:?}");
}
