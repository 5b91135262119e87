use crate::sequence::{EndReason, EventKind, SequenceControl, SequenceEvent};
use std::sync::Arc;
use tokio::sync::mpsc;

/// A client and its request.
pub struct Client {
    pub prompt: Vec<u32>,
    pub tokens_max: usize,
    pub control: Arc<SequenceControl>,
    pub events: mpsc::Receiver<Vec<SequenceEvent>>,
    /// It takes a token so often, ms; `None`: at once.
    pub takes_every_ms: Option<f64>,
    pub takes_at_ms: f64,
    pub taken: usize,
    pub leaves_at_ms: f64,
    pub got: Vec<u32>,
    pub started: bool,
    pub ended: Option<EndReason>,
}

impl Client {
    /// Takes what has come.
    pub fn listen(&mut self) {
        while let Ok(events) = self.events.try_recv() {
            for event in events {
                assert_eq!(self.ended, None, "an event after the end");
                match event.kind {
                    EventKind::Started { .. } => {
                        assert!(!self.started, "it starts once");
                        self.started = true;
                    }
                    EventKind::Token { id } => self.got.push(id),
                    EventKind::Brought { .. }
                    | EventKind::Prefilled { .. }
                    | EventKind::Drafted { .. } => {}
                    EventKind::Ended { reason } => self.ended = Some(reason),
                }
            }
        }
    }
}
