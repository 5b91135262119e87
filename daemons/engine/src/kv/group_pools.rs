use super::{BlockKey, PagePool, PoolUse, Window};
use crate::scheduler::decide_admission;

/// The page pools of all KV groups.
#[derive(Debug)]
pub struct GroupPools {
    groups: Vec<GroupPool>,
    /// Most tokens of one sequence in one step.
    step_tokens: usize,
}

/// Pages of one KV group.
#[derive(Debug)]
pub struct GroupPool {
    pub pool: PagePool,
    pub window: Window,
}

/// How far a running sequence is sure to grow.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// Tokens it is to have room for.
    pub tokens_planned: usize,
    /// Blocks it has, passed ones included.
    pub blocks: usize,
}

impl GroupPools {
    /// `groups`: window and pages of each; `step_tokens`: most tokens of one sequence in one step.
    pub fn new(groups: &[(Window, usize)], step_tokens: usize) -> Self {
        let group = |&(window, pages): &(Window, usize)| GroupPool {
            pool: PagePool::new(pages as u32),
            window,
        };
        Self {
            groups: groups.iter().map(group).collect(),
            step_tokens,
        }
    }

    pub fn groups(&self) -> &[GroupPool] {
        &self.groups
    }

    /// Blocks of the longest beginning of `chain` from which a sequence can go on: what every group's
    /// next query sees is cached or held.
    pub fn longest_prefix(&self, chain: &[BlockKey]) -> usize {
        longest_prefix(&self.windows(), &self.has(chain))
    }

    /// By group, what its queries see.
    pub fn windows(&self) -> Vec<Window> {
        self.groups.iter().map(|group| group.window).collect()
    }

    /// By group, whether it has each block of `chain`.
    pub fn has(&self, chain: &[BlockKey]) -> Vec<Vec<bool>> {
        let groups = self.groups.iter();
        groups.map(|group| group.pool.has(chain)).collect()
    }

    /// Whether a group has so few pages left to give out that none should be kept for anything but sequences.
    pub fn is_short(&self) -> bool {
        self.groups.iter().any(|group| {
            let spare = group.pool.usage().all / 8;
            group.pool.available() < spare.max(1)
        })
    }

    /// Whether a sequence can start whose first blocks are `chain` and that is to have room for
    /// `tokens_planned` tokens, beside those that run: each group must be able to serve all of them as
    /// far as is planned. `kept`: by group, pages that are for others only.
    /// Returns how many of the blocks it can take over.
    pub fn admit(
        &self,
        chain: &[BlockKey],
        tokens_planned: usize,
        running: impl Iterator<Item = Growth> + Clone,
        kept: impl Fn(usize) -> usize,
    ) -> Option<usize> {
        let blocks_max =
            |group: &GroupPool, tokens| group.window.blocks_max(tokens, self.step_tokens);
        let fits = |(index, group): (usize, &GroupPool), prefix: &[BlockKey]| {
            if group.window.tokens.is_some() {
                // A window gives back pages that others may still hold, so sharing saves nothing that
                // could be promised: every sequence counts with all it may hold at once.
                let promised: usize = running
                    .clone()
                    .map(|r| blocks_max(group, r.tokens_planned))
                    .sum();
                let all = group.pool.usage().all;
                let demand = blocks_max(group, tokens_planned);
                return decide_admission(demand, all, promised + kept(index));
            }
            let promised: usize = running
                .clone()
                .map(|r| blocks_max(group, r.tokens_planned).saturating_sub(r.blocks))
                .sum();
            let (found, cached) = group.pool.peek(prefix);
            let demand = blocks_max(group, tokens_planned) - found + cached;
            decide_admission(demand, group.pool.available(), promised + kept(index))
        };
        // What does not fit if every block were held by others need not be looked for; who waits asks
        // this every round.
        let hopeless = |group: &GroupPool| {
            let windowed = group.window.tokens.is_some();
            let taken_over = if windowed { 0 } else { chain.len() };
            let least = blocks_max(group, tokens_planned).saturating_sub(taken_over);
            least > group.pool.available()
        };
        if self.groups.iter().any(hopeless) {
            return None;
        }
        let prefix = self.longest_prefix(chain);
        let mut groups = self.groups.iter().enumerate();
        let all = groups.all(|group| fits(group, &chain[..prefix]));
        all.then_some(prefix)
    }

    /// Most pages of each group that a sequence holds at once which grows to `tokens` tokens.
    pub fn pages_max(&self, tokens: usize) -> impl Iterator<Item = usize> {
        let groups = self.groups.iter();
        groups.map(move |group| group.window.blocks_max(tokens, self.step_tokens))
    }

    /// Pages of all groups together.
    pub fn usage(&self) -> PoolUse {
        let uses = self.groups.iter().map(|group| group.pool.usage());
        uses.fold(PoolUse::default(), |sum, of| PoolUse {
            held: sum.held + of.held,
            cached: sum.cached + of.cached,
            free: sum.free + of.free,
            all: sum.all + of.all,
        })
    }

    /// Advances the clock of the least-recently-used order; once a step.
    pub fn tick(&self) {
        for group in &self.groups {
            group.pool.tick();
        }
    }
}

/// Blocks of the longest beginning of a chain from which a sequence can go on: `has` says of each group
/// whether there is each block, and there is what every group's next query sees.
pub fn longest_prefix(windows: &[Window], has: &[Vec<bool>]) -> usize {
    let groups = windows.iter().zip(has);
    let usable: Vec<Vec<bool>> = groups.map(|(window, has)| window.usable(has)).collect();
    let by_all = |n: &usize| usable.iter().all(|group| group[*n]);
    let blocks = has.iter().map(Vec::len).min().unwrap_or(0);
    (0..=blocks).rev().find(by_all).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::{BlockKeys, BlockTables, PAGE_TOKENS, Storing};
    use super::*;
    use proptest::prelude::*;

    const FULL: Window = Window { tokens: None };

    #[test]
    fn held_pages_cost_a_new_sequence_nothing_and_cached_ones_must_be_held() {
        let pools = GroupPools::new(&[(FULL, 4)], 64);
        let keys = BlockKeys::new(&[0; 32], b"");
        let tokens: Vec<u32> = (0..150).collect();
        let chain = keys.chain(BlockKeys::reusable(&tokens));
        let none = || std::iter::empty::<Growth>();
        assert!(pools.admit(&chain, 256, none(), |_| 0).is_some());
        assert!(pools.admit(&chain, 257, none(), |_| 0).is_none());
        let (mut tables, _) = BlockTables::with_prefix(&pools, keys, &[], Storing::Never);
        for _ in 0..3 {
            tables.grow(&pools, |_, _| Ok::<_, ()>(())).unwrap();
        }
        tables.advance(&tokens);
        let grown = Growth {
            tokens_planned: 192,
            blocks: 3,
        };
        let beside = || std::iter::once(grown);
        let two_shared = pools.admit(&chain, 192, beside(), |_| 0);
        assert_eq!(two_shared, Some(2), "one page more");
        assert_eq!(pools.admit(&chain, 256, beside(), |_| 0), None);
        drop(tables);
        assert!(pools.admit(&chain, 256, none(), |_| 0).is_some());
    }

    proptest! {
        /// Whatever is admitted can grow as far as planned in every group, shared prefixes and all.
        #[test]
        fn nothing_admitted_runs_out(
            window in 1u32..200,
            pages in (8usize..40, 4usize..20),
            requests in prop::collection::vec((0u32..3, 1usize..500, 1usize..600, 0u8..4), 1..30),
        ) {
            let windowed = Window { tokens: Some(window) };
            let pools = GroupPools::new(&[(FULL, pages.0), (windowed, pages.1)], 64);
            let keys = BlockKeys::new(&[0; 32], b"");
            // (tables, tokens, computed)
            let mut running: Vec<(BlockTables, Vec<u32>, usize)> = Vec::new();
            for (family, prompt, more, steps) in requests {
                let tokens: Vec<u32> = (0..(prompt + more) as u32).map(|t| t * family).collect();
                let chain = keys.chain(BlockKeys::reusable(&tokens[..prompt]));
                let growth = running.iter().map(|(tables, tokens, _)| Growth {
                    tokens_planned: tokens.len(),
                    blocks: tables.blocks(),
                });
                let admitted = pools.admit(&chain, tokens.len(), growth, |_| 0);
                // An idle house takes whatever its pools can hold at all.
                let windows = pools.groups().iter();
                let holds = windows.map(|g| g.window.tokens_within(g.pool.usage().all, 64)).min();
                if running.is_empty() && holds.is_some_and(|most| tokens.len() <= most) {
                    prop_assert!(admitted.is_some(), "{} tokens", tokens.len());
                }
                if let Some(prefix) = admitted {
                    let prefix = &chain[..prefix];
                    let (tables, cached) = BlockTables::with_prefix(&pools, keys, prefix, Storing::Never);
                    running.push((tables, tokens, cached));
                }
                for _ in 0..steps {
                    pools.tick();
                    for (tables, tokens, computed) in &mut running {
                        *computed = (*computed + 64).min(tokens.len());
                        while tables.blocks() * PAGE_TOKENS < *computed {
                            let grown = tables.grow(&pools, |_, _| Ok::<_, ()>(()));
                            prop_assert!(grown.is_ok(), "a page was promised");
                        }
                        tables.advance(&tokens[..*computed]);
                    }
                    running.retain(|(_, tokens, computed)| *computed < tokens.len());
                }
            }
            running.clear();
            prop_assert_eq!(pools.usage().held, 0);
        }
    }
}
