/// The straight line nearest to some points, by ordinary least squares, and how sure its slope is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// y a unit of x.
    pub slope: f64,
    /// y where x is 0.
    pub intercept: f64,
    /// Half the width of the 95% confidence interval of the slope, for residuals that are independent
    /// and normal.
    pub slope_error: f64,
    pub n: usize,
}

impl Trend {
    /// Through points (x, y); `None` below three points, or where all x are the same.
    #[must_use]
    pub fn of(points: &[(f64, f64)]) -> Option<Self> {
        let n = points.len();
        if n < 3 {
            return None;
        }
        let count = n as f64;
        let mean_x = points.iter().map(|p| p.0).sum::<f64>() / count;
        let mean_y = points.iter().map(|p| p.1).sum::<f64>() / count;
        let spread_x: f64 = points.iter().map(|p| (p.0 - mean_x).powi(2)).sum();
        let together: f64 = points.iter().map(|p| (p.0 - mean_x) * (p.1 - mean_y)).sum();
        if !(spread_x > 0.0 && spread_x.is_finite() && together.is_finite()) {
            return None;
        }
        let slope = together / spread_x;
        let intercept = mean_y - slope * mean_x;
        let residuals: f64 = points
            .iter()
            .map(|(x, y)| (y - intercept - slope * x).powi(2))
            .sum();
        let degrees = n - 2;
        let standard_error = (residuals / degrees as f64 / spread_x).sqrt();
        Some(Self {
            slope,
            intercept,
            slope_error: student_975(degrees) * standard_error,
            n,
        })
    }

    /// Whether no slope at all lies within what the points allow, or the slope is below `tolerance`
    /// (y a unit of x) anyway.
    #[must_use]
    pub fn is_flat(&self, tolerance: f64) -> bool {
        self.slope.abs() <= self.slope_error.max(tolerance)
    }
}

/// The 97.5th percentile of Student's t distribution: 95% lie within ± of it.
///
/// From a table for few degrees of freedom, beyond by the first terms of the expansion around the
/// normal distribution (error below 0.001 from ten degrees on).
fn student_975(degrees: usize) -> f64 {
    const TABLE: [f64; 10] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    ];
    if let Some(&t) = degrees.checked_sub(1).and_then(|at| TABLE.get(at)) {
        return t;
    }
    let (z, v) = (1.959_964_f64, degrees as f64);
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / v + second / v.powi(2) + third / v.powi(3)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_is_found_and_is_sure() {
        let points: Vec<_> = (0..5)
            .map(|x| (f64::from(x), 3.0 + 2.0 * f64::from(x)))
            .collect();
        let trend = Trend::of(&points).unwrap();
        assert!((trend.slope - 2.0).abs() < 1e-12 && (trend.intercept - 3.0).abs() < 1e-12);
        assert!(trend.slope_error < 1e-9 && !trend.is_flat(1.0) && trend.is_flat(2.5));
    }

    #[test]
    fn the_textbook_interval() {
        // Slope 0.6, residual sum 2.4 over 3 degrees, spread of x 10: 3.182 · sqrt(0.8 / 10).
        let points = [(1.0, 2.0), (2.0, 4.0), (3.0, 5.0), (4.0, 4.0), (5.0, 5.0)];
        let trend = Trend::of(&points).unwrap();
        assert!((trend.slope - 0.6).abs() < 1e-12);
        assert!((trend.slope_error - 3.182 * 0.08f64.sqrt()).abs() < 1e-9);
        assert!(trend.is_flat(0.0));
    }

    #[test]
    fn students_t_joins_its_table() {
        assert!((student_975(10) - 2.228).abs() < 1e-9);
        assert!((student_975(11) - 2.201).abs() < 1e-3);
        assert!((student_975(30) - 2.042).abs() < 1e-3);
        assert!((student_975(1_000_000) - 1.96).abs() < 1e-3);
    }

    #[test]
    fn too_few_points_say_nothing() {
        assert_eq!(Trend::of(&[(0.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(Trend::of(&[(1.0, 1.0); 5]), None);
        assert_eq!(Trend::of(&[(0.0, 0.0), (1.0, f64::NAN), (2.0, 0.0)]), None);
    }

    proptest! {
        #[test]
        fn noise_around_a_line_keeps_its_slope(
            slope in -100f64..100.0,
            noise in prop::collection::vec(-1f64..1.0, 20..60),
        ) {
            let line = |x: usize, noise: f64| (x as f64, slope * x as f64 + noise);
            let points: Vec<_> = noise.iter().enumerate().map(|(x, n)| line(x, *n)).collect();
            let trend = Trend::of(&points).unwrap();
            // Noise of ±1 over 20 points cannot tilt a line by more than this.
            prop_assert!((trend.slope - slope).abs() < 0.16, "{trend:?}");
            prop_assert!(trend.slope_error >= 0.0);
        }
    }
}
