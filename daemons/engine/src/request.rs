//! From a Submit to a prompt of tokens and checked parameters.

use crate::{
    divergence::Divergence,
    engine::{Engine, Language},
    sampler::Sampling,
    scheduler::{Ownership, Priority},
    sequence::SequenceId,
    template::{Rendered, TemplateError},
};
use vitriol_proto::engine::v1::{
    ChatPrompt, Failed, FailureKind, Priority as WirePriority, Sampling as WireSampling, Submit,
    submit::Prompt,
};
use vitriol_tokens::EncodeOptions;

/// Stop strings a request may name.
const STOPS_MAX: usize = 16;
/// Longest stop string, bytes.
const STOP_BYTES_MAX: usize = 1024;

/// A request ready for the step thread.
#[derive(Debug)]
pub struct Prepared {
    pub id: SequenceId,
    pub ownership: Ownership,
    pub prompt: Vec<u32>,
    /// Where the prompt parts from its conversation's last request.
    pub divergence: Option<Divergence>,
    pub tokens_max: usize,
    pub sampling: Sampling,
    pub stop: Vec<String>,
    pub window_tokens: u64,
    pub ignore_eog: bool,
}

/// Why a request is not run, as the caller hears it.
#[derive(Debug)]
pub struct Refusal(pub Failed);

impl Refusal {
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        let mut failed = Failed {
            message: message.into(),
            ..Failed::default()
        };
        failed.set_kind(kind);
        Self(failed)
    }

    fn invalid(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Invalid, message)
    }
}

/// Renders, tokenises and checks `submit`. Takes time in proportion to the prompt: call it on a
/// request thread.
pub fn prepare(engine: &Engine, submit: &Submit) -> Result<Prepared, Refusal> {
    if engine.is_draining() {
        return Err(Refusal::new(
            FailureKind::Draining,
            "the engine is shutting down",
        ));
    }
    let sampling = sampling(submit.sampling.unwrap_or_default())?;
    check_stops(&submit.stop)?;
    if submit.max_tokens == Some(0) {
        return Err(Refusal::invalid("max_tokens must be at least 1"));
    }
    let (prompt, rendered) = tokens(engine, submit)?;
    let vocab = engine.model.hyper.vocab;
    if let Some(id) = prompt.iter().find(|&&id| id as usize >= vocab) {
        let message = format!("token id {id} is outside the vocabulary of {vocab}");
        return Err(Refusal::invalid(message));
    }
    if prompt.is_empty() {
        return Err(Refusal::invalid("the prompt is empty"));
    }
    let id = engine.next_sequence();
    let priority = priority(submit.priority());
    let ownership = Ownership::new(&submit.tenant_id, &submit.session_id, id, priority);
    let context = engine.context_tokens(&ownership);
    if prompt.len() >= context {
        let mut refusal = overflow("", prompt.len(), context);
        if context < engine.limits.context_tokens {
            refusal.0.message += "; more is kept for other tenants (kv_share in the profile)";
        }
        return Err(refusal);
    }
    let room = context - prompt.len();
    let divergence = divergence(engine, submit, &ownership, &prompt, rendered.as_ref());
    let window = match submit.window_tokens {
        0 => engine.limits.window_tokens,
        tokens => u64::from(tokens),
    };
    Ok(Prepared {
        id: SequenceId(id),
        ownership,
        tokens_max: submit.max_tokens.map_or(room, |n| room.min(n as usize)),
        prompt,
        divergence,
        sampling,
        stop: submit.stop.clone(),
        window_tokens: window,
        ignore_eog: submit.ignore_eog,
    })
}

fn overflow(at_least: &str, prompt_tokens: usize, context: usize) -> Refusal {
    let mut refusal = Refusal::new(
        FailureKind::ContextOverflow,
        format!(
            "the prompt of {at_least}{prompt_tokens} tokens exceeds the available context size of {context} \
             tokens (context_length_exceeded)"
        ),
    );
    refusal.0.prompt_tokens = prompt_tokens as u32;
    refusal.0.context_tokens = context as u32;
    refusal
}

/// Where the prompt parts from its conversation's last request, and which of its messages that is in.
fn divergence(
    engine: &Engine,
    submit: &Submit,
    ownership: &Ownership,
    prompt: &[u32],
    rendered: Option<&Rendered>,
) -> Option<Divergence> {
    let last_requests = &engine.last_requests;
    let token = last_requests.first_change(&ownership.tenant, &submit.session_id, prompt)?;
    let message = || {
        let language = engine.language.as_ref()?;
        let Some(Prompt::Chat(chat)) = &submit.prompt else {
            return None;
        };
        let rendered = rendered?;
        let at = rendered.offset_behind(&language.tokenizer, &prompt[..token])?;
        language.template.message_at(
            &chat.messages_json,
            &chat.tools_json,
            &chat.template_kwargs_json,
            rendered,
            at,
        )
    };
    Some(Divergence {
        token,
        message: message(),
    })
}

/// The prompt's token ids; of messages also what the template made of them.
fn tokens(engine: &Engine, submit: &Submit) -> Result<(Vec<u32>, Option<Rendered>), Refusal> {
    let no_tokenizer = || {
        Refusal::invalid(
            "this model's tokenizer is not supported yet; send the prompt as token ids",
        )
    };
    let language = || engine.language.as_ref().ok_or_else(no_tokenizer);
    match &submit.prompt {
        None => Err(Refusal::invalid("the request has no prompt")),
        Some(Prompt::Tokens(tokens)) => Ok((tokens.ids.clone(), None)),
        Some(Prompt::Text(text)) => {
            let language = language()?;
            refuse_hopeless(engine, language, text.text.len())?;
            let options = EncodeOptions {
                add_special: text.add_special,
                parse_special: text.parse_special,
            };
            let ids = language.tokenizer.encode(text.text.as_bytes(), options);
            Ok((ids, None))
        }
        Some(Prompt::Chat(chat)) => {
            let ChatPrompt {
                messages_json,
                tools_json,
                template_kwargs_json,
            } = chat;
            let language = language()?;
            let rendered = language
                .template
                .render(messages_json, tools_json, template_kwargs_json, true)
                .map_err(|error| Refusal::new(failure_kind(&error), error.to_string()))?;
            refuse_hopeless(engine, language, rendered.text().len())?;
            Ok((rendered.encode(&language.tokenizer), Some(rendered)))
        }
    }
}

/// Refuses a text that cannot fit the context however it is cut into tokens, before time is spent on
/// cutting it: a prompt of many megabytes would hold up everybody else's for seconds.
fn refuse_hopeless(engine: &Engine, language: &Language, bytes: usize) -> Result<(), Refusal> {
    let tokens_min = bytes.div_ceil(language.longest_piece);
    let context = engine.limits.context_tokens;
    match tokens_min < context {
        true => Ok(()),
        false => {
            let mut refusal = overflow("at least ", tokens_min, context);
            refusal.0.prompt_tokens_is_least = true;
            Err(refusal)
        }
    }
}

fn failure_kind(error: &TemplateError) -> FailureKind {
    use TemplateError::{Failed, OutOfFuel, Refused};
    match error {
        Refused { .. } | Failed { .. } | OutOfFuel { .. } => FailureKind::Template,
        _ => FailureKind::Invalid,
    }
}

fn sampling(wire: WireSampling) -> Result<Sampling, Refusal> {
    let sampling = Sampling {
        temperature: wire.temperature,
        top_k: wire.top_k,
        top_p: wire.top_p,
        min_p: wire.min_p,
        seed: wire.seed,
    };
    match sampling.check() {
        Ok(()) => Ok(sampling),
        Err((name, range)) => Err(Refusal::invalid(format!("{name} must be {range}"))),
    }
}

fn priority(wire: WirePriority) -> Priority {
    match wire {
        WirePriority::Unspecified | WirePriority::Interactive => Priority::Interactive,
        WirePriority::Background => Priority::Background,
    }
}

fn check_stops(stops: &[String]) -> Result<(), Refusal> {
    if stops.len() > STOPS_MAX {
        return Err(Refusal::invalid(format!(
            "at most {STOPS_MAX} stop strings"
        )));
    }
    if stops
        .iter()
        .any(|s| s.is_empty() || s.len() > STOP_BYTES_MAX)
    {
        return Err(Refusal::invalid(format!(
            "a stop string has 1 to {STOP_BYTES_MAX} bytes"
        )));
    }
    Ok(())
}
