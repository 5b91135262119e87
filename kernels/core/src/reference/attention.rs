use super::{dot, softcap};

/// Shape of a grouped-query attention: query head h reads key/value head h / (n_heads/n_kv_heads).
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Elements of a query and key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
}

/// What architectures add to attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionOptions<'a> {
    /// Multiplies scores.
    pub scale: f32,
    /// A query sees this many keys, its own included; `None`: all before it.
    pub window: Option<u32>,
    /// Scores, after the scale, become cap·tanh(score/cap).
    pub softcap: Option<f32>,
    /// Per head a logit that takes part in the softmax and has no value: (n_heads).
    pub sinks: Option<&'a [f32]>,
}

/// Plain attention with scale 1.
impl Default for AttentionOptions<'_> {
    fn default() -> Self {
        Self {
            scale: 1.0,
            window: None,
            softcap: None,
            sinks: None,
        }
    }
}

/// Causal attention softmax(q·kᵀ·scale)·v: query i, at position `first_position` + i, sees keys up to
/// its own, within the window.
///
/// Shapes: q (n, n_heads, key_dim); k (keys, n_kv_heads, key_dim); v (keys, n_kv_heads, value_dim);
///         result (n, n_heads, value_dim)
#[must_use]
pub fn attention(
    shape: AttentionShape,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    first_position: usize,
    options: AttentionOptions<'_>,
) -> Vec<f64> {
    let AttentionShape {
        n_heads,
        n_kv_heads,
        key_dim,
        value_dim,
    } = shape;
    let n = q.len() / (n_heads * key_dim);
    let mut out = Vec::with_capacity(n * n_heads * value_dim);
    for i in 0..n {
        let seen = first_position + i + 1;
        assert!(
            k.len() >= seen * n_kv_heads * key_dim && v.len() >= seen * n_kv_heads * value_dim,
            "keys up to position {seen}"
        );
        let first = options
            .window
            .map_or(0, |window| seen.saturating_sub(window as usize));
        for h in 0..n_heads {
            let kv_head = h / (n_heads / n_kv_heads);
            let query = &q[(i * n_heads + h) * key_dim..][..key_dim];
            let score = |j: usize| {
                let key = &k[(j * n_kv_heads + kv_head) * key_dim..][..key_dim];
                let score = dot(query, key) * f64::from(options.scale);
                options.softcap.map_or(score, |cap| softcap(score, cap))
            };
            let scores: Vec<f64> = (first..seen).map(score).collect();
            let sink = options.sinks.map(|sinks| f64::from(sinks[h]));
            let weights = weights(&scores, sink);
            for d in 0..value_dim {
                let value = |j: usize| f64::from(v[(j * n_kv_heads + kv_head) * value_dim + d]);
                let terms = weights.iter().zip(first..).map(|(w, j)| w * value(j));
                out.push(terms.sum());
            }
        }
    }
    out
}

fn weights(scores: &[f64], sink: Option<f64>) -> Vec<f64> {
    let start = sink.unwrap_or(f64::NEG_INFINITY);
    let max = scores.iter().copied().fold(start, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
    weights.into_iter().map(|weight| weight / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: AttentionShape = AttentionShape {
        n_heads: 2,
        n_kv_heads: 1,
        key_dim: 2,
        value_dim: 2,
    };
    const PLAIN: AttentionOptions<'_> = AttentionOptions {
        scale: 0.7,
        window: None,
        softcap: None,
        sinks: None,
    };
    const Q: [f32; 8] = [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0];

    #[test]
    fn one_key_gives_its_value_and_equal_keys_the_mean() {
        let k = [0.5, 0.5, 0.5, 0.5];
        let v = [1.0, 2.0, 3.0, 6.0];
        let out = attention(SHAPE, &Q, &k, &v, 0, PLAIN);
        assert_eq!(out[..4], [1.0, 2.0, 1.0, 2.0]);
        assert_eq!(out[4..], [2.0, 4.0, 2.0, 4.0]);
    }

    #[test]
    fn a_window_of_one_is_the_token_itself() {
        let options = AttentionOptions {
            window: Some(1),
            ..PLAIN
        };
        let k = [0.5, 9.0, -3.0, 0.5];
        let v = [1.0, 2.0, 3.0, 6.0];
        let out = attention(SHAPE, &Q, &k, &v, 0, options);
        assert_eq!(out, [1.0, 2.0, 1.0, 2.0, 3.0, 6.0, 3.0, 6.0]);
    }

    #[test]
    fn a_sink_takes_its_share() {
        // Score 0 for the only key: a sink of ln 3 leaves a quarter.
        let options = AttentionOptions {
            sinks: Some(&[3f32.ln(), -1e9]),
            ..PLAIN
        };
        let out = attention(SHAPE, &Q[..4], &[0.0, 0.0], &[8.0, 4.0], 0, options);
        assert!((out[0] - 2.0).abs() < 1e-6 && (out[1] - 1.0).abs() < 1e-6);
        assert_eq!(out[2..], [8.0, 4.0]);
    }

    #[test]
    fn a_cap_bounds_scores() {
        // Scores 0 and far beyond the cap of 2: weights 1 : e².
        let options = AttentionOptions {
            softcap: Some(2.0),
            ..PLAIN
        };
        let shape = AttentionShape {
            value_dim: 1,
            ..SHAPE
        };
        let out = attention(
            shape,
            &Q[..4],
            &[0.0, 0.0, 900.0, 900.0],
            &[0.0, 1.0],
            1,
            options,
        );
        let share = 2f64.exp() / (1.0 + 2f64.exp());
        assert!(
            out.iter().all(|value| (value - share).abs() < 1e-9),
            "{out:?}"
        );
    }
}
