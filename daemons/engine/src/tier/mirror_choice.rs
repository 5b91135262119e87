use crate::kv::{PAGE_TOKENS, Window, longest_prefix};
use std::time::Duration;

/// A disk's speed until it was measured, bytes per second: that of one that turns.
const BYTES_PER_SECOND_UNKNOWN: f64 = 150e6;

/// What a block's page can be had from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The engine has it.
    Engine,
    Arena,
    Mirror,
    Nowhere,
}

/// What to bring from the mirror for a chain, and how long that may take.
#[derive(Clone, Debug, PartialEq)]
pub struct MirrorPlan {
    /// Group and block, in the order in which they are of use.
    pub pages: Vec<(usize, usize)>,
    /// Computing what they save would take so long.
    pub within: Duration,
}

/// Speeds as measured so far; `None`: not yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Speeds {
    pub mirror_bytes_per_second: Option<f64>,
    pub prefill_tokens_per_second: Option<f64>,
}

/// Which pages to bring from the mirror: those that make the longest prefix longer, if bringing them is
/// expected to be quicker than computing their tokens. Before the first prefill nothing is known of
/// computing, which on machines of this kind is the slower by far: they are brought.
///
/// `found`: by group, of each block of the chain; `page_bytes`: by group.
pub fn plan_mirror(
    windows: &[Window],
    found: &[Vec<Source>],
    page_bytes: &[usize],
    speeds: Speeds,
) -> Option<MirrorPlan> {
    let prefix = |is_there: fn(Source) -> bool| {
        let has = found
            .iter()
            .map(|of| of.iter().map(|&at| is_there(at)).collect());
        longest_prefix(windows, &has.collect::<Vec<_>>())
    };
    let without = prefix(|at| matches!(at, Source::Engine | Source::Arena));
    let with = prefix(|at| at != Source::Nowhere);
    if with <= without {
        return None;
    }
    let mut pages: Vec<(usize, usize)> = Vec::new();
    for (group, (window, found)) in windows.iter().zip(found).enumerate() {
        let first = window.first_block(with * PAGE_TOKENS).min(with);
        let of_mirror = (first..with).filter(|&block| found[block] == Source::Mirror);
        pages.extend(of_mirror.map(|block| (group, block)));
    }
    pages.sort_by_key(|&(group, block)| (block, group));
    let bytes: usize = pages.iter().map(|&(group, _)| page_bytes[group]).sum();
    let bytes_per_second = speeds.mirror_bytes_per_second;
    let bring_s = bytes as f64 / bytes_per_second.unwrap_or(BYTES_PER_SECOND_UNKNOWN);
    let tokens = ((with - without) * PAGE_TOKENS) as f64;
    let compute_s = match speeds.prefill_tokens_per_second {
        Some(per_second) => tokens / per_second,
        None => f64::INFINITY,
    };
    let within = Duration::try_from_secs_f64(compute_s).unwrap_or(WITHIN_MAX);
    (bring_s < compute_s).then_some(MirrorPlan {
        pages,
        within: within.min(WITHIN_MAX),
    })
}

/// However slow computing is: who waits wants to see something happen.
const WITHIN_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Window = Window { tokens: None };
    const WINDOW: Window = Window { tokens: Some(65) };
    use Source::{Arena, Engine, Mirror, Nowhere};

    fn speeds(mirror: f64, prefill: f64) -> Speeds {
        Speeds {
            mirror_bytes_per_second: Some(mirror),
            prefill_tokens_per_second: Some(prefill),
        }
    }

    #[test]
    fn only_what_makes_the_prefix_longer_is_brought() {
        let plan = |found: &[Source]| {
            let plan = plan_mirror(&[FULL], &[found.to_vec()], &[1000], speeds(1e9, 1.0));
            plan.map(|plan| plan.pages)
        };
        assert_eq!(
            plan(&[Engine, Mirror, Arena, Mirror]),
            Some(vec![(0, 1), (0, 3)])
        );
        assert_eq!(plan(&[Engine, Mirror, Nowhere, Mirror]), Some(vec![(0, 1)]));
        assert_eq!(plan(&[Nowhere, Mirror]), None);
        assert_eq!(plan(&[Engine, Arena]), None);
    }

    #[test]
    fn of_a_window_only_what_the_next_query_sees_is_brought() {
        let found = [vec![Arena; 3], vec![Mirror; 3]];
        let plan = plan_mirror(&[FULL, WINDOW], &found, &[1000; 2], speeds(1e9, 1.0));
        assert_eq!(plan.unwrap().pages, [(1, 2)]);
        let found = [vec![Mirror; 3], vec![Arena, Mirror, Nowhere]];
        let plan = plan_mirror(&[FULL, WINDOW], &found, &[1000; 2], speeds(1e9, 1.0));
        assert_eq!(plan.unwrap().pages, [(0, 0), (0, 1), (1, 1)]);
    }

    #[test]
    fn bringing_must_be_quicker_than_computing() {
        let within = |mirror, prefill| {
            let found = [vec![Mirror; 10]];
            let plan = plan_mirror(&[FULL], &found, &[1_000_000], speeds(mirror, prefill));
            plan.map(|plan| plan.within)
        };
        // 10 MB for 640 tokens.
        assert_eq!(within(10e6, 640.0), None);
        assert_eq!(within(10e6, 320.0), Some(Duration::from_secs(2)));
        assert_eq!(within(10e6, 1e-9), Some(WITHIN_MAX));
        let unmeasured = plan_mirror(&[FULL], &[vec![Mirror]], &[1], Speeds::default());
        assert_eq!(unmeasured.unwrap().within, WITHIN_MAX);
    }
}
