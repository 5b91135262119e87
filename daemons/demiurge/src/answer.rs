//! Answers as clients read them: OpenAI's objects and chunks, with llama-server's timings besides.

mod timings;

use serde::Serialize;
use vitriol_proto::engine::v1::{FinishReason, Usage as EngineUsage};

pub use timings::Timings;

/// Which of OpenAI's two completion routes an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Chat,
    Completion,
}

impl Route {
    /// The word in the decision log and in metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Route::Chat => "chat_completions",
            Route::Completion => "completions",
        }
    }

    /// Name of the parameter that holds the prompt.
    pub fn prompt_param(self) -> &'static str {
        match self {
            Route::Chat => "messages",
            Route::Completion => "prompt",
        }
    }

    fn id_prefix(self) -> &'static str {
        match self {
            Route::Chat => "chatcmpl-",
            Route::Completion => "cmpl-",
        }
    }

    fn object(self) -> &'static str {
        match self {
            Route::Chat => "chat.completion",
            Route::Completion => "text_completion",
        }
    }

    fn chunk_object(self) -> &'static str {
        match self {
            Route::Chat => "chat.completion.chunk",
            Route::Completion => "text_completion",
        }
    }
}

/// Why an answer ended, in OpenAI's words. None for a reason clients never see.
pub fn finish_word(reason: FinishReason) -> Option<&'static str> {
    match reason {
        FinishReason::Stop => Some("stop"),
        FinishReason::Length => Some("length"),
        FinishReason::Cancelled | FinishReason::Unspecified => None,
    }
}

/// What all chunks of one answer share.
#[derive(Clone, Debug)]
pub struct Answer {
    route: Route,
    id: String,
    /// Unix seconds.
    created: u64,
    /// Name of the model that answers.
    model: String,
    fingerprint: String,
}

impl Answer {
    /// An answer to be. `unique` is a word no other answer has; `created` is in Unix seconds.
    pub fn new(
        route: Route,
        unique: &str,
        created: u64,
        model: String,
        fingerprint: String,
    ) -> Answer {
        let id = format!("{}{unique}", route.id_prefix());
        Answer {
            route,
            id,
            created,
            model,
            fingerprint,
        }
    }

    /// The whole answer as one JSON object.
    pub fn whole(&self, text: &str, finish: &'static str, usage: &EngineUsage) -> String {
        let choice = match self.route {
            Route::Chat => Choice {
                index: 0,
                message: Some(Message {
                    role: "assistant",
                    content: text,
                    refusal: None,
                }),
                logprobs: None,
                finish_reason: Some(finish),
                ..Choice::default()
            },
            Route::Completion => Choice {
                text: Some(text),
                finish_reason: Some(finish),
                ..Choice::default()
            },
        };
        self.write(Body {
            object: self.route.object(),
            choices: &[choice],
            usage: Some(Some(Usage::from(usage))),
            timings: Some(Timings::from(usage)),
        })
    }

    /// The chunk that opens a streamed chat answer: the role. Text completions have none.
    pub fn opening_chunk(&self, with_usage: bool) -> Option<String> {
        let delta = Delta {
            role: Some("assistant"),
            content: Some(""),
        };
        match self.route {
            Route::Chat => Some(self.chunk(
                Choice {
                    delta: Some(delta),
                    ..Choice::default()
                },
                with_usage,
                None,
            )),
            Route::Completion => None,
        }
    }

    /// A chunk of text.
    pub fn text_chunk(&self, text: &str, with_usage: bool) -> String {
        let choice = match self.route {
            Route::Chat => Choice {
                delta: Some(Delta {
                    role: None,
                    content: Some(text),
                }),
                ..Choice::default()
            },
            Route::Completion => Choice {
                text: Some(text),
                ..Choice::default()
            },
        };
        self.chunk(choice, with_usage, None)
    }

    /// The chunk that says why the answer ended. It carries the timings unless a usage chunk
    /// follows.
    pub fn finish_chunk(
        &self,
        finish: &'static str,
        usage: &EngineUsage,
        with_usage: bool,
    ) -> String {
        let choice = match self.route {
            Route::Chat => Choice {
                delta: Some(Delta::default()),
                finish_reason: Some(finish),
                ..Choice::default()
            },
            Route::Completion => Choice {
                text: Some(""),
                finish_reason: Some(finish),
                ..Choice::default()
            },
        };
        let timings = (!with_usage).then(|| Timings::from(usage));
        self.chunk(choice, with_usage, timings)
    }

    /// The chunk after the last for those who asked `include_usage`.
    pub fn usage_chunk(&self, usage: &EngineUsage) -> String {
        self.write(Body {
            object: self.route.chunk_object(),
            choices: &[],
            usage: Some(Some(Usage::from(usage))),
            timings: Some(Timings::from(usage)),
        })
    }

    fn chunk(&self, choice: Choice, with_usage: bool, timings: Option<Timings>) -> String {
        self.write(Body {
            object: self.route.chunk_object(),
            choices: &[choice],
            usage: with_usage.then_some(None),
            timings,
        })
    }

    fn write(&self, body: Body) -> String {
        #[derive(Serialize)]
        struct Whole<'a> {
            id: &'a str,
            object: &'static str,
            created: u64,
            model: &'a str,
            system_fingerprint: &'a str,
            choices: &'a [Choice<'a>],
            #[serde(skip_serializing_if = "Option::is_none")]
            usage: Option<Option<Usage>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            timings: Option<Timings>,
        }
        serde_json::to_string(&Whole {
            id: &self.id,
            object: body.object,
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.fingerprint,
            choices: body.choices,
            usage: body.usage,
            timings: body.timings,
        })
        .expect("strings and numbers are always JSON")
    }
}

/// The parts in which the forms of an answer differ.
struct Body<'a> {
    object: &'static str,
    choices: &'a [Choice<'a>],
    /// Outer None: no field; inner None: null.
    usage: Option<Option<Usage>>,
    timings: Option<Timings>,
}

/// One choice; exactly one of `message`, `delta`, `text` is there.
#[derive(Default, Serialize)]
struct Choice<'a> {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Delta<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    logprobs: Option<()>,
    /// Null until the last chunk, never empty.
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Option<()>,
}

#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u64,
    prompt_tokens_details: PromptTokensDetails,
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(Serialize)]
struct PromptTokensDetails {
    cached_tokens: u32,
}

#[derive(Serialize)]
struct CompletionTokensDetails {
    reasoning_tokens: u32,
}

impl From<&EngineUsage> for Usage {
    fn from(usage: &EngineUsage) -> Usage {
        Usage {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
            prompt_tokens_details: PromptTokensDetails {
                cached_tokens: usage.cached_tokens,
            },
            completion_tokens_details: CompletionTokensDetails {
                reasoning_tokens: 0,
            },
        }
    }
}
