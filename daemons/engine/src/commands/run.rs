use super::{KvArgs, load_model};
use crate::{
    engine::EngineLimits,
    generate::GenerationRequest,
    load::start,
    metrics::EngineMetrics,
    sampler::{NotFinite, Sampling},
    scheduler::{StepBounds, measured_ms},
    sequence::{EndReason, EventKind},
};
use anyhow::{Context, bail};
use std::{collections::BTreeMap, io::Write, path::PathBuf, time::Instant};
use vitriol_chassis::{Environment, Exit, Failure, Heartbeat, OrExit, init_trace};
use vitriol_profile::{LogFormat, Repack, Speculation};
use vitriol_tokens::{EncodeOptions, Utf8Stream};

#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Model file (GGUF), or a name of `vitriol model list`.
    model: PathBuf,
    /// Text to complete.
    prompt: String,
    /// Most tokens to generate.
    #[arg(short = 'n', long, default_value_t = 128)]
    max_tokens: usize,
    /// Treat the prompt as one chat message and apply the model's template.
    #[arg(long)]
    chat: bool,
    /// 0 = greedy.
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Most tokens of prompt and answer together; 0 = what the model was trained for. More than that is
    /// computed too, with a warning.
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    context_tokens: u32,
    /// Compute threads; 0 = one for each usable core.
    #[arg(long, default_value_t = 0)]
    threads: u32,
    /// Where panels of the weights come from: `file`, made once and kept in the cache directory, or `ram`.
    #[arg(long, value_name = "WHERE", default_value = "ram")]
    repack: Repack,
    /// Where tokens are drafted from before they are computed: prompt-lookup or off. The text is the same.
    #[arg(long, value_name = "HOW", default_value_t = Speculation::PromptLookup)]
    speculation: Speculation,
    #[command(flatten)]
    kv: KvArgs,
}

/// Completes one prompt: text to standard output as it comes, figures to standard error.
pub fn run(args: RunArgs, environment: &Environment) -> Result<(), Failure> {
    init_trace(LogFormat::Text, environment)?;
    complete(args, environment).or_exit(Exit::Config)
}

fn complete(args: RunArgs, environment: &Environment) -> anyhow::Result<()> {
    let asked = args.context_tokens as usize;
    let loaded = load_model(&args.model, args.threads, asked, args.repack, environment)?;
    let file = loaded.file.clone();
    let Some(language) = &loaded.language else {
        bail!(
            "{}: its tokenizer is not supported yet",
            loaded.file.display()
        );
    };
    let prompt = if args.chat {
        let messages = serde_json::json!([{"role": "user", "content": args.prompt}]);
        let rendered = language
            .template
            .render(messages.to_string().as_bytes(), b"", b"", true)?;
        rendered.encode(&language.tokenizer)
    } else {
        let options = EncodeOptions {
            add_special: true,
            parse_special: false,
        };
        language.tokenizer.encode(args.prompt.as_bytes(), options)
    };
    if prompt.is_empty() {
        bail!("the prompt is empty");
    }
    let context = loaded.model.hyper.context_for(asked);
    if prompt.len() >= context {
        bail!(
            "the prompt of {} tokens exceeds the context of {context}; --context-tokens allows more",
            prompt.len()
        );
    }
    let tokens_max = args.max_tokens.clamp(1, context - prompt.len());
    let page_tokens = crate::kv::PAGE_TOKENS;
    let pages = (prompt.len() + tokens_max).div_ceil(page_tokens) + 1;
    let limits = EngineLimits {
        alias: String::new(),
        context_tokens: prompt.len() + tokens_max,
        codecs: args.kv.codecs(),
        speculation: args.speculation,
        pages: vec![pages; loaded.model.kv_groups.len()],
        sequences_max: 1,
        queue_max: 1,
        // Nobody else waits.
        bounds: StepBounds {
            tokens_max: 512,
            decode_stall_ms_max: f64::INFINITY,
            admission_ms_max: f64::INFINITY,
        },
        step_ms: measured_ms,
        kv_shares: BTreeMap::new(),
        share_prefixes: false,
        window_tokens: u64::MAX,
        tier: None,
    };
    let heartbeat = Heartbeat::silent();
    let engine = start(loaded, limits, EngineMetrics::default(), heartbeat, None)?;
    let n_prompt = prompt.len();
    let sampling = Sampling {
        temperature: args.temperature,
        seed: args.seed,
        ..Sampling::GREEDY
    };
    if let Err((name, range)) = sampling.check() {
        bail!("--{name} must be {range}");
    }
    let request = GenerationRequest {
        session_id: "".into(),
        prompt,
        tokens_max,
        sampling,
        ignore_eog: false,
        may_draft: true,
    };

    let tokenizer = &engine.language.as_ref().context("checked above")?.tokenizer;
    let (mut out, mut utf8, mut times) = (std::io::stdout(), Utf8Stream::default(), Vec::new());
    let (began, mut ended) = (Instant::now(), None);
    let (mut drafted, mut accepted) = (0, 0);
    for event in engine.generate(request)? {
        let id = match event.kind {
            EventKind::Token { id } => id,
            EventKind::Ended { reason } => {
                ended = Some(reason);
                continue;
            }
            EventKind::Drafted {
                tokens,
                accepted: of,
            } => {
                drafted += tokens;
                accepted += of;
                continue;
            }
            EventKind::Brought { .. } | EventKind::Started { .. } | EventKind::Prefilled { .. } => {
                continue;
            }
        };
        times.push(event.at);
        let mut piece = Vec::new();
        tokenizer.piece(id, &mut piece, false);
        let mut text = String::new();
        utf8.push(&piece, &mut text);
        write!(out, "{text}")?;
        out.flush()?;
    }
    let mut rest = String::new();
    utf8.finish(&mut rest);
    writeln!(out, "{rest}")?;
    match ended {
        Some(EndReason::Eog | EndReason::Length) => {}
        Some(EndReason::OutOfMemory) => bail!("no memory for the keys and values; free some"),
        Some(EndReason::NotFinite) => bail!("{}: {NotFinite}", file.display()),
        Some(EndReason::Cancelled) | None => bail!("the engine stopped before the end"),
    }
    if let (Some(first), Some(last)) = (times.first(), times.last()) {
        let prefill = (*first - began).as_secs_f64();
        let decode = (*last - *first).as_secs_f64();
        let steps = (times.len() - 1) as f64;
        let rate = if decode > 0.0 { steps / decode } else { 0.0 };
        writeln!(
            std::io::stderr(),
            "prompt {n_prompt} tokens in {prefill:.3} s ({:.0}/s), {} generated at {rate:.1}/s, \
             {accepted} of {drafted} drafted tokens accepted",
            n_prompt as f64 / prefill,
            times.len(),
        )?;
    }
    Ok(())
}
