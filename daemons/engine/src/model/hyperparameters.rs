use super::{
    Architecture, ModelError,
    architecture::{QkNorm, Traits},
    keys::Keys,
    mla::MlaShape,
    rope::{RopeSpec, Rotated, read_ropes},
};
use vitriol_gguf::{Array, Gguf, Value};
use vitriol_kernels_cpu::HEAD_DIM_MAX;

/// The numbers that shape a model, checked against each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Hyperparameters {
    pub architecture: Architecture,
    pub d_model: usize,
    pub n_heads: usize,
    pub vocab: usize,
    /// Tokens the model was trained for.
    pub context_tokens_trained: usize,
    /// Tokens beyond which it would be computed wrongly.
    pub context_tokens_max: Option<usize>,
    /// Where q and k are normed.
    pub qk_norm: QkNorm,
    /// Blocks after the layers that predict tokens further on.
    pub n_next_layers: usize,
    pub rms_eps: f32,
    /// Embeddings are multiplied by this.
    pub embedding_scale: f32,
    /// What a block adds to the residual stream is multiplied by this.
    pub residual_scale: f32,
    /// Logits are multiplied by this.
    pub logit_scale: f32,
    /// Scores are multiplied by this before anything else happens to them.
    pub attention_scale: f32,
    /// c of c·tanh(score/c), after the scale.
    pub score_cap: Option<f32>,
    /// c of c·tanh(logit/c).
    pub logit_cap: Option<f32>,
    pub query_scaling: Option<QueryScaling>,
    pub experts: Option<ExpertShape>,
    pub mla: Option<MlaShape>,
    /// Width of the embeddings that each layer gets of its own.
    pub d_layer_input: Option<usize>,
    pub ropes: Vec<RopeSpec>,
    pub layers: Vec<LayerShape>,
}

/// The numbers in which layers of one model may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    pub n_kv_heads: usize,
    /// Elements of a head of q and k.
    pub head_dim: usize,
    /// Elements of a head of v.
    pub value_dim: usize,
    /// Inner width of the feed-forward network, where it is not made of experts.
    pub d_ff: usize,
    /// Keys a query sees, its own included; `None`: all before it.
    pub window: Option<u32>,
    /// The layer whose keys and values it reads instead of having its own.
    pub kv_of: Option<usize>,
    /// Index of its rotation in [`Hyperparameters::ropes`]; `None`: its heads do not rotate.
    pub rope: Option<usize>,
}

/// Queries at position p grow by `1 + scale · ln(1 + ⌊(p + offset) / floor_tokens⌋)`, so that attention
/// stays sharp far out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryScaling {
    pub scale: f32,
    pub floor_tokens: u32,
    pub offset: u32,
    /// Only on layers that do not rotate.
    pub unrotated_only: bool,
}

impl QueryScaling {
    /// What queries at `position` are multiplied by.
    pub fn at(&self, position: u32) -> f32 {
        let steps = (u64::from(position) + u64::from(self.offset)) / u64::from(self.floor_tokens);
        (1.0 + f64::from(self.scale) * (1.0 + steps as f64).ln()) as f32
    }
}

/// A mixture of experts and how a token is routed in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertShape {
    pub count: usize,
    /// Experts that compute a token.
    pub used: usize,
    /// Inner width of one expert.
    pub d_ff: usize,
    pub gating: Gating,
    /// Whether the weights of the chosen sum to 1.
    pub normalised: bool,
    /// The weights are multiplied by this in the end.
    pub scale: f32,
    /// Where a token's experts must come from few groups.
    pub groups: Option<ExpertGroups>,
}

/// Experts in groups of equal size, of which a token uses those whose two best experts score most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    pub count: usize,
    pub used: usize,
}

/// How the router's logits become the experts' weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    Sigmoid,
    /// Softmax over the chosen ones.
    SoftmaxOfChosen,
}

const LAYERS_MAX: usize = 1 << 12;
const EXPERTS_MAX: usize = 1 << 12;
/// Keys of one chunk of Llama 4's rotated layers: a query sees no key of an earlier chunk. Chunks are
/// not computed, so that contexts end with the first.
const LLAMA4_CHUNK: usize = 8192;

/// Of this many experts on, Llama 4 does not norm q and k.
const LLAMA4_EXPERTS_UNNORMED: usize = 128;
/// GLM 4.7 Flash's; its files do not say how experts are chosen.
const GLM_FLASH_VOCAB: usize = 154_880;

impl Hyperparameters {
    /// Reads and checks the keys of the file's architecture. Errors name the key.
    pub fn read(gguf: &Gguf) -> Result<Self, ModelError> {
        let name = gguf.architecture()?;
        let unknown = || ModelError::Architecture {
            file: gguf.path().into(),
            architecture: name.to_owned(),
        };
        let architecture = Architecture::from_name(name).ok_or_else(unknown)?;
        let keys = Keys::new(gguf, architecture.name());
        let traits = architecture.traits();

        let d_model = keys.dimension("embedding_length")?;
        let n_heads = keys.dimension("attention.head_count")?;
        let n_blocks = keys.bounded("block_count", LAYERS_MAX)?;
        let n_next_layers = keys.get::<u32>("nextn_predict_layers")?.unwrap_or(0) as usize;
        let Some(n_layers) = n_blocks.checked_sub(n_next_layers).filter(|&n| n > 0) else {
            let problem = format!("{n_next_layers} of {n_blocks} blocks leave no layer");
            return Err(keys.wrong("nextn_predict_layers", problem));
        };
        let context_tokens_trained = keys.bounded("context_length", u32::MAX as usize)?;
        let context_tokens_max = (architecture == Architecture::Llama4).then_some(LLAMA4_CHUNK);
        let mla = match architecture {
            Architecture::DeepSeek2 => Some(MlaShape::read(&keys, d_model, n_heads)?),
            _ => None,
        };
        let (head_dim, value_dim) = match &mla {
            Some(mla) => (mla.key_dim(), mla.kv_rank),
            None => head_dim(&keys, d_model, n_heads).map(|dim| (dim, dim))?,
        };
        let kv_heads = match &mla {
            // All heads read one.
            Some(_) => vec![1; n_layers],
            None => per_layer(&keys, "attention.head_count_kv", n_layers, n_heads)?,
        };
        for &n_kv_heads in &kv_heads {
            if !n_heads.is_multiple_of(n_kv_heads) {
                let problem = format!("{n_kv_heads} KV heads do not divide {n_heads} heads");
                return Err(keys.wrong("attention.head_count_kv", problem));
            }
        }
        let vocab = keys.vocab()?;
        let experts = experts(&keys, &traits, vocab)?;
        let is_large_llama4 = architecture == Architecture::Llama4
            && experts.is_some_and(|experts| experts.count == LLAMA4_EXPERTS_UNNORMED);
        let qk_norm = match is_large_llama4 {
            true => QkNorm::None,
            false => traits.qk_norm,
        };
        if architecture == Architecture::Llama4
            && keys.get::<u32>("attention.sliding_window")? == Some(0)
        {
            return Err(keys.unsupported("a llama4 without chunks is not supported yet"));
        }
        let d_ff = match experts {
            // The width of layers without experts, if there are any.
            Some(experts) => per_layer(&keys, "feed_forward_length", n_layers, experts.d_ff)?,
            None => per_layer(&keys, "feed_forward_length", n_layers, 0)?,
        };
        let windows = windows(&keys, &traits, n_layers)?;
        let windowed_dim = windowed_head_dim(&keys, head_dim)?;
        let rotated = Rotated {
            head_dim: mla.as_ref().map_or(head_dim, |mla| mla.rotated),
            windowed_dim,
            windows_rotate_apart: traits.windows_rotate_apart
                && windows.iter().any(Option::is_some),
            is_latent: mla.is_some(),
        };
        let (ropes, windowed_rope) = read_ropes(gguf, &keys, rotated)?;
        let shared = match traits.shares_kv {
            true => shared_kv(&keys, &windows)?,
            false => vec![None; n_layers],
        };
        let layers: Vec<LayerShape> = (0..n_layers)
            .map(|layer| {
                let windowed = windows[layer].is_some();
                let rotates = !traits
                    .unrotated_period
                    .is_some_and(|period| (layer + 1).is_multiple_of(period));
                LayerShape {
                    n_kv_heads: kv_heads[layer],
                    head_dim: if windowed { windowed_dim } else { head_dim },
                    value_dim: if windowed { windowed_dim } else { value_dim },
                    d_ff: d_ff[layer],
                    window: windows[layer],
                    kv_of: shared[layer],
                    rope: rotates.then_some(if windowed { windowed_rope } else { 0 }),
                }
            })
            .collect();
        for layer in &layers {
            let n_rot = layer.rope.map_or(0, |rope| ropes[rope].n_rot);
            let head = mla.as_ref().map_or(layer.head_dim, |mla| mla.rotated);
            if n_rot > head {
                let problem = format!("{n_rot} elements of a head of {head} cannot rotate");
                return Err(keys.wrong("rope.dimension_count", problem));
            }
        }
        let scaled_by_width = traits.layers_scaled_by_width == Some(n_layers);
        let attention_scale = match (keys.factor("attention.scale")?, &mla) {
            (_, Some(mla)) => mla.attention_scale(&ropes[0]),
            (Some(scale), _) => scale,
            _ if !traits.scales_scores => 1.0,
            _ if scaled_by_width => (n_heads as f32 / d_model as f32).sqrt(),
            _ => 1.0 / (head_dim as f32).sqrt(),
        };
        let score_cap = keys.factor("attn_logit_softcapping")?;
        let query_scaling = query_scaling(&keys, architecture, context_tokens_trained)?;
        if mla.is_some() && score_cap.is_some() {
            return Err(
                keys.unsupported("latent attention with capped scores is not supported yet")
            );
        }
        let hyper = Self {
            d_model,
            n_heads,
            vocab,
            context_tokens_trained,
            context_tokens_max,
            qk_norm,
            n_next_layers,
            rms_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
            embedding_scale: match keys.factor("embedding_scale")? {
                Some(scale) => scale,
                None if traits.scales_embedding => (d_model as f32).sqrt(),
                None => 1.0,
            },
            residual_scale: keys.factor("residual_scale")?.unwrap_or(1.0),
            logit_scale: keys.factor("logit_scale")?.map_or(1.0, |scale| 1.0 / scale),
            attention_scale,
            score_cap: score_cap.or(traits.score_cap_default),
            logit_cap: keys
                .factor("final_logit_softcapping")?
                .or(traits.logit_cap_default),
            query_scaling,
            experts,
            mla,
            d_layer_input: keys.optional_dimension("embedding_length_per_layer_input")?,
            ropes,
            layers,
            architecture,
        };
        let unread = keys.unread();
        if !unread.is_empty() {
            let keys = unread.join(", ");
            tracing::warn!(
                keys,
                "the model file says things that are not read; answers may differ"
            );
        }
        Ok(hyper)
    }

    /// The context of a request where `asked` is wanted (0: as trained).
    pub fn context_for(&self, asked: usize) -> usize {
        let wanted = match asked {
            0 => self.context_tokens_trained,
            asked => asked,
        };
        wanted.min(self.context_tokens_max.unwrap_or(usize::MAX))
    }

    /// The largest of a layer's numbers over all layers, at least 1.
    pub fn widest(&self, of: impl Fn(&LayerShape) -> usize) -> usize {
        self.layers.iter().map(of).max().unwrap_or(1).max(1)
    }
}

fn head_dim(keys: &Keys<'_>, d_model: usize, n_heads: usize) -> Result<usize, ModelError> {
    let derived = match d_model.is_multiple_of(n_heads) {
        true => d_model / n_heads,
        false => 0,
    };
    let head_dim = keys.dimension_or("attention.key_length", derived)?;
    if head_dim == 0 {
        let problem = format!("{n_heads} heads do not divide an embedding of {d_model}");
        return Err(keys.wrong("attention.head_count", problem));
    }
    if head_dim > HEAD_DIM_MAX {
        let problem = format!("heads of {head_dim} are above {HEAD_DIM_MAX}");
        return Err(keys.wrong("attention.key_length", problem));
    }
    let value_length = keys.dimension_or("attention.value_length", head_dim)?;
    if value_length != head_dim {
        let problem = format!("value heads of {value_length} beside key heads of {head_dim}");
        return Err(keys.wrong("attention.value_length", problem));
    }
    Ok(head_dim)
}

/// Size of the heads of windowed layers.
fn windowed_head_dim(keys: &Keys<'_>, head_dim: usize) -> Result<usize, ModelError> {
    const KEY: &str = "attention.key_length_swa";
    let dim = keys.dimension_or(KEY, head_dim)?;
    let value = keys.dimension_or("attention.value_length_swa", dim)?;
    if dim > HEAD_DIM_MAX || value != dim {
        let problem = format!("heads of {dim} and {value} are not one size up to {HEAD_DIM_MAX}");
        return Err(keys.wrong(KEY, problem));
    }
    Ok(dim)
}

/// For each layer the one whose KV it reads: the last ones share that of the last full and of the last
/// windowed layer before them.
fn shared_kv(keys: &Keys<'_>, windows: &[Option<u32>]) -> Result<Vec<Option<usize>>, ModelError> {
    const KEY: &str = "attention.shared_kv_layers";
    let shared = keys.get::<u32>(KEY)?.unwrap_or(0) as usize;
    let own = windows.len().saturating_sub(shared);
    (0..windows.len())
        .map(|layer| {
            if layer < own {
                return Ok(None);
            }
            let is_its = |&of: &usize| windows[of].is_some() == windows[layer].is_some();
            match (0..own).rev().find(is_its) {
                Some(of) => Ok(Some(of)),
                None => Err(keys.wrong(KEY, format!("no layer before layer {layer} is like it"))),
            }
        })
        .collect()
}

/// A key that holds one number for all layers or an array of one for each.
fn per_layer(
    keys: &Keys<'_>,
    key: &str,
    n_layers: usize,
    default: usize,
) -> Result<Vec<usize>, ModelError> {
    let Some(Value::Array(array)) = keys.value(key) else {
        let value = match default {
            0 => keys.dimension(key)?,
            default => keys.dimension_or(key, default)?,
        };
        return Ok(vec![value; n_layers]);
    };
    let values: Vec<usize> = array.iter().map_while(|v| keys.width(v)).collect();
    if array.len() != n_layers || values.len() != n_layers {
        let problem = format!("is not one number from 1 on for each of {n_layers} layers");
        return Err(keys.wrong(key, problem));
    }
    Ok(values)
}

/// Each layer's window.
fn windows(
    keys: &Keys<'_>,
    traits: &Traits,
    n_layers: usize,
) -> Result<Vec<Option<u32>>, ModelError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let stated = keys.get::<u32>("attention.sliding_window")?;
    let window = stated.unwrap_or(traits.window_default);
    let (Some(period), 1..) = (traits.window_period, window) else {
        return Ok(vec![None; n_layers]);
    };
    let is_windowed: Vec<bool> = match keys.value(PATTERN) {
        Some(Value::Array(array)) => flags(keys, PATTERN, array, n_layers)?,
        _ => {
            let period = keys.dimension_or(PATTERN, period)?;
            (0..n_layers)
                .map(|layer| layer % period < period - 1)
                .collect()
        }
    };
    Ok(is_windowed
        .into_iter()
        .map(|windowed| windowed.then_some(window))
        .collect())
}

fn flags(
    keys: &Keys<'_>,
    key: &str,
    array: Array<'_>,
    n_layers: usize,
) -> Result<Vec<bool>, ModelError> {
    let flags: Vec<bool> = array
        .iter()
        .map_while(|value| match value {
            Value::Bool(flag) => Some(flag),
            other => other.as_integer().map(|flag| flag != 0),
        })
        .collect();
    match array.len() == n_layers && flags.len() == n_layers {
        true => Ok(flags),
        false => Err(keys.wrong(
            key,
            format!("is not one flag for each of {n_layers} layers"),
        )),
    }
}

fn query_scaling(
    keys: &Keys<'_>,
    architecture: Architecture,
    context_tokens_trained: usize,
) -> Result<Option<QueryScaling>, ModelError> {
    if architecture == Architecture::Llama4 {
        // Its files do not say so.
        return Ok(Some(QueryScaling {
            scale: 0.1,
            floor_tokens: LLAMA4_CHUNK as u32,
            offset: 1,
            unrotated_only: true,
        }));
    }
    if !architecture.traits().scales_queries {
        return Ok(None);
    }
    let Some(scale) = keys.factor("attention.temperature_scale")? else {
        return Ok(None);
    };
    let key = "rope.scaling.original_context_length";
    let floor_tokens = keys.dimension_or(key, context_tokens_trained)? as u32;
    Ok(Some(QueryScaling {
        scale,
        floor_tokens,
        offset: 0,
        unrotated_only: false,
    }))
}

fn experts(
    keys: &Keys<'_>,
    traits: &Traits,
    vocab: usize,
) -> Result<Option<ExpertShape>, ModelError> {
    if keys.get::<u32>("expert_count")?.unwrap_or(0) == 0 {
        return Ok(None);
    }
    let count = keys.bounded("expert_count", EXPERTS_MAX)?;
    let used = keys.bounded("expert_used_count", count)?;
    let gating = match keys.get::<u32>("expert_gating_func")? {
        // A family of its own that calls itself deepseek2, known by its vocabulary.
        None | Some(0) if vocab == GLM_FLASH_VOCAB => Gating::Sigmoid,
        None | Some(0) => traits.gating,
        Some(1) => Gating::Softmax,
        Some(2) => Gating::Sigmoid,
        Some(3) => Gating::SoftmaxOfChosen,
        Some(other) => {
            let problem =
                format!("{other} is none of 1 softmax, 2 sigmoid, 3 softmax of the chosen");
            return Err(keys.wrong("expert_gating_func", problem));
        }
    };
    let d_ff = match keys.get::<u32>("expert_feed_forward_length")? {
        Some(_) => keys.dimension("expert_feed_forward_length")?,
        None => keys.dimension("feed_forward_length")?,
    };
    Ok(Some(ExpertShape {
        count,
        used,
        d_ff,
        gating,
        normalised: keys
            .get::<bool>("expert_weights_norm")?
            .unwrap_or(traits.normalises_experts),
        scale: keys.factor("expert_weights_scale")?.unwrap_or(1.0),
        groups: expert_groups(keys, count, used)?,
    }))
}

fn expert_groups(
    keys: &Keys<'_>,
    count: usize,
    used: usize,
) -> Result<Option<ExpertGroups>, ModelError> {
    const USED: &str = "expert_group_used_count";
    let groups = keys.dimension_or("expert_group_count", 1)?;
    if groups == 1 {
        return Ok(None);
    }
    if !count.is_multiple_of(groups) || count / groups < 2 {
        let problem = format!("{groups} groups do not hold {count} experts evenly");
        return Err(keys.wrong("expert_group_count", problem));
    }
    let kept = keys.bounded(USED, groups)?;
    if kept * (count / groups) < used {
        let problem = format!("{kept} groups hold fewer than the {used} experts of a token");
        return Err(keys.wrong(USED, problem));
    }
    Ok(Some(ExpertGroups {
        count: groups,
        used: kept,
    }))
}
