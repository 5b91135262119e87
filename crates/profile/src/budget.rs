//! The house's memory as one sum, before any of it is taken. Pure.

use vitriol_units::Bytes;

use crate::Profile;

/// The least that the profile takes for an arena.
const ARENA_BYTES_MIN: u64 = 4 << 20;

/// What a house takes beyond weights, KV pages and arena, bytes: code, tokenizer, buffers of a step, the small
/// daemons.
pub const OVERHEAD_BYTES: u64 = 256 << 20;

/// What the house takes of a machine's memory, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    pub weights: u64,
    /// See [`OVERHEAD_BYTES`].
    pub overhead: u64,
    /// Of kvtier, all of it taken at its start; 0 without one.
    pub arena: u64,
    /// Most for KV pages, which are taken as they are used.
    pub kv: u64,
}

/// Whether the sum closes with what is available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balance {
    Closes,
    /// It starts, and may need more than there is as KV pages are used.
    Tight {
        remedy: String,
    },
    /// It does not start.
    Short {
        bytes: u64,
        remedy: String,
    },
}

/// The house takes more memory than there is for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the memory of this profile does not close: the house takes up to {}, and there are {} for it:\n{}{remedy}",
    Bytes(.budget.most()).rounded(),
    Bytes(*.limit).rounded(),
    .budget.table(),
)]
pub struct NotClosed {
    budget: Budget,
    limit: u64,
    remedy: String,
}

impl Budget {
    /// That of a house with this profile, one engine and a model of so many bytes.
    pub fn of(profile: &Profile, engine: &str, weights: u64) -> Self {
        let (tier, engine) = (&profile.kvtier, profile.engine(engine));
        Self {
            weights,
            overhead: OVERHEAD_BYTES,
            arena: if tier.enabled {
                tier.arena_bytes.get()
            } else {
                0
            },
            kv: engine.map_or(0, |engine| engine.kv_bytes_max.get()),
        }
    }

    /// Errors: it takes more than `limit`, be it when every KV page is used.
    pub fn check(&self, limit: u64) -> Result<(), NotClosed> {
        match self.balance(limit) {
            Balance::Closes => Ok(()),
            Balance::Tight { remedy } | Balance::Short { remedy, .. } => Err(NotClosed {
                budget: *self,
                limit,
                remedy,
            }),
        }
    }

    /// What is taken at the start.
    pub fn least(&self) -> u64 {
        let fixed = self.weights.saturating_add(self.overhead);
        fixed.saturating_add(self.arena)
    }

    /// What may be taken at most.
    pub fn most(&self) -> u64 {
        self.least().saturating_add(self.kv)
    }

    /// Every term that is not zero by its name, largest first.
    pub fn parts(&self) -> Vec<(&'static str, u64)> {
        let mut parts = vec![
            ("weights", self.weights),
            ("arena", self.arena),
            ("KV pages", self.kv),
            ("all else", self.overhead),
        ];
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        parts.retain(|(_, bytes)| *bytes > 0);
        parts
    }

    /// The terms in one line.
    pub fn terms(&self) -> String {
        let terms = self.parts().into_iter();
        let terms = terms.map(|(name, bytes)| format!("{name} {}", Bytes(bytes).rounded()));
        terms.collect::<Vec<_>>().join(", ")
    }

    /// The terms and their sum, a line each.
    pub fn table(&self) -> String {
        let line = |(name, bytes)| format!("  {name:<10}{:>10}\n", Bytes(bytes).rounded());
        let all = [("together", self.most())];
        self.parts().into_iter().chain(all).map(line).collect()
    }

    /// Whether it closes, and which setting to lower where it does not.
    pub fn balance(&self, available: u64) -> Balance {
        let short = self.least().saturating_sub(available);
        let at_most = |setting: &str, bytes: u64| {
            format!("set {setting} to at most '{}'", Bytes::mib(bytes >> 20))
        };
        if short > 0 {
            // Half of what is left beside the weights; the KV pages need some as well.
            let left = available.saturating_sub(self.least() - self.arena) / 2;
            let remedy = match self.arena > 0 && left >= ARENA_BYTES_MIN {
                true => at_most("kvtier.arena_bytes", left),
                false => "free some memory or use a smaller model".to_owned(),
            };
            return Balance::Short {
                bytes: short,
                remedy,
            };
        }
        match self.most() > available {
            true => Balance::Tight {
                remedy: at_most("engine.main.kv_bytes_max", available - self.least()),
            },
            false => Balance::Closes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn budget(arena: u64) -> Budget {
        Budget {
            weights: 100 * MIB,
            overhead: 256 * MIB,
            arena,
            kv: 1024 * MIB,
        }
    }

    #[test]
    fn every_term_counts_and_the_one_to_lower_is_named() {
        assert_eq!(budget(0).balance(1380 * MIB), Balance::Closes);
        let tight = Balance::Tight {
            remedy: "set engine.main.kv_bytes_max to at most '1023 MiB'".to_owned(),
        };
        assert_eq!(budget(0).balance(1379 * MIB), tight);
        assert_eq!(budget(512 * MIB).balance(1892 * MIB), Balance::Closes);
        let short = Balance::Short {
            bytes: 12 * MIB,
            remedy: "set kvtier.arena_bytes to at most '250 MiB'".to_owned(),
        };
        assert_eq!(budget(512 * MIB).balance(856 * MIB), short);
        for arena in [0, 512 * MIB] {
            let Balance::Short { remedy, .. } = budget(arena).balance(300 * MIB) else {
                panic!("weights alone are more");
            };
            assert!(remedy.contains("smaller model"), "{remedy}");
        }
    }

    #[test]
    fn what_does_not_close_is_told_term_by_term_with_a_remedy() {
        let profile = Profile::default();
        let budget = Budget::of(&profile, "main", 98 << 20);
        assert_eq!((budget.arena, budget.kv), (0, 1 << 30));
        assert_eq!(budget.check(2 << 30), Ok(()));
        let said = budget.check(1 << 30).unwrap_err().to_string();
        let expected = "\
            the memory of this profile does not close: the house takes up to 1.3 GiB, and there are 1 GiB for it:\n  \
              KV pages       1 GiB\n  \
              all else     256 MiB\n  \
              weights       98 MiB\n  \
              together     1.3 GiB\n\
            set engine.main.kv_bytes_max to at most '670 MiB'";
        assert_eq!(said, expected);
    }

    #[test]
    fn what_it_would_lower_closes_then() {
        for available in [400 * MIB, 600 * MIB, 856 * MIB] {
            let Balance::Short { remedy, .. } = budget(512 * MIB).balance(available) else {
                panic!("the arena is more");
            };
            let number = remedy.split('\'').nth(1).unwrap();
            let arena: Bytes = number.parse().unwrap();
            let lowered = budget(arena.get()).balance(available);
            assert!(matches!(lowered, Balance::Tight { .. }), "{lowered:?}");
        }
    }

    #[test]
    fn the_terms_are_named_largest_first() {
        let terms = budget(0).terms();
        assert_eq!(terms, "KV pages 1 GiB, all else 256 MiB, weights 100 MiB");
        assert!(budget(2048 * MIB).terms().starts_with("arena 2 GiB, "));
    }

    #[test]
    fn numbers_that_no_machine_has_are_no_overflow() {
        let budget = Budget {
            weights: u64::MAX,
            arena: u64::MAX,
            ..budget(0)
        };
        assert!(matches!(budget.balance(1), Balance::Short { .. }));
    }
}
