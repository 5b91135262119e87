use crate::kv::PoolUse;
use std::sync::{Arc, Mutex, PoisonError};

/// What the step thread shows of itself: as of the last round.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub slots: Vec<SlotSnapshot>,
    /// By slot, the name of the conversation that runs there, or ran last; empty where there was none.
    pub last_sessions: Vec<Arc<str>>,
    pub waiting: usize,
    pub pool: PoolUse,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotSnapshot {
    pub slot: u32,
    pub state: SlotState,
    pub session_id: Arc<str>,
    pub prompt_tokens: usize,
    pub prompt_tokens_done: usize,
    pub tokens_cached: usize,
    pub tokens_generated: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    Prefill,
    Decode,
    /// Waits for its reader.
    Paused,
}

/// Holds the last snapshot. Readers copy it, so nobody holds the lock for more than microseconds.
#[derive(Debug)]
pub struct SnapshotCell(Mutex<Snapshot>);

impl SnapshotCell {
    pub fn new(sequences_max: usize, pages: usize) -> Self {
        let pool = PoolUse {
            free: pages,
            all: pages,
            ..PoolUse::default()
        };
        Self(Mutex::new(Snapshot {
            last_sessions: vec![Arc::from(""); sequences_max],
            pool,
            ..Snapshot::default()
        }))
    }

    pub fn read(&self) -> Snapshot {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn write(&self, pool: PoolUse, slots: impl Iterator<Item = SlotSnapshot>) {
        let mut snapshot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        snapshot.pool = pool;
        snapshot.slots.clear();
        for slot in slots {
            if let Some(last) = snapshot.last_sessions.get_mut(slot.slot as usize) {
                last.clone_from(&slot.session_id);
            }
            snapshot.slots.push(slot);
        }
    }
}
