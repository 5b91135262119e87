use super::{KvCodecs, PAGE_TOKENS, Window};
use crate::model::KvGroup;

/// What the pages of an engine's KV are planned for.
#[derive(Clone, Copy, Debug)]
pub struct PagePlan {
    pub codecs: KvCodecs,
    /// Most memory.
    pub kv_bytes: u64,
    /// Context that is wanted.
    pub context_tokens: usize,
    pub sequences_max: usize,
    pub step_tokens: usize,
}

impl PagePlan {
    /// Pages of each of `groups`.
    pub fn pages(&self, groups: &[KvGroup]) -> Vec<usize> {
        let windows: Vec<Window> = groups.iter().map(KvGroup::window).collect();
        let bytes =
            |group: usize, pages| groups[group].shape(self.codecs, 1).bytes_committed(pages);
        plan_pages(&windows, self, bytes)
    }

    /// Tokens that a request can have in the pages planned for `groups`: what is wanted, or what they hold.
    pub fn context_within(&self, groups: &[KvGroup]) -> usize {
        let held = tokens_within(groups, &self.pages(groups), self.step_tokens);
        self.context_tokens.min(held)
    }
}

/// Tokens of the longest sequence that `pages` of each group hold.
pub fn tokens_within(groups: &[KvGroup], pages: &[usize], step_tokens: usize) -> usize {
    let held = groups.iter().zip(pages);
    let of_group =
        |(group, &pages): (&KvGroup, &usize)| group.window().tokens_within(pages, step_tokens);
    held.map(of_group).min().unwrap_or(usize::MAX)
}

/// Pages of each KV group whose memory stays within the plan's; all 0 when not one block fits.
///
/// `bytes(group, pages)`: memory that so many pages of a group take. Full groups grow first, up to the
/// context that is wanted, beside windowed groups with room for two long sequences; what is left then is
/// shared out, half as many windowed pages as full ones, until the windowed groups hold what all
/// sequences need twice over.
fn plan_pages(
    windows: &[Window],
    plan: &PagePlan,
    bytes: impl Fn(usize, usize) -> usize,
) -> Vec<usize> {
    let context = plan.context_tokens.div_ceil(PAGE_TOKENS);
    let of_group = |window: &Window, blocks: usize| match window.tokens {
        None => blocks,
        Some(_) => {
            let one = window.blocks_max(usize::MAX / 2, plan.step_tokens);
            let room = 2 * one + blocks.saturating_sub(context) / 2;
            blocks.min(room).min(2 * one * plan.sequences_max.max(1))
        }
    };
    let pages = |blocks: usize| -> Vec<usize> {
        windows
            .iter()
            .map(|window| of_group(window, blocks))
            .collect()
    };
    let fits = |blocks: usize| {
        let of_groups = pages(blocks).into_iter().enumerate();
        let bytes = of_groups.fold(0usize, |sum, (group, pages)| {
            sum.saturating_add(bytes(group, pages))
        });
        bytes as u64 <= plan.kv_bytes
    };
    // Between what fits and what does not; a page is more than a byte, so nothing longer fits.
    let (mut low, mut high) = (0, (plan.kv_bytes.min(u32::MAX.into()) as usize).max(1));
    if fits(high) {
        return pages(high);
    }
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        match fits(middle) {
            true => low = middle,
            false => high = middle,
        }
    }
    pages(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Window = Window { tokens: None };
    /// A window of 512 tokens and steps of 512: 17 pages at most.
    const WINDOWED: Window = Window { tokens: Some(512) };

    fn plan(windows: &[Window], pages_of_memory: u64) -> Vec<usize> {
        let plan = PagePlan {
            codecs: KvCodecs::F32,
            kv_bytes: pages_of_memory * 1000,
            context_tokens: 500 * PAGE_TOKENS,
            sequences_max: 16,
            step_tokens: 512,
        };
        plan_pages(windows, &plan, |_, pages| 1000 * pages)
    }

    #[test]
    fn full_attention_alone_takes_everything() {
        assert_eq!(plan(&[FULL], 100), [100]);
        assert_eq!(plan(&[FULL], 0), [0]);
    }

    #[test]
    fn one_long_context_comes_before_many_windows() {
        assert_eq!(plan(&[FULL, WINDOWED], 20), [10, 10]);
        assert_eq!(plan(&[FULL, WINDOWED], 534), [500, 34]);
        assert_eq!(plan(&[FULL, WINDOWED], 834), [700, 134]);
        let pages = plan(&[FULL, WINDOWED], 100_000);
        assert_eq!(
            pages[1],
            2 * 17 * 16,
            "no more than all sequences twice over"
        );
        assert_eq!(pages[0], 100_000 - pages[1]);
    }
}
