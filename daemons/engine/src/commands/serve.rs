use super::{repack, threads};
use crate::{
    engine::{Engine, EngineError, EngineLimits},
    kv::{KvCodecs, PAGE_TOKENS, PagePlan},
    kv_ahead::KvAhead,
    load::{LoadError, Repack, load, load_for_tier, start, with_causes},
    metrics::EngineMetrics,
    model::{Hyperparameters, KvGroup, LoadProgress},
    panels::{LAYOUT_VERSION, ModelDigest},
    scheduler::{StepBounds, measured_ms},
    service::{EngineService, MESSAGE_BYTES_MAX, Serving},
    step::StartError,
    tier::TierPlace,
};
use std::{
    cell::OnceCell,
    collections::BTreeMap,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tonic::service::Routes;
use vitriol_chassis::{
    Daemon, Drained, Environment, Exit, Failure, Fingerprint, OrExit, RpcServer, Setup, event,
    run as run_daemon,
};
use vitriol_ipc::{HouseDirs, Listener};
use vitriol_kernels_cpu::{Isa, NUMERICS_VERSION};
use vitriol_profile::{
    Engine as EngineProfile, KvTier, Overrides, Profile, Tenant, budget::Budget, catalog,
    try_reading,
};
use vitriol_proto::engine::v1::engine_server::EngineServer;
use vitriol_sysfs::Sysfs;

/// What is shorter is soon computed.
const CONVERSATION_TOKENS_MIN: usize = 1024;

/// A start waits so long for kvtier, which may be starting too: a conversation that comes before it is there is
/// computed.
const FIRST_ATTACH: Duration = Duration::from_secs(3);

/// What kvtier answers from memory takes it far less; then it hangs, or is stopped.
const TIER_CALL_MAX: Duration = Duration::from_secs(5);
/// How often a drain looks whether the last answer is done.
const IDLE_POLL: Duration = Duration::from_millis(20);

#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// Profile file (TOML).
    #[arg(long)]
    profile: Option<PathBuf>,
    /// Which `[engine.NAME]` of the profile this is.
    #[arg(long, default_value = "main")]
    name: String,
    /// Unix socket to serve on; by default the house's own place.
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Directory of the house's sockets, by default the user's; kvtier is looked for in it.
    #[arg(long)]
    runtime_dir: Option<PathBuf>,
    /// Model file (GGUF), or a name of `vitriol model list`; overrides the profile.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Compute threads; 0 = one for each usable core.
    #[arg(long)]
    threads: Option<u32>,
}

/// What a serving engine was told, checked.
#[derive(Debug)]
struct Config {
    socket: PathBuf,
    model: PathBuf,
    threads: usize,
    isa: Option<Isa>,
    repack: Repack,
    kv_bytes_max: u64,
    budget: Budget,
    limits: EngineLimits,
    drain: Duration,
    /// What the profile and the environment say, for the launch's fingerprint.
    asked: Fingerprint,
    setup: Setup,
}

impl Config {
    fn read(args: ServeArgs, environment: &Environment) -> Result<Self, Failure> {
        let key = |field: &str| format!("engine.{}.{field}", args.name);
        let model = args.model.as_ref().map(|m| m.display());
        let overrides = Overrides::new()
            .set(&key("model"), model, "--model")
            .set(&key("threads"), args.threads, "--threads")
            .set(&key("isa"), environment.isa.as_deref(), "VITRIOL_ISA");
        let profile = Profile::load(args.profile.as_deref(), &overrides)?;
        let named = profile.engine(&args.name).zip(profile.model(&args.name));
        let (engine, model) = named.ok_or_else(|| {
            let message = format!("the profile has no table [engine.{}]", args.name);
            Failure::new(Exit::Config, message)
        })?;
        let mut dirs = environment.dirs()?;
        if let Some(runtime) = args.runtime_dir {
            dirs.runtime = runtime;
        }
        let model = environment.model_file(model)?;
        if let Err(error) = try_reading(&model) {
            return Err(Failure::new(Exit::Config, unreadable(&model, &error)));
        }
        let drain = Duration::from_millis(engine.drain_ms);
        let environment_isa = environment.isa.as_ref();
        let asked = Fingerprint::default()
            .with(
                "environment",
                environment_isa.map_or_else(String::new, |isa| format!("VITRIOL_ISA={isa}")),
            )
            .with_settings(&profile, &format!("engine.{}", args.name), "engine")
            .with_settings(&profile, "kvtier", "kvtier");
        Ok(Self {
            asked,
            socket: args
                .socket
                .unwrap_or_else(|| dirs.engine_socket(&args.name)),
            threads: threads(engine.threads),
            isa: Isa::parse(engine.isa.as_str()).or_exit(Exit::Config)?,
            repack: repack(engine.repack, environment)?,
            kv_bytes_max: engine.kv_bytes_max.get(),
            budget: budget(&profile, &args.name, &model)?,
            limits: limits(
                engine,
                profile.tenants.get(&args.name),
                &model,
                tier_place(&profile.kvtier, &dirs),
            ),
            drain,
            setup: Setup::new("engine", env!("CARGO_PKG_VERSION"))
                .log_format(profile.house.log_format)
                .drain(drain),
            model,
        })
    }
}

/// What the house takes of the machine's memory. Errors: more than there is for it.
fn budget(profile: &Profile, name: &str, model: &Path) -> Result<Budget, Failure> {
    // Of a split model the first part; what it has at run time stands in its metrics.
    let weights = model.metadata().map_or(0, |file| file.len());
    let budget = Budget::of(profile, name, weights);
    // A machine that does not say what it has is not judged.
    if let Ok(limit) = Sysfs::host().memory_limit_bytes() {
        budget.check(limit).or_exit(Exit::Config)?;
    }
    Ok(budget)
}

/// What to do about a model file that cannot be opened.
fn unreadable(model: &Path, error: &std::io::Error) -> String {
    let file = model.display();
    let in_home = ["/home", "/root"]
        .iter()
        .any(|home| model.starts_with(home));
    match error.kind() {
        ErrorKind::InvalidInput => {
            format!("model file {file}: {error}; name another with --model")
        }
        ErrorKind::NotFound if !in_home => format!(
            "model file {file}: not found; fetch the default model with 'vitriol model fetch', or \
             name a file with --model"
        ),
        _ if in_home => format!(
            "model file {file}: {error}; fetch the default model with 'vitriol model fetch', or name \
             a file with --model (units of the system see no home: 'vitriol install --model FILE' \
             puts one where they do)"
        ),
        _ => format!("model file {file}: {error}; the engine must be allowed to read it"),
    }
}

/// Where kvtier is, if the house has one.
fn tier_place(kvtier: &KvTier, dirs: &HouseDirs) -> Option<TierPlace> {
    kvtier.enabled.then(|| TierPlace {
        calls: dirs.kvtier_socket(),
        arena: dirs.kvtier_arena_socket(),
        call_max: TIER_CALL_MAX,
        lookup_max: Duration::from_millis(kvtier.lookup_ms_max),
        conversation_tokens_min: CONVERSATION_TOKENS_MIN,
    })
}

fn limits(
    engine: &EngineProfile,
    tenants: Option<&BTreeMap<String, Tenant>>,
    model: &Path,
    tier: Option<TierPlace>,
) -> EngineLimits {
    let shares = tenants.into_iter().flatten();
    let kv_shares = shares
        .map(|(tenant, settings)| (tenant.clone(), settings.kv_share.as_f64()))
        .collect();
    EngineLimits {
        // A split model is called by what its parts have in common.
        alias: catalog::served_name(
            &engine.alias,
            format!("{}.gguf", vitriol_gguf::model_name(model)).as_ref(),
        ),
        context_tokens: engine.context_tokens as usize,
        codecs: KvCodecs {
            keys: engine.kv_keys,
            values: engine.kv_values,
        },
        speculation: engine.speculation,
        // Known with the model.
        pages: Vec::new(),
        sequences_max: engine.sequences_max as usize,
        queue_max: engine.queue_max as usize,
        bounds: StepBounds {
            tokens_max: engine.step_tokens_max as usize,
            decode_stall_ms_max: f64::from(engine.decode_stall_ms_max),
            admission_ms_max: f64::from(engine.admission_ms_max),
        },
        step_ms: measured_ms,
        kv_shares,
        share_prefixes: engine.share_prefixes,
        window_tokens: engine.window_tokens.into(),
        tier,
    }
}

/// Serves until told to stop.
pub fn serve(args: ServeArgs, environment: &Environment) -> Result<(), Failure> {
    let config = Config::read(args, environment)?;
    run_daemon(config.setup, environment, async |daemon| {
        life(config, daemon).await
    })
}

/// Bind, load, announce, wait, drain.
async fn life(config: Config, daemon: Daemon) -> Result<(), Failure> {
    let listener = Listener::bind(&config.socket)?;
    let service = EngineService::default();
    let grpc = EngineServer::new(service.clone())
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let mut server = RpcServer::spawn(listener, Routes::new(grpc), daemon.board.clone());

    let drain = config.drain;
    let for_loading = daemon.clone();
    let loading = tokio::task::spawn_blocking(move || bring_up(config, &for_loading));
    let serving = tokio::select! {
        loaded = loading => loaded.or_exit(Exit::Internal)??,
        ended = server.ended() => return ended,
        // A load cannot be cut short; the process ends without it.
        () = daemon.shutdown.cancelled() => return server.stop().await,
    };
    let engine = serving.engine();
    service.serve(serving);
    daemon
        .board
        .ready(format!("serving {}", engine.limits.alias));

    tokio::select! {
        () = daemon.shutdown.cancelled() => {}
        ended = server.ended() => return ended,
    }
    engine.drain();
    let idle = async {
        while !engine.is_idle() {
            tokio::time::sleep(IDLE_POLL).await;
        }
    };
    if daemon.drain(drain, idle).await == Drained::DeadlinePassed {
        tracing::warn!("answers still running are cut");
    }
    server.stop().await
}

/// Loads the model and starts the engine, reporting on the board; blocks.
fn bring_up(config: Config, daemon: &Daemon) -> Result<Serving, Failure> {
    let metrics = EngineMetrics::default();
    daemon.board.register(|registry| metrics.register(registry));
    if config.limits.tier.is_some() {
        let tier = &metrics.tier;
        daemon.board.register(|registry| tier.register(registry));
    }
    let mut report = |at: LoadProgress| {
        daemon
            .board
            .loading(at.phase.describe(), at.bytes_done, at.bytes_all);
    };
    let budget = &config.budget;
    tracing::info!("the house's memory, at most: {}", budget.terms());
    daemon
        .board
        .register(|registry| EngineMetrics::register_budget(registry, budget.parts()));
    let began = Instant::now();
    let asked = config.limits.context_tokens;
    let plan = |hyper: &Hyperparameters| PagePlan {
        codecs: config.limits.codecs,
        kv_bytes: config.kv_bytes_max,
        context_tokens: hyper.context_for(asked),
        sequences_max: config.limits.sequences_max,
        step_tokens: config.limits.step_tokens(),
    };
    // Rotations are made for the context that requests can really have.
    let may_come_back = config.limits.tier.is_some();
    let kv_ahead = OnceCell::new();
    let context = |hyper: &Hyperparameters, groups: &[KvGroup]| {
        let plan = plan(hyper);
        if may_come_back {
            // Why it cannot be done is heard where it has to be.
            kv_ahead.get_or_init(|| KvAhead::begin(groups, &plan).ok());
        }
        plan.context_within(groups)
    };
    let (model, threads, isa, repack) = (&config.model, config.threads, config.isa, &config.repack);
    let loaded = match config.limits.tier {
        Some(_) => load_for_tier(model, threads, isa, repack, context, &mut report),
        None => load(model, threads, isa, repack, context, &mut report),
    };
    let mut loaded = loaded.map_err(|error| failure(&error))?;
    let (file_bytes, template) = (loaded.file_bytes, std::mem::take(&mut loaded.chat_template));
    let weights_bytes = loaded.model.totals.weights_bytes;
    let names = ModelNames {
        sampled: loaded.sampled,
        digest: loaded.digest,
    };
    if template.trim().is_empty() && loaded.language.is_some() {
        tracing::warn!(
            "the model has no chat template: chats are put to it in ChatML, which it may not know"
        );
    }
    let limits = EngineLimits {
        pages: plan(&loaded.model.hyper).pages(&loaded.model.kv_groups),
        ..config.limits
    };
    let kv_ahead = kv_ahead.into_inner().flatten();
    let engine = start(loaded, limits, metrics, daemon.heartbeat.clone(), kv_ahead)
        .map_err(|error| failure(&error))?;
    if !engine.wait_for_tier(FIRST_ATTACH) {
        tracing::warn!("kvtier is not there yet: until it is, every prompt is computed");
    }
    let device = &engine.model.device;
    let (isa, threads) = (device.isa(), device.threads());
    daemon
        .board
        .register(|registry| EngineMetrics::register_kernels(registry, isa, threads));
    daemon
        .board
        .fingerprint(&fingerprint(&engine, &names, file_bytes).and(config.asked));
    // `start` has computed a token: the one proof that the engine can do its job.
    tracing::info!(
        message_id = event::MODEL_LOADED,
        model = %config.model.display(),
        took_ms = began.elapsed().as_millis() as u64,
        weights_bytes,
        %isa,
        threads,
        context_tokens = engine.limits.context_tokens,
        "the model is loaded and has computed a first token"
    );
    Ok(Serving::new(
        Arc::new(engine),
        config.model,
        file_bytes,
        template,
    ))
}

/// What names the bytes of a model.
struct ModelNames {
    sampled: [u8; 32],
    digest: Option<ModelDigest>,
}

/// What the settings came to: everything that bears on speed or on the bytes of answers.
fn fingerprint(engine: &Engine, names: &ModelNames, file_bytes: u64) -> Fingerprint {
    let (model, limits) = (&engine.model, &engine.limits);
    let pages: Vec<String> = limits.pages.iter().map(usize::to_string).collect();
    let weights = names.digest.map_or_else(String::new, |all| all.to_string());
    Fingerprint::of_process(env!("CARGO_PKG_VERSION"))
        .with("model", ModelDigest(names.sampled))
        .with("weights", weights)
        .with("file_bytes", file_bytes)
        .with("weights_bytes", model.totals.weights_bytes)
        .with("architecture", model.hyper.architecture.name())
        .with("alias", &limits.alias)
        .with("isa", model.device.isa())
        .with("threads", model.device.threads())
        .with("numerics", NUMERICS_VERSION)
        .with("panel_layout", LAYOUT_VERSION)
        .with("context_tokens", limits.context_tokens)
        .with("page_tokens", PAGE_TOKENS)
        .with("pages", pages.join(","))
        .with(
            "kv_bytes_per_token",
            model.kv_bytes_per_token(limits.codecs),
        )
        .with("step_tokens", limits.step_tokens())
}

/// A file that cannot be run and a pool that has no place are matters of configuration, which no
/// restart mends.
fn failure(error: &LoadError) -> Failure {
    let exit = match error {
        LoadError::SelfTest(_) | LoadError::Engine(EngineError::Start(StartError::Thread(_))) => {
            Exit::Internal
        }
        _ => Exit::Config,
    };
    Failure::new(exit, with_causes(error))
}
