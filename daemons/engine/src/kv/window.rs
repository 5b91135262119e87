use super::PAGE_TOKENS;

/// Which blocks of a sequence the queries to come still see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Keys a query sees, its own included; `None`: all before it.
    pub tokens: Option<u32>,
}

impl Window {
    /// The first block that a query at `position` sees a key of.
    pub fn first_block(self, position: usize) -> usize {
        let Some(tokens) = self.tokens else { return 0 };
        (position + 1).saturating_sub(tokens as usize) / PAGE_TOKENS
    }

    /// Most blocks a sequence holds at once that grows to `tokens_max` tokens, at most `step_tokens` a
    /// step.
    pub fn blocks_max(self, tokens_max: usize, step_tokens: usize) -> usize {
        let all = tokens_max.div_ceil(PAGE_TOKENS);
        match self.tokens {
            None => all,
            Some(tokens) => {
                let seen = tokens as usize - 1 + step_tokens;
                all.min(seen.div_ceil(PAGE_TOKENS) + 1)
            }
        }
    }

    /// Tokens of the longest sequence that so many pages hold, at most `step_tokens` of it a step.
    pub fn tokens_within(self, pages: usize, step_tokens: usize) -> usize {
        match self.blocks_max(usize::MAX / 2, step_tokens) <= pages {
            true => usize::MAX,
            false => pages * PAGE_TOKENS,
        }
    }

    /// For each length of a prefix in blocks, from 0 on, whether `has` has what the next query sees.
    pub fn usable(self, has: &[bool]) -> Vec<bool> {
        // Blocks in a row that end with each one.
        let mut run = 0;
        let runs: Vec<usize> = has
            .iter()
            .map(|&has| {
                run = if has { run + 1 } else { 0 };
                run
            })
            .collect();
        (0..=has.len())
            .map(|n| {
                let needed = n - self.first_block(n * PAGE_TOKENS).min(n);
                n == 0 || runs[n - 1] >= needed
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FULL: Window = Window { tokens: None };

    #[test]
    fn a_full_prefix_needs_every_block_and_a_window_the_last_ones() {
        let has = [true, true, false, true, true];
        assert_eq!(FULL.usable(&has), [true, true, true, false, false, false]);
        let window = Window { tokens: Some(65) };
        // The query at position 64·n sees the 64 keys before it: one block.
        assert_eq!(window.usable(&has), [true, true, true, false, true, true]);
        let window = Window { tokens: Some(66) };
        assert_eq!(window.usable(&has), [true, true, true, false, false, true]);
        let narrow = Window { tokens: Some(1) };
        assert_eq!(
            narrow.usable(&[false; 3]),
            [true; 4],
            "a query sees only itself"
        );
    }

    proptest! {
        /// Nothing a query sees lies before its first block, and the bound on blocks holds at every step.
        #[test]
        fn what_is_seen_is_held(
            tokens in 1u32..400,
            sizes in prop::collection::vec(1usize..200, 1..30),
        ) {
            let window = Window { tokens: Some(tokens) };
            let all: usize = sizes.iter().sum();
            let mut computed = 0;
            for size in sizes {
                let first = window.first_block(computed);
                let oldest_seen = (computed + 1).saturating_sub(tokens as usize);
                prop_assert!(first * PAGE_TOKENS <= oldest_seen);
                prop_assert!((first + 1) * PAGE_TOKENS > oldest_seen);
                let held = (computed + size).div_ceil(PAGE_TOKENS) - first;
                prop_assert!(held <= window.blocks_max(all, 200));
                computed += size;
            }
        }
    }
}
