//! The conversation as the client keeps it, and the figures of its answers.

use std::time::Duration;

use serde_json::{Value, json};

/// Sampling as the user asked for it; what is not set is the server's to choose.
#[derive(Clone, Debug, Default)]
pub struct Sampling {
    pub model: Option<String>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub seed: Option<u64>,
    pub max_tokens: Option<u32>,
}

/// Messages so far: the system message, if there is one, then user and assistant in turn.
#[derive(Clone, Debug)]
pub struct Conversation {
    system: Option<String>,
    turns: Vec<(String, String)>,
}

impl Conversation {
    pub fn new(system: Option<String>) -> Self {
        Self {
            system,
            turns: Vec::new(),
        }
    }

    /// Forgets everything but the system message.
    pub fn reset(&mut self) {
        self.turns.clear();
    }

    /// Turns kept.
    pub fn turns(&self) -> usize {
        self.turns.len()
    }

    /// Keeps a question with its answer, also when the user stopped the answer early: what both have
    /// seen is what was said.
    pub fn keep(&mut self, question: String, answer: String) {
        self.turns.push((question, answer));
    }

    /// The request for an answer to `question`.
    pub fn request(&self, question: &str, sampling: &Sampling) -> Value {
        let message = |role: &str, text: &str| json!({"role": role, "content": text});
        let mut messages: Vec<Value> = self
            .system
            .iter()
            .map(|system| message("system", system))
            .collect();
        for (asked, answered) in &self.turns {
            messages.push(message("user", asked));
            messages.push(message("assistant", answered));
        }
        messages.push(message("user", question));
        let mut body = json!({
            "messages": messages,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let options = [
            ("model", sampling.model.as_ref().map(|value| json!(value))),
            (
                "temperature",
                sampling.temperature.map(|value| json!(value)),
            ),
            ("top_p", sampling.top_p.map(|value| json!(value))),
            ("seed", sampling.seed.map(|value| json!(value))),
            ("max_tokens", sampling.max_tokens.map(|value| json!(value))),
        ];
        for (name, value) in options {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        body
    }
}

/// What one event of a streamed answer brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    pub text: String,
    /// Why the answer ended, when it did.
    pub finish_reason: Option<String>,
    pub figures: Option<Figures>,
}

/// The server's figures of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    /// Tokens a second while decoding, where the server says.
    pub decode_rate: Option<f64>,
}

/// Reads the data of an event; the server's error message as `Err`.
pub fn read_piece(data: &str) -> Result<Piece, String> {
    let event: Value =
        serde_json::from_str(data).map_err(|error| format!("event is not JSON: {error}"))?;
    if let Some(error) = event.get("error") {
        let words = error["message"]
            .as_str()
            .unwrap_or("the server broke off without a reason");
        return Err(words.to_owned());
    }
    let choice = &event["choices"][0];
    let usage = event.get("usage").filter(|usage| !usage.is_null());
    let count = |usage: &Value, name: &str| usage[name].as_u64().unwrap_or_default();
    Ok(Piece {
        text: choice["delta"]["content"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        finish_reason: choice["finish_reason"].as_str().map(str::to_owned),
        figures: usage.map(|usage| Figures {
            prompt_tokens: count(usage, "prompt_tokens"),
            cached_tokens: count(&usage["prompt_tokens_details"], "cached_tokens"),
            completion_tokens: count(usage, "completion_tokens"),
            decode_rate: event["timings"]["predicted_per_second"].as_f64(),
        }),
    })
}

/// The figures of the last answer and of all, for `/stats`.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    answers: u64,
    total: Figures,
    last: Option<(Figures, Option<Duration>, Duration)>,
}

impl Stats {
    /// Adds an answer: the server's figures, the time to its first text and to its end as the client
    /// saw them.
    pub fn add(&mut self, figures: Figures, first_text: Option<Duration>, whole: Duration) {
        self.answers += 1;
        self.total.prompt_tokens += figures.prompt_tokens;
        self.total.cached_tokens += figures.cached_tokens;
        self.total.completion_tokens += figures.completion_tokens;
        self.last = Some((figures, first_text, whole));
    }

    /// For people.
    pub fn describe(&self) -> String {
        let Some((last, first_text, whole)) = &self.last else {
            return "no whole answer yet".to_owned();
        };
        let rate = match last.decode_rate {
            Some(rate) => format!("{rate:.1} tok/s"),
            None => format!("{:.1} tok/s over all", client_rate(*last, *whole)),
        };
        let first = match first_text {
            Some(time) => format!("first text after {} ms", time.as_millis()),
            None => "no text".to_owned(),
        };
        format!(
            "last answer: {}, {rate}, {first}\n{} {} in all: {}",
            counts(*last),
            self.answers,
            if self.answers == 1 {
                "answer"
            } else {
                "answers"
            },
            counts(self.total)
        )
    }
}

fn counts(figures: Figures) -> String {
    let Figures {
        prompt_tokens,
        cached_tokens,
        completion_tokens,
        ..
    } = figures;
    format!("{prompt_tokens} prompt tokens ({cached_tokens} cached), {completion_tokens} generated")
}

fn client_rate(figures: Figures, whole: Duration) -> f64 {
    figures.completion_tokens as f64 / whole.as_secs_f64().max(1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_holds_the_whole_conversation_and_only_what_was_asked_for() {
        let mut conversation = Conversation::new(Some("be brief".into()));
        conversation.keep("hi".into(), "hello".into());
        let sampling = Sampling {
            seed: Some(7),
            ..Sampling::default()
        };
        let request = conversation.request("and?", &sampling);
        let roles: Vec<&str> = request["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| m["role"].as_str().unwrap())
            .collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert_eq!(request["seed"], 7);
        assert!(request.get("temperature").is_none() && request.get("model").is_none());
        conversation.reset();
        assert_eq!(conversation.turns(), 0);
        let request = conversation.request("again", &sampling);
        assert_eq!(request["messages"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn events_of_an_answer() {
        let piece = read_piece(r#"{"choices":[{"delta":{"content":"hé"},"finish_reason":null}]}"#);
        assert_eq!(
            piece,
            Ok(Piece {
                text: "hé".into(),
                ..Piece::default()
            })
        );
        let last = read_piece(r#"{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":null}"#);
        assert_eq!(last.unwrap().finish_reason.as_deref(), Some("stop"));
        let usage = read_piece(
            r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,
                "prompt_tokens_details":{"cached_tokens":8}},
                "timings":{"predicted_per_second":12.5}}"#,
        );
        let figures = Figures {
            prompt_tokens: 9,
            cached_tokens: 8,
            completion_tokens: 4,
            decode_rate: Some(12.5),
        };
        assert_eq!(usage.unwrap().figures, Some(figures));
        let error = read_piece(r#"{"error":{"message":"engine restarted"}}"#);
        assert_eq!(error, Err("engine restarted".into()));
        assert!(read_piece("{").is_err());
    }

    #[test]
    fn stats_tell_the_last_answer_and_all() {
        let mut stats = Stats::default();
        assert_eq!(stats.describe(), "no whole answer yet");
        let figures = Figures {
            prompt_tokens: 5,
            cached_tokens: 1,
            completion_tokens: 10,
            decode_rate: None,
        };
        stats.add(
            figures,
            Some(Duration::from_millis(40)),
            Duration::from_secs(2),
        );
        assert!(stats.describe().contains("\n1 answer in all: "));
        stats.add(figures, None, Duration::from_secs(2));
        assert_eq!(
            stats.describe(),
            "last answer: 5 prompt tokens (1 cached), 10 generated, 5.0 tok/s over all, no text\n\
             2 answers in all: 10 prompt tokens (2 cached), 20 generated"
        );
    }
}
