//! What is in a model file.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Value, json};
use vitriol_gguf::{Gguf, GgufError};
use vitriol_units::Bytes;

/// Bytes of a KV element: this release keeps K and V as f32.
const KV_ELEMENT_BYTES: u64 = 4;

/// A model file's facts; `None` where the file does not say.
#[derive(Debug, PartialEq, Eq)]
pub struct Info {
    pub architecture: String,
    pub name: Option<String>,
    pub licence: Option<String>,
    pub file_bytes: u64,
    pub parameters: u64,
    pub context_tokens: Option<u64>,
    pub n_layers: Option<u64>,
    pub d_model: Option<u64>,
    pub n_heads: Option<u64>,
    pub n_kv_heads: Option<u64>,
    pub vocab: Option<u64>,
    /// Tensors and bytes by type.
    pub types: BTreeMap<&'static str, (u64, u64)>,
    /// Of one token in all layers, K and V.
    pub kv_bytes_per_token: Option<u64>,
    pub has_chat_template: bool,
}

impl Info {
    /// Reads the file. Errors: not a model file, or a key of the wrong type.
    pub fn read(path: &Path) -> Result<Self, GgufError> {
        let gguf = Gguf::open(path)?;
        let metadata = gguf.metadata();
        let architecture = gguf.architecture()?.to_owned();
        let count = |key: &str| metadata.get_u64(&format!("{architecture}.{key}"));
        // Some architectures give a list, one entry a layer; then there is no one number.
        let heads = |key: &str| Ok::<_, GgufError>(count(key).unwrap_or(None));
        let text = |key: &str| Ok::<_, GgufError>(metadata.get_str(key)?.map(str::to_owned));

        let (n_layers, d_model) = (count("block_count")?, count("embedding_length")?);
        let n_heads = heads("attention.head_count")?;
        let n_kv_heads = heads("attention.head_count_kv")?.or(n_heads);
        let per_head = d_model
            .zip(n_heads)
            .and_then(|(d_model, heads)| d_model.checked_div(heads));
        let key_length = count("attention.key_length")?.or(per_head);
        let value_length = count("attention.value_length")?.or(per_head);
        let kv_bytes_per_token = (|| {
            let per_layer = n_kv_heads?.checked_mul(key_length?.checked_add(value_length?)?)?;
            n_layers?
                .checked_mul(per_layer)?
                .checked_mul(KV_ELEMENT_BYTES)
        })();

        let mut types = BTreeMap::<_, (u64, u64)>::new();
        let mut parameters = 0u64;
        for tensor in gguf.tensors() {
            let (tensors, bytes) = types.entry(tensor.tensor_type.name()).or_default();
            *tensors += 1;
            *bytes += tensor.bytes.len() as u64;
            parameters = parameters.saturating_add(tensor.n_elements());
        }
        let tokens = metadata.get_array("tokenizer.ggml.tokens")?;
        Ok(Self {
            name: text("general.name")?,
            licence: text("general.license")?,
            file_bytes: gguf.file_bytes(),
            parameters,
            context_tokens: count("context_length")?,
            n_layers,
            d_model,
            n_heads,
            n_kv_heads,
            vocab: tokens.map(|tokens| tokens.len() as u64),
            types,
            kv_bytes_per_token,
            has_chat_template: metadata.value("tokenizer.chat_template").is_some(),
            architecture,
        })
    }

    /// For people.
    pub fn describe(&self) -> String {
        let known = |value: Option<u64>| value.map_or_else(|| "unknown".into(), |v| v.to_string());
        let of_text = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
        let kv = match self.kv_bytes_per_token {
            Some(bytes) => format!("{} (f32)", Bytes(bytes).rounded()),
            None => "unknown".into(),
        };
        let kv_of_context = self
            .kv_bytes_per_token
            .zip(self.context_tokens)
            .and_then(|(bytes, tokens)| bytes.checked_mul(tokens))
            .map_or_else(String::new, |bytes| {
                format!(", {} for a full context", Bytes(bytes).rounded())
            });
        let rows = [
            ("name", of_text(&self.name)),
            ("architecture", self.architecture.clone()),
            ("licence", of_text(&self.licence)),
            ("file", Bytes(self.file_bytes).rounded().to_string()),
            (
                "parameters",
                format!("{:.1} M", self.parameters as f64 / 1e6),
            ),
            ("context", format!("{} tokens", known(self.context_tokens))),
            ("layers", known(self.n_layers)),
            ("d_model", known(self.d_model)),
            (
                "heads",
                format!(
                    "{}, {} for K and V",
                    known(self.n_heads),
                    known(self.n_kv_heads)
                ),
            ),
            ("vocabulary", format!("{} tokens", known(self.vocab))),
            ("KV per token", kv + &kv_of_context),
            (
                "chat template",
                if self.has_chat_template { "yes" } else { "no" }.into(),
            ),
        ];
        let mut text: String = rows
            .iter()
            .map(|(name, value)| format!("{name:<14} {value}\n"))
            .collect();
        for (at, (kind, (tensors, bytes))) in self.types.iter().enumerate() {
            let label = if at == 0 { "tensors" } else { "" };
            text += &format!(
                "{label:<14} {tensors:>4} {kind:<6} {}\n",
                Bytes(*bytes).rounded()
            );
        }
        text
    }

    pub fn to_json(&self) -> Value {
        let types = self.types.iter().map(
            |(kind, (tensors, bytes))| json!({"type": kind, "tensors": tensors, "bytes": bytes}),
        );
        json!({
            "architecture": self.architecture,
            "name": self.name,
            "licence": self.licence,
            "file_bytes": self.file_bytes,
            "parameters": self.parameters,
            "context_tokens": self.context_tokens,
            "n_layers": self.n_layers,
            "d_model": self.d_model,
            "n_heads": self.n_heads,
            "n_kv_heads": self.n_kv_heads,
            "vocab": self.vocab,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "has_chat_template": self.has_chat_template,
            "tensor_types": types.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn put_str(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }

    /// A model file without weights but for one f32 matrix of 8 x 4.
    pub fn tiny_model() -> Vec<u8> {
        let counts = [
            ("context_length", 128u32),
            ("block_count", 3),
            ("embedding_length", 8),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
        ];
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend(1u64.to_le_bytes());
        out.extend((counts.len() as u64 + 1).to_le_bytes());
        put_str(&mut out, "general.architecture");
        out.extend(8u32.to_le_bytes());
        put_str(&mut out, "llama");
        for (key, value) in counts {
            put_str(&mut out, &format!("llama.{key}"));
            out.extend(4u32.to_le_bytes());
            out.extend(value.to_le_bytes());
        }
        put_str(&mut out, "token_embd.weight");
        out.extend(2u32.to_le_bytes());
        out.extend(8u64.to_le_bytes());
        out.extend(4u64.to_le_bytes());
        out.extend(0u32.to_le_bytes());
        out.extend(0u64.to_le_bytes());
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend([0; 8 * 4 * 4]);
        out
    }

    #[test]
    fn the_facts_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        std::fs::write(&path, tiny_model()).unwrap();
        let info = Info::read(&path).unwrap();
        assert_eq!((info.architecture.as_str(), info.parameters), ("llama", 32));
        // 3 layers x 1 head x (4 + 4) x 4 bytes.
        assert_eq!(info.kv_bytes_per_token, Some(96));
        let text = info.describe();
        assert!(
            text.contains("KV per token   96 B (f32), 12 KiB for a full context\n"),
            "{text}"
        );
        assert!(
            text.contains("tensors           1 f32    128 B\n"),
            "{text}"
        );
        assert!(text.contains("licence        unknown\n"), "{text}");
        assert_eq!(info.to_json()["tensor_types"][0]["type"], "f32");
    }

    #[test]
    fn a_file_that_is_no_model_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.gguf");
        std::fs::write(&path, "not a model").unwrap();
        assert!(Info::read(&path).is_err());
        assert!(Info::read(&dir.path().join("missing.gguf")).is_err());
    }
}
