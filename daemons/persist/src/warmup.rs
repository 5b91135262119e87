//! Which conversations a KV tier that lost its memory gets back from its disk before anybody asks. Pure.

use std::{collections::VecDeque, time::Duration};

/// What a warm-up may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Most bytes that are brought.
    pub bytes: u64,
    /// Longest that it takes, from the moment that the conversations are known.
    pub time: Duration,
    /// Most bytes of one record.
    pub record_bytes_max: u64,
}

/// A conversation as the tier's catalogue has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    pub id: String,
    /// Unix time, ms.
    pub last_turn_ms: u64,
    /// Records that it needs to go on; of these those in memory, and those on disk.
    pub records: u64,
    pub in_arena: u64,
    pub on_mirror: u64,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Bring this conversation, from its beginning on.
    Restore {
        id: String,
        /// After so many bytes no other record is brought, so that the last one stays within the budget.
        bytes_max: u64,
        within: Duration,
    },
    End(End),
}

/// Why a warm-up is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    AllTried,
    NoRoom,
    NoBytes,
    NoTime,
}

impl End {
    /// For the log.
    pub fn as_str(self) -> &'static str {
        match self {
            End::AllTried => "nothing else is on the disk alone",
            End::NoRoom => "memory is full",
            End::NoBytes => "warmup_bytes are used up",
            End::NoTime => "warmup_ms are over",
        }
    }
}

/// A warm-up on its way: each conversation that is not all in memory once, the one of the latest turn first.
#[derive(Clone, Debug)]
pub struct Warmup {
    budget: Budget,
    left: VecDeque<Conversation>,
    brought_bytes: u64,
}

impl Warmup {
    /// Of these conversations, in any order.
    pub fn new(budget: Budget, mut all: Vec<Conversation>) -> Self {
        all.retain(|of| of.in_arena < of.records && of.on_mirror > 0);
        all.sort_by(|a, b| (b.last_turn_ms, &a.id).cmp(&(a.last_turn_ms, &b.id)));
        Self {
            budget,
            left: all.into(),
            brought_bytes: 0,
        }
    }

    /// What comes next, `elapsed` after the beginning, while so many slots hold nothing.
    pub fn next(&mut self, elapsed: Duration, slots_free: u64) -> Step {
        let Some(Conversation { id, .. }) = self.left.pop_front() else {
            return Step::End(End::AllTried);
        };
        let bytes_left = self.budget.bytes.saturating_sub(self.brought_bytes);
        // The last record may be as long as any.
        let bytes_max = bytes_left
            .saturating_add(1)
            .saturating_sub(self.budget.record_bytes_max);
        let within = self.budget.time.saturating_sub(elapsed);
        if slots_free == 0 {
            return Step::End(End::NoRoom);
        }
        if bytes_max == 0 {
            return Step::End(End::NoBytes);
        }
        if within.is_zero() {
            return Step::End(End::NoTime);
        }
        Step::Restore {
            id,
            bytes_max,
            within,
        }
    }

    /// So many bytes were brought by the last step.
    pub fn brought(&mut self, bytes: u64) {
        self.brought_bytes = self.brought_bytes.saturating_add(bytes);
    }

    /// By all steps so far.
    pub fn brought_bytes(&self) -> u64 {
        self.brought_bytes
    }
}

/// Whether a tier is to be warmed up that says it has the arena `id` and started over it for the `epoch`-th
/// time; `warmed` had its turn before. An arena that was kept has what is hot.
pub fn is_cold(id: &[u8], epoch: u32, warmed: Option<&[u8]>) -> bool {
    epoch == 1 && warmed != Some(id)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUDGET: Budget = Budget {
        bytes: 1000,
        time: Duration::from_secs(20),
        record_bytes_max: 100,
    };

    fn conversation(id: &str, last_turn_ms: u64, in_arena: u64, on_mirror: u64) -> Conversation {
        Conversation {
            id: id.to_owned(),
            last_turn_ms,
            records: 10,
            in_arena,
            on_mirror,
        }
    }

    fn restored(step: Step) -> String {
        match step {
            Step::Restore { id, .. } => id,
            Step::End(end) => panic!("{end:?}"),
        }
    }

    #[test]
    fn the_latest_turn_comes_first_and_what_is_in_memory_or_nowhere_not_at_all() {
        let all = vec![
            conversation("old", 1, 0, 10),
            conversation("whole", 5, 10, 10),
            conversation("latest", 9, 0, 10),
            conversation("gone", 8, 0, 0),
            conversation("partly", 7, 9, 10),
        ];
        let mut warmup = Warmup::new(BUDGET, all);
        for expected in ["latest", "partly", "old"] {
            assert_eq!(restored(warmup.next(Duration::ZERO, 9)), expected);
        }
        let end = warmup.next(Duration::ZERO, 9);
        assert_eq!(end, Step::End(End::AllTried));
    }

    #[test]
    fn each_bound_ends_it() {
        let all = vec![conversation("a", 2, 0, 10), conversation("b", 1, 0, 10)];
        let begun = || {
            let mut warmup = Warmup::new(BUDGET, all.clone());
            let first = warmup.next(Duration::from_secs(5), 1);
            let expected = Step::Restore {
                id: "a".to_owned(),
                bytes_max: 901,
                within: Duration::from_secs(15),
            };
            assert_eq!(first, expected);
            warmup
        };
        let late = begun().next(Duration::from_secs(20), 1);
        assert_eq!(late, Step::End(End::NoTime));
        let full = begun().next(Duration::from_secs(6), 0);
        assert_eq!(full, Step::End(End::NoRoom));
        let mut spent = begun();
        spent.brought(901);
        // What is left holds no record for sure.
        let end = spent.next(Duration::from_secs(6), 1);
        assert_eq!(end, Step::End(End::NoBytes));
        let mut almost = begun();
        almost.brought(900);
        assert_eq!(restored(almost.next(Duration::from_secs(6), 1)), "b");
    }

    #[test]
    fn only_a_new_arena_is_cold_and_only_once() {
        assert!(is_cold(b"a", 1, None));
        assert!(!is_cold(b"a", 1, Some(b"a")));
        assert!(!is_cold(b"a", 2, None));
        assert!(is_cold(b"b", 1, Some(b"a")));
    }

    proptest! {
        /// Whatever the tier has: never more bytes than the budget, no conversation twice, and an end.
        #[test]
        fn it_stays_within_its_budget_and_ends(
            all in prop::collection::vec((0u64..50, 0u64..12, 0u64..12), 0..40),
            record_bytes in 1u64..=100,
            bytes in 0u64..5000,
        ) {
            let budget = Budget { bytes, ..BUDGET };
            let conversations = all.iter().enumerate();
            let conversations = conversations
                .map(|(n, &(at, arena, mirror))| conversation(&n.to_string(), at, arena, mirror));
            let mut warmup = Warmup::new(budget, conversations.collect());
            let mut tried = Vec::new();
            for second in 0.. {
                prop_assert!(second <= 20);
                match warmup.next(Duration::from_secs(second), 1) {
                    Step::End(_) => break,
                    Step::Restore { id, bytes_max, .. } => {
                        prop_assert!(!tried.contains(&id));
                        tried.push(id);
                        // As the tier does it: a record more as long as less was brought.
                        let mut brought = 0;
                        for _ in 0..12 {
                            if brought < bytes_max {
                                brought += record_bytes;
                            }
                        }
                        warmup.brought(brought);
                    }
                }
            }
            prop_assert!(warmup.brought_bytes() <= bytes);
        }
    }
}
