//! The house's memory as one sum, before any of it is taken. Pure.

use vitriol_units::Bytes;

/// The least that the profile takes for an arena.
const ARENA_BYTES_MIN: u64 = 4 << 20;

/// What the house takes of a machine's memory, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    pub weights: u64,
    /// Code, tokenizer, buffers of a step, the small daemons.
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

impl Budget {
    /// What is taken at the start.
    pub fn least(&self) -> u64 {
        let fixed = self.weights.saturating_add(self.overhead);
        fixed.saturating_add(self.arena)
    }

    /// What may be taken at most.
    pub fn most(&self) -> u64 {
        self.least().saturating_add(self.kv)
    }

    /// Every term by its name, largest first.
    pub fn terms(&self) -> String {
        let mut terms = [
            ("weights", self.weights),
            ("arena", self.arena),
            ("KV pages", self.kv),
            ("all else", self.overhead),
        ];
        terms.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let terms = terms.iter().filter(|(_, bytes)| *bytes > 0);
        let terms = terms.map(|(name, bytes)| format!("{name} {}", Bytes(*bytes).rounded()));
        terms.collect::<Vec<_>>().join(", ")
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
