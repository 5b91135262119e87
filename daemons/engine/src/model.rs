//! A model's weights and the numbers that shape it, ready to compute.

mod architecture;
mod attention;
mod decoder;
mod experts;
mod feed_forward;
mod hyperparameters;
mod keys;
mod kv_group;
mod layer_inputs;
mod mla;
mod rope;
mod routing;
mod tap;
mod weights;
mod work;

pub use architecture::Architecture;
pub use decoder::DecoderLayer;
pub use experts::Routed;
pub use hyperparameters::{Hyperparameters, LayerShape};
pub use kv_group::{KvGroup, KvLayer, group_layers};
pub use layer_inputs::{LayerInputRows, LayerInputs};
pub use mla::Latent;
pub use tap::Tap;
pub use weights::{LoadPhase, LoadProgress, Totals};
pub use work::Work;

use crate::{
    kv::{KvCodecs, PAGE_TOKENS},
    panels::{PanelFile, PanelFileError, PanelWriter},
};
use std::{path::PathBuf, sync::Arc};
use vitriol_gguf::{Gguf, GgufError};
use vitriol_kernels_cpu::{Cpu, PackError, PanelMatrix, RopeTable};
use weights::{Panels, TensorSource};

/// Why a file cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(
        "{}: architecture \"{architecture}\" is not supported yet; this release runs: {}",
        file.display(),
        Architecture::names()
    )]
    Architecture { file: PathBuf, architecture: String },
    #[error("{}: {what}", file.display())]
    Unsupported { file: PathBuf, what: String },
    #[error("{}: key {key}: {problem}", file.display())]
    Value {
        file: PathBuf,
        key: String,
        problem: String,
    },
    #[error("{}: tensor {tensor} is missing", file.display())]
    MissingTensor { file: PathBuf, tensor: String },
    #[error("{}: tensor {tensor}: has shape {found:?}, expected {expected:?}", file.display())]
    Shape {
        file: PathBuf,
        tensor: String,
        found: Vec<u64>,
        expected: Vec<u64>,
    },
    #[error(
        "{}: tensor {tensor}: {tensor_type} is not a type of weights",
        file.display()
    )]
    TensorType {
        file: PathBuf,
        tensor: String,
        tensor_type: &'static str,
    },
    #[error("{}: tensor {tensor}", file.display())]
    Pack {
        file: PathBuf,
        tensor: String,
        source: PackError,
    },
    #[error(transparent)]
    Panels(#[from] PanelFileError),
    #[error("{}: {count} tensors are not used by the architecture, the first is {first}", file.display())]
    UnusedTensors {
        file: PathBuf,
        count: usize,
        first: String,
    },
}

/// A contiguous range of layers on one device with its own weights (its KV is in
/// [`crate::forward::KvStores`], by KV group). Hidden states cross stage borders, nothing else.
#[derive(Debug)]
pub struct Stage {
    /// Index of its first layer in the model.
    pub first: usize,
    pub layers: Vec<DecoderLayer>,
}

/// A decoder-only transformer, of whichever [`Architecture`].
#[derive(Debug)]
pub struct Model {
    pub hyper: Hyperparameters,
    /// (vocab, d_model)
    pub token_embd: PanelMatrix,
    pub layer_inputs: Option<LayerInputs>,
    pub stages: Vec<Stage>,
    /// (d_model)
    pub output_norm: Vec<f32>,
    /// (vocab, d_model); `None`: tied to `token_embd`.
    pub output: Option<PanelMatrix>,
    /// By [`LayerShape::rope`].
    pub ropes: Vec<RopeTable>,
    /// Layers that keep the same tokens' KV share pages; full attention first.
    pub kv_groups: Vec<KvGroup>,
    /// Where each layer's KV is.
    pub kv_layers: Vec<KvLayer>,
    /// What names this model's KV: digest of all metadata and tensor descriptions, of the weights'
    /// first and last bytes, and of the rotation chosen.
    pub identity: [u8; 32],
    pub totals: Totals,
    pub device: Arc<Cpu>,
}

/// What a model file would be in memory.
#[derive(Clone, Debug)]
pub struct ModelCheck {
    pub hyper: Hyperparameters,
    pub kv_groups: Vec<KvGroup>,
    pub totals: Totals,
}

impl Model {
    /// Reads and repacks all weights of `gguf` for `device` and the context that `context_tokens` chooses
    /// (0: as trained), telling `progress` how far it is.
    /// Every tensor of the file must be used: one that is not would mean a model computed wrongly.
    pub fn load(
        gguf: &Gguf,
        device: Arc<Cpu>,
        context_tokens: impl FnOnce(&Hyperparameters, &[KvGroup]) -> usize,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, ModelError> {
        Self::load_with(Panels::Made, gguf, device, context_tokens, progress)
    }

    /// As [`load`](Self::load), with panels that were made before; nothing is repacked.
    pub fn load_panels(
        gguf: &Gguf,
        device: Arc<Cpu>,
        context_tokens: impl FnOnce(&Hyperparameters, &[KvGroup]) -> usize,
        panels: &PanelFile,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, ModelError> {
        Self::load_with(Panels::Read(panels), gguf, device, context_tokens, progress)
    }

    /// Repacks all weights of `gguf` into `panels`, a matrix at a time.
    pub fn write_panels(
        gguf: &Gguf,
        device: Arc<Cpu>,
        panels: &mut PanelWriter,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(), ModelError> {
        Self::load_with(Panels::Written(panels), gguf, device, |_, _| 0, progress)?;
        Ok(())
    }

    fn load_with(
        panels: Panels<'_>,
        gguf: &Gguf,
        device: Arc<Cpu>,
        context_tokens: impl FnOnce(&Hyperparameters, &[KvGroup]) -> usize,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, ModelError> {
        let source = TensorSource::new(gguf, panels, progress);
        let model = Self::read(gguf, device, context_tokens, source)?;
        gguf.advise_dont_need();
        Ok(model)
    }

    /// Whether [`load`](Self::load) would take `gguf`, and what it would make of it: all
    /// hyperparameters and tensors are checked, and no weights are repacked.
    pub fn check(
        gguf: &Gguf,
        device: Arc<Cpu>,
        context_tokens: usize,
    ) -> Result<ModelCheck, ModelError> {
        let mut silent = |_| {};
        let source = TensorSource::new(gguf, Panels::OfFirstBlock, &mut silent);
        let model = Self::read(gguf, device, |_, _| context_tokens, source)?;
        Ok(ModelCheck {
            hyper: model.hyper,
            kv_groups: model.kv_groups,
            totals: model.totals,
        })
    }

    fn read(
        gguf: &Gguf,
        device: Arc<Cpu>,
        context_tokens: impl FnOnce(&Hyperparameters, &[KvGroup]) -> usize,
        mut source: TensorSource<'_>,
    ) -> Result<Self, ModelError> {
        let hyper = Hyperparameters::read(gguf)?;
        let (kv_groups, kv_layers) = group_layers(&hyper.layers);
        let context_tokens = match context_tokens(&hyper, &kv_groups) {
            0 => hyper.context_tokens_trained,
            given => given,
        };
        let (d_model, vocab) = (hyper.d_model, hyper.vocab);

        let token_embd = source.matrix("token_embd.weight", vocab, d_model)?;
        let layer_inputs = match hyper.d_layer_input {
            Some(width) => Some(LayerInputs::load(&mut source, &hyper, width)?),
            None => None,
        };
        let output_norm = source.vector("output_norm.weight", d_model)?;
        let output = match source.has("output.weight") {
            true => Some(source.matrix("output.weight", vocab, d_model)?),
            false => None,
        };
        let style = hyper.architecture.traits().rope;
        let (mut ropes, mut factors_chosen) = (Vec::new(), Vec::new());
        for spec in &hyper.ropes {
            let (chosen, other) = spec.factors.choose(context_tokens);
            let factors = match chosen {
                Some(name) => Some(source.vector(name, spec.n_rot / 2)?),
                None => None,
            };
            if let Some(other) = other {
                source.leave(other);
            }
            ropes.push(spec.table(style, factors.as_deref()));
            factors_chosen.push(chosen.unwrap_or_default());
        }
        let layers = (0..hyper.layers.len())
            .map(|index| DecoderLayer::load(&mut source, &hyper, index))
            .collect::<Result<Vec<_>, _>>()?;
        // Blocks that predict tokens further on: nothing asks for them yet.
        for index in hyper.layers.len()..hyper.layers.len() + hyper.n_next_layers {
            source.leave_block(index);
        }
        let totals = source.finish()?;

        // Before the pages are given back: it reads some of them.
        let identity = identity(gguf, &factors_chosen);
        Ok(Self {
            token_embd,
            layer_inputs,
            stages: vec![Stage { first: 0, layers }],
            output_norm,
            output,
            ropes,
            kv_groups,
            kv_layers,
            identity,
            totals,
            device,
            hyper,
        })
    }

    /// KV bytes one token takes in all layers that see it, both sides, as the stores lay it out.
    pub fn kv_bytes_per_token(&self, codecs: KvCodecs) -> usize {
        let of_group = |group: &KvGroup| group.shape(codecs, 1).bytes_per_page() / PAGE_TOKENS;
        self.kv_groups.iter().map(of_group).sum()
    }

    /// Inner width of the widest dense feed-forward network.
    pub fn widest_ffn(&self) -> usize {
        let layers = self.stages.iter().flat_map(|stage| &stage.layers);
        layers.map(DecoderLayer::ffn_width).max().unwrap_or(0)
    }

    /// (vocab, d_model), the matrix that gives logits.
    pub fn output_matrix(&self) -> &PanelMatrix {
        self.output.as_ref().unwrap_or(&self.token_embd)
    }
}

/// `factors`: of each rotation, the tensor chosen for it.
fn identity(gguf: &Gguf, factors: &[&str]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("vitriol 2026 model identity v1");
    for part in gguf.parts() {
        hasher.update(&(part.bytes().len() as u64).to_le_bytes());
        hasher.update(part.header());
        for tensor in part.tensors() {
            let n = tensor.bytes.len().min(256);
            hasher.update(&tensor.bytes[..n]);
            hasher.update(&tensor.bytes[tensor.bytes.len() - n..]);
        }
    }
    for tensor in factors {
        hasher.update(tensor.as_bytes());
    }
    *hasher.finalize().as_bytes()
}
