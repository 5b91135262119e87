use vitriol_kernels_cpu::RopeStyle;

/// A family of models with one forward pass. What differs between families is said here; the pass
/// itself is in [`super::decoder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama, Mistral, SmolLM and their kin.
    Llama,
    /// As `llama`, with biases on q, k and v; rotation in halves.
    Qwen2,
    /// As `qwen2` without biases, with a norm on each head of q and k before they rotate.
    Qwen3,
}

impl Architecture {
    pub const ALL: [Self; 3] = [Self::Llama, Self::Qwen2, Self::Qwen3];

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
        }
    }

    /// Names of all, for messages.
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Which elements of a head rotate together. Files of `llama` have their q and k rows permuted
    /// by the converter, so that neighbours do.
    pub fn rope_style(self) -> RopeStyle {
        match self {
            Self::Llama => RopeStyle::Norm,
            Self::Qwen2 | Self::Qwen3 => RopeStyle::Neox,
        }
    }

    /// Whether q, k and v have biases: always (`Some(true)`), never, or as the file has them (`None`).
    pub fn qkv_bias(self) -> Option<bool> {
        match self {
            Self::Llama => None,
            Self::Qwen2 => Some(true),
            Self::Qwen3 => Some(false),
        }
    }

    /// Whether each head of q and k is normed before it rotates.
    pub fn has_qk_norm(self) -> bool {
        self == Self::Qwen3
    }
}
