//! Ids, pieces and special tokens that llama.cpp gives: tests/golden/README.md says how they came.

use crate::{PLAIN, SMOLLM2, gemma};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::{fs, path::Path};
use vitriol_gguf::Gguf;
use vitriol_testkit::{
    golden::{TokenizedText, ZooRecord},
    not_run,
    places::{checkout, whole_zoo, zoo_model},
};
use vitriol_tokens::{EncodeOptions, Tokenizer};

fn golden(name: &str) -> Result<String> {
    let path = checkout().join("tests/golden").join(name);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

fn from_hex(hex: &str) -> Result<Vec<u8>> {
    let digits = |at| hex.get(at..at + 2).context("odd number of hex digits");
    (0..hex.len())
        .step_by(2)
        .map(|at| Ok(u8::from_str_radix(digits(at)?, 16)?))
        .collect()
}

#[derive(Deserialize)]
struct Row {
    text: Option<String>,
    bytes_hex: Option<String>,
    ids: Vec<u32>,
    add_special: bool,
    parse_special: bool,
    detok_hex: String,
}

fn ids_and_pieces_equal_the_reference(tokenizer: &Tokenizer, rows: &str) -> Result<()> {
    let mut n_rows = 0;
    for line in golden(rows)?.lines() {
        let row: Row = serde_json::from_str(line)?;
        let text = match (&row.text, &row.bytes_hex) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, hex) => from_hex(hex.as_deref().context("neither text nor bytes")?)?,
        };
        let (add_special, parse_special) = (row.add_special, row.parse_special);
        let options = EncodeOptions {
            add_special,
            parse_special,
        };
        assert_eq!(tokenizer.encode(&text, options), row.ids, "{line}");
        let text = from_hex(&row.detok_hex)?;
        assert_eq!(tokenizer.decode(&row.ids, true), text, "{line}");
        n_rows += 1;
    }
    assert_eq!(n_rows, 1340);
    Ok(())
}

#[test]
fn smollm2_equals_the_reference() -> Result<()> {
    ids_and_pieces_equal_the_reference(&SMOLLM2, "tok_smol.jsonl")?;
    special_tokens_equal_the_reference(&SMOLLM2, "vocab_smol.json")
}

#[test]
fn gemma_equals_the_reference() -> Result<()> {
    let Some(tokenizer) = gemma("gemma_equals_the_reference")? else {
        return Ok(());
    };
    ids_and_pieces_equal_the_reference(&tokenizer, "tok_gemma.jsonl")?;
    special_tokens_equal_the_reference(&tokenizer, "vocab_gemma.json")
}

#[derive(Deserialize)]
struct VocabularyFacts {
    n_vocab: usize,
    bos: u32,
    eos: u32,
    eot: u32,
    pad: u32,
    nl: u32,
    add_bos: bool,
    add_eos: bool,
    eog: Vec<u32>,
    special_sample: Vec<SpecialSample>,
}

#[derive(Debug, Deserialize)]
struct SpecialSample {
    id: u32,
    attr: u32,
    piece_hex: String,
    eog: bool,
}

fn special_tokens_equal_the_reference(tokenizer: &Tokenizer, facts: &str) -> Result<()> {
    const CONTROL: u32 = 8;
    let facts: VocabularyFacts = serde_json::from_str(&golden(facts)?)?;
    let special = tokenizer.special();
    assert_eq!(tokenizer.n_vocab(), facts.n_vocab);
    assert_eq!(special.bos, Some(facts.bos));
    assert_eq!(special.eos, Some(facts.eos));
    assert_eq!(special.eot, Some(facts.eot));
    assert_eq!(special.pad, Some(facts.pad));
    assert_eq!(special.nl, Some(facts.nl));
    assert_eq!(
        (special.add_bos, special.add_eos),
        (facts.add_bos, facts.add_eos)
    );
    assert_eq!(special.eog(), facts.eog);
    ensure!(!facts.special_sample.is_empty(), "no special tokens");
    for sample in facts.special_sample {
        let is_control = sample.attr & CONTROL != 0;
        assert_eq!(tokenizer.is_control(sample.id), is_control, "{sample:?}");
        let bytes = from_hex(&sample.piece_hex)?;
        let mut piece = Vec::new();
        tokenizer.piece(sample.id, &mut piece, false);
        assert_eq!(
            piece,
            if is_control { &[][..] } else { &bytes },
            "{sample:?}"
        );
        assert_eq!(tokenizer.decode(&[sample.id], true), bytes, "{sample:?}");
        assert_eq!(tokenizer.is_eog(sample.id), sample.eog, "{sample:?}");
    }
    Ok(())
}

#[test]
fn the_default_model_has_as_many_control_tokens_as_the_reference() -> Result<()> {
    let facts: VocabularyFacts = serde_json::from_str(&golden("vocab_smol.json")?)?;
    assert_eq!(SMOLLM2.control_tokens().count(), facts.special_sample.len());
    Ok(())
}

fn texts_equal_the_reference(model: &Path, texts: &[TokenizedText]) -> Result<()> {
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(model)?)
        .with_context(|| format!("tokenizer of {}", model.display()))?;
    ensure!(
        !texts.is_empty(),
        "{}: the record has no texts",
        model.display()
    );
    for sample in texts {
        let options = EncodeOptions {
            add_special: true,
            parse_special: false,
        };
        assert_eq!(
            tokenizer.encode(sample.text.as_bytes(), options),
            sample.ids,
            "{}: {sample:?}",
            model.display()
        );
    }
    Ok(())
}

#[test]
fn the_zoo_model_of_the_llama_family_equals_the_reference() -> Result<()> {
    let record = ZooRecord::read("llama.f32")?;
    texts_equal_the_reference(&zoo_model("llama.f32")?, &record.tokenize)
}

/// The part of a record that concerns tokenizers.
#[derive(Deserialize)]
struct Texts {
    #[serde(default)]
    tokenize: Vec<TokenizedText>,
}

/// Every vocabulary of the whole zoo, which lies beside the repository.
#[test]
fn every_zoo_model_equals_the_reference() -> Result<()> {
    let Some(zoo) = whole_zoo() else {
        not_run(
            "every_zoo_model_equals_the_reference",
            "set VITRIOL_ZOO to the directory of the zoo",
        );
        return Ok(());
    };
    let mut n_models = 0;
    for directory in [zoo.with_file_name("variants"), zoo] {
        let records = fs::read_dir(&directory);
        for entry in records.with_context(|| format!("list {}", directory.display()))? {
            let record = entry?.path();
            let name = record.to_string_lossy();
            let Some(model) = name.strip_suffix(".golden.json") else {
                continue;
            };
            let texts: Texts = serde_json::from_str(&fs::read_to_string(&record)?)?;
            if !texts.tokenize.is_empty() {
                texts_equal_the_reference(Path::new(&format!("{model}.gguf")), &texts.tokenize)?;
                n_models += 1;
            }
        }
    }
    ensure!(
        n_models >= 20,
        "only {n_models} models of the zoo have texts"
    );
    Ok(())
}

/// U+110000 and above: four bytes of the right shape that are no code point.
#[test]
fn bytes_beyond_unicode_are_replaced() {
    let ids = SMOLLM2.encode(b"\xf4\x90\x80\x80", PLAIN);
    assert_eq!(
        SMOLLM2.decode(&ids, true),
        "\u{fffd}\u{fffd}\u{fffd}\u{fffd}".as_bytes()
    );
}
