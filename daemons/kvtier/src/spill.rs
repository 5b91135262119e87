//! When sealed records go to the mirror: soon, and while no engine waits for it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::Notify, time::sleep};
use vitriol_chassis::event;

use crate::tier::Tier;

/// Time between two looks at records that are on their way: the mirror's queue empties meanwhile.
const PAUSE: Duration = Duration::from_millis(20);

/// After so long without a moment in which all was written, the disk is said to be slow.
const BEHIND_AFTER: Duration = Duration::from_secs(30);

/// How a round of spilling ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spilled {
    /// Every sealed record is durable.
    All,
    MirrorDown,
}

/// Brings records to the mirror whenever `sealed` tells of some, and what is there already. A mirror that
/// is down is tried again every `retry_after`. It never ends.
pub async fn spill_when_sealed(tier: Arc<Tier>, sealed: Arc<Notify>, retry_after: Duration) {
    loop {
        let backlog = Backlog::new(Instant::now(), bytes_written(&tier));
        match spill(&tier, Some(backlog)).await {
            Spilled::All => sealed.notified().await,
            Spilled::MirrorDown => sleep(retry_after).await,
        }
    }
}

/// Brings records to the mirror until it has all of them or is down. Cancel-safe.
pub async fn spill_all(tier: &Arc<Tier>) -> Spilled {
    spill(tier, None).await
}

/// With a `backlog`, one that lasts is said.
async fn spill(tier: &Arc<Tier>, mut backlog: Option<Backlog>) -> Spilled {
    loop {
        let waiting = tier.unmirrored();
        if waiting == 0 {
            return Spilled::All;
        }
        if let Some(backlog) = &mut backlog
            && let Some(bytes_per_second) = backlog.due(Instant::now(), || bytes_written(tier))
        {
            tracing::warn!(
                message_id = event::MIRROR_BEHIND,
                records = waiting,
                bytes_per_second,
                "the mirror's disk is slower than KV is computed: what waits is in memory only"
            );
        }
        let round = Arc::clone(tier);
        // A panic in it has been reported by the runtime; what it did not spill is sealed still.
        let _ = tokio::task::spawn_blocking(move || round.spill()).await;
        if tier.is_mirror_down() {
            return Spilled::MirrorDown;
        }
        sleep(PAUSE).await;
    }
}

fn bytes_written(tier: &Tier) -> u64 {
    let mirror = tier.stats().mirror;
    mirror.map_or(0, |mirror| mirror.usage.bytes_written)
}

/// Records that wait for the disk, since when, and what it had taken by then.
#[derive(Debug)]
struct Backlog {
    since: Instant,
    bytes_then: u64,
    is_said: bool,
}

impl Backlog {
    fn new(now: Instant, bytes_then: u64) -> Self {
        Self {
            since: now,
            bytes_then,
            is_said: false,
        }
    }

    /// Once, when it has lasted for [`BEHIND_AFTER`]: bytes per second that the disk took.
    fn due(&mut self, now: Instant, bytes_written: impl FnOnce() -> u64) -> Option<u64> {
        let lasted = now.saturating_duration_since(self.since);
        if self.is_said || lasted < BEHIND_AFTER {
            return None;
        }
        self.is_said = true;
        let bytes = bytes_written().saturating_sub(self.bytes_then);
        Some((bytes as f64 / lasted.as_secs_f64()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_stays_behind_is_said_once() {
        let begun = Instant::now();
        let mut backlog = Backlog::new(begun, 1_000);
        assert_eq!(backlog.due(begun + BEHIND_AFTER / 2, || 2_000), None);
        let later = begun + 2 * BEHIND_AFTER;
        assert_eq!(backlog.due(later, || 601_000), Some(10_000));
        assert_eq!(backlog.due(later + BEHIND_AFTER, || 900_000), None);
    }
}
