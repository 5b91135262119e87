use vitriol_kernels_core::reference::rope_angle;

pub use vitriol_kernels_core::reference::RopeStyle;

/// Rotary position embedding of a model: how fast each pair of a head turns.
///
/// Source: Su et al., RoFormer; frequency factors as in Llama 3.1.
#[derive(Clone, Debug)]
pub struct RopeTable {
    style: RopeStyle,
    n_rot: usize,
    freq_base: f32,
    linear_scale: f32,
    freq_factors: Option<Vec<f32>>,
}

/// Cosines and sines of one step: one row per position.
#[derive(Clone, Debug)]
pub struct RopeAngles {
    style: RopeStyle,
    n_rot: usize,
    n: usize,
    /// (n, n_rot/2) each.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// Units:  n_rot elements of each head (even); linear_scale multiplies positions (1 = none);
    ///         freq_factors (n_rot/2) divide the frequencies
    ///
    /// # Panics
    /// If `n_rot` is odd or `freq_factors` is not n_rot/2 long.
    #[must_use]
    pub fn new(
        style: RopeStyle,
        n_rot: usize,
        freq_base: f32,
        linear_scale: f32,
        freq_factors: Option<&[f32]>,
    ) -> Self {
        assert!(
            n_rot.is_multiple_of(2),
            "RoPE turns pairs: n_rot {n_rot} is odd"
        );
        if let Some(factors) = freq_factors {
            assert_eq!(factors.len(), n_rot / 2, "one frequency factor per pair");
        }
        let freq_factors = freq_factors.map(<[f32]>::to_vec);
        Self {
            style,
            n_rot,
            freq_base,
            linear_scale,
            freq_factors,
        }
    }

    /// An empty set of angles to fill with [`RopeTable::angles`].
    #[must_use]
    pub fn empty_angles(&self) -> RopeAngles {
        RopeAngles {
            style: self.style,
            n_rot: self.n_rot,
            n: 0,
            cos: Vec::new(),
            sin: Vec::new(),
        }
    }

    /// Computes the angles of a step's positions, once for all layers and heads.
    ///
    /// Cost:     n·n_rot/2 cosines and sines; reuses the buffers of `angles`
    /// Numerics: f64, rounded once; depends on the position alone
    pub fn angles(&self, positions: &[u32], angles: &mut RopeAngles) {
        angles.style = self.style;
        angles.n_rot = self.n_rot;
        angles.n = positions.len();
        angles.cos.clear();
        angles.sin.clear();
        let factors = self.freq_factors.as_deref();
        let turns: Vec<f64> = (0..self.n_rot / 2)
            .map(|pair| {
                rope_angle(
                    1,
                    pair,
                    self.n_rot,
                    self.freq_base,
                    self.linear_scale,
                    factors,
                )
            })
            .collect();
        for &position in positions {
            for turn in &turns {
                let (sin, cos) = (turn * f64::from(position)).sin_cos();
                angles.cos.push(cos as f32);
                angles.sin.push(sin as f32);
            }
        }
    }
}

impl RopeAngles {
    /// Positions in this set.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Turns the heads of token `row` in place: x (heads, head_dim).
    pub(crate) fn turn(&self, row: usize, x: &mut [f32], head_dim: usize) {
        let half = self.n_rot / 2;
        let cos = &self.cos[row * half..][..half];
        let sin = &self.sin[row * half..][..half];
        for head in x.chunks_exact_mut(head_dim) {
            match self.style {
                RopeStyle::Norm => {
                    let pairs = head[..self.n_rot].as_chunks_mut::<2>().0;
                    for ((pair, &cos), &sin) in pairs.iter_mut().zip(cos).zip(sin) {
                        *pair = [pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos];
                    }
                }
                RopeStyle::Neox => {
                    let (low, high) = head[..self.n_rot].split_at_mut(half);
                    let turned = low.iter_mut().zip(high).zip(cos).zip(sin);
                    for (((low, high), &cos), &sin) in turned {
                        (*low, *high) = (*low * cos - *high * sin, *low * sin + *high * cos);
                    }
                }
            }
        }
    }

    pub(crate) fn n_rot(&self) -> usize {
        self.n_rot
    }
}
