use std::fmt;

use crate::rounded;

/// A few samples of one quantity: their median and how far they spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub n: usize,
}

impl Summary {
    /// `None` where no sample is a number. Samples that are not finite are left out.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.iter().copied().filter(|s| s.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (n, middle) = (sorted.len(), sorted.len() / 2);
        let median = match n % 2 {
            1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        };
        Some(Self {
            median,
            min,
            max,
            n,
        })
    }

    /// Of `a[i] / b[i]`: samples that were taken side by side are compared with each other, so that
    /// what slowed both down cancels out. `None` where no pair gives a number.
    #[must_use]
    pub fn of_ratios(a: &[f64], b: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
        Self::of(&ratios)
    }

    /// The same in another unit.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let (a, b) = (self.min * factor, self.max * factor);
        Self {
            median: self.median * factor,
            min: a.min(b),
            max: a.max(b),
            n: self.n,
        }
    }
}

impl fmt::Display for Summary {
    /// `median [min–max] n`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, min, max] = [self.median, self.min, self.max].map(rounded);
        write!(f, "{median} [{min}–{max}] {}", self.n)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn odd_even_and_none() {
        let odd = Summary::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max, odd.n), (2.0, 1.0, 3.0, 3));
        assert_eq!(Summary::of(&[4.0, 1.0]).unwrap().median, 2.5);
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[f64::NAN, f64::INFINITY]), None);
        assert_eq!(odd.to_string(), "2.00 [1.00–3.00] 3");
    }

    #[test]
    fn ratios_pair_what_was_measured_together() {
        // Both halve in the second round: the ratio stands still.
        let ratio = Summary::of_ratios(&[100.0, 50.0], &[40.0, 20.0]).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max), (2.5, 2.5, 2.5));
        assert_eq!(Summary::of_ratios(&[1.0], &[0.0]), None);
    }

    #[test]
    fn a_unit_may_turn_the_order() {
        let scaled = Summary::of(&[1.0, 2.0]).unwrap().scaled(-1.0);
        assert_eq!((scaled.min, scaled.max), (-2.0, -1.0));
    }

    proptest! {
        #[test]
        fn the_median_lies_among_the_samples(samples in prop::collection::vec(-1e9f64..1e9, 1..40)) {
            let summary = Summary::of(&samples).unwrap();
            prop_assert!(summary.min <= summary.median && summary.median <= summary.max);
            let half = samples.len().div_ceil(2);
            prop_assert!(samples.iter().filter(|&&s| s <= summary.median).count() >= half);
            prop_assert!(samples.iter().filter(|&&s| s >= summary.median).count() >= half);
        }
    }
}
