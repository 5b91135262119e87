use vitriol_kernels_core::KvCodec;

use super::kv::KvNeed;

/// What running a model takes.
#[derive(Debug)]
pub struct Demand<'a> {
    /// As they lie in memory.
    pub weights_bytes: u64,
    /// The house without weights and KV.
    pub overhead_bytes: u64,
    /// Tokens of one full context.
    pub context_tokens: u64,
    pub kv: &'a KvNeed,
    /// Of keys and of values.
    pub codecs: [KvCodec; 2],
}

/// What there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supply {
    /// Memory of the machine that can be taken without swapping.
    pub available_bytes: u64,
    /// What the profile grants to the KV.
    pub kv_bytes_max: u64,
}

/// Whether a model fits, and how much context does.
#[derive(Debug, PartialEq, Eq)]
pub struct Fit {
    pub verdict: Verdict,
    pub weights_bytes: u64,
    pub overhead_bytes: u64,
    pub context_tokens: u64,
    /// Of one full context.
    pub kv_bytes: u64,
    /// Longest context that fits, at most the full one.
    pub context_tokens_fit: u64,
    pub codecs: [KvCodec; 2],
    pub supply: Supply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Weights and a full context.
    Fits,
    /// The machine would hold a full context, the profile does not grant it.
    BeyondProfile,
    /// The weights fit, a full context does not.
    ContextTooLong,
    /// Not even the weights.
    TooLarge,
}

impl Verdict {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::BeyondProfile => "beyond_profile",
            Self::ContextTooLong => "context_too_long",
            Self::TooLarge => "too_large",
        }
    }
}

impl Fit {
    pub fn judge(demand: &Demand<'_>, supply: Supply) -> Self {
        let [keys, values] = demand.codecs;
        let kv_bytes = demand.kv.bytes_at(demand.context_tokens, keys, values);
        let least = demand.weights_bytes.saturating_add(demand.overhead_bytes);
        let room = supply.available_bytes.checked_sub(least);
        let verdict = match room {
            None => Verdict::TooLarge,
            Some(room) if kv_bytes > room => Verdict::ContextTooLong,
            Some(_) if kv_bytes > supply.kv_bytes_max => Verdict::BeyondProfile,
            Some(_) => Verdict::Fits,
        };
        let granted = room.unwrap_or(0).min(supply.kv_bytes_max);
        Self {
            verdict,
            weights_bytes: demand.weights_bytes,
            overhead_bytes: demand.overhead_bytes,
            context_tokens: demand.context_tokens,
            kv_bytes,
            context_tokens_fit: demand.kv.tokens_within(
                granted,
                demand.context_tokens,
                demand.codecs,
            ),
            codecs: demand.codecs,
            supply,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vitriol_kernels_core::KvHeads;

    #[test]
    fn each_shortage_has_its_verdict() {
        // 1 KiB a token, 1 MiB for the whole context.
        let kv = KvNeed::at_most(vec![KvHeads {
            n_layers: 2,
            n_kv_heads: 1,
            key_dim: 64,
            value_dim: 64,
        }]);
        let demand = Demand {
            weights_bytes: 10 << 20,
            overhead_bytes: 1 << 20,
            context_tokens: 1024,
            kv: &kv,
            codecs: [KvCodec::F32; 2],
        };
        let judge = |available_bytes, kv_bytes_max| {
            let fit = Fit::judge(
                &demand,
                Supply {
                    available_bytes,
                    kv_bytes_max,
                },
            );
            assert_eq!(fit.kv_bytes, 1 << 20);
            (fit.verdict, fit.context_tokens_fit)
        };
        assert_eq!(judge(12 << 20, 1 << 20), (Verdict::Fits, 1024));
        assert_eq!(judge(12 << 20, 1 << 19), (Verdict::BeyondProfile, 512));
        let half = (12 << 20) - (1 << 19);
        assert_eq!(judge(half, 1 << 20), (Verdict::ContextTooLong, 512));
        assert_eq!(judge(half, 1 << 18), (Verdict::ContextTooLong, 256));
        assert_eq!(judge(10 << 20, 1 << 20), (Verdict::TooLarge, 0));
    }
}
