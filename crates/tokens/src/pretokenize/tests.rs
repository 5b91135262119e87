use super::*;
use crate::codepoints::normalise;
use fancy_regex::Regex;
use proptest::{prelude::*, sample::select};
use std::sync::LazyLock;

fn words(pre: &str, text: &str) -> Vec<String> {
    let mut words = Vec::new();
    PreTokenizer::from_name(pre)
        .unwrap()
        .split(text.as_bytes(), |word| {
            words.push(String::from_utf8_lossy(word).into_owned())
        });
    words
}

#[test]
fn gpt2_cuts_as_its_expression() {
    let cut = |text| words("gpt-2", text);
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
    let cut = |text| words("smollm", text);
    assert_eq!(
        cut("in 2024  3"),
        ["in", " ", "2", "0", "2", "4", "  ", "3"]
    );
    assert_eq!(cut("x½٣"), ["x", "½", "٣"]);
    assert_eq!(cut("'1s 's"), ["'", "1", "s", " '", "s"]);
}

#[test]
fn llama3_cuts_as_its_expression() {
    let cut = |text| words("llama-bpe", text);
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

#[test]
fn qwen2_gives_each_digit_a_word() {
    let cut = |text| words("qwen2", text);
    assert_eq!(cut("x=12 34"), ["x", "=", "1", "2", " ", "3", "4"]);
    assert_eq!(cut("I'Ll  go\n\n"), ["I", "'Ll", " ", " go", "\n\n"]);
    assert_eq!(
        cut("e\u{301}a"),
        ["e", "\u{301}a"],
        "a mark is no letter here"
    );
}

#[test]
fn qwen35_keeps_marks_with_their_letters() {
    let cut = |text| words("qwen35", text);
    assert_eq!(cut("e\u{301}a"), ["e\u{301}a"]);
    assert_eq!(cut("\u{301}!\u{301}"), ["\u{301}", "!\u{301}"]);
    assert_eq!(cut("1\u{301}2"), ["1", "\u{301}", "2"]);
}

#[test]
fn gpt4o_cuts_where_the_case_changes() {
    let cut = |text| words("gpt-4o", text);
    assert_eq!(
        cut("parserHTML HTMLParser"),
        ["parser", "HTML", " HTMLParser"]
    );
    assert_eq!(cut("don'T 'll x'"), ["don'T", " '", "ll", " x", "'"]);
    assert_eq!(cut("1234 a//\nb"), ["123", "4", " a", "//\n", "b"]);
    assert_eq!(cut("A中B"), ["A中", "B"], "what has no case ends a word");
    assert_eq!(cut("\u{301}AB"), ["\u{301}", "AB"]);
}

#[test]
fn tekken_leaves_apostrophes_apart() {
    let cut = |text| words("tekken", text);
    assert_eq!(cut("don't 12"), ["don", "'t", " ", "1", "2"]);
    assert_eq!(cut("fooBar"), ["foo", "Bar"]);
}

#[test]
fn deepseek_v3_cuts_as_its_expressions() {
    let cut = |text| words("deepseek-v3", text);
    assert_eq!(cut("a.b(c 12345"), ["a", ".b", "(c", " ", "123", "45"]);
    assert_eq!(
        cut("x中文y かな・z"),
        ["x", "中文", "y", " ", "かな", "・", "z"]
    );
    assert_eq!(cut("a !!\n\n b"), ["a", " !!\n\n", " b"]);
    assert_eq!(cut("\u{1}\u{2}a\u{1}"), ["\u{1}", "\u{2}a", "\u{1}"]);
}

#[test]
fn deepseek_llm_and_coder_cut_as_their_expressions() {
    let cut = |text| words("deepseek-llm", text);
    assert_eq!(
        cut("Hi there, 123\n"),
        ["Hi", " there", ",", " ", "123", "\n"]
    );
    assert_eq!(cut("a   b  "), ["a", "  ", " b", "  "]);
    assert_eq!(cut("中文。x"), ["中文", "。", "x"]);
    let cut = |text| words("deepseek-coder", text);
    assert_eq!(cut("f(x) 12"), ["f", "(", "x", ")", " ", "1", "2"]);
}

#[test]
fn default_and_falcon_cut_as_their_expressions() {
    let cut = |text| words("", text);
    assert_eq!(cut("a+b 12345!"), ["a", "+", "b", " ", "123", "45", "!"]);
    assert_eq!(words("default", "it's"), ["it", "'", "s"]);
    assert_eq!(words("falcon", "`a 1234"), ["`", "a", " ", "123", "4"]);
}

/// The published expressions, for a regular-expression engine to judge the scanners by.
fn published(words: Words) -> &'static [Regex] {
    static ALL: LazyLock<Vec<(Words, Vec<Regex>)>> = LazyLock::new(|| {
        const GPT2: &str =
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
        const C: &str = r"'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])";
        const U: &str = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
        const L: &str = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
        const P: &str = r"[^\r\n\p{L}\p{N}]?";
        const BLANK: &str = r"\s*[\r\n]+|\s+(?!\S)|\s+";
        let cl100k = |digits: &str| {
            format!(r"{C}|{P}\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{BLANK}")
        };
        let cased = |c: &str, digits: &str| {
            format!(
                r"{P}{U}*{L}+{c}|{P}{U}+{L}*{c}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{BLANK}"
            )
        };
        let cases: [(Words, Vec<String>); 12] = [
            (Words::Gpt2, vec![GPT2.into()]),
            (Words::Gpt2Digits, vec![r"\p{N}".into(), GPT2.into()]),
            (Words::Llama3, vec![cl100k(r"\p{N}{1,3}")]),
            (Words::Qwen2, vec![cl100k(r"\p{N}")]),
            (
                Words::Qwen35,
                vec![format!(
                    r"{C}|{P}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{BLANK}"
                )],
            ),
            (
                Words::Gpt4o,
                vec![cased(&format!("(?:{C})?"), r"\p{N}{1,3}")],
            ),
            (Words::Tekken, vec![cased("", r"\p{N}")]),
            (
                Words::DeepseekLlm,
                vec![
                    r"[\r\n]".into(),
                    // Of the letters in SAMPLES these are the ones that the long list has.
                    r"\s?[A-Za-zßÉéǅΩЖж]+".into(),
                    r"\s?[!-/:-~！-／：-～‘-‟　-。]+".into(),
                    r"\s+$".into(),
                    r"[一-龥ࠀ-一가-\x{d7ff}]+".into(),
                    r"\p{N}+".into(),
                ],
            ),
            (
                Words::DeepseekCoder,
                vec![
                    r"[\r\n]".into(),
                    r"\s?\p{L}+".into(),
                    r"\s?\p{P}+".into(),
                    r"[一-龥ࠀ-一가-\x{d7ff}]+".into(),
                    r"\p{N}".into(),
                ],
            ),
            (
                Words::DeepseekV3,
                vec![
                    r"\p{N}{1,3}".into(),
                    r"[一-龥぀-ゟ゠-ヿ]+".into(),
                    format!(
                        r##"[!"\#$%\&'()*+,\-./:;<=>?@\[\\\]^_`{{|}}\~][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{BLANK}"##
                    ),
                ],
            ),
            (
                Words::Falcon,
                vec![
                    r"[\p{P}\$\+<=>\^\~\|`]+".into(),
                    GPT2.into(),
                    "[0-9][0-9][0-9]".into(),
                ],
            ),
            (
                Words::Default,
                vec![
                    r"[\p{P}\$\+<=>\^\~\|]+".into(),
                    GPT2.into(),
                    r"\p{N}+".into(),
                    "[0-9][0-9][0-9]".into(),
                ],
            ),
        ];
        let compile = |expression: &String| Regex::new(expression).unwrap();
        cases
            .into_iter()
            .map(|(words, expressions)| (words, expressions.iter().map(compile).collect()))
            .collect()
    });
    let found = ALL.iter().find(|(known, _)| *known == words);
    &found
        .unwrap_or_else(|| panic!("no expressions of {words:?}"))
        .1
}

/// What an engine cuts: the matches of each expression and what lies between them.
fn cut_by_engine<'a>(expressions: &[Regex], text: &'a str) -> Vec<&'a str> {
    let mut parts = vec![text];
    for expression in expressions {
        let mut finer = Vec::new();
        for part in parts {
            let mut end = 0;
            for found in expression.find_iter(part).map(Result::unwrap) {
                finer.extend([&part[end..found.start()], found.as_str()]);
                end = found.end();
            }
            finer.push(&part[end..]);
        }
        parts = finer.into_iter().filter(|part| !part.is_empty()).collect();
    }
    parts
}

/// At least one of each class that an expression names, contractions, and the edges of ranges.
const SAMPLES: [&str; 64] = [
    " ", " ", "  ", "\n", "\r\n", "\n\n", "\t", "\u{a0}", "\u{3000}", "\u{85}", "a", "b", "x", "s",
    "T", "re", "LL", "A", "B", "Z", "'", "'s", "'VE", "'ll", "'d", "’", "ß", "É", "é", "ǅ", "Ω",
    "Ж", "ж", "ª", "ʰ", "中", "龥", "龦", "か", "ー", "・", "가", "ก", "\u{301}", "\u{903}", "0",
    "1", "234", "½", "Ⅷ", "٣", "!", "/", "-", "_", "$", "`", "~", "。", "！", "€", "😀", "\u{1}",
    "\u{200b}",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn scanners_agree_with_an_engine(
        parts in prop::collection::vec(select(&SAMPLES[..]), 0..24),
    ) {
        let text = parts.concat();
        for pre in KNOWN {
            prop_assert_eq!(
                words(pre.name, &text),
                cut_by_engine(published(pre.words), &text),
                "{:?} of {:?}", pre.words, &text
            );
        }
    }
}

proptest! {
    #[test]
    fn words_are_the_text(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let text = normalise(&bytes);
        for pre in KNOWN {
            let mut joined = Vec::new();
            pre.split(&text, |word| {
                assert!(!word.is_empty());
                joined.extend_from_slice(word);
            });
            prop_assert_eq!(&joined, &*text, "{:?}", pre);
        }
    }
}

#[test]
fn no_name_is_there_twice() {
    for (index, pre) in KNOWN.iter().enumerate() {
        assert!(
            KNOWN[..index].iter().all(|other| other.name != pre.name),
            "{pre:?}"
        );
    }
}
