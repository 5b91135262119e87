//! Ids, pieces and special tokens that llama.cpp gives: tests/golden/README.md says how they came.

use crate::{PLAIN, SMOLLM2};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::fs;
use vitriol_gguf::Gguf;
use vitriol_testkit::{
    golden::ZooRecord,
    places::{checkout, zoo_model},
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

#[test]
fn all_ids_and_pieces_equal_the_reference() -> Result<()> {
    let rows = golden("tok_smol.jsonl")?;
    let mut n_rows = 0;
    for line in rows.lines() {
        let row: Row = serde_json::from_str(line)?;
        let text = match (&row.text, &row.bytes_hex) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, hex) => from_hex(hex.as_deref().context("neither text nor bytes")?)?,
        };
        let (add_special, parse_special) = (row.add_special, row.parse_special);
        let ids = SMOLLM2.encode(
            &text,
            EncodeOptions {
                add_special,
                parse_special,
            },
        );
        assert_eq!(ids, row.ids, "{line}");
        assert_eq!(
            SMOLLM2.decode(&ids, true),
            from_hex(&row.detok_hex)?,
            "{line}"
        );
        n_rows += 1;
    }
    assert_eq!(n_rows, 1340);
    Ok(())
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

#[derive(Deserialize)]
struct SpecialSample {
    id: u32,
    piece_hex: String,
    eog: bool,
}

#[test]
fn special_tokens_equal_the_reference() -> Result<()> {
    let facts: VocabularyFacts = serde_json::from_str(&golden("vocab_smol.json")?)?;
    let special = SMOLLM2.special();
    assert_eq!(SMOLLM2.n_vocab(), facts.n_vocab);
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
    assert_eq!(SMOLLM2.control_tokens().count(), facts.special_sample.len());
    for sample in facts.special_sample {
        let mut piece = Vec::new();
        SMOLLM2.piece(sample.id, &mut piece, false);
        assert!(piece.is_empty() && SMOLLM2.is_control(sample.id));
        SMOLLM2.piece(sample.id, &mut piece, true);
        assert_eq!(piece, from_hex(&sample.piece_hex)?);
        assert_eq!(SMOLLM2.is_eog(sample.id), sample.eog);
    }
    Ok(())
}

#[test]
fn the_zoo_model_of_the_llama_family_equals_the_reference() -> Result<()> {
    let path = zoo_model("llama.f32")?;
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(&path)?)?;
    let record = ZooRecord::read("llama.f32")?;
    ensure!(!record.tokenize.is_empty(), "the record has no texts");
    for sample in record.tokenize {
        let options = EncodeOptions {
            add_special: true,
            parse_special: false,
        };
        assert_eq!(
            tokenizer.encode(sample.text.as_bytes(), options),
            sample.ids,
            "{sample:?}"
        );
    }
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
