use super::{Ownership, Priority};

/// How often a background sequence gives way to interactive ones; from then on only age counts, or
/// those that come all the time would keep it from its end.
const GIVES_WAY_MAX: u32 = 3;

/// A running sequence that could give way.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    pub ownership: &'a Ownership,
    /// Rises with each sequence that is submitted; stays when it gives way and comes back.
    pub arrival: u64,
    /// How often it gave way already.
    pub gave_way: u32,
    /// Its tenant has no more pages than are kept for it.
    pub protected: bool,
}

impl Holder<'_> {
    /// Smallest: who gives way last.
    pub fn rank(&self) -> (Priority, u64) {
        let priority = match self.gave_way < GIVES_WAY_MAX {
            true => self.ownership.priority,
            false => Priority::Interactive,
        };
        (priority, self.arrival)
    }
}

/// Who gives way when `grower`, one of `holders`, finds every page held: of those not protected, and
/// the grower itself, the youngest of the lowest priority. `None` when the grower is alone: giving way
/// would help no one.
///
/// The oldest of the highest priority never gives way to another, so it comes to its end, and after it
/// the next: no two sequences can take each other's pages for ever.
pub fn choose_victim(holders: &[Holder<'_>], grower: usize) -> Option<usize> {
    let eligible = |&index: &usize| index == grower || !holders[index].protected;
    let rank = |&index: &usize| holders[index].rank();
    let last = (0..holders.len()).filter(eligible).max_by_key(rank)?;
    (last != grower || holders.len() > 1).then_some(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ownership(priority: Priority) -> Ownership {
        Ownership::new("t", "", 0, priority)
    }

    #[test]
    fn the_youngest_of_the_lowest_priority_gives_way() {
        let (high, low) = (
            ownership(Priority::Interactive),
            ownership(Priority::Background),
        );
        let holder = |ownership, arrival, protected| Holder {
            ownership,
            arrival,
            gave_way: 0,
            protected,
        };
        let holders = [
            holder(&high, 1, false),
            holder(&low, 2, false),
            holder(&low, 3, false),
            holder(&high, 4, false),
            holder(&low, 5, true),
        ];
        assert_eq!(choose_victim(&holders, 0), Some(2), "5 is protected");
        assert_eq!(
            choose_victim(&holders, 2),
            Some(2),
            "itself, for the others"
        );
        assert_eq!(
            choose_victim(&holders, 4),
            Some(4),
            "no more than is kept for it"
        );
        assert_eq!(choose_victim(&holders[..1], 0), None, "alone");
        let mut worn = holders;
        worn[2].gave_way = GIVES_WAY_MAX;
        assert_eq!(choose_victim(&worn, 0), Some(1), "often enough");
    }

    proptest! {
        /// The oldest of the highest priority stays, whoever grows.
        #[test]
        fn the_first_in_rank_never_gives_way(
            lows in prop::collection::vec(any::<bool>(), 2..20), grower: prop::sample::Index,
        ) {
            let owners: Vec<_> = lows
                .iter()
                .map(|&low| match low {
                    true => ownership(Priority::Background),
                    false => ownership(Priority::Interactive),
                })
                .collect();
            let holders: Vec<_> = owners
                .iter()
                .zip(0..)
                .map(|(ownership, arrival)| Holder { ownership, arrival, gave_way: 0, protected: false })
                .collect();
            let rank = |&index: &usize| holders[index].rank();
            let first = (0..holders.len()).min_by_key(rank).unwrap();
            let victim = choose_victim(&holders, grower.index(holders.len())).unwrap();
            prop_assert_ne!(victim, first);
        }
    }
}
