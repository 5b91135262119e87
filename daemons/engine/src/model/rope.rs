use super::{ModelError, keys::Keys};
use std::f64::consts::PI;
use vitriol_gguf::Gguf;
use vitriol_kernels_cpu::{RopeStyle, RopeTable};

/// One way in which heads rotate with their position.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Leading dimensions of a head that rotate.
    pub n_rot: usize,
    pub freq_base: f32,
    /// Positions are multiplied by this (1/factor of linear scaling and of YaRN's slow pairs).
    pub scale: f32,
    pub yarn: Option<Yarn>,
    /// Cosines and sines are multiplied by this.
    pub magnitude: f64,
    /// The file's multiplier of YaRN's logarithm, where it has one.
    pub log_multiplier: Option<f32>,
    pub factors: Factors,
}

/// Which pairs YaRN leaves alone: those that turn more than `beta_fast` times over the context the
/// model was first trained for; it scales those that turn less than `beta_slow` times, and blends
/// between. Source: Peng et al., YaRN, section 3.2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    pub original_context: u32,
    pub beta_fast: f32,
    pub beta_slow: f32,
}

/// Which tensor (n_rot/2) divides the frequencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    None,
    /// One set for every context.
    One,
    /// One set for contexts beyond the original one, another for the others.
    ByContext {
        original: usize,
    },
}

const FACTORS: &str = "rope_freqs.weight";
const FACTORS_SHORT: &str = "rope_factors_short.weight";
const FACTORS_LONG: &str = "rope_factors_long.weight";

impl Factors {
    /// The tensor for a context of `context_tokens`, and the one left aside.
    pub fn choose(self, context_tokens: usize) -> (Option<&'static str>, Option<&'static str>) {
        match self {
            Self::None => (None, None),
            Self::One => (Some(FACTORS), None),
            Self::ByContext { original } if context_tokens > original => {
                (Some(FACTORS_LONG), Some(FACTORS_SHORT))
            }
            Self::ByContext { .. } => (Some(FACTORS_SHORT), Some(FACTORS_LONG)),
        }
    }
}

/// What of a model its rotations depend on, beside the keys that state them.
#[derive(Clone, Copy, Debug)]
pub struct Rotated {
    /// Size of the heads, or of what rotates of them; of full layers and of windowed ones.
    pub head_dim: usize,
    pub windowed_dim: usize,
    pub windows_rotate_apart: bool,
    /// Latent attention scales its scores where others scale cosines and sines.
    pub is_latent: bool,
}

/// The rotations of a file, that of full layers first, and the index of the one of windowed layers.
pub fn read_ropes(
    gguf: &Gguf,
    keys: &Keys<'_>,
    of: Rotated,
) -> Result<(Vec<RopeSpec>, usize), ModelError> {
    let Rotated {
        head_dim,
        windowed_dim,
        windows_rotate_apart,
        is_latent,
    } = of;
    let n_rot = rotated(keys, "rope.dimension_count", head_dim, head_dim)?;
    let scaling = Scaling::read(keys)?;
    let original = keys.dimension_or(
        "rope.scaling.original_context_length",
        keys.bounded("context_length", u32::MAX as usize)?,
    )?;
    let factors = match (gguf.tensor(FACTORS), gguf.tensor(FACTORS_LONG)) {
        (Some(_), _) => Factors::One,
        (None, Some(_)) => Factors::ByContext { original },
        (None, None) => Factors::None,
    };
    let yarn = match scaling.is_yarn {
        true => Some(Yarn {
            original_context: original as u32,
            beta_fast: keys.factor("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            beta_slow: keys.factor("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        }),
        false => None,
    };
    let attn_factor = keys.factor("rope.scaling.attn_factor")?.unwrap_or(1.0);
    let log_multiplier = keys.factor("rope.scaling.yarn_log_multiplier")?;
    let net = match (yarn, log_multiplier) {
        (None, _) => 1.0,
        // Latent attention scales its scores instead.
        (Some(_), Some(_)) if is_latent => 1.0,
        (Some(_), multiplier) => yarn_magnitude(scaling.factor, multiplier),
    };
    let full = RopeSpec {
        n_rot,
        freq_base: keys.factor("rope.freq_base")?.unwrap_or(10_000.0),
        scale: 1.0 / scaling.factor,
        yarn,
        magnitude: net * f64::from(attn_factor),
        log_multiplier,
        factors,
    };
    if !windows_rotate_apart {
        return Ok((vec![full], 0));
    }
    let windowed = RopeSpec {
        n_rot: rotated(keys, "rope.dimension_count_swa", windowed_dim, n_rot)?,
        freq_base: keys.factor("rope.freq_base_swa")?.unwrap_or(10_000.0),
        scale: 1.0,
        yarn: None,
        magnitude: 1.0,
        log_multiplier: None,
        factors: Factors::None,
    };
    Ok((vec![full, windowed], 1))
}

/// Leading elements of a head that rotate; where the file does not say, `default`, at most the head.
fn rotated(
    keys: &Keys<'_>,
    key: &str,
    head_dim: usize,
    default: usize,
) -> Result<usize, ModelError> {
    let n_rot = keys.dimension_or(key, default.min(head_dim))?;
    if n_rot > head_dim || !n_rot.is_multiple_of(2) {
        let problem = format!("{n_rot} is not an even number up to the head size {head_dim}");
        return Err(keys.wrong(key, problem));
    }
    Ok(n_rot)
}

/// What YaRN makes of cosines and sines: 1 + ln(factor)/10, which a multiplier in the file takes back.
fn yarn_magnitude(factor: f32, log_multiplier: Option<f32>) -> f64 {
    let at = |multiplier: f64| match factor <= 1.0 {
        true => 1.0,
        false => 1.0 + 0.1 * multiplier * f64::from(factor).ln(),
    };
    match log_multiplier {
        Some(multiplier) => at(1.0) / at(multiplier.into()),
        None => at(1.0),
    }
}

/// The scaling a file asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Scaling {
    is_yarn: bool,
    factor: f32,
}

impl Scaling {
    fn read(keys: &Keys<'_>) -> Result<Self, ModelError> {
        let kind = keys.get::<&str>("rope.scaling.type")?;
        let factor = keys.get::<f32>("rope.scaling.factor")?;
        let scale_linear = keys.get::<f32>("rope.scale_linear")?;
        Self::of(kind, factor, scale_linear).map_err(|(key, problem)| keys.wrong(key, problem))
    }

    /// Files from before `rope.scaling.type` say by a factor alone that they scale linearly; a factor
    /// of 0 stands for none. Errors: key and problem.
    fn of(
        kind: Option<&str>,
        factor: Option<f32>,
        scale_linear: Option<f32>,
    ) -> Result<Self, (&'static str, String)> {
        let is_yarn = match kind {
            Some("none") => {
                return Ok(Self {
                    is_yarn: false,
                    factor: 1.0,
                });
            }
            None | Some("linear" | "longrope") => false,
            Some("yarn") => true,
            Some(other) => {
                let problem = format!("rope scaling \"{other}\" is not supported yet");
                return Err(("rope.scaling.type", problem));
            }
        };
        let given = [
            ("rope.scaling.factor", factor),
            ("rope.scale_linear", scale_linear),
        ];
        for (key, factor) in given {
            match factor {
                None | Some(0.0) => {}
                Some(factor) if factor.is_finite() && factor > 0.0 => {
                    return Ok(Self { is_yarn, factor });
                }
                Some(factor) => return Err((key, format!("{factor} is not a positive number"))),
            }
        }
        Ok(Self {
            is_yarn,
            factor: 1.0,
        })
    }
}

impl RopeSpec {
    /// The kernels' table, with the values of the tensor that [`Self::factors`] chooses (n_rot/2).
    pub fn table(&self, style: RopeStyle, factors: Option<&[f32]>) -> RopeTable {
        let turns = (0..self.n_rot / 2)
            .map(|pair| {
                let factor = factors.map_or(1.0, |factors| f64::from(factors[pair]));
                self.turn(pair) / factor
            })
            .collect();
        RopeTable::from_turns(style, turns, self.magnitude)
    }

    /// Radians per position of a pair.
    fn turn(&self, pair: usize) -> f64 {
        let (base, scale) = (f64::from(self.freq_base), f64::from(self.scale));
        let n_rot = self.n_rot as f64;
        let unscaled = base.powf(-2.0 * pair as f64 / n_rot);
        let Some(yarn) = self.yarn else {
            return unscaled * scale;
        };
        // The pair that turns `beta` times over the original context, as a fraction of a pair.
        let turning = |beta: f32| {
            let context = f64::from(yarn.original_context);
            n_rot * (context / (2.0 * PI * f64::from(beta))).ln() / (2.0 * base.ln())
        };
        let first = turning(yarn.beta_fast).floor().max(0.0);
        let last = turning(yarn.beta_slow).ceil().min(n_rot - 1.0);
        let ramp = (pair as f64 - first) / (last - first).max(0.001);
        let kept = 1.0 - ramp.clamp(0.0, 1.0);
        unscaled * (scale * (1.0 - kept) + kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_without_a_type_scales_linearly_and_none_means_none() {
        let factor = |kind, factor, linear| Scaling::of(kind, factor, linear).map(|s| s.factor);
        assert_eq!(factor(None, Some(4.0), None), Ok(4.0));
        assert_eq!(factor(Some("linear"), Some(4.0), Some(8.0)), Ok(4.0));
        assert_eq!(factor(None, Some(0.0), Some(8.0)), Ok(8.0));
        assert_eq!(factor(Some("none"), Some(4.0), Some(8.0)), Ok(1.0));
        assert_eq!(factor(None, None, None), Ok(1.0));
        for bad in [-2.0, f32::INFINITY, f32::NAN] {
            let (key, _) = factor(None, Some(bad), None).unwrap_err();
            assert_eq!(key, "rope.scaling.factor");
        }
        assert!(factor(Some("dynamic"), Some(4.0), None).is_err());
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_scales_slow_ones() {
        let spec = RopeSpec {
            n_rot: 128,
            freq_base: 10_000.0,
            scale: 0.25,
            yarn: Some(Yarn {
                original_context: 4096,
                beta_fast: 32.0,
                beta_slow: 1.0,
            }),
            magnitude: 1.0,
            log_multiplier: None,
            factors: Factors::None,
        };
        let plain = |pair: usize| 10_000f64.powf(-2.0 * pair as f64 / 128.0);
        assert_eq!(spec.turn(0), plain(0));
        assert_eq!(spec.turn(20), plain(20));
        assert!((spec.turn(63) - plain(63) * 0.25).abs() < 1e-18);
        let blended = spec.turn(33) / plain(33);
        assert!(blended > 0.25 && blended < 1.0, "{blended}");
    }

    #[test]
    fn a_multiplier_takes_the_magnitude_back() {
        assert_eq!(yarn_magnitude(1.0, None), 1.0);
        assert!((yarn_magnitude(4.0, None) - (1.0 + 0.1 * 4f64.ln())).abs() < 1e-15);
        assert_eq!(yarn_magnitude(4.0, Some(1.0)), 1.0);
    }
}
