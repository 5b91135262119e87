//! Vocabularies built for a question: what the default model does not have.

use crate::{PARSED, PLAIN};
use std::path::Path;
use vitriol_gguf::Gguf;
use vitriol_tokens::{TokenKind, Tokenizer, TokenizerError};

pub(crate) const NORMAL: i32 = 1;
pub(crate) const UNKNOWN: i32 = 2;
pub(crate) const CONTROL: i32 = 3;
pub(crate) const USER_DEFINED: i32 = 4;
pub(crate) const UNUSED: i32 = 5;
pub(crate) const BYTE: i32 = 6;

pub(crate) struct Vocabulary {
    pub(crate) name: &'static str,
    pub(crate) model: &'static str,
    pub(crate) pre: &'static str,
    pub(crate) tokens: Vec<(&'static str, i32)>,
    pub(crate) scores: Option<Vec<f32>>,
    pub(crate) merges: Vec<&'static str>,
    pub(crate) ids: Vec<(&'static str, u32)>,
    pub(crate) flags: Vec<(&'static str, bool)>,
}

pub(crate) fn vocabulary(tokens: &[(&'static str, i32)], merges: &[&'static str]) -> Vocabulary {
    Vocabulary {
        name: "",
        model: "gpt2",
        pre: "gpt-2",
        tokens: tokens.to_vec(),
        scores: None,
        merges: merges.to_vec(),
        ids: Vec::new(),
        flags: Vec::new(),
    }
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Vocabulary {
    pub(crate) fn load(&self) -> Result<Tokenizer, TokenizerError> {
        const U32: u32 = 4;
        const I32: u32 = 5;
        const F32: u32 = 6;
        const BOOL: u32 = 7;
        const STRING: u32 = 8;
        const ARRAY: u32 = 9;
        let array = |element_type: u32, elements: Vec<Vec<u8>>| {
            let count = (elements.len() as u64).to_le_bytes();
            [&element_type.to_le_bytes()[..], &count, &elements.concat()].concat()
        };
        let texts = self.tokens.iter().map(|(text, _)| string(text)).collect();
        let types = self
            .tokens
            .iter()
            .map(|(_, kind)| kind.to_le_bytes().to_vec())
            .collect();
        let merges = self.merges.iter().map(|merge| string(merge)).collect();
        let mut entries = vec![
            ("general.name", STRING, string(self.name)),
            ("tokenizer.ggml.model", STRING, string(self.model)),
            ("tokenizer.ggml.pre", STRING, string(self.pre)),
            ("tokenizer.ggml.tokens", ARRAY, array(STRING, texts)),
            ("tokenizer.ggml.token_type", ARRAY, array(I32, types)),
            ("tokenizer.ggml.merges", ARRAY, array(STRING, merges)),
        ];
        entries.extend(
            self.ids
                .iter()
                .map(|(key, id)| (*key, U32, id.to_le_bytes().to_vec())),
        );
        entries.extend(
            self.flags
                .iter()
                .map(|(key, flag)| (*key, BOOL, vec![u8::from(*flag)])),
        );
        if let Some(scores) = &self.scores {
            let scores = scores.iter().map(|score| score.to_le_bytes().to_vec());
            let scores = array(F32, scores.collect());
            entries.push(("tokenizer.ggml.scores", ARRAY, scores));
        }
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(0u64.to_le_bytes());
        file.extend((entries.len() as u64).to_le_bytes());
        for (key, value_type, value) in entries {
            file.extend([&string(key)[..], &value_type.to_le_bytes(), &value].concat());
        }
        Tokenizer::from_gguf(&Gguf::from_bytes(Path::new("vocabulary.gguf"), file)?)
    }

    pub(crate) fn refused(&self) -> String {
        self.load()
            .expect_err("the vocabulary is unsound")
            .to_string()
    }
}

#[test]
fn merges_go_by_rank_then_from_the_left() {
    let tokens = ["a", "b", "c", "aa", "ab", "abc", "aab"].map(|text| (text, NORMAL));
    let tokenizer = vocabulary(&tokens, &["a b", "a a", "ab c", "a ab"])
        .load()
        .unwrap();
    let ids = |text: &str| tokenizer.encode(text.as_bytes(), PLAIN);
    assert_eq!(ids("aaab"), [3, 4]);
    assert_eq!(ids("aab"), [6]);
    assert_eq!(ids("aaa"), [3, 0]);
    assert_eq!(ids("abcab"), [5, 4]);
}

/// A merge may lead over a piece that has no token; if it stops there, its bytes are the tokens.
#[test]
fn pieces_without_a_token_lead_to_others() {
    let tokens = ["a", "b", "c", "abc"].map(|text| (text, NORMAL));
    let tokenizer = vocabulary(&tokens, &["a b", "ab c"]).load().unwrap();
    assert_eq!(tokenizer.encode(b"abc", PLAIN), [3]);
    assert_eq!(tokenizer.encode(b"abb", PLAIN), [0, 1, 1]);
    assert_eq!(tokenizer.encode(b"axb", PLAIN), [0, 1], "x has no token");
}

#[test]
fn merges_never_end_in_a_control_token() {
    let tokens = [("<", NORMAL), (">", NORMAL), ("<>", CONTROL)];
    let tokenizer = vocabulary(&tokens, &["< >"]).load().unwrap();
    assert_eq!(tokenizer.encode(b"<>", PLAIN), [0, 1]);
    assert_eq!(tokenizer.encode(b"<>", PARSED), [2]);
}

#[test]
fn user_defined_tokens_are_found_in_any_text_longest_first() {
    let tokens = [
        ("a", NORMAL),
        ("aa", USER_DEFINED),
        ("aaa", USER_DEFINED),
        ("<|x|>", CONTROL),
        ("<|x|>a", USER_DEFINED),
    ];
    let tokenizer = vocabulary(&tokens, &[]).load().unwrap();
    assert_eq!(tokenizer.encode(b"aaaaaa", PLAIN), [2, 2]);
    assert_eq!(tokenizer.encode(b"aaaaa", PLAIN), [2, 1]);
    assert_eq!(tokenizer.encode(b"aaaa", PLAIN), [2, 0]);
    assert_eq!(tokenizer.encode(b"<|x|>aa", PARSED), [4, 0]);
    assert_eq!(
        tokenizer.encode_with_breaks(b"<|x|>aa", &[1], PARSED),
        [4, 0],
        "text all the same"
    );
    assert_eq!(tokenizer.encode(b"<|x|>", PARSED), [3]);
}

/// Files that call the tokens which end an answer plain or user-defined would let text end it.
#[test]
fn tokens_that_end_generation_are_control_tokens() {
    let tokens = [
        ("a", NORMAL),
        ("<|im_end|>", USER_DEFINED),
        ("<|eot_id|>", NORMAL),
    ];
    let tokenizer = vocabulary(&tokens, &[]).load().unwrap();
    assert_eq!(tokenizer.special().eog(), [1, 2]);
    assert_eq!(tokenizer.kind(1), Some(TokenKind::Control));
    assert!(
        tokenizer.encode(b"<|im_end|>", PLAIN).is_empty(),
        "its bytes have no tokens here"
    );
    assert_eq!(
        tokenizer.encode(b"<|im_end|>a<|eot_id|>", PARSED),
        [1, 0, 2]
    );
}

#[test]
fn merges_never_end_in_a_token_that_ends_generation() {
    let tokens = ["[", "E", "O", "T", "]", "[EOT]"].map(|text| (text, NORMAL));
    let merges = ["[ E", "O T", "OT ]", "[E OT]"];
    let tokenizer = vocabulary(&tokens, &merges).load().unwrap();
    assert_eq!(tokenizer.encode(b"[EOT]", PLAIN), [0, 1, 2, 3, 4]);
    assert_eq!(tokenizer.encode(b"[EOT]", PARSED), [5]);
}

#[test]
fn an_inner_end_of_message_does_not_end_generation() {
    let tokens = ["<|end|>", "<|return|>", "<|call|>"].map(|text| (text, CONTROL));
    let mut harmony = vocabulary(&tokens, &[]);
    harmony.ids.push(("tokenizer.ggml.eos_token_id", 1));
    assert_eq!(harmony.load().unwrap().special().eog(), [1, 2]);
}

#[test]
fn unused_tokens_have_no_bytes() {
    let tokenizer = vocabulary(&[("a", NORMAL), ("[PAD1]", UNUSED)], &[])
        .load()
        .unwrap();
    assert_eq!(tokenizer.decode(&[0, 1, 0], true), b"aa");
}

#[test]
fn what_is_not_read_is_named() {
    let sound = || vocabulary(&[("a", NORMAL), ("b", NORMAL)], &["a b"]);
    let with = |change: fn(&mut Vocabulary)| {
        let mut vocabulary = sound();
        change(&mut vocabulary);
        vocabulary.refused()
    };
    assert!(sound().load().is_ok());
    assert!(with(|v| v.model = "t5").contains("tokenizer.ggml.model is \"t5\""));
    let pre = with(|v| v.pre = "kimi-k2");
    assert!(
        pre.contains("is \"kimi-k2\"") && pre.contains("\"smollm\""),
        "{pre}"
    );
    assert!(with(|v| v.tokens.clear()).contains("is empty"));
    assert!(with(|v| v.tokens[0].1 = 9).contains("token 0 has the unknown type 9"));
    assert!(with(|v| v.merges.push("ab")).contains("merge number 1"));
    assert!(with(|v| v.merges.push("a ")).contains("merge number 1"));
    let bos = with(|v| v.ids.push(("tokenizer.ggml.bos_token_id", 2)));
    assert_eq!(
        bos,
        "tokenizer.ggml.bos_token_id is 2, and the vocabulary has 2 tokens"
    );
}
