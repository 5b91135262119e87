//! The chat template: messages into the prompt a model was trained on.
//!
//! The model file carries its template, a Jinja program. It runs with [bounds](FUEL) on time and
//! memory, and texts from clients cannot forge control tokens ([`guard`] says how).

mod dialect;
mod error;
mod guard;
mod json;
mod messages;

pub use error::TemplateError;

use dialect::{Clock, Raised};
use guard::{Guard, Mark};
use messages::Abilities;
use minijinja::{Environment, ErrorKind, Value};
use serde_json::{Value as Json, json};
use std::error::Error as _;
use vitriol_tokens::{EncodeOptions, Tokenizer};

/// For models without a template: the most common one.
const CHATML: &str = "\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}";

/// What a rendering may cost, less what its input pays for: one unit is an instruction or 64 bytes
/// of data made, so this is 128 MiB or some tenths of a second. Real templates need some hundred a
/// message.
///
/// One thing minijinja 3.1 does not count: `list + list` is lazy up to 32 levels and then copied
/// unpaid, so a template written to double a list 33 times can still exhaust memory.
const FUEL: u64 = 2 << 20;
/// What each byte of input adds, since templates copy and search texts a few times.
const FUEL_PER_BYTE: u64 = 1;

const TEMPLATE: &str = "chat template";

/// A compiled chat template; shared by all request threads.
#[derive(Debug)]
pub struct ChatTemplate {
    /// Holds the template. Its fuel is set on a copy for each rendering.
    environment: Environment<'static>,
    source: String,
    guard: Guard,
    /// The texts of special tokens, by the names templates have for them.
    specials: Vec<(&'static str, String)>,
    abilities: Abilities,
}

/// What a client asks to be written, checked and brought into shape.
#[derive(Clone)]
struct ChatRequest {
    messages: Vec<Json>,
    tools: Json,
    kwargs: Json,
    /// As it came.
    n_bytes: usize,
}

/// A prompt, and where client texts must not be read as control tokens.
#[derive(Debug, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    breaks: Vec<usize>,
}

impl ChatTemplate {
    /// Compiles the template of a model file, or [chatml](CHATML) where it has none.
    ///
    /// Errors: the template is not Jinja; a control token that cannot be guarded.
    pub fn compile(source: Option<&str>, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        Self::compile_with_clock(source, tokenizer, dialect::local_time)
    }

    fn compile_with_clock(
        source: Option<&str>,
        tokenizer: &Tokenizer,
        clock: Clock,
    ) -> Result<Self, TemplateError> {
        let special = tokenizer.special();
        let text = |id| String::from_utf8_lossy(&tokenizer.decode(&[id], true)).into_owned();
        let named = [
            ("bos_token", special.bos),
            ("eos_token", special.eos),
            ("pad_token", special.pad),
            ("unk_token", special.unk),
        ];
        let source = source
            .filter(|source| !source.trim().is_empty())
            .unwrap_or(CHATML);
        let source = dialect::without_generation_tags(source);
        let mut environment = dialect::environment(clock).map_err(TemplateError::of_source)?;
        let added = environment.add_template_owned(TEMPLATE, source.clone());
        added.map_err(TemplateError::of_source)?;
        let mut template = Self {
            environment,
            guard: Guard::new(tokenizer)?,
            specials: named
                .into_iter()
                .filter_map(|(name, id)| Some((name, text(id?))))
                .collect(),
            abilities: Abilities {
                wants_parts: false,
                knows_developer: source.contains("developer"),
            },
            source,
        };
        template.abilities.wants_parts = template.wants_parts();
        Ok(template)
    }

    /// Writes the prompt.
    ///
    /// `messages_json` is the request's array of messages, `tools_json` its tools, `kwargs_json` an
    /// object of further variables (`chat_template_kwargs`); the latter two may be empty.
    /// Errors: see [`TemplateError`]; those of the client's making name the message and the part.
    pub fn render(
        &self,
        messages_json: &[u8],
        tools_json: &[u8],
        kwargs_json: &[u8],
        add_generation_prompt: bool,
    ) -> Result<Rendered, TemplateError> {
        let request = self.read(messages_json, tools_json, kwargs_json)?;
        self.write_request(&request, add_generation_prompt)
    }

    /// The last message whose text begins at or before byte `at` of what [`Self::render`] made of the same
    /// request with a generation prompt, from 0. `None`: the template wrote that part before any message's
    /// text, or writes something else each time.
    ///
    /// Where texts lie is asked of the template: it renders again with another text in a message and all
    /// after it, and the renderings part where the first of them begins. Cost: as many renderings as the
    /// number of messages has bits.
    pub fn message_at(
        &self,
        messages_json: &[u8],
        tools_json: &[u8],
        kwargs_json: &[u8],
        rendered: &Rendered,
        at: usize,
    ) -> Option<usize> {
        let request = self.read(messages_json, tools_json, kwargs_json).ok()?;
        let parts_by_then = |from: usize| {
            let mut changed = request.clone();
            changed.messages[from..]
                .iter_mut()
                .for_each(messages::replace_text);
            let text = self.write_request(&changed, true).ok()?.text;
            let mut bytes = text.bytes().zip(rendered.text.bytes());
            let common = bytes.position(|(a, b)| a != b);
            Some(common.unwrap_or(text.len().min(rendered.text.len())) <= at)
        };
        let (mut begun, mut later) = (0, request.messages.len());
        if parts_by_then(later)? {
            return None;
        }
        while begun < later {
            let middle = begun.midpoint(later);
            match parts_by_then(middle)? {
                true => begun = middle + 1,
                false => later = middle,
            }
        }
        begun.checked_sub(1)
    }

    fn read(
        &self,
        messages_json: &[u8],
        tools_json: &[u8],
        kwargs_json: &[u8],
    ) -> Result<ChatRequest, TemplateError> {
        let messages = messages::parse("messages", messages_json)?;
        let messages = messages::normalise(messages, self.abilities)?;
        let tools = messages::parse("tools", tools_json)?;
        if !matches!(tools, Json::Null | Json::Array(_)) {
            let what = "tools".to_owned();
            return Err(TemplateError::WrongShape {
                what,
                wanted: "an array of tools",
            });
        }
        let kwargs = messages::parse("chat_template_kwargs", kwargs_json)?;
        if !matches!(kwargs, Json::Null | Json::Object(_)) {
            let what = "chat_template_kwargs".to_owned();
            return Err(TemplateError::WrongShape {
                what,
                wanted: "an object",
            });
        }
        Ok(ChatRequest {
            messages,
            tools,
            kwargs,
            n_bytes: messages_json.len() + tools_json.len() + kwargs_json.len(),
        })
    }

    fn write_request(
        &self,
        request: &ChatRequest,
        add_generation_prompt: bool,
    ) -> Result<Rendered, TemplateError> {
        let ChatRequest {
            messages,
            tools,
            kwargs,
            n_bytes,
        } = request;
        let mark = Mark::new(&self.guard, |mark| {
            let occurs = |text: &str| text.contains(mark);
            let mut parts = messages.iter().chain([tools, kwargs]);
            occurs(&self.source) || parts.any(|json| json::any_text(json, &occurs))
        });
        let context = self.context(messages, tools, kwargs, add_generation_prompt, &mark);
        let text = self
            .write(context, *n_bytes)
            .map_err(|error| error.without_marks(&mark))?;
        let (text, breaks) = mark.removed(&text);
        Ok(Rendered { text, breaks })
    }

    /// The variables of the template. The client's cannot replace those of the request.
    fn context(
        &self,
        messages: &[Json],
        tools: &Json,
        kwargs: &Json,
        add_generation_prompt: bool,
        mark: &Mark<'_>,
    ) -> Value {
        let specials = self
            .specials
            .iter()
            .map(|(name, text)| (*name, Value::from(text.as_str())));
        let kwargs = kwargs.as_object().into_iter().flatten();
        let kwargs = kwargs.map(|(key, value)| (key.as_str(), json::guarded_value(value, mark)));
        let request = [
            ("messages", messages::guarded_messages(messages, mark)),
            ("tools", json::guarded_value(tools, mark)),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
        ];
        Value::from_pairs(specials.chain(kwargs).chain(request))
    }

    /// Runs the template with the fuel for an input of `n_bytes`.
    fn write(&self, context: Value, n_bytes: usize) -> Result<String, TemplateError> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(FUEL + FUEL_PER_BYTE * n_bytes as u64));
        let template = environment
            .get_template(TEMPLATE)
            .map_err(TemplateError::of_source)?;
        template
            .render(context)
            .map_err(TemplateError::of_rendering)
    }

    /// Whether content reaches the prompt only as a list of parts: asked by trying both.
    fn wants_parts(&self) -> bool {
        const NEEDLE: &str = "needle-in-the-content";
        let shows = |content: Json| {
            let message = json!({ "role": "user", "content": content });
            let mark = Mark::new(&self.guard, |_| false);
            let context = self.context(&[message], &Json::Null, &Json::Null, true, &mark);
            self.write(context, 0)
                .is_ok_and(|text| text.contains(NEEDLE))
        };
        !shows(json!(NEEDLE)) && shows(json!([{ "type": "text", "text": NEEDLE }]))
    }
}

impl Rendered {
    /// The prompt as the model's card would show it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The byte at which the token that follows `ids` begins; `None` where these are not spelled as the
    /// prompt is. `ids`: the first of what [`Self::encode`] gives.
    pub fn offset_behind(&self, tokenizer: &Tokenizer, ids: &[u32]) -> Option<usize> {
        let spells = |ids: &[u32]| {
            let bytes = tokenizer.decode(ids, true);
            let is_so = self.text.as_bytes().starts_with(&bytes);
            is_so.then_some(bytes.len())
        };
        // The first may be one that the template did not write.
        spells(ids).or_else(|| spells(ids.split_first()?.1))
    }

    /// The prompt's token ids. Control tokens come from the template alone: a client's text that
    /// spells one is encoded as text. No second beginning-of-sequence token is added to one that
    /// the template wrote.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        let mut ids = tokenizer.encode_with_breaks(self.text.as_bytes(), &self.breaks, options);
        let special = tokenizer.special();
        if let (true, [first, second, ..]) = (special.add_bos, &ids[..])
            && first == second
            && special.bos == Some(*first)
        {
            ids.remove(0);
        }
        ids
    }
}

impl TemplateError {
    fn of_source(error: minijinja::Error) -> Self {
        Self::Syntax {
            line: error.line().unwrap_or(0),
            detail: detail(&error),
        }
    }

    fn of_rendering(error: minijinja::Error) -> Self {
        let line = error.line().unwrap_or(0);
        let mut causes = std::iter::successors(error.source(), |&cause| cause.source());
        if causes.any(|cause| cause.is::<Raised>()) {
            return Self::Refused {
                message: error.detail().unwrap_or_default().to_owned(),
            };
        }
        match error.kind() {
            ErrorKind::OutOfFuel => Self::OutOfFuel { line },
            _ => Self::Failed {
                line,
                detail: detail(&error),
            },
        }
    }

    /// The error with marks gone from what it quotes.
    fn without_marks(self, mark: &Mark<'_>) -> Self {
        let clean = |text: String| mark.removed(&text).0;
        match self {
            Self::Refused { message } => Self::Refused {
                message: clean(message),
            },
            Self::Failed { line, detail } => Self::Failed {
                line,
                detail: clean(detail),
            },
            other => other,
        }
    }
}

fn detail(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

#[cfg(test)]
mod tests;
