//! Comparing logits with a reference.

/// Largest |a − b| of two rows.
pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "rows of one length");
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

/// Whether every bit is the same: NaN equals NaN here, and 0 is not −0.
pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Index of the largest value; the first of equal ones.
pub fn argmax(logits: &[f32]) -> usize {
    let better = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
    (1..logits.len()).fold(0, better)
}

/// ln softmax(logits), accumulated in f64.
pub fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let top = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - top).exp()).sum();
    logits
        .iter()
        .map(|&l| f64::from(l) - top - sum.ln())
        .collect()
}

/// Kullback–Leibler divergence KL(reference ‖ ours), in nats.
pub fn kl_divergence(reference: &[f32], ours: &[f32]) -> f64 {
    let (p, q) = (log_probabilities(reference), log_probabilities(ours));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_diverge_from_others_only() {
        let (a, b) = ([1.0, 2.0, 3.0], [1.0, 2.5, 3.0]);
        let sum: f64 = log_probabilities(&a).iter().map(|p| p.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        assert_eq!(kl_divergence(&a, &a), 0.0);
        assert!(kl_divergence(&a, &b) > 1e-3);
    }

    #[test]
    fn bits_tell_what_equality_does_not() {
        assert!(!same_bits(&[0.0], &[-0.0]));
        assert!(same_bits(&[f32::NAN], &[f32::NAN]));
        assert!(!same_bits(&[1.0], &[1.0, 2.0]));
        assert_eq!(argmax(&[1.0, 3.0, 3.0, 2.0]), 1);
    }
}
