//! From a model file and settings to a running engine.

use crate::{
    engine::{Engine, EngineError, EngineLimits, Language},
    generate::GenerationRequest,
    metrics::EngineMetrics,
    model::{Hyperparameters, KvGroup, LoadProgress, Model, ModelError},
    sampler::{NotFinite, Sampling},
    sequence::EndReason,
    template::{ChatTemplate, TemplateError},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use vitriol_chassis::Heartbeat;
use vitriol_gguf::{Gguf, GgufError};
use vitriol_kernels_cpu::{Cpu, CpuError, Isa};
use vitriol_tokens::{Tokenizer, TokenizerError};

/// Why an engine could not be brought up.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Cpu(#[from] CpuError),
    #[error("{file}: chat template")]
    Template { file: String, source: TemplateError },
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("{file}: self test")]
    Damaged { file: String, source: NotFinite },
    #[error("the model computes no token: its self test ended with {0}")]
    SelfTest(String),
}

/// A model file opened and read, before anything runs.
#[derive(Debug)]
pub struct Loaded {
    pub file: PathBuf,
    pub model: Arc<Model>,
    pub language: Option<Language>,
    pub file_bytes: u64,
    /// Template source the file carries, empty when it has none.
    pub chat_template: String,
}

/// Opens `file` and reads its weights for `threads` threads and `isa` (`None`: the best there is), for the
/// context that `context_tokens` chooses; 0 stands for the one the model was trained for.
pub fn load(
    file: &Path,
    threads: usize,
    isa: Option<Isa>,
    context_tokens: impl FnOnce(&Hyperparameters, &[KvGroup]) -> usize,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, LoadError> {
    let gguf = Gguf::open(file)?;
    // On a starved machine what comes before the weights takes its time too.
    progress(LoadProgress::begun(&gguf));
    let device = Arc::new(Cpu::new(threads, isa)?);
    device.check_known_answers()?;
    let language = read_language(&gguf)?;
    let chat_template = gguf
        .metadata()
        .get_str("tokenizer.chat_template")?
        .unwrap_or_default()
        .to_owned();
    let model = Arc::new(Model::load(&gguf, device, context_tokens, progress)?);
    Ok(Loaded {
        file: file.to_owned(),
        model,
        language,
        file_bytes: gguf.file_bytes(),
        chat_template,
    })
}

/// Tokenizer and template; `None`, with a warning, for a kind of tokenizer not supported yet.
fn read_language(gguf: &Gguf) -> Result<Option<Language>, LoadError> {
    let tokenizer = match Tokenizer::from_gguf(gguf) {
        Ok(tokenizer) => tokenizer,
        Err(TokenizerError::Gguf(error)) => return Err(error.into()),
        Err(error) => {
            tracing::warn!(%error, "the model takes token ids only");
            return Ok(None);
        }
    };
    let source = gguf.metadata().get_str("tokenizer.chat_template")?;
    let template =
        ChatTemplate::compile(source, &tokenizer).map_err(|source| LoadError::Template {
            file: gguf.path().display().to_string(),
            source,
        })?;
    Ok(Some(Language::new(tokenizer, template)))
}

/// Starts the step thread and proves with one real token that it computes.
pub fn start(
    loaded: Loaded,
    limits: EngineLimits,
    metrics: EngineMetrics,
    heartbeat: Heartbeat,
) -> Result<Engine, LoadError> {
    let engine = Engine::start(loaded.model, loaded.language, limits, metrics, heartbeat)?;
    let test = GenerationRequest {
        prompt: vec![0],
        tokens_max: 1,
        sampling: Sampling::GREEDY,
        ignore_eog: true,
    };
    let generation = engine
        .generate(test)
        .map_err(|e| LoadError::SelfTest(e.to_string()))?;
    match generation.finish() {
        (tokens, Some(_)) if tokens.len() == 1 => Ok(engine),
        (_, Some(EndReason::NotFinite)) => Err(LoadError::Damaged {
            file: loaded.file.display().to_string(),
            source: NotFinite,
        }),
        (_, reason) => Err(LoadError::SelfTest(format!("{reason:?}"))),
    }
}
