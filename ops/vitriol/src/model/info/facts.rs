use std::{collections::BTreeMap, path::PathBuf};

use vitriol_gguf::{Gguf, GgufError};
use vitriol_kernels_core::KvHeads;

use crate::term::printable;

/// What a model file says of itself; `None` where it does not.
#[derive(Debug, PartialEq, Eq)]
pub struct Facts {
    pub architecture: String,
    pub name: Option<String>,
    pub licence: Option<String>,
    /// Id of the mixture of tensor types.
    pub file_type: Option<u64>,
    /// The files, in order.
    pub parts: Vec<PathBuf>,
    pub file_bytes: u64,
    pub parameters: u64,
    pub context_tokens: Option<u64>,
    pub n_layers: Option<u64>,
    pub d_model: Option<u64>,
    pub n_heads: Option<u64>,
    /// Of each layer, or one number for all.
    pub n_kv_heads: Option<Vec<u64>>,
    pub key_dim: Option<u64>,
    pub value_dim: Option<u64>,
    pub window_tokens: Option<u64>,
    pub experts: Option<Experts>,
    pub tokenizer: Option<TokenizerFacts>,
    /// Tensors and bytes by type.
    pub types: BTreeMap<&'static str, (u64, u64)>,
    pub has_chat_template: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Experts {
    pub count: u64,
    /// Experts that compute a token.
    pub used: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct TokenizerFacts {
    pub model: Option<String>,
    pub pre: Option<String>,
    pub tokens: Option<u64>,
}

/// Layers, heads and elements beyond which a key is absurd; they keep sums from overflowing.
const NUMBER_MAX: u64 = 1 << 24;

impl Facts {
    /// Errors: a key of the wrong type, or a number out of any range.
    pub fn read(gguf: &Gguf) -> Result<Self, GgufError> {
        let metadata = gguf.metadata();
        let architecture = gguf.architecture()?.to_owned();
        let key = |key: &str| format!("{architecture}.{key}");
        let count = |name: &str| metadata.get_within(&key(name), 0..=NUMBER_MAX);
        // What a file calls itself is printed to a terminal.
        let text = |key: &str| {
            let bytes = metadata.get_bytes(key)?;
            let line = |bytes| printable(&String::from_utf8_lossy(bytes)).replace('\n', " ");
            Ok::<_, GgufError>(bytes.map(line))
        };
        // Some architectures have a list, one entry a layer.
        let list = |name: &str| {
            let values = metadata.get_vec::<u64>(&key(name))?;
            Ok::<_, GgufError>(values.filter(|v| v.iter().all(|&v| v <= NUMBER_MAX)))
        };

        let d_model = count("embedding_length")?;
        let n_heads = list("attention.head_count")?.and_then(|heads| heads.into_iter().max());
        let per_head = d_model
            .zip(n_heads)
            .and_then(|(d, heads)| d.checked_div(heads));
        let mut types = BTreeMap::<_, (u64, u64)>::new();
        let mut parameters = 0u64;
        for tensor in gguf.tensors() {
            let (tensors, bytes) = types.entry(tensor.tensor_type.name()).or_default();
            *tensors += 1;
            *bytes += tensor.bytes.len() as u64;
            parameters = parameters.saturating_add(tensor.n_elements());
        }
        let experts = count("expert_count")?.filter(|&count| count > 0);
        let used = count("expert_used_count")?;
        let tokens = metadata.get_array("tokenizer.ggml.tokens")?;
        let tokenizer = TokenizerFacts {
            model: text("tokenizer.ggml.model")?,
            pre: text("tokenizer.ggml.pre")?,
            tokens: tokens.map(|tokens| tokens.len() as u64),
        };
        Ok(Self {
            name: text("general.name")?,
            licence: text("general.license")?,
            file_type: metadata.get_u64("general.file_type")?,
            parts: gguf.parts().iter().map(|part| part.path().into()).collect(),
            file_bytes: gguf.file_bytes(),
            parameters,
            context_tokens: metadata.get_within(&key("context_length"), 0..=u32::MAX.into())?,
            n_layers: count("block_count")?,
            d_model,
            n_heads,
            n_kv_heads: match list("attention.head_count_kv")? {
                Some(heads) => Some(heads),
                None => n_heads.map(|heads| vec![heads]),
            },
            key_dim: count("attention.key_length")?.or(per_head),
            value_dim: count("attention.value_length")?.or(per_head),
            window_tokens: metadata
                .get_u64(&key("attention.sliding_window"))?
                .filter(|&window| window > 0),
            experts: experts.map(|count| Experts { count, used }),
            tokenizer: tokenizer.model.is_some().then_some(tokenizer),
            types,
            has_chat_template: metadata.value("tokenizer.chat_template").is_some(),
            architecture,
        })
    }

    /// Bytes of all tensors as the file has them.
    pub fn weights_bytes(&self) -> u64 {
        self.types.values().map(|(_, bytes)| bytes).sum()
    }

    /// Heads of the model's layers as the keys tell, if they do: what is cached at most.
    pub fn kv_heads(&self) -> Option<Vec<KvHeads>> {
        let n_layers = usize::try_from(self.n_layers?).ok()?;
        let heads = |n_layers, n_kv_heads: u64| {
            Some(KvHeads {
                n_layers,
                n_kv_heads: usize::try_from(n_kv_heads).ok()?,
                key_dim: usize::try_from(self.key_dim?).ok()?,
                value_dim: usize::try_from(self.value_dim?).ok()?,
            })
        };
        match self.n_kv_heads.as_deref()? {
            [same] => Some(vec![heads(n_layers, *same)?]),
            each => each.iter().map(|&of_layer| heads(1, of_layer)).collect(),
        }
    }
}
