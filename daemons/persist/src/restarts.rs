//! How often a daemon may be restarted: one that hangs again at once is not mended by more of the same.

use std::time::Duration;

/// What a restart costs in patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    /// Least time between the first restart and the second; doubles with each further one.
    pub first: Duration,
    pub longest: Duration,
    /// After so long without a restart the next is the first again.
    pub forgiven_after: Duration,
}

/// The restarts of one daemon.
#[derive(Clone, Copy, Debug)]
pub struct Restarts {
    back_off: BackOff,
    last: Option<Duration>,
    /// In a row.
    count: u32,
}

/// Whether to restart now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Restart,
    /// Not before then.
    Hold {
        until: Duration,
    },
}

impl Restarts {
    pub fn new(back_off: BackOff) -> Self {
        Self {
            back_off,
            last: None,
            count: 0,
        }
    }

    /// Whether a restart that is wanted at `now` may be made; if so, it counts as made.
    pub fn decide_restart(&mut self, now: Duration) -> Decision {
        if let Some(last) = self.last {
            if now.saturating_sub(last) >= self.back_off.forgiven_after {
                self.count = 0;
            }
            let until = last.saturating_add(self.pause());
            if now < until {
                return Decision::Hold { until };
            }
        }
        self.last = Some(now);
        self.count = self.count.saturating_add(1);
        Decision::Restart
    }

    /// Least time from the last restart to the next.
    fn pause(&self) -> Duration {
        let Some(doublings) = self.count.checked_sub(1) else {
            return Duration::ZERO;
        };
        let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
        self.back_off
            .first
            .saturating_mul(factor)
            .min(self.back_off.longest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BACK_OFF: BackOff = BackOff {
        first: Duration::from_secs(30),
        longest: Duration::from_secs(600),
        forgiven_after: Duration::from_secs(3600),
    };

    #[test]
    fn pauses_double_up_to_the_longest_and_are_forgiven() {
        let mut restarts = Restarts::new(BACK_OFF);
        let mut at = 1000;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let before = at;
            while restarts.decide_restart(Duration::from_secs(at)) != Decision::Restart {
                at += 1;
            }
            pauses.push(at - before);
        }
        assert_eq!(pauses, [0, 30, 60, 120, 240, 480, 600, 600]);
        let later = Duration::from_secs(at + 3600);
        assert_eq!(restarts.decide_restart(later), Decision::Restart);
        let soon = later + Duration::from_secs(1);
        let until = later + BACK_OFF.first;
        assert_eq!(
            restarts.decide_restart(soon),
            Decision::Hold { until },
            "the first again"
        );
    }

    proptest! {
        /// Whatever asks for restarts, and however often: no storm.
        #[test]
        fn a_day_has_a_bounded_number_of_restarts(steps in prop::collection::vec(0u64..200, 1..2000)) {
            let mut restarts = Restarts::new(BACK_OFF);
            let (mut now, mut made) = (0, Vec::new());
            for step in steps {
                now += step;
                let at = Duration::from_secs(now);
                match restarts.decide_restart(at) {
                    Decision::Restart => made.push(now),
                    Decision::Hold { until } => prop_assert!(until > at),
                }
            }
            for pair in made.windows(2) {
                prop_assert!(pair[1] - pair[0] >= 30);
            }
            for burst in made.windows(7) {
                // 30, 60, 120, 240, 480 and 600 s, or longer ones, or an hour's rest among them.
                prop_assert!(burst[6] - burst[0] >= 1530, "{:?}", burst);
            }
        }
    }
}
