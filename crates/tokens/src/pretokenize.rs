//! Pre-tokenizers: cutting text into the words inside which merges happen.
//!
//! Each is the hand-written scanner of the regular expressions that the vocabulary was trained with
//! (its `tokenizer.json`): every expression cuts out its matches, the next one works on each part.
//! `\s`, `\p{L}`, `\p{N}`, … are Unicode's White_Space and general categories.

mod class;
mod deepseek;
#[cfg(test)]
mod tests;
mod words;

use class::{Classes, class_at};
use words::{Cl100k, Contractions, Letters};

/// How a vocabulary wants text cut into words (`tokenizer.ggml.pre`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreTokenizer {
    name: &'static str,
    words: Words,
    ignores_merges: bool,
    adds_bos: bool,
}

/// The expressions, as their vocabularies publish them. Where a letter may be of either case,
/// `(?i:…)` is meant for ASCII letters only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Words {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// `\p{N}`, then as [`Gpt2`](Self::Gpt2).
    Gpt2Digits,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|`
    /// ` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    Llama3,
    /// As [`Llama3`](Self::Llama3) with `\p{N}` for `\p{N}{1,3}`.
    Qwen2,
    /// As [`Qwen2`](Self::Qwen2) with `[\p{L}\p{M}]+` for `\p{L}+` and no `\p{M}` in punctuation.
    Qwen35,
    /// `[^\r\n\p{L}\p{N}]?U*L+C?|[^\r\n\p{L}\p{N}]?U+L*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|`
    /// `\s*[\r\n]+|\s+(?!\S)|\s+` where `U` is `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, `L` is
    /// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]` and `C` is `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
    Gpt4o,
    /// As [`Gpt4o`](Self::Gpt4o) without `C` and with `\p{N}` for `\p{N}{1,3}`.
    Tekken,
    /// `[\r\n]`; `\s?[A-Za-zµÀ-Ö…]+`; `\s?[!-/:-~！-／：-～‘-‟　-。]+`; `\s+$`;
    /// `[一-龥ࠀ-一가-퟿]+`; `\p{N}+`
    DeepseekLlm,
    /// `[\r\n]`; `\s?\p{L}+`; `\s?\p{P}+`; `[一-龥ࠀ-一가-퟿]+`; `\p{N}`
    DeepseekCoder,
    /// `\p{N}{1,3}`; `[一-龥぀-ゟ゠-ヿ]+`; words as [`deepseek::v3_word`] finds them.
    DeepseekV3,
    /// ``[\p{P}\$\+<=>\^~\|`]+``; as [`Gpt2`](Self::Gpt2); `[0-9][0-9][0-9]`
    Falcon,
    /// `[\p{P}\$\+<=>\^~\|]+`; as [`Gpt2`](Self::Gpt2); `\p{N}+`; `[0-9][0-9][0-9]`
    Default,
}

const fn plain(name: &'static str, words: Words) -> PreTokenizer {
    PreTokenizer {
        name,
        words,
        ignores_merges: false,
        adds_bos: false,
    }
}

/// Of vocabularies in which a word that is a piece is that token, and sequences start with one.
const fn whole(name: &'static str, words: Words) -> PreTokenizer {
    PreTokenizer {
        name,
        words,
        ignores_merges: true,
        adds_bos: true,
    }
}

const KNOWN: [PreTokenizer; 50] = [
    plain("default", Words::Default),
    plain("gpt-2", Words::Gpt2),
    plain("phi-2", Words::Gpt2),
    plain("olmo", Words::Gpt2),
    plain("mpt", Words::Gpt2),
    plain("jais", Words::Gpt2),
    plain("exaone4", Words::Gpt2),
    plain("trillion", Words::Gpt2),
    plain("granite-docling", Words::Gpt2),
    plain("gigachat", Words::Gpt2),
    plain("a.x-4.0", Words::Gpt2),
    plain("mellum", Words::Gpt2),
    plain("smollm", Words::Gpt2Digits),
    plain("starcoder", Words::Gpt2Digits),
    plain("refact", Words::Gpt2Digits),
    plain("command-r", Words::Gpt2Digits),
    plain("codeshell", Words::Gpt2Digits),
    plain("exaone", Words::Gpt2Digits),
    plain("minerva-7b", Words::Gpt2Digits),
    whole("llama-bpe", Words::Llama3),
    whole("llama3", Words::Llama3),
    whole("llama-v3", Words::Llama3),
    whole("falcon3", Words::Llama3),
    whole("falcon-h1", Words::Llama3),
    whole("pixtral", Words::Llama3),
    whole("midm-2.0", Words::Llama3),
    whole("lfm2", Words::Llama3),
    plain("dbrx", Words::Llama3),
    plain("smaug-bpe", Words::Llama3),
    plain("glm4", Words::Llama3),
    plain("chatglm-bpe", Words::Llama3),
    plain("qwen2", Words::Qwen2),
    plain("deepseek-r1-qwen", Words::Qwen2),
    plain("megrez", Words::Qwen2),
    plain("stablelm2", Words::Qwen2),
    plain("hunyuan", Words::Qwen2),
    plain("solar-open", Words::Qwen2),
    plain("grok-2", Words::Qwen2),
    plain("qwen35", Words::Qwen35),
    plain("gpt-4o", Words::Gpt4o),
    plain("llama4", Words::Gpt4o),
    plain("kanana2", Words::Gpt4o),
    plain("minimax-m2", Words::Gpt4o),
    whole("tekken", Words::Tekken),
    plain("deepseek-llm", Words::DeepseekLlm),
    plain("deepseek-coder", Words::DeepseekCoder),
    plain("deepseek-v3", Words::DeepseekV3),
    plain("hunyuan-dense", Words::DeepseekV3),
    plain("joyai-llm", Words::DeepseekV3),
    plain("falcon", Words::Falcon),
];

impl PreTokenizer {
    /// The pre-tokenizer that files call `name`; files without a name get `default`.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = if name.is_empty() { "default" } else { name };
        KNOWN.into_iter().find(|known| known.name == name)
    }

    /// What files call it.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The names that [`from_name`](Self::from_name) knows, for messages.
    pub(crate) fn known_names() -> String {
        KNOWN.map(|known| format!("{:?}", known.name)).join(", ")
    }

    /// Whether a word that is a piece of the vocabulary is that token, whatever the merges say.
    pub(crate) fn ignores_merges(self) -> bool {
        self.ignores_merges
    }

    /// Whether a beginning-of-sequence token is put first if the file does not say.
    pub(crate) fn adds_bos(self) -> bool {
        self.adds_bos
    }

    /// Calls `word` with the words of `text` in order; together they are `text`.
    ///
    /// `text` is normalised (see [`crate::codepoints`]). Cost: one pass for each expression, no
    /// allocation.
    pub(crate) fn split<'a>(self, text: &'a [u8], mut word: impl FnMut(&'a [u8])) {
        cut(self.words.stages(), text, &mut word);
    }
}

/// One expression.
enum Stage {
    /// Gives the length of the match at the start of a text that is not empty, 0 for none.
    Match(fn(&[u8]) -> usize),
    /// `\s+$`, which only the end of the text can tell.
    SpaceAtEnd,
}

impl Words {
    fn stages(self) -> &'static [Stage] {
        use Stage::{Match, SpaceAtEnd};
        match self {
            Self::Gpt2 => &[Match(words::gpt2)],
            Self::Gpt2Digits => &[
                Match(|text| words::number_group(text, 1)),
                Match(words::gpt2),
            ],
            Self::Llama3 => &[Match(|text| LLAMA3.word(text))],
            Self::Qwen2 => &[Match(|text| QWEN2.word(text))],
            Self::Qwen35 => &[Match(|text| QWEN35.word(text))],
            Self::Gpt4o => &[Match(|text| GPT4O.word(text))],
            Self::Tekken => &[Match(|text| TEKKEN.word(text))],
            Self::DeepseekLlm => &[
                Match(deepseek::line_break),
                Match(deepseek::spaced_cased_letters),
                Match(deepseek::spaced_marks),
                SpaceAtEnd,
                Match(deepseek::east_asian),
                Match(deepseek::numbers),
            ],
            Self::DeepseekCoder => &[
                Match(deepseek::line_break),
                Match(deepseek::spaced_letters),
                Match(deepseek::spaced_punctuation),
                Match(deepseek::east_asian),
                Match(|text| words::number_group(text, 1)),
            ],
            Self::DeepseekV3 => &[
                Match(|text| words::number_group(text, 3)),
                Match(deepseek::han_and_kana),
                Match(deepseek::v3_word),
            ],
            Self::Falcon => &[
                Match(deepseek::marks_and_backtick),
                Match(words::gpt2),
                Match(deepseek::three_digits),
            ],
            Self::Default => &[
                Match(deepseek::marks),
                Match(words::gpt2),
                Match(deepseek::numbers),
                Match(deepseek::three_digits),
            ],
        }
    }
}

const LLAMA3: Cl100k = Cl100k {
    contractions: Contractions::Apart,
    letters: Letters::Any,
    digits_max: 3,
    slash_ends_punctuation: false,
};
const QWEN2: Cl100k = Cl100k {
    digits_max: 1,
    ..LLAMA3
};
const QWEN35: Cl100k = Cl100k {
    letters: Letters::WithMarks,
    ..QWEN2
};
const GPT4O: Cl100k = Cl100k {
    contractions: Contractions::Attached,
    letters: Letters::Cased,
    digits_max: 3,
    slash_ends_punctuation: true,
};
const TEKKEN: Cl100k = Cl100k {
    contractions: Contractions::None,
    digits_max: 1,
    ..GPT4O
};

/// Cuts `text` by the first stage and its parts by the others.
fn cut<'a>(stages: &[Stage], text: &'a [u8], word: &mut dyn FnMut(&'a [u8])) {
    let Some((stage, rest)) = stages.split_first() else {
        word(text);
        return;
    };
    let mut part = |part: &'a [u8]| {
        if !part.is_empty() {
            cut(rest, part, word);
        }
    };
    match stage {
        Stage::Match(match_len) => isolate(text, match_len, &mut part),
        Stage::SpaceAtEnd => {
            let (head, spaces) = text.split_at(space_at_end(text));
            part(head);
            part(spaces);
        }
    }
}

/// Gives the matches in `text` and what lies between them.
fn isolate<'a>(text: &'a [u8], match_len: &dyn Fn(&[u8]) -> usize, part: &mut dyn FnMut(&'a [u8])) {
    let (mut start, mut at) = (0, 0);
    while at < text.len() {
        let len = match_len(&text[at..]);
        if len == 0 {
            at += class_at(text, at).map_or(1, |(_, len)| len);
            continue;
        }
        part(&text[start..at]);
        part(&text[at..at + len]);
        at += len;
        start = at;
    }
    part(&text[start..]);
}

/// Where the white space that ends `text` begins.
fn space_at_end(text: &[u8]) -> usize {
    let mut end = text.len();
    let is_start = |at: &usize| text[*at] & 0xc0 != 0x80;
    while let Some(at) = (0..end).rev().find(is_start) {
        match class_at(text, at) {
            Some((class, _)) if class.meets(Classes::SPACE) => end = at,
            _ => break,
        }
    }
    end
}
