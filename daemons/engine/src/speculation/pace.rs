/// Chance of acceptance that a sequence begins with, and that is tried again after a pause.
pub const HOPE: f64 = 0.5;
/// What one verified token counts for in the estimate.
const WEIGHT: f64 = 0.2;
/// Tokens generated before the next draft after the second miss in a row; doubles with each more.
const PAUSE_MIN: usize = 8;
const PAUSE_MAX: usize = 512;

/// When to draft for a sequence and what to hope for, learnt from what became of its drafts.
///
/// A text that repeats nothing meets false matches all the same. Each costs a part of a step, so misses
/// in a row are followed by pauses that double; one success ends that.
#[derive(Clone, Debug)]
pub struct Pace {
    acceptance: f64,
    /// Drafts in a row that brought nothing.
    misses: u32,
    pause_tokens: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            acceptance: HOPE,
            misses: 0,
            pause_tokens: 0,
        }
    }
}

impl Pace {
    /// Chance that a drafted token is accepted if those before it are, 0 to 1.
    pub fn acceptance(&self) -> f64 {
        self.acceptance
    }

    /// Whether nothing is to be drafted now.
    pub fn pauses(&self) -> bool {
        self.pause_tokens > 0
    }

    /// So many tokens were generated.
    pub fn generated(&mut self, tokens: usize) {
        self.pause_tokens = self.pause_tokens.saturating_sub(tokens);
    }

    /// Of `drafted` tokens, at least one, the first `accepted` stood.
    pub fn verified(&mut self, drafted: usize, accepted: usize) {
        for _ in 0..accepted {
            self.acceptance += WEIGHT * (1.0 - self.acceptance);
        }
        if accepted < drafted {
            self.acceptance -= WEIGHT * self.acceptance;
        }
        match accepted {
            0 => self.miss(),
            _ => self.misses = 0,
        }
    }

    /// There was a draft and it was not worth verifying. Where that is for want of hope, hope comes back
    /// after a pause; where steps cost too much, it is not this sequence's business.
    pub fn refused(&mut self) {
        if self.acceptance < HOPE {
            self.misses = self.misses.max(1);
            self.miss();
        }
    }

    fn miss(&mut self) {
        self.misses += 1;
        if self.misses > 1 {
            let doubled = PAUSE_MIN.checked_shl(self.misses - 2).unwrap_or(PAUSE_MAX);
            self.pause_tokens = doubled.min(PAUSE_MAX);
            self.acceptance = self.acceptance.max(HOPE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Drafts of two tokens in a text of `tokens` tokens whose drafts all fail.
    fn misses_in(tokens: usize) -> usize {
        let mut pace = Pace::default();
        let mut misses = 0;
        for _ in 0..tokens {
            if !pace.pauses() {
                pace.verified(2, 0);
                misses += 1;
            }
            pace.generated(1);
        }
        misses
    }

    #[test]
    fn misses_grow_rare() {
        assert_eq!(misses_in(1), 1);
        assert!(misses_in(256) <= 7, "{}", misses_in(256));
        assert!(misses_in(4096) <= 15, "{}", misses_in(4096));
        assert!(misses_in(100_000) >= 100, "it never gives up for good");
    }

    #[test]
    fn a_success_ends_the_pauses() {
        let mut pace = Pace::default();
        for _ in 0..6 {
            pace.verified(2, 0);
        }
        assert!(pace.pauses());
        pace.generated(PAUSE_MAX);
        assert!(!pace.pauses() && pace.acceptance() >= HOPE);
        pace.verified(4, 4);
        let hopeful = pace.acceptance();
        assert!(hopeful > 0.75, "{hopeful}");
        pace.verified(4, 0);
        assert!(!pace.pauses(), "one miss is none");
        assert!(pace.acceptance() < hopeful);
    }

    #[test]
    fn a_hopeless_draft_that_is_refused_comes_again_after_a_pause() {
        let mut pace = Pace::default();
        pace.refused();
        assert!(!pace.pauses(), "steps cost too much: nobody's fault");
        pace.verified(3, 1);
        pace.verified(3, 1);
        pace.verified(3, 1);
        assert!(pace.acceptance() < HOPE);
        pace.refused();
        assert!(pace.pauses());
        pace.generated(PAUSE_MIN);
        assert!(!pace.pauses() && pace.acceptance() >= HOPE);
    }

    proptest! {
        #[test]
        fn the_estimate_stays_a_chance(
            drafts in prop::collection::vec((1usize..16, 0usize..16, 0usize..600), 0..200),
        ) {
            let mut pace = Pace::default();
            for (drafted, accepted, generated) in drafts {
                pace.verified(drafted, accepted.min(drafted));
                pace.generated(generated);
                prop_assert!((0.0..=1.0).contains(&pace.acceptance()));
                prop_assert!(pace.pause_tokens <= PAUSE_MAX);
            }
        }
    }
}
