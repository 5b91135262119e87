use crate::sequence::{EventKind, EventSink, NewSequence, SequenceEvent};
use std::{collections::BTreeMap, time::Instant};
use tokio::sync::mpsc::error::TrySendError;

/// Events on their way to their sinks. What a full sink does not take stays here and goes with the
/// next flush; windows bound how much that can be (a sequence pauses when its tokens are not taken).
#[derive(Debug, Default)]
pub struct Outbox {
    sinks: BTreeMap<u64, Pending>,
}

#[derive(Debug)]
struct Pending {
    sink: EventSink,
    events: Vec<SequenceEvent>,
}

impl Outbox {
    pub fn push(&mut self, to: &NewSequence, kind: EventKind) {
        let pending = self.sinks.entry(to.sink.id).or_insert_with(|| Pending {
            sink: to.sink.clone(),
            events: Vec::new(),
        });
        let event = SequenceEvent {
            sequence: to.id,
            at: Instant::now(),
            kind,
        };
        // Only a sequence's last word about prefill counts, so a slow reader does not pile them up.
        if matches!(kind, EventKind::Prefilled { .. }) {
            let earlier = pending
                .events
                .iter_mut()
                .rev()
                .find(|e| e.sequence == to.id && matches!(e.kind, EventKind::Prefilled { .. }));
            if let Some(earlier) = earlier {
                *earlier = event;
                return;
            }
        }
        pending.events.push(event);
    }

    /// Whether every event has been handed over.
    pub fn is_empty(&self) -> bool {
        self.sinks.is_empty()
    }

    /// Hands over what the sinks take; forgets sinks nobody reads.
    pub fn flush(&mut self) {
        self.sinks.retain(|_, pending| {
            match pending
                .sink
                .channel
                .try_send(std::mem::take(&mut pending.events))
            {
                Ok(()) | Err(TrySendError::Closed(_)) => false,
                Err(TrySendError::Full(events)) => {
                    pending.events = events;
                    true
                }
            }
        });
    }
}
