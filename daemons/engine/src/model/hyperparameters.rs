use super::{Architecture, ModelError};
use vitriol_gguf::{FromValue, Gguf, Metadata};
use vitriol_kernels_cpu::HEAD_DIM_MAX;

/// The numbers that shape a model, checked against each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Hyperparameters {
    pub architecture: Architecture,
    pub d_model: usize,
    pub d_ff: usize,
    pub n_layers: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    /// Tokens the model was trained for.
    pub context_tokens_trained: usize,
    pub rms_eps: f32,
    /// Leading dimensions of a head that rotate.
    pub n_rot: usize,
    pub rope_freq_base: f32,
    /// Positions are multiplied by this (1/factor of linear scaling).
    pub rope_freq_scale: f32,
    pub attention_scale: f32,
}

/// Bounds that no real model passes; they keep a damaged file from asking for absurd memory.
const DIMENSION_MAX: usize = 1 << 20;
const LAYERS_MAX: usize = 1 << 12;

impl Hyperparameters {
    /// Reads and checks the keys of the file's architecture. Errors name the key.
    pub fn read(gguf: &Gguf) -> Result<Self, ModelError> {
        let name = gguf.architecture()?;
        let unknown = || ModelError::Architecture {
            file: gguf.path().into(),
            architecture: name.to_owned(),
        };
        let architecture = Architecture::from_name(name).ok_or_else(unknown)?;
        let keys = Keys {
            gguf,
            meta: gguf.metadata(),
            prefix: architecture.name(),
        };
        keys.refuse_what_is_not_computed()?;

        let d_model = keys.dimension("embedding_length")?;
        let n_heads = keys.dimension("attention.head_count")?;
        let n_kv_heads = match keys.get::<u32>("attention.head_count_kv")? {
            Some(_) => keys.dimension("attention.head_count_kv")?,
            None => n_heads,
        };
        let head_dim = match keys.get::<u32>("attention.key_length")? {
            Some(_) => keys.dimension("attention.key_length")?,
            None if d_model.is_multiple_of(n_heads) => d_model / n_heads,
            None => {
                return Err(keys.wrong(
                    "attention.head_count",
                    format!("{n_heads} heads do not divide an embedding of {d_model}"),
                ));
            }
        };
        if head_dim > HEAD_DIM_MAX {
            let problem = format!("heads of {head_dim} are above {HEAD_DIM_MAX}");
            return Err(keys.wrong("attention.key_length", problem));
        }
        if let Some(value_length) = keys.get::<u32>("attention.value_length")?
            && value_length as usize != head_dim
        {
            let problem = format!("value heads of {value_length} beside key heads of {head_dim}");
            return Err(keys.wrong("attention.value_length", problem));
        }
        if !n_heads.is_multiple_of(n_kv_heads) {
            let problem = format!("{n_kv_heads} KV heads do not divide {n_heads} heads");
            return Err(keys.wrong("attention.head_count_kv", problem));
        }
        let n_rot = match keys.get::<u32>("rope.dimension_count")? {
            Some(n) => n as usize,
            None => head_dim,
        };
        if n_rot == 0 || n_rot > head_dim || !n_rot.is_multiple_of(2) {
            let problem = format!("{n_rot} is not an even number up to the head size {head_dim}");
            return Err(keys.wrong("rope.dimension_count", problem));
        }
        let attention_scale = match keys.get::<f32>("attention.scale")? {
            Some(scale) if scale > 0.0 => scale,
            _ => 1.0 / (head_dim as f32).sqrt(),
        };
        Ok(Self {
            architecture,
            d_model,
            d_ff: keys.dimension("feed_forward_length")?,
            n_layers: keys.bounded("block_count", LAYERS_MAX)?,
            n_heads,
            n_kv_heads,
            head_dim,
            vocab: keys.vocab()?,
            context_tokens_trained: keys.bounded("context_length", u32::MAX as usize)?,
            rms_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
            n_rot,
            rope_freq_base: match keys.get::<f32>("rope.freq_base")? {
                Some(_) => keys.positive("rope.freq_base")?,
                None => 10_000.0,
            },
            rope_freq_scale: keys.rope_freq_scale()?,
            attention_scale,
        })
    }
}

/// The keys below the architecture's prefix.
struct Keys<'a> {
    gguf: &'a Gguf,
    meta: Metadata<'a>,
    prefix: &'static str,
}

impl Keys<'_> {
    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn get<'b, T: FromValue<'b>>(&'b self, key: &str) -> Result<Option<T>, ModelError> {
        Ok(self.meta.get(&self.full(key))?)
    }

    fn require<'b, T: FromValue<'b>>(&'b self, key: &str) -> Result<T, ModelError> {
        Ok(self.meta.require(&self.full(key))?)
    }

    fn wrong(&self, key: &str, problem: String) -> ModelError {
        ModelError::Value {
            file: self.gguf.path().into(),
            key: self.full(key),
            problem,
        }
    }

    fn bounded(&self, key: &str, most: usize) -> Result<usize, ModelError> {
        let value: u32 = self.require(key)?;
        match value as usize {
            0 => Err(self.wrong(key, "is 0".to_owned())),
            value if value > most => Err(self.wrong(key, format!("{value} is above {most}"))),
            value => Ok(value),
        }
    }

    fn dimension(&self, key: &str) -> Result<usize, ModelError> {
        self.bounded(key, DIMENSION_MAX)
    }

    fn positive(&self, key: &str) -> Result<f32, ModelError> {
        let value: f32 = self.require(key)?;
        if value.is_finite() && value > 0.0 {
            return Ok(value);
        }
        Err(self.wrong(key, format!("{value} is not a positive number")))
    }

    /// Rows of the embedding: what counts is the tensor; the key, where present, must agree.
    fn vocab(&self) -> Result<usize, ModelError> {
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
            Ok(rows) if rows <= 1 << 24 => Ok(rows),
            _ => Err(self.wrong("vocab_size", format!("{rows} tokens are too many"))),
        }
    }

    fn rope_freq_scale(&self) -> Result<f32, ModelError> {
        let scaling = self.get::<&str>("rope.scaling.type")?;
        let factor = self.get::<f32>("rope.scaling.factor")?;
        let scale_linear = self.get::<f32>("rope.scale_linear")?;
        freq_scale(scaling, factor, scale_linear).map_err(|(key, problem)| self.wrong(key, problem))
    }

    fn refuse_what_is_not_computed(&self) -> Result<(), ModelError> {
        if self.get::<u32>("expert_count")?.unwrap_or(0) > 0 {
            return Err(ModelError::Unsupported {
                file: self.gguf.path().into(),
                what: "mixture-of-experts models are not supported yet".to_owned(),
            });
        }
        Ok(())
    }
}

/// What positions are multiplied by. Files from before `rope.scaling.type` say by a factor alone that
/// they scale linearly; a factor of 0 stands for none. Errors: key and problem.
fn freq_scale(
    scaling: Option<&str>,
    factor: Option<f32>,
    scale_linear: Option<f32>,
) -> Result<f32, (&'static str, String)> {
    match scaling {
        Some("none") => return Ok(1.0),
        None | Some("linear") => {}
        Some(other) => {
            let problem = format!("rope scaling \"{other}\" is not supported yet");
            return Err(("rope.scaling.type", problem));
        }
    }
    let given = [
        ("rope.scaling.factor", factor),
        ("rope.scale_linear", scale_linear),
    ];
    for (key, factor) in given {
        match factor {
            None | Some(0.0) => {}
            Some(factor) if factor.is_finite() && factor > 0.0 => return Ok(1.0 / factor),
            Some(factor) => return Err((key, format!("{factor} is not a positive number"))),
        }
    }
    Ok(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_without_a_type_scales_linearly_and_none_means_none() {
        assert_eq!(freq_scale(None, Some(4.0), None), Ok(0.25));
        assert_eq!(freq_scale(Some("linear"), Some(4.0), Some(8.0)), Ok(0.25));
        assert_eq!(freq_scale(None, Some(0.0), Some(8.0)), Ok(0.125));
        assert_eq!(freq_scale(Some("none"), Some(4.0), Some(8.0)), Ok(1.0));
        assert_eq!(freq_scale(None, None, None), Ok(1.0));
        for bad in [-2.0, f32::INFINITY, f32::NAN] {
            let (key, _) = freq_scale(None, Some(bad), None).unwrap_err();
            assert_eq!(key, "rope.scaling.factor");
        }
        assert!(freq_scale(Some("yarn"), Some(4.0), None).is_err());
    }
}
