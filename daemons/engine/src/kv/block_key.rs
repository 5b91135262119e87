use super::PAGE_TOKENS;

/// Names the content of one full block of [`PAGE_TOKENS`] tokens and of all blocks before it.
///
/// `key_i = BLAKE3(key_{i-1} || 64 token ids, u32 little-endian)`, `key_{-1}` = the seed. Two blocks
/// with equal keys hold the same KV for the same model, so one may serve for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey([u8; 32]);

/// Makes the keys of one sequence's blocks.
#[derive(Clone, Copy, Debug)]
pub struct BlockKeys {
    seed: BlockKey,
}

impl BlockKey {
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl BlockKeys {
    /// `model_identity`: whatever tells one model's KV from another's. `salt`: keeps the blocks of
    /// tenants apart that must not learn of each other's prompts by timing; empty = shared.
    pub fn new(model_identity: &[u8; 32], salt: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("vitriol 2026 block key v1");
        hasher.update(model_identity);
        hasher.update(salt);
        Self {
            seed: BlockKey(*hasher.finalize().as_bytes()),
        }
    }

    /// What a block is known to follow: `before`, or that nothing comes before it.
    pub fn parent(&self, before: Option<BlockKey>) -> BlockKey {
        before.unwrap_or(self.seed)
    }

    /// Key of the block that follows the one named `parent` (`None`: the first block).
    /// `tokens` holds exactly [`PAGE_TOKENS`] ids.
    pub fn next(&self, parent: Option<BlockKey>, tokens: &[u32]) -> BlockKey {
        assert_eq!(tokens.len(), PAGE_TOKENS, "only full blocks have keys");
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.parent(parent).0);
        for id in tokens {
            hasher.update(&id.to_le_bytes());
        }
        BlockKey(*hasher.finalize().as_bytes())
    }

    /// The full blocks of a prompt that need no computing if they are cached: at least one token is left
    /// over, because the logits after the last one are needed.
    pub fn reusable(prompt: &[u32]) -> &[u32] {
        let full = prompt.len().saturating_sub(1) / PAGE_TOKENS * PAGE_TOKENS;
        &prompt[..full]
    }

    /// Keys of all full blocks of `tokens`, in order.
    pub fn chain(&self, tokens: &[u32]) -> Vec<BlockKey> {
        let mut keys = Vec::with_capacity(tokens.len() / PAGE_TOKENS);
        for block in tokens.chunks_exact(PAGE_TOKENS) {
            keys.push(self.next(keys.last().copied(), block));
        }
        keys
    }
}

/// A prompt's blocks as a lookup wants them; made where the prompt is, so that the step thread does not
/// hash.
#[derive(Clone, Debug)]
pub struct PromptBlocks {
    pub keys: BlockKeys,
    /// Keys of the prompt's reusable blocks.
    pub chain: Vec<BlockKey>,
}

impl PromptBlocks {
    /// `salt`: keeps the blocks apart from those of others; empty = shared.
    pub fn new(model_identity: &[u8; 32], salt: &[u8], prompt: &[u32]) -> Self {
        let keys = BlockKeys::new(model_identity, salt);
        let chain = keys.chain(BlockKeys::reusable(prompt));
        Self { keys, chain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_the_block_and_all_before_it() {
        let keys = BlockKeys::new(&[1; 32], b"");
        let a: Vec<u32> = (0..200).collect();
        let mut b = a.clone();
        b[0] = 9;
        let (ka, kb) = (keys.chain(&a), keys.chain(&b));
        assert_eq!(ka.len(), 3);
        assert_eq!(ka[..2], keys.chain(&a[..128])[..]);
        assert!(
            ka.iter().zip(&kb).all(|(x, y)| x != y),
            "a change at 0 changes every key"
        );
        b[0] = a[0];
        b[64] = 9;
        let kb = keys.chain(&b);
        assert_eq!(ka[0], kb[0]);
        assert_ne!(ka[1], kb[1]);
        assert_ne!(ka[2], kb[2]);
    }

    #[test]
    fn model_and_salt_keep_blocks_apart() {
        let tokens = [5; 64];
        let all = [
            BlockKeys::new(&[1; 32], b"").chain(&tokens)[0],
            BlockKeys::new(&[2; 32], b"").chain(&tokens)[0],
            BlockKeys::new(&[1; 32], b"tenant").chain(&tokens)[0],
        ];
        assert_ne!(all[0], all[1]);
        assert_ne!(all[0], all[2]);
        assert_ne!(all[1], all[2]);
    }
}
