use super::LayerShape;
use crate::kv::{KvCodecs, Window};
use vitriol_kernels_cpu::KvShape;

/// Layers that keep KV of the same tokens: one page index space serves them all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Keys a query sees, its own included; `None`: all before it.
    pub window: Option<u32>,
    pub n_kv_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    /// The model's layers whose KV it holds, ascending.
    pub layers: Vec<usize>,
}

impl KvGroup {
    /// Shape of the group's KV with room for `pages`.
    pub fn shape(&self, codecs: KvCodecs, pages: usize) -> KvShape {
        KvShape {
            n_layers: self.layers.len(),
            n_kv_heads: self.n_kv_heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            key_codec: codecs.keys,
            value_codec: codecs.values,
            pages,
        }
    }

    /// What its queries see.
    pub fn window(&self) -> Window {
        Window {
            tokens: self.window,
        }
    }
}

/// Where a layer's KV is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Index in [`super::Model::kv_groups`].
    pub group: usize,
    /// Index among the group's layers.
    pub layer: usize,
}

/// Sorts layers into groups, full attention before windows, else in the order of their first layer;
/// returns the groups and each layer's place.
pub fn group_layers(layers: &[LayerShape]) -> (Vec<KvGroup>, Vec<KvLayer>) {
    let mut groups: Vec<KvGroup> = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        if layer.kv_of.is_some() {
            continue;
        }
        let is_its = |group: &&mut KvGroup| {
            (
                group.window,
                group.n_kv_heads,
                group.key_dim,
                group.value_dim,
            ) == (
                layer.window,
                layer.n_kv_heads,
                layer.head_dim,
                layer.value_dim,
            )
        };
        match groups.iter_mut().find(is_its) {
            Some(group) => group.layers.push(index),
            None => groups.push(KvGroup {
                window: layer.window,
                n_kv_heads: layer.n_kv_heads,
                key_dim: layer.head_dim,
                value_dim: layer.value_dim,
                layers: vec![index],
            }),
        }
    }
    groups.sort_by_key(|group| group.window.is_some());
    let mut places = vec![KvLayer { group: 0, layer: 0 }; layers.len()];
    for (group, of) in groups.iter().enumerate() {
        for (layer, &index) in of.layers.iter().enumerate() {
            places[index] = KvLayer { group, layer };
        }
    }
    for (index, layer) in layers.iter().enumerate() {
        if let Some(of) = layer.kv_of {
            places[index] = places[of];
        }
    }
    (groups, places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_attention_comes_first_and_every_layer_has_its_place() {
        let layer = |window| LayerShape {
            n_kv_heads: 2,
            head_dim: 32,
            value_dim: 32,
            d_ff: 8,
            window,
            kv_of: None,
            rope: Some(0),
        };
        let (local, full) = (layer(Some(16)), layer(None));
        let (groups, places) = group_layers(&[local, local, full, local]);
        assert_eq!(groups.len(), 2);
        assert_eq!((groups[0].window, &groups[0].layers[..]), (None, &[2][..]));
        assert_eq!(groups[1].layers, [0, 1, 3]);
        assert_eq!(places[3], KvLayer { group: 1, layer: 2 });
        assert_eq!(places[2], KvLayer { group: 0, layer: 0 });
        let reader = LayerShape {
            kv_of: Some(1),
            ..local
        };
        let (groups, places) = group_layers(&[local, local, full, reader]);
        assert_eq!(
            groups[1].layers,
            [0, 1],
            "a reader of another's KV has none"
        );
        assert_eq!(places[3], places[1]);
    }
}
