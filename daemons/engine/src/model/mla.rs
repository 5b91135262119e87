//! Multi-head latent attention (DeepSeek-V2, section 2.1), absorbed: all heads read one key and one
//! value a token, the compressed vector c itself.
//!
//! A head's key would be `k_up·c` and its score `q·(k_up·c)`; instead the query takes `k_up` on,
//! `(k_upᵀ·q)·c`, and likewise `v_up` is applied to the attended c, once for each query.

use super::{
    Hyperparameters, Model, ModelError,
    keys::Keys,
    rope::RopeSpec,
    weights::{Linear, TensorSource},
};
use crate::forward::{Activations, Batch, KvStores};
use vitriol_kernels_cpu::{
    AttentionOptions, Cpu, ExpertProduct, HEAD_DIM_MAX, PanelMatrix, TokenRows,
};

/// Widths of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlaShape {
    /// Width of the compressed queries; `None`: queries are not compressed.
    pub q_rank: Option<usize>,
    /// Width of c.
    pub kv_rank: usize,
    /// Elements of a head's query that do not rotate.
    pub unrotated: usize,
    /// Elements that do, and that all heads' keys share.
    pub rotated: usize,
    /// Elements of a head's value.
    pub value: usize,
}

impl MlaShape {
    /// Reads the keys of absorbed files, which state the heads' own widths beside those of the cache,
    /// and of older ones, which state the heads' alone.
    pub fn read(keys: &Keys<'_>, d_model: usize, n_heads: usize) -> Result<Self, ModelError> {
        let per_head = d_model / n_heads.max(1);
        let key = keys.dimension_or("attention.key_length", per_head)?;
        let value = keys.dimension_or("attention.value_length", per_head)?;
        let key = keys.dimension_or("attention.key_length_mla", key)?;
        let value = keys.dimension_or("attention.value_length_mla", value)?;
        let rotated = keys.dimension("rope.dimension_count")?;
        let kv_rank = keys.dimension("attention.kv_lora_rank")?;
        if rotated >= key {
            let problem = format!("{rotated} rotating elements leave nothing of a head of {key}");
            return Err(keys.wrong("rope.dimension_count", problem));
        }
        if kv_rank + rotated > HEAD_DIM_MAX {
            let problem = format!("keys of {kv_rank} + {rotated} are above {HEAD_DIM_MAX}");
            return Err(keys.wrong("attention.kv_lora_rank", problem));
        }
        let q_rank = keys.optional_dimension("attention.q_lora_rank")?;
        Ok(Self {
            q_rank,
            kv_rank,
            unrotated: key - rotated,
            rotated,
            value,
        })
    }

    /// Elements of the one key a token caches: c and the rotated part.
    pub fn key_dim(&self) -> usize {
        self.kv_rank + self.rotated
    }

    /// Elements of a head's query before it takes on the key matrix.
    fn query(&self) -> usize {
        self.unrotated + self.rotated
    }

    /// 1/√(query width), grown by the square of YaRN's magnitude with the file's multiplier, which is
    /// stored as a tenth.
    pub fn attention_scale(&self, rope: &RopeSpec) -> f32 {
        let multiplier = f64::from(rope.log_multiplier.unwrap_or(0.0)) / 0.1;
        let magnitude = 1.0 + 0.1 * multiplier * (1.0 / f64::from(rope.scale)).ln();
        (magnitude * magnitude / (self.query() as f64).sqrt()) as f32
    }
}

/// Weights of a block's latent attention.
#[derive(Debug)]
pub struct LatentAttention {
    shape: MlaShape,
    query: Query,
    /// (kv_rank + rotated, d_model)
    kv_down: Linear,
    /// (kv_rank)
    kv_norm: Vec<f32>,
    /// By head, (kv_rank, unrotated): the key matrix, transposed.
    keys: Vec<PanelMatrix>,
    /// By head, (value, kv_rank).
    values: Vec<PanelMatrix>,
    wo: Linear,
}

/// How queries come from the residual stream.
#[derive(Debug)]
enum Query {
    Direct(Linear),
    Compressed {
        down: Linear,
        norm: Vec<f32>,
        up: Linear,
    },
}

/// Intermediate results, reused.
#[derive(Debug, Default)]
pub struct Latent {
    /// (n, q_rank)
    q_down: Vec<f32>,
    /// (n, n_heads, unrotated + rotated)
    q: Vec<f32>,
    /// (n, kv_rank + rotated)
    kv: Vec<f32>,
    /// (n_heads, n, width of a head's input), (n_heads, n, width of its output)
    by_head: [Vec<f32>; 2],
    /// (n, n_heads, value)
    out: Vec<f32>,
}

impl LatentAttention {
    pub fn load(
        source: &mut TensorSource<'_>,
        hyper: &Hyperparameters,
        shape: &MlaShape,
        index: usize,
    ) -> Result<Self, ModelError> {
        let (d, heads) = (hyper.d_model, hyper.n_heads);
        let name = |part: &str| format!("blk.{index}.{part}");
        let (q, rank) = (heads * shape.query(), shape.kv_rank);
        let query = match shape.q_rank {
            Some(q_rank) => Query::Compressed {
                down: source.linear(&name("attn_q_a"), q_rank, d)?,
                norm: source.vector(&name("attn_q_a_norm.weight"), q_rank)?,
                up: source.linear(&name("attn_q_b"), q, q_rank)?,
            },
            None => Query::Direct(source.linear(&name("attn_q"), q, d)?),
        };
        let together = name("attn_kv_b.weight");
        let (keys, values) = match source.has(&together) {
            true => source.keys_and_values(&together, heads, shape.unrotated, shape.value, rank)?,
            false => {
                let keys = name("attn_k_b.weight");
                let keys = source.experts(&keys, heads, [rank], shape.unrotated)?;
                let values = name("attn_v_b.weight");
                let values = source.experts(&values, heads, [shape.value], rank)?;
                let flat = |one: Vec<[PanelMatrix; 1]>| one.into_iter().flatten().collect();
                (flat(keys), flat(values))
            }
        };
        Ok(Self {
            shape: *shape,
            query,
            kv_down: source.linear(&name("attn_kv_a_mqa"), rank + shape.rotated, d)?,
            kv_norm: source.vector(&name("attn_kv_a_norm.weight"), rank)?,
            keys,
            values,
            wo: source.linear(&name("attn_output"), d, heads * shape.value)?,
        })
    }

    /// `act.delta = attention(norm(act.x))`; writes the rows' c into the layer's place in `kv` first.
    pub fn forward(
        &self,
        model: &Model,
        layer: usize,
        norm: &[f32],
        batch: &Batch<'_>,
        kv: &mut KvStores,
        act: &mut Activations,
    ) {
        let (device, hyper, n): (&Cpu, _, _) = (&model.device, &model.hyper, batch.len());
        let shape = &self.shape;
        let (heads, eps) = (hyper.n_heads, hyper.rms_eps);
        let (rank, query, key_dim) = (shape.kv_rank, shape.query(), shape.key_dim());
        device.rms_norm(&act.x, norm, eps, n, hyper.d_model, &mut act.normed);
        let latent = &mut act.latent;
        latent.q.resize(n * heads * query, 0.0);
        latent.kv.resize(n * key_dim, 0.0);
        latent.out.resize(n * heads * shape.value, 0.0);

        match &self.query {
            Query::Direct(direct) => direct.forward(device, &act.normed, n, &mut latent.q),
            Query::Compressed { down, norm, up } => {
                latent.q_down.resize(n * norm.len(), 0.0);
                down.forward(device, &act.normed, n, &mut latent.q_down);
                device.rms_norm_in_place(&mut latent.q_down, norm, eps);
                up.forward(device, &latent.q_down, n, &mut latent.q);
            }
        }
        self.kv_down.forward(device, &act.normed, n, &mut latent.kv);

        // One key and one value a token: [norm(c) | rotated], norm(c).
        let (k, v) = (&mut act.k[..n * key_dim], &mut act.v[..n * rank]);
        copy_columns(&latent.kv, key_dim, 0, v, rank, 0, rank);
        device.rms_norm_in_place(v, &self.kv_norm, eps);
        copy_columns(v, rank, 0, k, key_dim, 0, rank);
        copy_columns(&latent.kv, key_dim, rank, k, key_dim, rank, shape.rotated);

        let q = &mut act.q[..n * heads * key_dim];
        let [input, output] = &mut latent.by_head;
        split_heads(&latent.q, heads, query, shape.unrotated, input);
        multiply_heads(device, &self.keys, input, n, output);
        join_heads(output, heads, rank, q, key_dim);
        copy_columns(
            &latent.q,
            query,
            shape.unrotated,
            q,
            key_dim,
            rank,
            shape.rotated,
        );
        device.rope_from(&act.angles[0], q, key_dim, rank);
        device.rope_from(&act.angles[0], k, key_dim, rank);

        let place = model.kv_layers[layer];
        let group = &batch.groups[place.group];
        let store = kv.store_mut(place);
        device.kv_write(store, place.layer, k, v, &group.places);
        let options = AttentionOptions {
            scale: hyper.attention_scale,
            ..AttentionOptions::default()
        };
        let attended = &mut act.attended[..n * heads * rank];
        device.attention(store, place.layer, q, heads, &group.runs, options, attended);

        split_heads(attended, heads, rank, rank, input);
        multiply_heads(device, &self.values, input, n, output);
        join_heads(output, heads, shape.value, &mut latent.out, shape.value);
        self.wo.forward(device, &latent.out, n, &mut act.delta);
    }
}

/// Each head's rows with its own matrix, in one dispatch.
///
/// Shapes: input (heads, n, cols); output (heads, n, rows)
fn multiply_heads(
    device: &Cpu,
    matrices: &[PanelMatrix],
    input: &[f32],
    n: usize,
    output: &mut Vec<f32>,
) {
    let Some(first) = matrices.first() else {
        return;
    };
    output.resize(matrices.len() * n * first.rows(), 0.0);
    let inputs = input.chunks_exact(n * first.cols());
    let outputs = output.chunks_exact_mut(n * first.rows());
    let parts = matrices.iter().zip(inputs).zip(outputs);
    let mut products: Vec<_> = parts
        .map(|((w, x), out)| ExpertProduct {
            w,
            x: TokenRows::Stored(x),
            out,
        })
        .collect();
    device.matmul_each(&mut products);
}

/// The first `len` elements of each head of (n, heads, width) as (heads, n, len).
fn split_heads(from: &[f32], heads: usize, width: usize, len: usize, to: &mut Vec<f32>) {
    to.clear();
    for head in 0..heads {
        for row in from.chunks_exact(heads * width) {
            to.extend_from_slice(&row[head * width..][..len]);
        }
    }
}

/// (heads, n, len) as the first elements of each head of (n, heads, width).
fn join_heads(from: &[f32], heads: usize, len: usize, to: &mut [f32], width: usize) {
    let n = from.len() / (heads * len);
    for (index, part) in from.chunks_exact(len).enumerate() {
        let (head, row) = (index / n, index % n);
        to[(row * heads + head) * width..][..len].copy_from_slice(part);
    }
}

/// Copies `width` elements from element `from_at` of rows `from_width` wide to element `to_at` of rows
/// `to_width` wide, row by row.
fn copy_columns(
    from: &[f32],
    from_width: usize,
    from_at: usize,
    to: &mut [f32],
    to_width: usize,
    to_at: usize,
    width: usize,
) {
    let rows = from
        .chunks_exact(from_width)
        .zip(to.chunks_exact_mut(to_width));
    for (from, to) in rows {
        to[to_at..to_at + width].copy_from_slice(&from[from_at..from_at + width]);
    }
}
