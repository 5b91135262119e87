//! For how long the engine takes nothing new.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Longest that one call may ask for.
pub const SHED_MAX: Duration = Duration::from_secs(600);

/// Requests are refused until a moment that calls only move further away.
#[derive(Debug)]
pub struct Shedding {
    born: Instant,
    /// Milliseconds from `born`.
    until_ms: AtomicU64,
}

impl Default for Shedding {
    fn default() -> Self {
        Self {
            born: Instant::now(),
            until_ms: AtomicU64::new(0),
        }
    }
}

impl Shedding {
    /// Refuses for `duration` from `now` on.
    pub fn begin(&self, now: Instant, duration: Duration) {
        let until = now.saturating_duration_since(self.born) + duration;
        self.until_ms
            .fetch_max(milliseconds(until), Ordering::AcqRel);
    }

    /// How much of it is left at `now`, in whole milliseconds; `None`: requests are taken.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        let until_ms = self.until_ms.load(Ordering::Acquire);
        let left_ms =
            until_ms.saturating_sub(milliseconds(now.saturating_duration_since(self.born)));
        (left_ms > 0).then(|| Duration::from_millis(left_ms))
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_by_itself_and_a_shorter_call_does_not_end_it_sooner() {
        let shedding = Shedding::default();
        let at = |ms| shedding.born + Duration::from_millis(ms);
        assert_eq!(shedding.left(at(0)), None);
        shedding.begin(at(100), Duration::from_millis(1000));
        shedding.begin(at(200), Duration::from_millis(50));
        assert_eq!(shedding.left(at(300)), Some(Duration::from_millis(800)));
        shedding.begin(at(1000), Duration::from_millis(500));
        assert_eq!(shedding.left(at(1499)), Some(Duration::from_millis(1)));
        assert_eq!(shedding.left(at(1500)), None);
    }
}
