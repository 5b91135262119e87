use super::hyperparameters::Gating;
use vitriol_kernels_cpu::{Gate, RopeStyle};

/// A family of models with one forward pass. What differs between families is said in its [`Traits`];
/// the pass itself is in [`super::decoder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama, Mistral, Mixtral, SmolLM and their kin.
    Llama,
    /// As `llama`, with biases on q, k and v; rotation in halves.
    Qwen2,
    /// As `qwen2` without biases, with a norm on each head of q and k before they rotate.
    Qwen3,
    /// As `qwen3`, every feed-forward network a mixture of experts.
    Qwen3Moe,
    /// A mixture of experts; q and k are normed whole, before the split into heads.
    Olmoe,
    /// As a `llama` of experts, with factors on embedding, residual, scores and logits.
    GraniteMoe,
    /// As `llama`, with queries that sharpen with their position.
    Mistral3,
    /// Projections in one matrix each, rotation of a part of each head with long and short factors.
    Phi3,
    /// Norms before and after each block, windows on every other layer, capped scores and logits.
    Gemma2,
    /// As `gemma2` without the cap on scores, q and k normed; five windows to each full layer.
    Gemma3,
    /// Experts with biases and a clamped gate, attention with sinks, windows on every other layer.
    GptOss,
    /// Experts beside a shared one; every fourth layer does not rotate and scales its queries instead.
    Llama4,
    /// Multi-head latent attention: keys and values of all heads from one short vector a token.
    DeepSeek2,
    /// As `gemma3`; also embeddings for each layer, layers that read the KV of earlier ones, and experts
    /// beside the feed-forward network.
    Gemma4,
}

/// What a family does its own way.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// Which elements of a head rotate together. Files of the `Norm` families have their q and k rows
    /// permuted by the converter, so that neighbours do.
    pub rope: RopeStyle,
    /// Whether a file without biases on q, k and v is damaged; where not, they are as the file has them.
    pub needs_qkv_bias: bool,
    pub qk_norm: QkNorm,
    /// Whether each head of v is normed, without weights.
    pub normalises_values: bool,
    /// Whether a layer without a matrix for v takes its keys for values, as they were before norm and
    /// rotation.
    pub values_may_be_keys: bool,
    /// Whether scores are scaled by 1/√head_dim, where the file does not say otherwise.
    pub scales_scores: bool,
    /// Whether each block's output is normed too, before it joins the residual stream.
    pub norms_block_outputs: bool,
    /// Name of the norm before the feed-forward network.
    pub ffn_norm: &'static str,
    pub activation: Gate,
    /// Whether embeddings are multiplied by √d_model.
    pub scales_embedding: bool,
    /// Of how many layers in a row the last one sees everything and the others a window, where the file
    /// does not say. `None`: the family has no windows, whatever the file says.
    pub window_period: Option<usize>,
    /// Window, cap of scores and cap of logits, where the file does not say.
    pub window_default: u32,
    pub score_cap_default: Option<f32>,
    pub logit_cap_default: Option<f32>,
    /// Whether the last layers may read the KV of earlier ones.
    pub shares_kv: bool,
    /// Whether queries grow with their position, by a factor of the file.
    pub scales_queries: bool,
    /// Whether windowed layers rotate with a base of their own and unscaled.
    pub windows_rotate_apart: bool,
    /// Every how many layers one does not rotate.
    pub unrotated_period: Option<usize>,
    /// How experts are chosen, where the file does not say.
    pub gating: Gating,
    /// Whether an expert's weight multiplies its input, not its output.
    pub weighs_expert_inputs: bool,
    /// Whether the weights of the chosen experts are made to sum to 1, where the file does not say.
    pub normalises_experts: bool,
    /// Layers of the one size whose scores are scaled by √(n_heads / d_model), not by 1/√head_dim.
    pub layers_scaled_by_width: Option<usize>,
}

/// Where q and k are normed (RMS norm); with weights and before they rotate unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    None,
    /// Each head by itself, one set of weights for all: (head_dim).
    PerHead,
    /// All heads of a token as one row: (n_heads · head_dim).
    WholeRow,
    /// Each head, after it has rotated, without weights; on layers that rotate.
    AfterRotation,
}

/// A `llama`, from which the others differ.
const LLAMA: Traits = Traits {
    rope: RopeStyle::Norm,
    needs_qkv_bias: false,
    qk_norm: QkNorm::None,
    normalises_values: false,
    values_may_be_keys: false,
    scales_scores: true,
    norms_block_outputs: false,
    ffn_norm: "ffn_norm",
    activation: Gate::Silu,
    scales_embedding: false,
    window_period: None,
    window_default: 0,
    score_cap_default: None,
    logit_cap_default: None,
    shares_kv: false,
    scales_queries: false,
    windows_rotate_apart: false,
    unrotated_period: None,
    gating: Gating::Softmax,
    weighs_expert_inputs: false,
    normalises_experts: true,
    layers_scaled_by_width: None,
};

const QWEN3: Traits = Traits {
    rope: RopeStyle::Neox,
    qk_norm: QkNorm::PerHead,
    ..LLAMA
};

const GEMMA2: Traits = Traits {
    rope: RopeStyle::Neox,
    norms_block_outputs: true,
    activation: Gate::GeluTanh,
    scales_embedding: true,
    window_period: Some(2),
    layers_scaled_by_width: Some(46),
    ..LLAMA
};

impl Architecture {
    pub const ALL: [Self; 14] = [
        Self::Llama,
        Self::Qwen2,
        Self::Qwen3,
        Self::Qwen3Moe,
        Self::Olmoe,
        Self::GraniteMoe,
        Self::Mistral3,
        Self::Phi3,
        Self::Gemma2,
        Self::Gemma3,
        Self::GptOss,
        Self::Llama4,
        Self::DeepSeek2,
        Self::Gemma4,
    ];

    /// The architecture whose `general.architecture` is `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name)
    }

    /// `general.architecture` in a model file, and the prefix of its keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3moe",
            Self::Olmoe => "olmoe",
            Self::GraniteMoe => "granitemoe",
            Self::Mistral3 => "mistral3",
            Self::Phi3 => "phi3",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3",
            Self::GptOss => "gpt-oss",
            Self::Llama4 => "llama4",
            Self::DeepSeek2 => "deepseek2",
            Self::Gemma4 => "gemma4",
        }
    }

    /// Names of all, for messages.
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// What the family does its own way.
    pub fn traits(self) -> Traits {
        match self {
            Self::Llama | Self::GraniteMoe => LLAMA,
            Self::Mistral3 => Traits {
                scales_queries: true,
                ..LLAMA
            },
            Self::Qwen2 => Traits {
                rope: RopeStyle::Neox,
                needs_qkv_bias: true,
                ..LLAMA
            },
            Self::Qwen3 | Self::Qwen3Moe => QWEN3,
            Self::Olmoe => Traits {
                rope: RopeStyle::Neox,
                qk_norm: QkNorm::WholeRow,
                normalises_experts: false,
                ..LLAMA
            },
            Self::Phi3 => Traits {
                rope: RopeStyle::Neox,
                ..LLAMA
            },
            Self::Gemma2 => Traits {
                // Early files say none of these.
                window_default: 4096,
                score_cap_default: Some(50.0),
                logit_cap_default: Some(30.0),
                ..GEMMA2
            },
            Self::Gemma3 => Traits {
                qk_norm: QkNorm::PerHead,
                window_period: Some(6),
                windows_rotate_apart: true,
                layers_scaled_by_width: Some(62),
                ..GEMMA2
            },
            Self::GptOss => Traits {
                rope: RopeStyle::Neox,
                needs_qkv_bias: true,
                ffn_norm: "post_attention_norm",
                activation: Gate::SwigluClamped {
                    alpha: 1.702,
                    limit: 7.0,
                },
                window_period: Some(2),
                gating: Gating::SoftmaxOfChosen,
                normalises_experts: false,
                ..LLAMA
            },
            Self::Llama4 => Traits {
                qk_norm: QkNorm::AfterRotation,
                unrotated_period: Some(4),
                gating: Gating::Sigmoid,
                weighs_expert_inputs: true,
                normalises_experts: false,
                ..LLAMA
            },
            Self::DeepSeek2 => Traits {
                normalises_experts: false,
                ..LLAMA
            },
            Self::Gemma4 => Traits {
                qk_norm: QkNorm::PerHead,
                normalises_values: true,
                values_may_be_keys: true,
                shares_kv: true,
                scales_scores: false,
                window_period: Some(6),
                windows_rotate_apart: true,
                layers_scaled_by_width: None,
                ..GEMMA2
            },
        }
    }
}
