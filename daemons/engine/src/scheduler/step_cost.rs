/// Positions that count as one unit of depth, so that both terms of a cost are of like size.
const DEPTH_UNIT: f64 = 1024.0;
/// Standard deviation of a measured step, as a share of what was predicted.
const NOISE: f64 = 0.1;
/// How far what is predicted may drift from one step to the next, as a share of it.
const DRIFT: f64 = 0.03;
/// Standard deviation of the first guesses, as a multiple of them: they know nothing.
const IGNORANCE: f64 = 100.0;
/// A measurement of which a part is less than this share says nothing of the part.
const SHARE_MIN: f64 = 0.05;
/// A measured step counts as no more than so many times the predicted one, and no less than its
/// inverse: a page fault or a busy neighbour must not pass for the cost of a token.
const SURPRISE_MAX: f64 = 2.0;
/// What a drafted token is taken to cost until one has been verified, as a share of a step of one
/// sequence: cheap enough to be tried.
const DRAFT_GUESS: f64 = 0.15;
/// What one step that verifies nothing for the sake of its cost takes off that cost.
const DOUBT: f64 = 0.003;
/// Least cost of anything, ms: no estimate becomes zero.
const COST_MIN_MS: f64 = 1e-6;
/// Most that one observed unit may cost, ms.
const COST_MAX_MS: f64 = 1e6;

/// Prompt tokens of one sequence in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillRun {
    /// Tokens before the first of them.
    pub depth: usize,
    pub tokens: usize,
}

/// What steps cost, learnt from the steps themselves.
///
/// Model: a step with `n` decoding sequences and some prefill takes
/// `d0 + d1·n + Σ over prompt tokens (a + b·depth)` ms, the first two terms only when `n > 0`: what a
/// step without decoding costs beyond its tokens is part of `a`. Each pair of coefficients is the
/// state of a Kalman filter that lets them drift: an exponential filter in the direction that steps
/// are measured in, while what was learnt at another depth stays. In a mixed step either part answers
/// for its share of the deviation. `m` drafted tokens cost `v0 + v1·m` ms on top, learnt likewise.
#[derive(Clone, Debug)]
pub struct StepCost {
    decode: Line,
    prefill: Line,
    /// `None` until a draft has been verified.
    draft: Option<Line>,
}

/// `at_zero + slope·x`, both never negative and `at_zero` above zero.
#[derive(Clone, Debug)]
struct Line {
    at_zero: f64,
    slope: f64,
    /// Covariance of the two: of `at_zero`, of both, of `slope`; ms².
    covariance: [f64; 3],
    is_guess: bool,
}

impl Default for StepCost {
    /// Guesses on the side of caution: until something has been measured, chunks are small.
    fn default() -> Self {
        Self {
            decode: Line::new(5.0, 5.0),
            prefill: Line::new(4.0, 0.5),
            draft: None,
        }
    }
}

impl StepCost {
    /// Time of the part of a step that decodes `sequences`, ms.
    pub fn decode_ms(&self, sequences: usize) -> f64 {
        match sequences {
            0 => 0.0,
            n => self.decode.at(n as f64),
        }
    }

    /// Time of the part of a step that computes `run`, ms.
    pub fn prefill_ms(&self, run: PrefillRun) -> f64 {
        run.tokens as f64 * self.prefill.at(mean_depth(run))
    }

    /// What verifying `drafted` tokens adds to a step, ms.
    pub fn draft_ms(&self, drafted: usize) -> f64 {
        match (drafted, &self.draft) {
            (0, _) => 0.0,
            (n, Some(line)) => line.at(n as f64),
            (n, None) => DRAFT_GUESS * n as f64 * self.decode_ms(1),
        }
    }

    /// A step of `decoding` sequences that verified `drafted` tokens for them, and did nothing else, took
    /// `took_ms`.
    pub fn observe_drafts(&mut self, decoding: usize, drafted: usize, took_ms: f64) {
        if !(took_ms.is_finite() && took_ms > 0.0) || decoding == 0 || drafted == 0 {
            return;
        }
        let (decode_ms, draft_ms) = (self.decode_ms(decoding), self.draft_ms(drafted));
        let share = draft_ms / (decode_ms + draft_ms);
        let deviation = took_ms - decode_ms - draft_ms;
        let guess = DRAFT_GUESS * self.decode_ms(1);
        let draft = self.draft.get_or_insert_with(|| Line::new(guess, guess));
        draft.follow(drafted as f64, draft_ms + share * deviation, share);
        let measured = decode_ms + (1.0 - share) * deviation;
        self.decode.follow(decoding as f64, measured, 1.0 - share);
    }

    /// Drafted tokens were left alone because they cost too much. What is not computed is not measured
    /// either: the cost is doubted a little, so that one day it is.
    pub fn doubt_drafts(&mut self) {
        if let Some(draft) = &mut self.draft {
            draft.at_zero = (draft.at_zero * (1.0 - DOUBT)).max(COST_MIN_MS);
            draft.slope *= 1.0 - DOUBT;
        }
    }

    /// Most tokens from `depth` on that cost no more than `ms`.
    pub fn tokens_within(&self, depth: usize, ms: f64) -> usize {
        if ms.is_nan() || ms <= 0.0 {
            return 0;
        }
        if ms == f64::INFINITY {
            return usize::MAX;
        }
        // (p + b·n/2)·n <= ms, by the form of the root that does not cancel.
        let p = self.prefill.at(depth as f64 / DEPTH_UNIT);
        let b = self.prefill.slope / DEPTH_UNIT;
        (2.0 * ms / (p + (p * p + 2.0 * b * ms).sqrt())) as usize
    }

    /// A step of `decoding` sequences and `prefill` took `took_ms`.
    pub fn observe(&mut self, decoding: usize, prefill: &[PrefillRun], took_ms: f64) {
        let tokens: usize = prefill.iter().map(|run| run.tokens).sum();
        if !(took_ms.is_finite() && took_ms > 0.0) || decoding + tokens == 0 {
            return;
        }
        let decode_ms = self.decode_ms(decoding);
        let prefill_ms: f64 = prefill.iter().map(|run| self.prefill_ms(*run)).sum();
        let share = prefill_ms / (decode_ms + prefill_ms);
        let deviation = took_ms - decode_ms - prefill_ms;
        if decoding > 0 && share < 1.0 {
            let measured = decode_ms + (1.0 - share) * deviation;
            self.decode.follow(decoding as f64, measured, 1.0 - share);
        }
        if tokens > 0 {
            let deep = |run: &PrefillRun| run.tokens as f64 * mean_depth(*run);
            let depth = prefill.iter().map(deep).sum::<f64>() / tokens as f64;
            let measured = (prefill_ms + share * deviation) / tokens as f64;
            self.prefill.follow(depth, measured, share);
        }
    }
}

impl Line {
    fn new(at_zero: f64, slope: f64) -> Self {
        let variance = |guess: f64| (IGNORANCE * guess).powi(2);
        Self {
            at_zero,
            slope,
            covariance: [variance(at_zero), 0.0, variance(slope)],
            is_guess: true,
        }
    }

    fn at(&self, x: f64) -> f64 {
        self.at_zero + self.slope * x
    }

    /// Turns towards `measured` at `x`; `share`: 0 to 1, how much of the measurement is of this line.
    fn follow(&mut self, x: f64, measured: f64, share: f64) {
        if share < SHARE_MIN {
            return;
        }
        let predicted = self.at(x);
        let measured = match self.is_guess {
            true => measured.clamp(COST_MIN_MS, COST_MAX_MS),
            false => measured.clamp(predicted / SURPRISE_MAX, predicted * SURPRISE_MAX),
        };
        self.is_guess = false;
        let drift = (DRIFT * predicted).powi(2) / (1.0 + x * x);
        let [zero, both, slope] = self.covariance;
        let (zero, slope) = (zero + drift, slope + drift);
        let (to_zero, to_slope) = (zero + both * x, both + slope * x);
        let noise = (NOISE * predicted / share).powi(2);
        let variance = to_zero + to_slope * x + noise;
        let (gain_zero, gain_slope) = (to_zero / variance, to_slope / variance);
        let zero = (zero - gain_zero * to_zero).max(0.0);
        let slope = (slope - gain_slope * to_slope).max(0.0);
        // Rounding must not make of it what is no covariance.
        let most = (zero * slope).sqrt();
        let both = (both - gain_zero * to_slope).clamp(-most, most);
        self.covariance = [zero, both, slope];
        let deviation = measured - predicted;
        self.at_zero += gain_zero * deviation;
        self.slope += gain_slope * deviation;
        let wanted = self.at(x).max(COST_MIN_MS);
        // Where one of the two would become negative, the other alone gives what is wanted.
        if self.slope < 0.0 {
            (self.at_zero, self.slope) = (wanted, 0.0);
        } else if self.at_zero < COST_MIN_MS {
            (self.at_zero, self.slope) = (COST_MIN_MS, (wanted - COST_MIN_MS) / x);
        }
        self.at_zero = self.at_zero.clamp(COST_MIN_MS, COST_MAX_MS);
        self.slope = self.slope.clamp(0.0, COST_MAX_MS);
    }
}

/// Depth of the middle of `run`, in units of [`DEPTH_UNIT`].
fn mean_depth(run: PrefillRun) -> f64 {
    (run.depth as f64 + run.tokens as f64 / 2.0) / DEPTH_UNIT
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A machine that follows the model to the letter.
    #[derive(Clone, Copy, Debug)]
    struct Machine {
        decode: (f64, f64),
        prefill: (f64, f64),
    }

    impl Machine {
        fn step_ms(&self, decoding: usize, prefill: &[PrefillRun]) -> f64 {
            let (d0, d1) = self.decode;
            let (a, b) = self.prefill;
            let of_run = |run: &PrefillRun| run.tokens as f64 * (a + b * mean_depth(*run));
            let decode = if decoding == 0 {
                0.0
            } else {
                d0 + d1 * decoding as f64
            };
            decode + prefill.iter().map(of_run).sum::<f64>()
        }
    }

    fn machine() -> impl Strategy<Value = Machine> {
        let decode = (0.5f64..40.0, 0.05f64..10.0);
        let prefill = (0.05f64..10.0, 0.0f64..1.0);
        (decode, prefill).prop_map(|(decode, prefill)| Machine { decode, prefill })
    }

    fn near(found: f64, wanted: f64, within: f64) -> bool {
        (found / wanted - 1.0).abs() <= within
    }

    /// Prefills from 0 on beside `decoding` sequences, `steps` chunks of at most `ms`; the chunk that
    /// would come next.
    fn prefill(
        cost: &mut StepCost,
        machine: Machine,
        decoding: usize,
        steps: usize,
        ms: f64,
    ) -> PrefillRun {
        let chunk = |cost: &StepCost, depth| PrefillRun {
            depth,
            tokens: cost.tokens_within(depth, ms).clamp(16, 512),
        };
        let mut run = chunk(cost, 0);
        for _ in 0..steps {
            cost.observe(decoding, &[run], machine.step_ms(decoding, &[run]));
            run = chunk(cost, (run.depth + run.tokens) % 8192);
        }
        run
    }

    proptest! {
        /// Prediction of what comes next converges, whatever the machine and the first guess.
        #[test]
        fn predictions_converge(machine in machine(), decoding in 1usize..16) {
            let mut cost = StepCost::default();
            for _ in 0..60 {
                cost.observe(decoding, &[], machine.step_ms(decoding, &[]));
            }
            let decode = machine.step_ms(decoding, &[]);
            prop_assert!(near(cost.decode_ms(decoding), decode, 0.02), "{cost:?}");
            prefill(&mut cost, machine, 0, 400, 80.0);
            for depth in [0, 1000, 4000, 8000] {
                let run = PrefillRun { depth, tokens: 64 };
                let wanted = machine.step_ms(0, &[run]);
                prop_assert!(near(cost.prefill_ms(run), wanted, 0.1), "{cost:?} at {depth}");
            }
        }

        /// The chunk that is chosen for a bound keeps it, on the machine itself.
        #[test]
        fn a_chunk_for_a_bound_keeps_it(machine in machine(), decoding in 1usize..8) {
            let mut cost = StepCost::default();
            for _ in 0..60 {
                cost.observe(decoding, &[], machine.step_ms(decoding, &[]));
            }
            prefill(&mut cost, machine, decoding, 400, 80.0);
            for depth in [0usize, 2000, 6000] {
                let tokens = cost.tokens_within(depth, 80.0);
                let run = PrefillRun { depth, tokens };
                let took = machine.step_ms(0, &[run]);
                prop_assert!(tokens < 2 || took <= 80.0 * 1.15, "{took} ms for {run:?}");
                let more = PrefillRun { depth, tokens: tokens + 1 };
                prop_assert!(cost.prefill_ms(run) <= 80.0 * (1.0 + 1e-9));
                prop_assert!(cost.prefill_ms(more) > 80.0 * (1.0 - 1e-9));
            }
        }

        /// Whatever is measured, estimates stay finite and above zero.
        #[test]
        fn nothing_measured_breaks_it(steps in prop::collection::vec(
            (0usize..40, prop::collection::vec((0usize..1_000_000, 0usize..5000), 0..4), any::<f64>()),
            0..60,
        )) {
            let mut cost = StepCost::default();
            for (decoding, runs, took) in steps {
                let runs: Vec<_> = runs
                    .iter()
                    .map(|&(depth, tokens)| PrefillRun { depth, tokens })
                    .collect();
                cost.observe(decoding, &runs, took);
                for depth in [0, 100_000] {
                    let ms = cost.prefill_ms(PrefillRun { depth, tokens: 1 });
                    prop_assert!(ms.is_finite() && ms > 0.0, "{cost:?}");
                }
                prop_assert!(cost.decode_ms(1).is_finite() && cost.decode_ms(1) > 0.0);
            }
        }

        /// One step that took a thousand times its time moves what is predicted for the next one by no
        /// more than a surprise may, and is forgotten.
        #[test]
        fn an_outlier_is_forgotten(machine in machine(), decoding in 0usize..8) {
            let mut cost = StepCost::default();
            for _ in 0..60 {
                cost.observe(decoding.max(1), &[], machine.step_ms(decoding.max(1), &[]));
            }
            let run = prefill(&mut cost, machine, decoding, 400, 80.0);
            let took = machine.step_ms(decoding, &[run]);
            let predicted = |cost: &StepCost| cost.decode_ms(decoding) + cost.prefill_ms(run);
            // How near that is `predictions_converge` says.
            let before = predicted(&cost).max(took);
            cost.observe(decoding, &[run], 1000.0 * took);
            prop_assert!(predicted(&cost) <= 1.1 * SURPRISE_MAX * before);
            for _ in 0..40 {
                cost.observe(decoding, &[run], took);
            }
            prop_assert!(near(predicted(&cost), took, 0.1), "{took} ms: {cost:?}");
        }
    }

    #[test]
    fn a_slower_machine_is_noticed_within_a_dozen_steps() {
        let of = |token| Machine {
            decode: (5.0, 1.0),
            prefill: (token, 0.02),
        };
        let mut cost = StepCost::default();
        prefill(&mut cost, of(0.3), 0, 100, 80.0);
        for _ in 0..12 {
            let run = PrefillRun {
                depth: 3000,
                tokens: 64,
            };
            cost.observe(0, &[run], of(1.2).step_ms(0, &[run]));
        }
        let run = PrefillRun {
            depth: 3064,
            tokens: 64,
        };
        let wanted = of(1.2).step_ms(0, &[run]);
        assert!(near(cost.prefill_ms(run), wanted, 0.1), "{cost:?}");
    }
}
