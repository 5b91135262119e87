use crate::{
    kv::{BlockKey, KvCodecs, PAGE_TOKENS, Window},
    model::KvGroup,
};
use std::ops::Range;
use vitriol_kernels_cpu::{Isa, NUMERICS_VERSION};
use vitriol_proto::kvtier::v1::{RecordName, SessionChain, SessionPart};

/// Parts of one page at most: their numbers share a word with that of the group.
const PARTS_MAX: u32 = 1 << 16;

/// How pages are cut into records, and how these are called.
///
/// ```text
/// page of a group: |layer 0 K|layer 0 V|layer 1 K|…|      as the kernels have it, codecs included
/// records:         |part 0     |part 1     |part 2 |      each a slot long, the last what is left
/// ```
#[derive(Clone, Debug)]
pub struct RecordLayout {
    tag: [u8; 16],
    /// By group, bytes of a page.
    page_bytes: Vec<usize>,
    slot_bytes: usize,
}

impl RecordLayout {
    /// `page_bytes`: by group; `encoding`: of [`encoding`].
    ///
    /// The tag says how pages are cut too, where they are: parts of another length are other records.
    pub fn new(encoding: &[u8; 32], page_bytes: &[usize], slot_bytes: usize) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("vitriol 2026 KV encoding tag v1");
        hasher.update(encoding);
        for &bytes in page_bytes {
            hasher.update(&(bytes.min(slot_bytes) as u64).to_le_bytes());
        }
        let mut tag = [0; 16];
        hasher.finalize_xof().fill(&mut tag);
        Self {
            tag,
            page_bytes: page_bytes.to_vec(),
            slot_bytes,
        }
    }

    pub fn parts(&self, group: usize) -> usize {
        self.page_bytes[group].div_ceil(self.slot_bytes)
    }

    /// The bytes of a page that a part has.
    pub fn range(&self, group: usize, part: usize) -> Range<usize> {
        let from = part * self.slot_bytes;
        from..(from + self.slot_bytes).min(self.page_bytes[group])
    }

    pub fn name(&self, key: &BlockKey, group: usize, part: usize) -> RecordName {
        RecordName {
            key: key.as_bytes().to_vec(),
            tag: self.tag.to_vec(),
            group: number(group, part),
        }
    }

    /// A conversation's full blocks and the records that each has. `windows`: by group, what its queries see.
    pub fn chain(&self, windows: &[Window], keys: &[BlockKey]) -> SessionChain {
        let parts = windows.iter().enumerate().flat_map(|(group, window)| {
            let needed_from = window.first_block(keys.len() * PAGE_TOKENS).min(keys.len());
            (0..self.parts(group)).map(move |part| SessionPart {
                group: number(group, part),
                needed_from: needed_from as u32,
            })
        });
        let keys = keys.iter().flat_map(|key| key.as_bytes());
        SessionChain {
            tag: self.tag.to_vec(),
            parts: parts.collect(),
            keys: keys.copied().collect(),
        }
    }

    /// Whether every page has few enough parts to number.
    pub fn can_be_numbered(&self) -> bool {
        let mut groups = 0..self.page_bytes.len();
        groups.all(|group| self.parts(group) <= PARTS_MAX as usize)
    }
}

/// Number of a part, as kvtier has it.
fn number(group: usize, part: usize) -> u32 {
    group as u32 * PARTS_MAX + part as u32
}

/// Whatever decides the bytes of a page beside the model and its tokens: codecs, where they lie, how they
/// are computed.
pub fn encoding(groups: &[KvGroup], codecs: KvCodecs, isa: Isa) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("vitriol 2026 KV encoding v1");
    let mut number = |n: usize| {
        hasher.update(&(n as u64).to_le_bytes());
    };
    number(NUMERICS_VERSION as usize);
    number(PAGE_TOKENS);
    for group in groups {
        number(group.window.map_or(0, |tokens| tokens as usize));
        number(group.n_kv_heads);
        number(group.key_dim);
        number(group.value_dim);
        number(group.layers.len());
        group.layers.iter().for_each(|&layer| number(layer));
    }
    let names = [
        codecs.keys.name(),
        codecs.values.name(),
        isa.family().name(),
    ];
    hasher.update(names.join("/").as_bytes());
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::BlockKeys;
    use proptest::prelude::*;
    use vitriol_kernels_core::KvCodec;

    fn key() -> BlockKey {
        BlockKeys::new(&[1; 32], b"").parent(None)
    }

    #[test]
    fn a_page_is_one_record_where_it_fits_and_numbered_parts_where_not() {
        let layout = RecordLayout::new(&[0; 32], &[4096, 10_000], 4096);
        assert_eq!((layout.parts(0), layout.parts(1)), (1, 3));
        assert_eq!(layout.range(0, 0), 0..4096);
        assert_eq!(layout.range(1, 2), 8192..10_000);
        let numbers = [(0, 0), (1, 0), (1, 2)].map(|(g, p)| layout.name(&key(), g, p).group);
        assert_eq!(numbers, [0, 0x1_0000, 0x1_0002]);
        let small = RecordLayout::new(&[0; 32], &[PARTS_MAX as usize + 1], 1);
        assert!(layout.can_be_numbered() && !small.can_be_numbered());
    }

    #[test]
    fn a_conversation_has_all_records_and_needs_those_that_its_next_token_sees() {
        let layout = RecordLayout::new(&[0; 32], &[4096, 5000], 4096);
        let windows = [None, Some(100)].map(|tokens| Window { tokens });
        let keys = BlockKeys::new(&[1; 32], b"").chain(&[7; 5 * PAGE_TOKENS]);
        let chain = layout.chain(&windows, &keys);
        let parts = chain.parts.iter();
        let parts: Vec<_> = parts.map(|part| (part.group, part.needed_from)).collect();
        // The query at 320 sees keys 221 to 320.
        assert_eq!(parts, [(0, 0), (0x1_0000, 3), (0x1_0001, 3)]);
        assert_eq!(chain.keys.len(), 5 * 32);
        assert_eq!(chain.keys[..32], *keys[0].as_bytes());
        assert_eq!(chain.tag, layout.name(&keys[0], 0, 0).tag);
    }

    #[test]
    fn records_of_another_cut_are_others_and_uncut_ones_are_the_same() {
        let tag = |page_bytes, slot_bytes| RecordLayout::new(&[0; 32], page_bytes, slot_bytes).tag;
        assert_eq!(tag(&[100, 200], 4096), tag(&[100, 200], 8192));
        assert_ne!(tag(&[5000], 4096), tag(&[5000], 8192));
        assert_ne!(
            tag(&[100], 4096),
            RecordLayout::new(&[1; 32], &[100], 4096).tag
        );
    }

    #[test]
    fn an_encoding_is_of_everything_that_decides_a_bit() {
        let group = KvGroup {
            window: None,
            n_kv_heads: 2,
            key_dim: 32,
            value_dim: 32,
            layers: vec![0, 1],
        };
        let f32 = encoding(std::slice::from_ref(&group), KvCodecs::F32, Isa::Avx2);
        let values = KvCodecs {
            values: KvCodec::F16,
            ..KvCodecs::F32
        };
        let windowed = KvGroup {
            window: Some(16),
            ..group.clone()
        };
        let others = [
            encoding(std::slice::from_ref(&group), values, Isa::Avx2),
            encoding(&[windowed], KvCodecs::F32, Isa::Avx2),
            encoding(std::slice::from_ref(&group), KvCodecs::F32, Isa::Scalar),
        ];
        assert!(!others.contains(&f32));
        // Those that agree bit for bit share what they stored.
        for isa in [Isa::AvxVnni, Isa::Avx512] {
            assert_eq!(
                encoding(std::slice::from_ref(&group), KvCodecs::F32, isa),
                f32
            );
        }
    }

    proptest! {
        #[test]
        fn parts_are_the_page_in_order(page in 1usize..100_000, slot in 1usize..50_000) {
            let layout = RecordLayout::new(&[0; 32], &[page], slot);
            let mut next = 0;
            for part in 0..layout.parts(0) {
                let range = layout.range(0, part);
                prop_assert_eq!(range.start, next);
                prop_assert!(!range.is_empty() && range.len() <= slot);
                next = range.end;
            }
            prop_assert_eq!(next, page);
        }
    }
}
