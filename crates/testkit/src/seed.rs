//! Random choices that can be made again.

use std::time::SystemTime;

/// Names the seed to use, instead of a fresh one.
const SEED_VARIABLE: &str = "VITRIOL_TEST_SEED";

/// A stream of random numbers (splitmix64) whose seed stands in the test's output.
#[derive(Clone, Debug)]
pub struct Seed {
    state: u64,
}

impl Seed {
    /// The seed of `$VITRIOL_TEST_SEED`, else of the clock; prints it with the name of the test.
    pub fn announce(test: &str) -> Seed {
        #[expect(
            clippy::disallowed_methods,
            reason = "a test's seed is given by who runs the test"
        )]
        let given = std::env::var(SEED_VARIABLE)
            .ok()
            .and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(|| {
            let now = SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default();
            u64::from(now.subsec_nanos()) << 20 ^ now.as_secs()
        });
        eprintln!("{test}: {SEED_VARIABLE}={seed}");
        Seed::from(seed)
    }

    /// The seed itself, before any choice is made.
    pub fn value(&self) -> u64 {
        self.state
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 {
            0
        } else {
            (self.bits() % bound as u64) as usize
        }
    }

    /// One of `choices`, which must not be empty.
    pub fn choose<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

impl From<u64> for Seed {
    fn from(seed: u64) -> Seed {
        Seed { state: seed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_choices() {
        let order = |seed: u64| {
            let mut items: Vec<u32> = (0..50).collect();
            Seed::from(seed).shuffle(&mut items);
            items
        };
        assert_eq!(order(7), order(7));
        assert_ne!(order(7), order(8));
        let mut sorted = order(7);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
    }
}
