//! Who is asked for memory: pure.

use std::time::Duration;

use super::Stalled;

/// Pressure that comes again within this time is still the same.
const GAP_MAX: Duration = Duration::from_secs(5);

/// What kvtier gives back should be felt by then; if pressure still lasts, the engine is asked too.
const PATIENCE: Duration = Duration::from_secs(4);

/// What is asked for, and of whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relief {
    /// Of kvtier: memory that is cheap to have again.
    pub trim: bool,
    /// Of the engine: to take nothing new for a while.
    pub shed: bool,
}

/// The pressure that there is now, if any.
#[derive(Clone, Copy, Debug, Default)]
pub struct Escalation {
    /// Since when, and when it was last felt.
    lasts: Option<(Duration, Duration)>,
}

impl Escalation {
    /// What follows from pressure at `now`, any clock that only goes forward: some memory at once; work
    /// only when all tasks waited, or when pressure lasts.
    pub fn decide_relief(&mut self, stalled: Stalled, now: Duration) -> Relief {
        if stalled == Stalled::default() {
            return Relief::default();
        }
        let since = match self.lasts {
            Some((since, last)) if now.saturating_sub(last) <= GAP_MAX => since,
            _ => now,
        };
        self.lasts = Some((since, now));
        Relief {
            trim: true,
            shed: stalled.full || now.saturating_sub(since) >= PATIENCE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Stalled = Stalled {
        some: true,
        full: false,
    };
    const FULL: Stalled = Stalled {
        some: true,
        full: true,
    };
    const TRIM: Relief = Relief {
        trim: true,
        shed: false,
    };
    const BOTH: Relief = Relief {
        trim: true,
        shed: true,
    };

    fn reliefs(events: &[(u64, Stalled)]) -> Vec<Relief> {
        let mut escalation = Escalation::default();
        let mut at = |&(seconds, stalled): &(u64, Stalled)| {
            escalation.decide_relief(stalled, Duration::from_secs(seconds))
        };
        events.iter().map(&mut at).collect()
    }

    #[test]
    fn a_short_stall_costs_no_request() {
        assert_eq!(reliefs(&[(100, SOME), (102, SOME)]), [TRIM, TRIM]);
        assert_eq!(
            reliefs(&[(100, SOME), (106, SOME), (112, SOME)]),
            [TRIM; 3],
            "each is another"
        );
        assert_eq!(reliefs(&[(100, Stalled::default())]), [Relief::default()]);
    }

    #[test]
    fn pressure_that_lasts_and_a_standstill_shed() {
        let lasting = [
            (100, SOME),
            (102, SOME),
            (104, SOME),
            (106, SOME),
            (112, SOME),
        ];
        assert_eq!(reliefs(&lasting), [TRIM, TRIM, BOTH, BOTH, TRIM]);
        assert_eq!(reliefs(&[(100, FULL), (102, SOME)]), [BOTH, TRIM]);
    }
}
