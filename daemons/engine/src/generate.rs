//! Running sequences from a plain thread, without a session: the self test at start, `run`, tests.

use crate::{
    engine::Engine,
    kv::PromptBlocks,
    sampler::Sampling,
    scheduler::{Ownership, Priority},
    sequence::{
        EndReason, EventKind, EventSink, NewSequence, SequenceControl, SequenceEvent, SequenceId,
    },
    step::SubmitError,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc::{self, error::TryRecvError};

/// A sequence being generated; iterate its events. Dropping it cancels the sequence.
#[derive(Debug)]
pub struct Generation {
    control: Arc<SequenceControl>,
    events: mpsc::Receiver<Vec<SequenceEvent>>,
    ready: std::vec::IntoIter<SequenceEvent>,
    over: bool,
}

/// What to generate from.
#[derive(Clone, Debug)]
pub struct GenerationRequest {
    /// The conversation it is a turn of; empty for none.
    pub session_id: Arc<str>,
    /// Not empty; with `tokens_max` no longer than the context.
    pub prompt: Vec<u32>,
    pub tokens_max: usize,
    pub sampling: Sampling,
    pub ignore_eog: bool,
    /// Tokens may be drafted for it, where the engine does that.
    pub may_draft: bool,
}

impl Engine {
    /// Starts a sequence, which no window pauses: its reader is this process.
    pub fn generate(&self, request: GenerationRequest) -> Result<Generation, SubmitError> {
        let id = self.next_sequence();
        let ownership = Ownership::new("", &request.session_id, id, Priority::Interactive);
        self.generate_as(id, ownership, request)
    }

    /// The same for somebody.
    pub fn generate_for(
        &self,
        ownership: Ownership,
        request: GenerationRequest,
    ) -> Result<Generation, SubmitError> {
        self.generate_as(self.next_sequence(), ownership, request)
    }

    fn generate_as(
        &self,
        id: u64,
        ownership: Ownership,
        request: GenerationRequest,
    ) -> Result<Generation, SubmitError> {
        let (channel, events) = mpsc::channel(4);
        let control = Arc::<SequenceControl>::default();
        self.step.submit(NewSequence {
            id: SequenceId(id),
            session_id: request.session_id,
            ownership,
            blocks: PromptBlocks::new(&self.model.identity, b"", &request.prompt),
            prompt: request.prompt,
            tokens_max: request.tokens_max,
            sampling: request.sampling,
            ignore_eog: request.ignore_eog,
            may_draft: request.may_draft,
            window_tokens: u64::MAX,
            control: Arc::clone(&control),
            sink: EventSink { id, channel },
            submitted_at: Instant::now(),
        })?;
        Ok(Generation {
            control,
            events,
            ready: Vec::new().into_iter(),
            over: false,
        })
    }
}

impl Generation {
    pub fn control(&self) -> &SequenceControl {
        &self.control
    }

    /// Runs to the end: all events, looked for only every `interval`, so that the reader does not wake
    /// for each of them. Each says itself when it happened.
    pub fn events_read_every(mut self, interval: Duration) -> Vec<SequenceEvent> {
        let mut events = Vec::new();
        while !self.over {
            std::thread::sleep(interval);
            loop {
                match self.events.try_recv() {
                    Ok(ready) => events.extend(ready),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        self.over = true;
                        break;
                    }
                }
            }
            let ended = |event: &SequenceEvent| matches!(event.kind, EventKind::Ended { .. });
            self.over |= events.last().is_some_and(ended);
        }
        events
    }

    /// Runs to the end: the tokens, and why it ended (`None`: the step thread stopped).
    pub fn finish(self) -> (Vec<u32>, Option<EndReason>) {
        let (mut tokens, mut reason) = (Vec::new(), None);
        for event in self {
            match event.kind {
                EventKind::Token { id } => tokens.push(id),
                EventKind::Ended { reason: ended } => reason = Some(ended),
                EventKind::Brought { .. }
                | EventKind::Started { .. }
                | EventKind::Prefilled { .. }
                | EventKind::Drafted { .. } => {}
            }
        }
        (tokens, reason)
    }
}

impl Iterator for Generation {
    type Item = SequenceEvent;

    fn next(&mut self) -> Option<SequenceEvent> {
        while !self.over {
            if let Some(event) = self.ready.next() {
                self.over = matches!(event.kind, EventKind::Ended { .. });
                return Some(event);
            }
            self.ready = self.events.blocking_recv()?.into_iter();
        }
        None
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.control.cancel();
    }
}
