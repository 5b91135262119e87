//! A streamed answer: the engine's events of one request, turned into server-sent events as the
//! connection asks for them.
//!
//! Nothing here runs ahead of the connection: a frame is made when the last one has been taken, so
//! a slow reader stops asking, its tokens are not credited, and the engine pauses its sequence.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use vitriol_proto::engine::v1::Finished;

use crate::account::Account;
use crate::answer::{Answer, finish_word};
use crate::api_error::{ApiError, Dialect};
use crate::app::shutting_down;
use crate::sse::{self, Events};
use crate::submission::{AnswerPart, Submission};

/// A streamed answer on its way. Dropping it cancels the request and closes its account.
pub struct AnswerStream {
    submission: Submission,
    answer: Answer,
    account: Account,
    with_usage: bool,
    ping_interval: Duration,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but comments was sent.
    Waiting,
    /// The role was sent, text follows.
    Open,
    /// The last frame was made.
    Ended,
}

impl AnswerStream {
    /// An answer to a request that the engine has accepted.
    pub fn new(
        submission: Submission,
        account: Account,
        with_usage: bool,
        ping_interval: Duration,
    ) -> AnswerStream {
        AnswerStream {
            answer: submission.new_answer(),
            submission,
            account,
            with_usage,
            ping_interval,
            state: State::Waiting,
        }
    }

    /// The frames of the HTTP body.
    pub fn into_frames(self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
        stream::unfold(self, |mut answer| async move {
            let frame = answer.next_frame().await?;
            Some((Ok(frame), answer))
        })
    }

    async fn next_frame(&mut self) -> Option<Bytes> {
        // Of the client's silence, not the engine's: a long prefill reports every step.
        let mut silence = pin!(tokio::time::sleep(self.ping_interval));
        while self.state != State::Ended {
            let part = tokio::select! {
                biased;
                part = self.submission.next(&mut self.account) => part,
                () = silence.as_mut() => return Some(sse::PING),
            };
            let frame = match part {
                Ok(AnswerPart::Begins) => {
                    self.answer = self.submission.new_answer();
                    None
                }
                Ok(AnswerPart::Text { text, tokens }) => {
                    self.account.delivered(tokens);
                    self.text_frame(&text)
                }
                Ok(AnswerPart::Ends(finished)) => Some(self.finish(&finished)),
                Err(error) => Some(self.fail(&error)),
            };
            if frame.is_some() {
                return frame;
            }
        }
        None
    }

    fn open(&mut self, events: &mut Events) {
        if self.state == State::Waiting {
            self.state = State::Open;
            if let Some(chunk) = self.answer.opening_chunk(self.with_usage) {
                events.data(&chunk);
            }
        }
    }

    /// None for a token without text, which clients need not hear of.
    fn text_frame(&mut self, text: &str) -> Option<Bytes> {
        if text.is_empty() {
            return None;
        }
        self.account.text();
        self.submission.shown();
        let mut events = Events::default();
        self.open(&mut events);
        events.data(&self.answer.text_chunk(text, self.with_usage));
        Some(events.into_bytes())
    }

    fn finish(&mut self, finished: &Finished) -> Bytes {
        let Some(word) = finish_word(finished.reason()) else {
            // We cancel only what nobody reads, so this is the engine shutting down.
            return self.fail(&shutting_down());
        };
        let usage = finished.usage.unwrap_or_default();
        self.account.finished(word, &usage);
        let mut events = Events::default();
        self.open(&mut events);
        events.data(&self.answer.finish_chunk(word, &usage, self.with_usage));
        if self.with_usage {
            events.data(&self.answer.usage_chunk(&usage));
        }
        events.done();
        self.state = State::Ended;
        events.into_bytes()
    }

    /// The frame that ends a broken stream: an error, and no `[DONE]`.
    fn fail(&mut self, error: &ApiError) -> Bytes {
        self.account.failed(error);
        self.state = State::Ended;
        let mut events = Events::default();
        events.data(&error.body(Dialect::OpenAi).to_string());
        events.into_bytes()
    }
}
