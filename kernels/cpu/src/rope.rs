pub use vitriol_kernels_core::reference::RopeStyle;

/// Rotary position embedding of a layer: how fast each pair of a head turns.
///
/// Source: Su et al., RoFormer; frequency factors as in Llama 3.1; magnitude as in Peng et al., YaRN.
#[derive(Clone, Debug)]
pub struct RopeTable {
    style: RopeStyle,
    /// Radians per position of each pair.
    turns: Vec<f64>,
    /// Scales cosines and sines.
    magnitude: f64,
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
    /// A table whose pair `i` turns by `turns[i]` radians per position, cosines and sines multiplied by
    /// `magnitude`.
    #[must_use]
    pub fn from_turns(style: RopeStyle, turns: Vec<f64>, magnitude: f64) -> Self {
        Self {
            style,
            turns,
            magnitude,
        }
    }

    /// Leading elements of each head that turn.
    #[must_use]
    pub fn n_rot(&self) -> usize {
        2 * self.turns.len()
    }

    /// An empty set of angles to fill with [`RopeTable::angles`].
    #[must_use]
    pub fn empty_angles(&self) -> RopeAngles {
        RopeAngles {
            style: self.style,
            n_rot: self.n_rot(),
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
        angles.n_rot = self.n_rot();
        angles.n = positions.len();
        angles.cos.clear();
        angles.sin.clear();
        for &position in positions {
            for turn in &self.turns {
                let (sin, cos) = (turn * f64::from(position)).sin_cos();
                angles.cos.push((cos * self.magnitude) as f32);
                angles.sin.push((sin * self.magnitude) as f32);
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

    /// Turns elements `first..first + n_rot` of the heads of token `row` in place: x (heads, head_dim).
    pub(crate) fn turn(&self, row: usize, x: &mut [f32], head_dim: usize, first: usize) {
        let half = self.n_rot / 2;
        let cos = &self.cos[row * half..][..half];
        let sin = &self.sin[row * half..][..half];
        for head in x.chunks_exact_mut(head_dim) {
            match self.style {
                RopeStyle::Norm => {
                    let pairs = head[first..][..self.n_rot].as_chunks_mut::<2>().0;
                    for ((pair, &cos), &sin) in pairs.iter_mut().zip(cos).zip(sin) {
                        *pair = [pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos];
                    }
                }
                RopeStyle::Neox => {
                    let (low, high) = head[first..][..self.n_rot].split_at_mut(half);
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
