//! From a model file and settings to a running engine.

use crate::{
    engine::{Engine, EngineError, EngineLimits, Language},
    generate::GenerationRequest,
    kv_ahead::KvAhead,
    metrics::EngineMetrics,
    model::{Hyperparameters, KvGroup, LoadPhase, LoadProgress, Model, ModelError},
    panels::{CacheError, ModelDigest, PanelCache, digest_model},
    sampler::{NotFinite, Sampling},
    sequence::EndReason,
    template::{ChatTemplate, TemplateError},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
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
    #[error(transparent)]
    Changed(#[from] CacheError),
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
    /// The model's identity by samples of its bytes, and the digest of all of them where that was taken.
    pub sampled: [u8; 32],
    pub digest: Option<ModelDigest>,
}

/// Where the panels of a model's weights come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repack {
    /// From the model file, at every load.
    Ram,
    /// From a file in this directory, which the first load makes.
    File(PathBuf),
}

/// Opens `file` and reads its weights for `threads` threads and `isa` (`None`: the best there is), for the
/// context that `context_tokens` chooses before they are read; 0 stands for the one the model was trained for.
pub fn load(
    file: &Path,
    threads: usize,
    isa: Option<Isa>,
    repack: &Repack,
    context_tokens: impl Fn(&Hyperparameters, &[KvGroup]) -> usize,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, LoadError> {
    load_named(
        KvNames::OfSamples,
        file,
        threads,
        isa,
        repack,
        context_tokens,
        progress,
    )
}

/// What of a model's bytes names its KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KvNames {
    OfSamples,
    OfAll,
}

fn load_named(
    kv_names: KvNames,
    file: &Path,
    threads: usize,
    isa: Option<Isa>,
    repack: &Repack,
    context_tokens: impl Fn(&Hyperparameters, &[KvGroup]) -> usize,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, LoadError> {
    let gguf = Gguf::open(file)?;
    let digest = match kv_names {
        KvNames::OfSamples => None,
        KvNames::OfAll => Some(digest_of_all(&gguf, threads, repack, progress)),
    };
    // On a starved machine what comes before the weights takes its time too.
    progress(LoadProgress::begun(&gguf, LoadPhase::Load));
    let device = Arc::new(Cpu::new(threads, isa)?);
    device.check_known_answers()?;
    let language = read_language(&gguf)?;
    let chat_template = gguf
        .metadata()
        .get_str("tokenizer.chat_template")?
        .unwrap_or_default()
        .to_owned();
    let mut model = match repack {
        Repack::Ram => Model::load(&gguf, device, context_tokens, progress)?,
        Repack::File(directory) => load_kept(&gguf, device, directory, &context_tokens, progress)?,
    };
    let sampled = model.identity;
    if let Some(digest) = digest {
        // What was loaded is what was digested if that is still what is at the path.
        PanelCache::check_unchanged(&gguf)?;
        model.identity = identity_of_all(&model.identity, &digest);
    }
    Ok(Loaded {
        file: file.to_owned(),
        model: Arc::new(model),
        language,
        file_bytes: gguf.file_bytes(),
        chat_template,
        sampled,
        digest,
    })
}

/// As [`load`]; the model's KV is named by a digest of all its bytes instead of samples of them, so that it
/// can outlive the process: nothing else tells it from that of a model with another weight.
pub fn load_for_tier(
    file: &Path,
    threads: usize,
    isa: Option<Isa>,
    repack: &Repack,
    context_tokens: impl Fn(&Hyperparameters, &[KvGroup]) -> usize,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, LoadError> {
    load_named(
        KvNames::OfAll,
        file,
        threads,
        isa,
        repack,
        context_tokens,
        progress,
    )
}

fn identity_of_all(of_samples: &[u8; 32], digest: &ModelDigest) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("vitriol 2026 model identity of all bytes v1");
    hasher.update(of_samples);
    hasher.update(&digest.0);
    *hasher.finalize().as_bytes()
}

/// Taken now, unless the cache of panels knows it.
fn digest_of_all(
    gguf: &Gguf,
    threads: usize,
    repack: &Repack,
    progress: &mut dyn FnMut(LoadProgress),
) -> ModelDigest {
    let begun = LoadProgress::begun(gguf, LoadPhase::Digest);
    let mut report = || progress(begun);
    let known = match repack {
        Repack::Ram => None,
        Repack::File(directory) => PanelCache::open(directory, threads)
            .and_then(|cache| cache.digest(gguf, SystemTime::now(), &mut report))
            // The load says what the matter is.
            .ok(),
    };
    known.unwrap_or_else(|| digest_model(gguf, threads, &mut report))
}

/// Loads a model with the panels kept in `directory`, which are made there if need be. Where that cannot
/// be, it is loaded as with [`Repack::Ram`], with a warning. Errors: the model's alone.
pub fn load_kept(
    gguf: &Gguf,
    device: Arc<Cpu>,
    directory: &Path,
    context_tokens: &dyn Fn(&Hyperparameters, &[KvGroup]) -> usize,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Model, ModelError> {
    let attempt = KeptLoad {
        gguf,
        device: Arc::clone(&device),
        directory,
        context_tokens,
    };
    match attempt.run(progress) {
        Ok(model) => Ok(model),
        Err(NotKept::Model(error)) => Err(error),
        Err(NotKept::Cache(error)) => {
            tracing::warn!(
                error = with_causes(&error),
                "panels cannot be kept: weights are repacked at every start until {} can be written \
                 and has room for them; engine.NAME.repack = \"ram\" asks for nothing else",
                directory.display()
            );
            Model::load(gguf, device, context_tokens, progress)
        }
    }
}

struct KeptLoad<'a> {
    gguf: &'a Gguf,
    device: Arc<Cpu>,
    directory: &'a Path,
    context_tokens: &'a dyn Fn(&Hyperparameters, &[KvGroup]) -> usize,
}

/// Why a model was not loaded with kept panels.
enum NotKept {
    /// It cannot be loaded at all.
    Model(ModelError),
    /// Its panels cannot be kept.
    Cache(CacheError),
}

impl From<CacheError> for NotKept {
    fn from(error: CacheError) -> Self {
        Self::Cache(error)
    }
}

impl From<ModelError> for NotKept {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Panels(error) => Self::Cache(error.into()),
            error => Self::Model(error),
        }
    }
}

impl KeptLoad<'_> {
    fn run(&self, progress: &mut dyn FnMut(LoadProgress)) -> Result<Model, NotKept> {
        let cache = PanelCache::open(self.directory, self.device.threads())?;
        let begun = LoadProgress::begun(self.gguf, LoadPhase::Digest);
        let digest = cache.digest(self.gguf, SystemTime::now(), &mut || progress(begun))?;
        match self.read(&cache, digest, progress) {
            Ok(Some(model)) => return Ok(model),
            Ok(None) => {}
            Err(NotKept::Model(error)) => return Err(NotKept::Model(error)),
            Err(NotKept::Cache(error)) => {
                tracing::warn!(error = with_causes(&error), "kept panels are made anew");
            }
        }
        cache.keep(digest, self.gguf.file_bytes(), |panels| {
            Model::write_panels(self.gguf, Arc::clone(&self.device), panels, progress)?;
            PanelCache::check_unchanged(self.gguf).map_err(NotKept::Cache)
        })?;
        let lost = || CacheError::Lost {
            path: self.directory.to_owned(),
        };
        let model = self.read(&cache, digest, progress)?;
        model.ok_or_else(|| NotKept::Cache(lost()))
    }

    fn read(
        &self,
        cache: &PanelCache,
        digest: ModelDigest,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Option<Model>, NotKept> {
        let panels = cache.find(digest).map_err(CacheError::from)?;
        let Some(panels) = panels else {
            return Ok(None);
        };
        let device = Arc::clone(&self.device);
        let model = Model::load_panels(self.gguf, device, self.context_tokens, &panels, progress)?;
        Ok(Some(model))
    }
}

/// An error and its causes in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
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

/// Starts the step thread, `kv` as with [`Engine::start`], and proves with one real token that it computes.
pub fn start(
    loaded: Loaded,
    limits: EngineLimits,
    metrics: EngineMetrics,
    heartbeat: Heartbeat,
    kv: Option<KvAhead>,
) -> Result<Engine, LoadError> {
    let (model, language) = (loaded.model, loaded.language);
    let engine = Engine::start(model, language, limits, metrics, heartbeat, kv)?;
    let test = GenerationRequest {
        session_id: "".into(),
        prompt: vec![0],
        tokens_max: 1,
        sampling: Sampling::GREEDY,
        ignore_eog: true,
        may_draft: false,
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

#[cfg(test)]
mod tests;
