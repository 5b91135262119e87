use vitriol_kernels_core::{KvCodec, KvHeads, bytes_per_token};

/// Tokens of a KV page where the engine was not asked.
const PAGE_TOKENS: u64 = 64;

/// Layers that keep the same tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// `None`: they keep all.
    pub window_tokens: Option<u64>,
    pub heads: KvHeads,
}

/// What a model keeps of the tokens it has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvNeed {
    pub groups: Vec<KvGroup>,
    pub page_tokens: u64,
    /// Whether it is only known that it is no more: the engine does not run the model, and windows
    /// are not taken off.
    pub is_bound: bool,
}

impl KvNeed {
    pub fn of_groups(groups: Vec<KvGroup>, page_tokens: u64) -> Self {
        Self {
            groups,
            page_tokens,
            is_bound: false,
        }
    }

    /// As if every layer kept all tokens.
    pub fn at_most(layers: Vec<KvHeads>) -> Self {
        let group = |heads| KvGroup {
            window_tokens: None,
            heads,
        };
        Self {
            groups: layers.into_iter().map(group).collect(),
            page_tokens: PAGE_TOKENS,
            is_bound: true,
        }
    }

    /// The same without values.
    pub fn keys_only(&self) -> Self {
        let mut keys = self.clone();
        for group in &mut keys.groups {
            group.heads.value_dim = 0;
        }
        keys
    }

    /// Bytes that every token adds, keys and values: those of the layers without a window.
    pub fn bytes_per_token(&self, keys: KvCodec, values: KvCodec) -> u64 {
        let full = self.groups.iter().filter(|g| g.window_tokens.is_none());
        full.map(|group| bytes_per_token(group.heads, keys, values))
            .sum()
    }

    /// Bytes of the windows of a sequence that has filled them.
    pub fn window_bytes(&self, keys: KvCodec, values: KvCodec) -> u64 {
        self.windows_at(u64::MAX, keys, values)
    }

    /// Bytes of a sequence of `tokens`.
    pub fn bytes_at(&self, tokens: u64, keys: KvCodec, values: KvCodec) -> u64 {
        let full = self.bytes_per_token(keys, values);
        let windows = self.windows_at(tokens, keys, values);
        full.saturating_mul(tokens).saturating_add(windows)
    }

    /// Longest sequence that `bytes` hold, at most `tokens_max`.
    pub fn tokens_within(&self, bytes: u64, tokens_max: u64, codecs: [KvCodec; 2]) -> u64 {
        let [keys, values] = codecs;
        let (mut fitting, mut beyond) = (0, tokens_max.saturating_add(1));
        while beyond - fitting > 1 {
            let tokens = fitting + (beyond - fitting) / 2;
            match self.bytes_at(tokens, keys, values) <= bytes {
                true => fitting = tokens,
                false => beyond = tokens,
            }
        }
        fitting
    }

    fn windows_at(&self, tokens: u64, keys: KvCodec, values: KvCodec) -> u64 {
        let of_group = |group: &KvGroup| {
            let window = group.window_tokens?;
            // A window lies across one page more than it fills.
            let pages = window.div_ceil(self.page_tokens).saturating_add(1);
            let kept = pages.saturating_mul(self.page_tokens).min(tokens);
            Some(kept.saturating_mul(bytes_per_token(group.heads, keys, values)))
        };
        let bytes = self.groups.iter().filter_map(of_group);
        bytes.fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use KvCodec::{F16, F32, Q4_0, Q8_0};

    fn group(window_tokens: Option<u64>, n_layers: usize) -> KvGroup {
        KvGroup {
            window_tokens,
            heads: KvHeads {
                n_layers,
                n_kv_heads: 3,
                key_dim: 64,
                value_dim: 32,
            },
        }
    }

    #[test]
    fn each_side_has_its_codec() {
        let need = KvNeed::of_groups(vec![group(None, 2)], 64);
        assert_eq!(need.bytes_per_token(F32, F32), 2 * 3 * (64 + 32) * 4);
        assert_eq!(need.bytes_per_token(F16, F16), 2 * 3 * (64 + 32) * 2);
        assert_eq!(need.bytes_per_token(Q8_0, Q4_0), 2 * 3 * (2 * 34 + 18));
        assert_eq!(need.window_bytes(F32, F32), 0);
    }

    #[test]
    fn windows_fill_and_stay() {
        let need = KvNeed::of_groups(vec![group(None, 1), group(Some(100), 5)], 64);
        let (full, windowed) = (3 * 96 * 4, 5 * 3 * 96 * 4);
        assert_eq!(need.bytes_per_token(F32, F32), full);
        // 100 tokens are two pages, and a third that they may lie across.
        assert_eq!(need.window_bytes(F32, F32), 192 * windowed);
        assert_eq!(need.bytes_at(50, F32, F32), 50 * (full + windowed));
        assert_eq!(need.bytes_at(1000, F32, F32), 1000 * full + 192 * windowed);
    }

    #[test]
    fn the_longest_sequence_fits_and_one_token_more_does_not() {
        let need = KvNeed::of_groups(vec![group(None, 1), group(Some(100), 5)], 64);
        for bytes in [0, 1 << 20, 1 << 30] {
            let tokens = need.tokens_within(bytes, u64::from(u32::MAX), [F32; 2]);
            assert!(need.bytes_at(tokens, F32, F32) <= bytes);
            assert!(need.bytes_at(tokens + 1, F32, F32) > bytes);
        }
        assert_eq!(need.tokens_within(1 << 40, 512, [F32; 2]), 512);
    }
}
