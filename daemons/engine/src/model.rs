//! A model's weights and the numbers that shape it, ready to compute.

mod architecture;
mod decoder;
mod hyperparameters;
mod weights;

pub use architecture::Architecture;
pub use decoder::DecoderLayer;
pub use hyperparameters::Hyperparameters;
pub use weights::LoadProgress;

use crate::kv::PAGE_TOKENS;
use std::{path::PathBuf, sync::Arc};
use vitriol_gguf::{Gguf, GgufError};
use vitriol_kernels_cpu::{Cpu, KvShape, PackError, PanelMatrix, RopeTable};
use weights::TensorSource;

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
    #[error("{}: {count} tensors are not used by the architecture, the first is {first}", file.display())]
    UnusedTensors {
        file: PathBuf,
        count: usize,
        first: String,
    },
}

/// A contiguous range of layers on one device with its own weights (its KV is in
/// [`crate::forward::KvStores`], by the same index). Hidden states cross stage borders, nothing else.
#[derive(Debug)]
pub struct Stage {
    pub layers: Vec<DecoderLayer>,
}

/// A decoder-only transformer, of whichever [`Architecture`].
#[derive(Debug)]
pub struct Model {
    pub hyper: Hyperparameters,
    /// (vocab, d_model)
    pub token_embd: PanelMatrix,
    pub stages: Vec<Stage>,
    /// (d_model)
    pub output_norm: Vec<f32>,
    /// (vocab, d_model); `None`: tied to `token_embd`.
    pub output: Option<PanelMatrix>,
    pub rope: RopeTable,
    /// What names this model's KV: digest of all metadata and tensor descriptions, and of the weights'
    /// first and last bytes.
    pub identity: [u8; 32],
    pub parameters: u64,
    pub device: Arc<Cpu>,
}

impl Model {
    /// Reads and repacks all weights of `gguf` for `device`, telling `progress` how far it is.
    /// Every tensor of the file must be used: one that is not would mean a model computed wrongly.
    pub fn load(
        gguf: &Gguf,
        device: Arc<Cpu>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, ModelError> {
        let hyper = Hyperparameters::read(gguf)?;
        let mut source = TensorSource::new(gguf, progress);
        let (d_model, vocab) = (hyper.d_model, hyper.vocab);

        let token_embd = source.matrix("token_embd.weight", vocab, d_model)?;
        let output_norm = source.vector("output_norm.weight", d_model)?;
        let output = match source.has("output.weight") {
            true => Some(source.matrix("output.weight", vocab, d_model)?),
            false => None,
        };
        let freq_factors = match source.has("rope_freqs.weight") {
            true => Some(source.vector("rope_freqs.weight", hyper.n_rot / 2)?),
            false => None,
        };
        let layers = (0..hyper.n_layers)
            .map(|index| DecoderLayer::load(&mut source, &hyper, index))
            .collect::<Result<Vec<_>, _>>()?;
        let parameters = source.finish()?;

        let rope = RopeTable::new(
            hyper.architecture.rope_style(),
            hyper.n_rot,
            hyper.rope_freq_base,
            hyper.rope_freq_scale,
            freq_factors.as_deref(),
        );
        // Before the pages are given back: it reads some of them.
        let identity = identity(gguf);
        gguf.advise_dont_need();
        Ok(Self {
            token_embd,
            stages: vec![Stage { layers }],
            output_norm,
            output,
            rope,
            identity,
            parameters,
            device,
            hyper,
        })
    }

    /// Bytes of all weights as they lie in memory.
    pub fn weights_bytes(&self) -> usize {
        let layers = self
            .stages
            .iter()
            .flat_map(|s| &s.layers)
            .map(DecoderLayer::bytes);
        self.token_embd.bytes()
            + self.output.as_ref().map_or(0, PanelMatrix::bytes)
            + self.output_norm.len() * 4
            + layers.sum::<usize>()
    }

    /// KV bytes one token takes in all layers, both sides, as the store lays it out.
    pub fn kv_bytes_per_token(&self) -> usize {
        self.kv_shape(self.hyper.n_layers, 1).bytes_per_page() / PAGE_TOKENS
    }

    /// Shape of the KV of `n_layers` of its layers with room for `pages`.
    pub fn kv_shape(&self, n_layers: usize, pages: usize) -> KvShape {
        KvShape {
            n_layers,
            n_kv_heads: self.hyper.n_kv_heads,
            head_dim: self.hyper.head_dim,
            pages,
        }
    }

    /// (vocab, d_model), the matrix that gives logits.
    pub fn output_matrix(&self) -> &PanelMatrix {
        self.output.as_ref().unwrap_or(&self.token_embd)
    }
}

fn identity(gguf: &Gguf) -> [u8; 32] {
    let data_bytes: u64 = gguf.tensors().map(|t| t.bytes.len() as u64).sum();
    let bytes = gguf.bytes();
    let header = bytes.len() - (data_bytes as usize).min(bytes.len());
    let mut hasher = blake3::Hasher::new_derive_key("vitriol 2026 model identity v1");
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(&bytes[..header]);
    for tensor in gguf.tensors() {
        let n = tensor.bytes.len().min(256);
        hasher.update(&tensor.bytes[..n]);
        hasher.update(&tensor.bytes[tensor.bytes.len() - n..]);
    }
    *hasher.finalize().as_bytes()
}
