//! From logits to a token. Randomness is a counter, not a stream: the draw for a position depends on
//! (seed, position) alone, so a restart, a rejected draft or other sequences never change it.

use std::cmp::Ordering;

/// How a sequence samples. Order: temperature, top-k, top-p, min-p, draw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 = greedy: the largest logit, the lowest id among equals.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 = all.
    pub top_k: u32,
    /// Keep the fewest most likely tokens that hold this much probability; 1 = all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one; 0 = all.
    pub min_p: f32,
    pub seed: u64,
}

impl Sampling {
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
    };

    /// First parameter out of range, as (name, what it must be).
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let within = |v: f32, low: f32, high: f32| v.is_finite() && (low..=high).contains(&v);
        if !within(self.temperature, 0.0, 100.0) {
            return Err(("temperature", "between 0 and 100"));
        }
        if !within(self.top_p, 0.0, 1.0) {
            return Err(("top_p", "between 0 and 1"));
        }
        if !within(self.min_p, 0.0, 1.0) {
            return Err(("min_p", "between 0 and 1"));
        }
        Ok(())
    }
}

/// A model's logits that hold a NaN or an infinity: they say nothing about the next token, so none may
/// be made up from them. Damaged weights are the common cause: one NaN reaches every logit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model computes numbers that are not finite; its file is probably damaged: compare its \
     checksum, or fetch it again"
)]
pub struct NotFinite;

impl NotFinite {
    /// Cost: one pass over `logits`, a few percent of what the output matrix takes to make a row.
    pub fn check(logits: &[f32]) -> Result<(), Self> {
        // An exponent of all ones is an infinity or a NaN. Without an early return, so that the loop
        // is a vector one.
        const EXPONENT: u32 = 0x7f80_0000;
        let not_finite = |found, logit: &f32| found | (logit.to_bits() & EXPONENT == EXPONENT);
        match logits.iter().fold(false, not_finite) {
            false => Ok(()),
            true => Err(Self),
        }
    }
}

/// Reused buffer of candidates: (id, probability before normalisation).
#[derive(Debug, Default)]
pub struct Sampler {
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    /// Picks the token for `position` (number of tokens before it) from `logits` (vocab) f32.
    /// Errors: a logit is not finite.
    pub fn sample(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        position: u64,
    ) -> Result<u32, NotFinite> {
        NotFinite::check(logits)?;
        let best = argmax(logits);
        if sampling.temperature <= 0.0 || sampling.top_k == 1 {
            return Ok(best);
        }
        let max = logits[best as usize];
        let inverse = 1.0 / sampling.temperature;
        self.candidates.clear();
        self.candidates.extend(
            logits
                .iter()
                .enumerate()
                .map(|(id, &l)| (id as u32, ((l - max) * inverse).exp())),
        );
        keep_top_k(&mut self.candidates, sampling.top_k as usize);
        if sampling.top_p < 1.0 {
            keep_top_p(&mut self.candidates, sampling.top_p);
        }
        // The most likely token has probability exp(0) = 1 here.
        self.candidates.retain(|&(_, p)| p >= sampling.min_p);
        Ok(draw(&self.candidates, uniform(sampling.seed, position)).unwrap_or(best))
    }
}

/// Id of the largest logit; the lowest id among equals.
fn argmax(logits: &[f32]) -> u32 {
    // Two passes that become vector loops: one that remembers where it was does not.
    const LANES: usize = 16;
    const SPAN: usize = 256;
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (vectors, rest) = logits.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for vector in vectors {
        for (lane, &logit) in lanes.iter_mut().zip(vector) {
            *lane = larger(*lane, logit);
        }
    }
    let most = lanes.iter().chain(rest).copied();
    let most = most.fold(f32::NEG_INFINITY, larger);
    let has = |span: &[f32]| span.iter().fold(false, |has, &logit| has | (logit == most));
    let span = logits.chunks(SPAN).position(has).unwrap_or(0) * SPAN;
    let at = logits.iter().skip(span).position(|&logit| logit == most);
    (span + at.unwrap_or(0)) as u32
}

fn more_likely_first(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

fn keep_top_k(candidates: &mut Vec<(u32, f32)>, k: usize) {
    if k > 0 && k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, more_likely_first);
        candidates.truncate(k);
        // Back in order of ids: the sums below must not depend on how the selection shuffled them.
        candidates.sort_unstable_by_key(|c| c.0);
    }
}

fn keep_top_p(candidates: &mut Vec<(u32, f32)>, top_p: f32) {
    let total: f64 = candidates.iter().map(|c| f64::from(c.1)).sum();
    let enough = f64::from(top_p) * total;
    // The nucleus is small as a rule: sort only as many of the likeliest as it takes, not 150,000.
    let mut sorted = 0;
    let mut sum = 0.0;
    while sorted < candidates.len() {
        let upto = (sorted * 4).max(64).min(candidates.len());
        if upto < candidates.len() {
            candidates[sorted..].select_nth_unstable_by(upto - 1 - sorted, more_likely_first);
        }
        candidates[sorted..upto].sort_unstable_by(more_likely_first);
        for (index, candidate) in candidates.iter().enumerate().take(upto).skip(sorted) {
            sum += f64::from(candidate.1);
            if sum >= enough {
                candidates.truncate(index + 1);
                return;
            }
        }
        sorted = upto;
    }
}

/// The candidate at the point `u` (0..1) of the cumulated probability.
fn draw(candidates: &[(u32, f32)], u: f64) -> Option<u32> {
    let total: f64 = candidates.iter().map(|c| f64::from(c.1)).sum();
    let mut left = u * total;
    for &(id, p) in candidates {
        left -= f64::from(p);
        if left < 0.0 {
            return Some(id);
        }
    }
    candidates.iter().rev().find(|c| c.1 > 0.0).map(|c| c.0)
}

/// Uniform in [0, 1) with 53 bits, a function of (seed, position) alone.
fn uniform(seed: u64, position: u64) -> f64 {
    let bits = mix(mix(seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_add(position));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Finaliser of SplitMix64 (Steele, Lea, Flood 2014, with Stafford's constants, variant 13).
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(seed: u64) -> Sampling {
        Sampling {
            temperature: 1.0,
            seed,
            ..Sampling::GREEDY
        }
    }

    #[test]
    fn greedy_takes_the_lowest_id_among_equals() {
        let mut sampler = Sampler::default();
        assert_eq!(
            sampler.sample(&[1.0, 3.0, -2.0, 3.0], &Sampling::GREEDY, 0),
            Ok(1)
        );
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [0.0f32, 1.0, 2.0, -1.0];
        let weight: f64 = logits.iter().map(|l| f64::from(l.exp())).sum();
        let mut count = [0u32; 4];
        let mut sampler = Sampler::default();
        let n = 200_000;
        for position in 0..n {
            count[sampler.sample(&logits, &all(42), position).unwrap() as usize] += 1;
        }
        for (id, logit) in logits.iter().enumerate() {
            let p = f64::from(logit.exp()) / weight;
            let sigma = (p * (1.0 - p) / n as f64).sqrt();
            let seen = f64::from(count[id]) / n as f64;
            assert!((seen - p).abs() < 5.0 * sigma, "token {id}: {seen} for {p}");
        }
    }

    #[test]
    fn filters_keep_what_they_say() {
        let mut sampler = Sampler::default();
        let logits: Vec<f32> = (0..10).map(|i| i as f32).collect();
        let mut seen = |sampling: Sampling| {
            let mut ids: Vec<u32> = (0..4000)
                .map(|p| sampler.sample(&logits, &sampling, p).unwrap())
                .collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        assert_eq!(
            seen(Sampling {
                temperature: 5.0,
                top_k: 3,
                ..all(1)
            }),
            [7, 8, 9]
        );
        // softmax of 9, 8, 7 relative to 9: 1, 0.37, 0.14; total 1.58
        assert_eq!(
            seen(Sampling {
                top_p: 0.6,
                ..all(1)
            }),
            [9]
        );
        assert_eq!(
            seen(Sampling {
                top_p: 0.7,
                ..all(1)
            }),
            [8, 9]
        );
        assert_eq!(
            seen(Sampling {
                min_p: 0.3,
                ..all(1)
            }),
            [8, 9]
        );
        assert_eq!(
            seen(Sampling {
                top_p: 0.0,
                ..all(1)
            }),
            [9]
        );
    }

    #[test]
    fn the_nucleus_is_the_same_as_by_sorting_everything() {
        let mut all: Vec<(u32, f32)> = (0..5000u32)
            .map(|id| (id, ((id * 7919) % 5003) as f32 + 1.0))
            .collect();
        let total: f64 = all.iter().map(|c| f64::from(c.1)).sum();
        for top_p in [0.0, 0.001, 0.1, 0.5, 0.9, 0.999, 1.0] {
            let mut kept = all.clone();
            keep_top_p(&mut kept, top_p);
            all.sort_by(more_likely_first);
            let mut sum = 0.0;
            let enough = f64::from(top_p) * total;
            let last = all.iter().position(|c| {
                sum += f64::from(c.1);
                sum >= enough
            });
            assert_eq!(kept, all[..=last.unwrap()], "top_p {top_p}");
        }
    }

    #[test]
    fn out_of_range_is_named() {
        assert_eq!(
            Sampling {
                top_p: 1.5,
                ..all(0)
            }
            .check()
            .unwrap_err()
            .0,
            "top_p"
        );
        assert_eq!(
            Sampling {
                temperature: f32::NAN,
                ..all(0)
            }
            .check()
            .unwrap_err()
            .0,
            "temperature"
        );
        assert!(all(0).check().is_ok());
    }

    proptest! {
        #[test]
        fn any_logits_give_a_valid_id(
            logits in prop::collection::vec(prop::num::f32::NORMAL | prop::num::f32::ZERO, 1..50),
            temperature in 0.0f32..3.0, top_k in 0u32..60, top_p in 0.0f32..=1.0, min_p in 0.0f32..=1.0,
            seed: u64, position: u64,
        ) {
            let sampling = Sampling { temperature, top_k, top_p, min_p, seed };
            let mut sampler = Sampler::default();
            let id = sampler.sample(&logits, &sampling, position).unwrap();
            prop_assert!((id as usize) < logits.len());
            prop_assert_eq!(Ok(id), sampler.sample(&logits, &sampling, position));
        }

        #[test]
        fn no_token_is_made_up_from_logits_that_are_not_finite(
            logits in prop::collection::vec(prop::num::f32::ANY, 1..50),
            temperature in 0.0f32..3.0,
        ) {
            let sampling = Sampling { temperature, ..Sampling::GREEDY };
            let sampled = Sampler::default().sample(&logits, &sampling, 0);
            prop_assert_eq!(sampled.is_ok(), logits.iter().all(|l| l.is_finite()));
        }
    }
}
