use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;
use vitriol_kernels_core::KvHeads;

use super::kv::KvGroup;

/// What `vitriol-engine check` says of a model. The engine alone knows what it runs.
#[derive(Debug, PartialEq, Eq)]
pub enum EngineCheck {
    Runs {
        model: EngineModel,
        /// Why the model takes token ids only.
        tokenizer_fault: Option<String>,
    },
    Refuses {
        why_not: String,
        /// Architectures that it does run; empty where it did not come to say.
        architectures: Vec<String>,
    },
    /// Nobody to ask.
    NotAsked { why_not: String },
}

/// A model as it would lie in memory.
#[derive(Debug, PartialEq, Eq)]
pub struct EngineModel {
    pub weights_bytes: u64,
    pub page_tokens: u64,
    pub kv_groups: Vec<KvGroup>,
}

impl EngineCheck {
    /// Runs the binary; blocks until it has looked at the file.
    pub fn ask(engine: &Path, model: &Path, context_tokens: u32) -> Self {
        // A path that begins with a dash is no flag.
        let model = std::path::absolute(model).unwrap_or_else(|_| PathBuf::from(model));
        let answer = Command::new(engine)
            .arg("check")
            .arg("--json")
            .args(["--context-tokens", &context_tokens.to_string()])
            .arg(model)
            .stdin(Stdio::null())
            .output();
        match answer {
            Ok(answer) => match serde_json::from_slice(&answer.stdout) {
                Ok(json) => Self::read(&json),
                Err(_) => Self::Refuses {
                    why_not: last_line(&answer.stderr, answer.status.code()),
                    architectures: Vec::new(),
                },
            },
            Err(error) => Self::NotAsked {
                why_not: format!("{}: {error}", engine.display()),
            },
        }
    }

    fn read(answer: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let runs = answer["runs"].as_bool() == Some(true);
        match EngineModel::read(&answer["model"]) {
            Some(model) if runs => Self::Runs {
                model,
                tokenizer_fault: text(&answer["tokenizer"]["why_not"]),
            },
            _ => Self::Refuses {
                why_not: text(&answer["why_not"]).unwrap_or_else(|| {
                    "its answer is not understood; is it of another release?".to_owned()
                }),
                architectures: answer["architectures"]
                    .as_array()
                    .map(|names| names.iter().filter_map(text).collect())
                    .unwrap_or_default(),
            },
        }
    }

    /// The model, if the engine runs it.
    pub fn model(&self) -> Option<&EngineModel> {
        match self {
            Self::Runs { model, .. } => Some(model),
            Self::Refuses { .. } | Self::NotAsked { .. } => None,
        }
    }
}

impl EngineModel {
    fn read(model: &Value) -> Option<Self> {
        let group = |group: &Value| {
            let number = |name: &str| usize::try_from(group[name].as_u64()?).ok();
            Some(KvGroup {
                window_tokens: group["window_tokens"].as_u64(),
                heads: KvHeads {
                    n_layers: number("n_layers")?,
                    n_kv_heads: number("n_kv_heads")?,
                    key_dim: number("key_dim")?,
                    value_dim: number("value_dim")?,
                },
            })
        };
        Some(Self {
            weights_bytes: model["weights_bytes"].as_u64()?,
            page_tokens: model["page_tokens"].as_u64().filter(|&tokens| tokens > 0)?,
            kv_groups: model["kv_groups"]
                .as_array()?
                .iter()
                .map(group)
                .collect::<Option<_>>()?,
        })
    }
}

/// What a process said last, without its own name.
fn last_line(stderr: &[u8], code: Option<i32>) -> String {
    let said = String::from_utf8_lossy(stderr);
    match said.lines().last() {
        Some(line) => line.trim_start_matches("vitriol-engine: ").to_owned(),
        None => format!("it ended with {code:?} and said nothing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_is_read() {
        let group = json!({"window_tokens": 512, "n_layers": 5, "n_kv_heads": 1, "key_dim": 64,
            "value_dim": 32});
        let model = json!({"weights_bytes": 7, "page_tokens": 64, "kv_groups": [group]});
        let answer = json!({"runs": true, "model": model, "tokenizer": {"why_not": null}});
        let EngineCheck::Runs {
            model,
            tokenizer_fault: None,
        } = EngineCheck::read(&answer)
        else {
            panic!("it runs");
        };
        assert_eq!((model.weights_bytes, model.page_tokens), (7, 64));
        assert_eq!(model.kv_groups[0].window_tokens, Some(512));
        assert_eq!(model.kv_groups[0].heads.value_dim, 32);
    }

    #[test]
    fn a_refusal_and_an_odd_answer_are_refusals() {
        let answer = json!({"runs": false, "why_not": "no", "architectures": ["llama"]});
        let refused = EngineCheck::Refuses {
            why_not: "no".into(),
            architectures: vec!["llama".into()],
        };
        assert_eq!(EngineCheck::read(&answer), refused);
        for odd in [json!({"runs": true}), json!(7)] {
            let EngineCheck::Refuses { why_not, .. } = EngineCheck::read(&odd) else {
                panic!("nothing is known");
            };
            assert!(why_not.contains("another release"), "{why_not}");
        }
    }

    #[test]
    fn without_the_binary_nobody_is_asked() {
        let check = EngineCheck::ask("/nonexistent/engine".as_ref(), "m".as_ref(), 0);
        assert!(matches!(check, EngineCheck::NotAsked { .. }));
        let check = EngineCheck::ask("/bin/false".as_ref(), "m".as_ref(), 0);
        let EngineCheck::Refuses { why_not, .. } = check else {
            panic!("it was asked");
        };
        assert!(why_not.contains("said nothing"), "{why_not}");
    }
}
