//! What the zoo holds, which of its architectures the engine runs, and where each file comes from.
//!
//! A file is `MODEL.TYPE`: an architecture (or a variant of one) and the type of its weights.

use std::path::PathBuf;

use anyhow::{Context, Result};
use vitriol_testkit::{golden::ZooRecord, places};

/// Models that the engine runs; everything in `golden_architectures` holds for each.
pub const SUPPORTED: &[&str] = &[
    "deepseek2",
    "deepseek2_kvb",
    "gemma2",
    "gemma3",
    "gemma4",
    "gemma4_moe",
    "gpt_oss",
    "granitemoe",
    "llama",
    "llama4",
    "llama_moe",
    "llama_yarn",
    "mistral3",
    "olmoe",
    "phi3",
    "phi3_long",
    "qwen2",
    "qwen3",
    "qwen3moe",
];

/// Models of architectures that a later release runs; until then they are refused by name.
pub const LATER: &[&str] = &[
    "qwen35",
    "qwen35_d256",
    "qwen35moe",
    "qwen35moe_merged",
    "qwen3next",
    "qwen3next_legacy",
];

/// Types that `tests/zoo/make_zoo.py` writes; the rest needs libggml.
const WRITABLE: [&str; 10] = [
    "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4",
];
const OTHERS: [&str; 14] = [
    "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s",
    "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs",
];

/// Files that nobody can write here and that are small enough to keep: `tests/zoo/stored`.
pub const STORED: [&str; 4] = ["llama.q4_k", "llama.q6_k", "llama.iq2_xs", "llama.iq1_m"];

/// Where a file of the zoo comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `make_zoo.py` writes it, byte for byte.
    Generated,
    /// `tests/zoo/stored` has it.
    Stored,
    /// Only `$VITRIOL_ZOO` has it, with its record.
    Whole,
}

/// Types of weights other than f32 that the zoo has of `model`.
pub fn stored_types(model: &str) -> Vec<&'static str> {
    match model {
        "llama" => [&WRITABLE[..], &OTHERS, &["q4_k_m-mix"]].concat(),
        "qwen3moe" => [&WRITABLE[..], &OTHERS].concat(),
        "gpt_oss" => vec!["exps-mxfp4"],
        "deepseek2" | "gemma3" | "qwen35" | "qwen35moe" | "qwen3next" => vec!["q8_0"],
        _ => Vec::new(),
    }
}

/// Names of all files: of every model f32, then its other types.
pub fn files() -> Vec<String> {
    let name = |model: &str, types: &str| format!("{model}.{types}");
    SUPPORTED
        .iter()
        .chain(LATER)
        .flat_map(|model| {
            let others = stored_types(model);
            let types = ["f32"].into_iter().chain(others);
            types.map(|t| name(model, t)).collect::<Vec<_>>()
        })
        .collect()
}

/// Where `file` comes from.
pub fn origin(file: &str) -> Origin {
    let types = file.split_once('.').map_or("", |(_, types)| types);
    if STORED.contains(&file) {
        Origin::Stored
    } else if types == "f32" || types == "exps-mxfp4" || WRITABLE.contains(&types) {
        Origin::Generated
    } else {
        Origin::Whole
    }
}

/// The model `file` and its record; none where only the whole zoo has it and VITRIOL_ZOO is not set.
/// Errors: one of the two is not where it has to be.
pub fn find(file: &str) -> Result<Option<(PathBuf, ZooRecord)>> {
    if origin(file) == Origin::Whole && places::whole_zoo().is_none() {
        return Ok(None);
    }
    let record = ZooRecord::read(file).with_context(|| format!("the record of {file}"))?;
    Ok(Some((places::zoo_model(file)?, record)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zoo_is_what_its_readme_says() {
        let files = files();
        let stored: Vec<&String> = files.iter().filter(|f| !f.ends_with(".f32")).collect();
        let from = |wanted| {
            let of = stored.iter().filter(|file| origin(file) == wanted);
            of.count()
        };
        assert_eq!((files.len(), stored.len()), (80, 55));
        assert_eq!(from(Origin::Generated), 26);
        assert_eq!(from(Origin::Stored), 4);
        assert_eq!(from(Origin::Whole), 25);
    }

    #[test]
    fn no_model_is_in_both_lists() {
        assert!(SUPPORTED.iter().all(|model| !LATER.contains(model)));
    }
}
