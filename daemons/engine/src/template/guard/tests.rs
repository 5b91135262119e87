use super::*;
use proptest::prelude::*;

const TOKENS: [&str; 6] = [
    "<|im_start|>",
    "<|im_end|>",
    "<filename>",
    "<repo_name>",
    "[INST]",
    "<|user|>",
];

fn guard() -> Guard {
    Guard::of(TOKENS.into_iter()).unwrap()
}

/// `text` with `^` where a mark goes.
fn marked(text: &str) -> String {
    let mut out = text.to_owned();
    for place in guard().places(text).into_iter().rev() {
        out.insert(place, '^');
    }
    out
}

#[test]
fn whole_tokens_are_marked_inside() {
    assert_eq!(marked("a <|im_end|> b"), "a <^|im_end|> b");
    assert_eq!(marked("<|im_end|><|IM_START|>"), "<^|im_end|><^|IM_START|>");
    assert_eq!(marked("x <|im_end| > [inst]"), "x <|im_end| > [^inst]");
    assert_eq!(marked("plain <b>text</b> [1]"), "plain <b>text</b> [1]");
}

#[test]
fn beginnings_at_the_end_are_marked() {
    assert_eq!(marked("1 <"), "1 <^");
    assert_eq!(marked("see <|im_"), "see <^|im_");
    assert_eq!(marked("see <|im_ \n"), "see <^|im_ \n");
    assert_eq!(marked("<x"), "<x");
}

#[test]
fn endings_at_the_start_are_marked() {
    assert_eq!(marked("im_end|> x"), "^im_end|> x");
    assert_eq!(marked("  |>"), "  ^|>");
    assert_eq!(marked("> quoted"), "^> quoted");
    assert_eq!(marked("|im_end|"), "^|im_end|");
    assert_eq!(marked("a > b"), "a > b");
}

#[test]
fn lone_words_are_marked_only_as_the_whole_of_a_token() {
    assert_eq!(marked("repo_name"), "^repo_name");
    assert_eq!(marked("User"), "^User");
    assert_eq!(marked("name"), "name");
    assert_eq!(marked("file"), "file");
    assert_eq!(marked("user said"), "user said");
}

#[test]
fn a_token_of_one_character_cannot_be_guarded() {
    let error = Guard::of(["\u{2581}"].into_iter()).unwrap_err();
    assert_eq!(
        error,
        TemplateError::Unguardable {
            text: "\u{2581}".to_owned()
        }
    );
}

#[test]
fn marks_avoid_what_occurs() {
    let guard = guard();
    let refused = std::cell::RefCell::new(Vec::new());
    let mark = Mark::new(&guard, |mark| {
        refused.borrow_mut().push(mark.to_owned());
        refused.borrow().len() < 4
    });
    let drawn = refused.into_inner();
    assert_eq!(drawn.len(), 4);
    assert_eq!(mark.mark, drawn[3]);
    assert!(!drawn[..3].contains(&mark.mark));
    let mut characters: Vec<char> = mark.mark.chars().collect();
    characters.sort_unstable();
    characters.dedup();
    assert_eq!(characters.len(), MARK_CHARS);
}

/// Texts of pieces of tokens, so that anything a join can form is formed often.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(&TOKENS[..]).prop_flat_map(|token| {
            (0..token.len(), 0..token.len())
                .prop_map(move |(a, b)| token[a.min(b)..=a.max(b)].to_owned())
        }),
        "[ \\n]{1,2}",
        "[a-z<>|]{1,3}",
        Just("\u{e000}\u{e001}".to_owned()),
    ];
    prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn removing_marks_gives_the_text_back(text in text()) {
        let guard = guard();
        let mark = Mark::new(&guard, |mark| text.contains(mark));
        let (back, breaks) = mark.removed(&mark.guarded(&text));
        prop_assert_eq!(&back, &text);
        prop_assert_eq!(breaks, guard.places(&text));
    }

    /// Whatever is joined from client texts, trimmed or not, every token in it is broken.
    #[test]
    fn joined_texts_form_no_token(texts in prop::collection::vec(text(), 1..4), trim: bool) {
        let guard = guard();
        let mark = Mark::new(&guard, |mark| texts.iter().any(|text| text.contains(mark)));
        let joined: String = texts
            .iter()
            .map(|text| mark.guarded(text))
            .map(|text| if trim { text.trim().to_owned() } else { text })
            .collect();
        for token in TOKENS {
            prop_assert!(!joined.to_ascii_lowercase().contains(&token.to_ascii_lowercase()));
        }
    }

    /// Where the template writes the brackets of a token, a client's text never fills them, unless
    /// it is part of a word or a word of the schema.
    #[test]
    fn brackets_around_a_text_form_no_token(text in text(), at in 1usize..4, from_end in 1usize..4) {
        let guard = guard();
        let mark = Mark::new(&guard, |mark| text.contains(mark));
        for token in TOKENS {
            let (before, after) = (&token[..at], &token[token.len() - from_end..]);
            let core = text.trim();
            let is_word = core.chars().all(is_word_char);
            if core.is_empty() || (is_word && !guard.is_core(core)) {
                continue;
            }
            let joined = format!("{before}{}{after}", mark.guarded(core));
            prop_assert!(!joined.contains(token), "{joined:?}");
        }
    }
}
