//! What the engine has said about one request and its reader has not taken yet.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;
use vitriol_proto::engine::v1::{Failed, FailureKind, Finished, Prefill, event};

/// An event of one request, in the order of the engine's contract.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineEvent {
    /// The prompt was taken; it has this many tokens.
    Accepted { prompt_tokens: u32 },
    /// How far the prompt is computed.
    Prefill(Prefill),
    /// Text; several of the engine's deltas in one when the reader lags.
    Delta { text: String, tokens: u32 },
    /// The end of an answer.
    Finished(Finished),
    /// The end of a request that has no answer.
    Failed(Failed),
    /// The end of the stream to the engine.
    Lost,
}

impl EngineEvent {
    /// Nothing comes after it.
    pub fn is_end(&self) -> bool {
        matches!(
            self,
            EngineEvent::Finished(_) | EngineEvent::Failed(_) | EngineEvent::Lost
        )
    }
}

/// The engine sent far more than the request's window allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun;

/// Windows' worth of tokens that an inbox takes before the engine counts as out of hand. Two, not
/// one: an engine that counts a token of held-back text a step late is no danger to memory.
const WINDOWS_HELD_MAX: u32 = 2;

/// Waiting events of one request. Text is bounded by the window; what else comes coalesces.
pub struct Inbox {
    window_tokens: u32,
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Default)]
struct Waiting {
    accepted: Option<u32>,
    prefill: Option<Prefill>,
    text: String,
    tokens: u32,
    /// The reader has taken text.
    text_taken: bool,
    end: Option<EngineEvent>,
}

impl Inbox {
    /// An empty inbox for a window in tokens.
    pub fn new(window_tokens: u32) -> Inbox {
        Inbox {
            window_tokens,
            waiting: Mutex::default(),
            arrived: Notify::new(),
        }
    }

    /// Puts an event in.
    ///
    /// Errors: [`Overrun`] when text goes far beyond the window; the inbox then ends with a failure.
    pub fn put(&self, kind: event::Kind) -> Result<(), Overrun> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.end.is_some() {
            return Ok(());
        }
        match kind {
            event::Kind::Accepted(accepted) => waiting.accepted = Some(accepted.prompt_tokens),
            event::Kind::Prefill(prefill) => waiting.prefill = Some(prefill),
            event::Kind::Delta(delta) => {
                waiting.tokens = waiting.tokens.saturating_add(delta.tokens);
                waiting.text.push_str(&delta.text);
            }
            event::Kind::Finished(finished) => {
                waiting.end = Some(EngineEvent::Finished(finished));
            }
            event::Kind::Failed(failed) => waiting.end = Some(EngineEvent::Failed(failed)),
        }
        let overrun = waiting.tokens > self.window_tokens.saturating_mul(WINDOWS_HELD_MAX);
        if overrun {
            waiting.end = Some(EngineEvent::Failed(Failed {
                kind: FailureKind::Internal as i32,
                message: format!(
                    "it sent more than the window of {} tokens",
                    self.window_tokens
                ),
                ..Failed::default()
            }));
        }
        drop(waiting);
        self.arrived.notify_one();
        if overrun { Err(Overrun) } else { Ok(()) }
    }

    /// Ends the inbox: the stream broke. A beginning that nobody has seen is dropped: it would only
    /// keep the request from the next engine.
    pub fn put_lost(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.end.is_none() {
            waiting.end = Some(EngineEvent::Lost);
            if !waiting.text_taken {
                waiting.text.clear();
                waiting.tokens = 0;
            }
        }
        drop(waiting);
        self.arrived.notify_one();
    }

    /// Takes the next event, waiting for it. One reader at a time; cancel-safe.
    pub async fn take(&self) -> EngineEvent {
        loop {
            // notify_one keeps a permit, so an event put between the two lines is not missed.
            if let Some(event) = self.try_take() {
                return event;
            }
            self.arrived.notified().await;
        }
    }

    fn try_take(&self) -> Option<EngineEvent> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prompt_tokens) = waiting.accepted.take() {
            return Some(EngineEvent::Accepted { prompt_tokens });
        }
        if let Some(prefill) = waiting.prefill.take() {
            return Some(EngineEvent::Prefill(prefill));
        }
        if waiting.tokens > 0 || !waiting.text.is_empty() {
            let text = std::mem::take(&mut waiting.text);
            let tokens = std::mem::take(&mut waiting.tokens);
            waiting.text_taken |= !text.is_empty();
            return Some(EngineEvent::Delta { text, tokens });
        }
        waiting.end.clone()
    }
}

#[cfg(test)]
mod tests {
    use vitriol_proto::engine::v1::{Accepted, Delta};

    use super::*;

    fn delta(text: &str, tokens: u32) -> event::Kind {
        event::Kind::Delta(Delta {
            text: text.into(),
            tokens,
        })
    }

    #[test]
    fn deltas_coalesce_and_come_before_the_end() {
        let inbox = Inbox::new(8);
        inbox
            .put(event::Kind::Accepted(Accepted { prompt_tokens: 3 }))
            .unwrap();
        inbox.put(delta("a", 1)).unwrap();
        inbox.put(delta("b", 2)).unwrap();
        inbox
            .put(event::Kind::Finished(Finished::default()))
            .unwrap();
        assert_eq!(
            inbox.try_take(),
            Some(EngineEvent::Accepted { prompt_tokens: 3 })
        );
        assert_eq!(
            inbox.try_take(),
            Some(EngineEvent::Delta {
                text: "ab".into(),
                tokens: 3
            })
        );
        // The end stays: a reader that asks again gets it again.
        for _ in 0..2 {
            assert_eq!(
                inbox.try_take(),
                Some(EngineEvent::Finished(Finished::default()))
            );
        }
    }

    #[test]
    fn a_token_without_text_is_an_event() {
        let inbox = Inbox::new(8);
        inbox.put(delta("", 1)).unwrap();
        assert_eq!(
            inbox.try_take(),
            Some(EngineEvent::Delta {
                text: String::new(),
                tokens: 1
            })
        );
        assert_eq!(inbox.try_take(), None);
    }

    #[test]
    fn more_than_the_window_ends_the_request() {
        let inbox = Inbox::new(4);
        inbox.put(delta("abcd", 8)).unwrap();
        assert_eq!(inbox.put(delta("e", 1)), Err(Overrun));
        assert!(matches!(inbox.try_take(), Some(EngineEvent::Delta { .. })));
        assert!(matches!(inbox.try_take(), Some(EngineEvent::Failed(_))));
        // What comes after is dropped, so a reckless peer costs no memory.
        inbox.put(delta("f", 1)).unwrap();
        assert!(matches!(inbox.try_take(), Some(EngineEvent::Failed(_))));
    }

    #[test]
    fn a_beginning_that_nobody_has_seen_is_lost_with_the_stream() {
        let inbox = Inbox::new(8);
        // A token without text shows nothing.
        inbox.put(delta("", 1)).unwrap();
        inbox.try_take().unwrap();
        inbox.put(delta("a", 1)).unwrap();
        inbox.put_lost();
        assert_eq!(inbox.try_take(), Some(EngineEvent::Lost));
    }

    #[test]
    fn what_follows_text_that_was_seen_is_not_lost() {
        let inbox = Inbox::new(8);
        inbox.put(delta("a", 1)).unwrap();
        inbox.try_take().unwrap();
        inbox.put(delta("b", 1)).unwrap();
        inbox.put_lost();
        assert!(matches!(inbox.try_take(), Some(EngineEvent::Delta { .. })));
        assert_eq!(inbox.try_take(), Some(EngineEvent::Lost));
    }

    #[test]
    fn the_first_end_counts() {
        let inbox = Inbox::new(4);
        inbox
            .put(event::Kind::Finished(Finished::default()))
            .unwrap();
        inbox.put_lost();
        assert!(matches!(inbox.try_take(), Some(EngineEvent::Finished(_))));
    }
}
