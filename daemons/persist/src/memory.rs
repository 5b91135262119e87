//! Whether the engine is restarted before the kernel has to kill somebody.

use std::time::Duration;

/// When memory is short enough, and for long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPolicy {
    /// Available memory below which it is worth a warning.
    pub warn_below_bytes: u64,
    /// Available memory below which the engine will be restarted.
    pub bounce_below_bytes: u64,
    /// Polls in a row for which it must have been so.
    pub polls: u32,
    /// Least time between two such restarts.
    pub cooldown: Duration,
}

/// What follows from one poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Nothing,
    /// It has just become short; said once until there is enough again.
    Warn,
    /// Restart the engine; its memory starts small again. Said with every poll until it is done.
    Bounce,
}

/// The available memory as it was polled.
#[derive(Clone, Copy, Debug)]
pub struct MemoryWatch {
    policy: MemoryPolicy,
    short_polls: u32,
    warned: bool,
    last_bounce: Option<Duration>,
}

impl MemoryWatch {
    pub fn new(policy: MemoryPolicy) -> Self {
        Self {
            policy,
            short_polls: 0,
            warned: false,
            last_bounce: None,
        }
    }

    /// What follows from `available_bytes` (MemAvailable) at `now`.
    pub fn decide_bounce(&mut self, available_bytes: u64, now: Duration) -> Decision {
        let policy = self.policy;
        let is_low = available_bytes < policy.warn_below_bytes.max(policy.bounce_below_bytes);
        let was_low = std::mem::replace(&mut self.warned, is_low);
        self.short_polls = match available_bytes < policy.bounce_below_bytes {
            true => self.short_polls.saturating_add(1),
            false => 0,
        };
        let rested = self
            .last_bounce
            .is_none_or(|last| now.saturating_sub(last) >= policy.cooldown);
        if self.short_polls >= policy.polls.max(1) && rested {
            return Decision::Bounce;
        }
        match (was_low, is_low) {
            (false, true) => Decision::Warn,
            _ => Decision::Nothing,
        }
    }

    /// The engine is restarted, or was to be and could not: another time counts from `now`.
    pub fn bounced(&mut self, now: Duration) {
        self.last_bounce = Some(now);
        self.short_polls = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: MemoryPolicy = MemoryPolicy {
        warn_below_bytes: 500,
        bounce_below_bytes: 250,
        polls: 3,
        cooldown: Duration::from_secs(600),
    };

    fn decisions(polls: &[(u64, u64)]) -> Vec<Decision> {
        let mut watch = MemoryWatch::new(POLICY);
        let mut decide = |&(at, bytes): &(u64, u64)| {
            let now = Duration::from_secs(at);
            let decision = watch.decide_bounce(bytes, now);
            if decision == Decision::Bounce {
                watch.bounced(now);
            }
            decision
        };
        polls.iter().map(&mut decide).collect()
    }

    #[test]
    fn only_memory_that_stays_short_costs_a_restart() {
        use Decision::*;
        assert_eq!(
            decisions(&[(0, 900), (5, 400), (10, 499), (15, 500), (20, 499)]),
            [Nothing, Warn, Nothing, Nothing, Warn]
        );
        assert_eq!(
            decisions(&[
                (0, 249),
                (5, 249),
                (10, 250),
                (15, 249),
                (20, 249),
                (25, 249)
            ]),
            [Warn, Nothing, Nothing, Nothing, Nothing, Bounce]
        );
    }

    #[test]
    fn a_restart_that_did_not_help_is_not_repeated_at_once() {
        let polls: Vec<(u64, u64)> = (0..200).map(|n| (n * 5, 100)).collect();
        let decided = decisions(&polls);
        let bounces: Vec<usize> = (0..200)
            .filter(|&n| decided[n] == Decision::Bounce)
            .collect();
        assert_eq!(bounces, [2, 122], "the third poll, then ten minutes later");
    }

    #[test]
    fn one_that_is_not_done_is_said_again_and_costs_no_cooldown() {
        let mut watch = MemoryWatch::new(POLICY);
        let mut decide = |at| watch.decide_bounce(100, Duration::from_secs(at));
        let decided: Vec<Decision> = (0..5).map(|n| decide(n * 5)).collect();
        assert_eq!(decided[2..], [Decision::Bounce; 3]);
        watch.bounced(Duration::from_secs(25));
        assert_eq!(
            watch.decide_bounce(100, Duration::from_secs(30)),
            Decision::Nothing
        );
    }

    proptest! {
        #[test]
        fn bounces_are_apart_and_follow_short_polls(
            polls in prop::collection::vec((0u64..60, 0u64..1000), 1..400),
        ) {
            let mut watch = MemoryWatch::new(POLICY);
            let (mut now, mut short, mut last) = (0, 0, None);
            for (step, bytes) in polls {
                now += step;
                short = if bytes < 250 { short + 1 } else { 0 };
                let decision = watch.decide_bounce(bytes, Duration::from_secs(now));
                if decision == Decision::Bounce {
                    watch.bounced(Duration::from_secs(now));
                    prop_assert!(short >= 3);
                    prop_assert!(last.is_none_or(|last| now - last >= 600));
                    last = Some(now);
                }
            }
        }
    }
}
