use super::ModelError;
use std::{cell::RefCell, collections::HashSet};
use vitriol_gguf::{FromValue, Gguf, Metadata, Value};

/// Bound that no real model passes; it keeps a damaged file from asking for absurd memory.
const DIMENSION_MAX: usize = 1 << 20;

/// Keys that files carry and no computation needs.
const HARMLESS: [&str; 9] = [
    "attention.layer_norm_epsilon",
    "attention.causal",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "interleave_moe_layer_step",
    "leading_dense_block_count",
    "rope.scaling.finetuned",
    "sliding_window",
    "tensor_data_layout",
];

/// The keys of a file below its architecture's prefix. Errors name file and key.
pub struct Keys<'a> {
    gguf: &'a Gguf,
    meta: Metadata<'a>,
    prefix: &'static str,
    /// What was asked for.
    asked: RefCell<HashSet<String>>,
}

impl<'a> Keys<'a> {
    pub fn new(gguf: &'a Gguf, prefix: &'static str) -> Self {
        Self {
            gguf,
            meta: gguf.metadata(),
            prefix,
            asked: RefCell::default(),
        }
    }

    fn full(&self, key: &str) -> String {
        let full = format!("{}.{key}", self.prefix);
        self.asked.borrow_mut().insert(full.clone());
        full
    }

    /// Keys of the architecture that nobody asked for and that may change what is computed.
    pub fn unread(&self) -> Vec<String> {
        let asked = self.asked.borrow();
        let is_ours = |key: &str| {
            let ours = key
                .strip_prefix(self.prefix)
                .and_then(|k| k.strip_prefix('.'));
            ours.is_some_and(|key| !HARMLESS.contains(&key)) && !asked.contains(key)
        };
        let keys = self.meta.iter().map(|(key, _)| key);
        keys.filter(|key| is_ours(key)).map(str::to_owned).collect()
    }

    pub fn get<'b, T: FromValue<'b>>(&'b self, key: &str) -> Result<Option<T>, ModelError> {
        Ok(self.meta.get(&self.full(key))?)
    }

    /// The value as the file has it.
    pub fn value(&self, key: &str) -> Option<Value<'a>> {
        self.meta.value(&self.full(key))
    }

    /// `value` as a width, if it is one.
    pub fn width(&self, value: Value<'_>) -> Option<usize> {
        let width = usize::try_from(value.as_integer()?).ok()?;
        (1..=DIMENSION_MAX).contains(&width).then_some(width)
    }

    fn require<'b, T: FromValue<'b>>(&'b self, key: &str) -> Result<T, ModelError> {
        Ok(self.meta.require(&self.full(key))?)
    }

    /// What the file asks for is not computed.
    pub fn unsupported(&self, what: impl Into<String>) -> ModelError {
        ModelError::Unsupported {
            file: self.gguf.path().into(),
            what: what.into(),
        }
    }

    pub fn wrong(&self, key: &str, problem: impl Into<String>) -> ModelError {
        ModelError::Value {
            file: self.gguf.path().into(),
            key: self.full(key),
            problem: problem.into(),
        }
    }

    /// A number from 1 to `most`.
    pub fn bounded(&self, key: &str, most: usize) -> Result<usize, ModelError> {
        let value: u32 = self.require(key)?;
        match value as usize {
            0 => Err(self.wrong(key, "is 0")),
            value if value > most => Err(self.wrong(key, format!("{value} is above {most}"))),
            value => Ok(value),
        }
    }

    /// A width of something, at least 1.
    pub fn dimension(&self, key: &str) -> Result<usize, ModelError> {
        self.bounded(key, DIMENSION_MAX)
    }

    /// As [`Self::dimension`], `default` where the file lacks the key.
    pub fn dimension_or(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        match self.get::<u32>(key)? {
            Some(_) => self.dimension(key),
            None => Ok(default),
        }
    }

    /// As [`Self::dimension`]; `None` where the file lacks the key or says 0, which stands for none.
    pub fn optional_dimension(&self, key: &str) -> Result<Option<usize>, ModelError> {
        match self.get::<u32>(key)? {
            None | Some(0) => Ok(None),
            Some(_) => self.dimension(key).map(Some),
        }
    }

    pub fn positive(&self, key: &str) -> Result<f32, ModelError> {
        let value: f32 = self.require(key)?;
        if value.is_finite() && value > 0.0 {
            return Ok(value);
        }
        Err(self.wrong(key, format!("{value} is not a positive number")))
    }

    /// A factor or cap; `None` where the file lacks the key or says 0, which stands for none.
    pub fn factor(&self, key: &str) -> Result<Option<f32>, ModelError> {
        match self.get::<f32>(key)? {
            None | Some(0.0) => Ok(None),
            Some(_) => self.positive(key).map(Some),
        }
    }

    /// Rows of the embedding: what counts is the tensor; the key, where present, must agree.
    pub fn vocab(&self) -> Result<usize, ModelError> {
        let missing = || ModelError::MissingTensor {
            file: self.gguf.path().into(),
            tensor: "token_embd.weight".to_owned(),
        };
        let tensor = self.gguf.tensor("token_embd.weight").ok_or_else(missing)?;
        let rows = tensor.dims.get(1).copied().unwrap_or(1);
        if let Some(stated) = self.get::<u64>("vocab_size")?
            && stated != rows
        {
            let problem = format!("{stated} tokens, but token_embd.weight has {rows} rows");
            return Err(self.wrong("vocab_size", problem));
        }
        match usize::try_from(rows) {
            Ok(rows) if (1..=1 << 24).contains(&rows) => Ok(rows),
            _ => Err(self.wrong("vocab_size", format!("{rows} tokens are too many"))),
        }
    }
}
