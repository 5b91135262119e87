use super::{Draft, Ownership, PrefillRun, PrefillTurns, Prompt, StepCost, StepRoom, plan_drafts};
use crate::speculation::{DRAFTED_MAX, HOPE};
use std::time::Duration;

/// What a prompt that has the engine to itself computes in a step whatever that costs: with fewer
/// rows, reading the weights would take more of the time than whoever comes would gain.
pub const LONE_TOKENS_MIN: usize = 64;

/// How far a running sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Tokens still to compute before the next one can be sampled: of a prompt, or of all that a
    /// sequence had before it gave way.
    Prefill {
        tokens_left: usize,
    },
    Decode,
    /// Its reader is slow: nothing to do until credit comes.
    Paused,
}

/// A running sequence as the scheduler sees it.
#[derive(Clone, Copy, Debug)]
pub struct SequenceView<'a> {
    pub ownership: &'a Ownership,
    pub phase: Phase,
    /// Tokens whose KV stands.
    pub depth: usize,
    /// Tokens drafted to follow the one it decodes.
    pub draft: Draft,
}

/// Bounds of a step.
#[derive(Clone, Copy, Debug)]
pub struct StepBounds {
    /// Most tokens, all sequences together.
    pub tokens_max: usize,
    /// Longest step while any sequence decodes or several wait for their prefill, ms.
    pub decode_stall_ms_max: f64,
    /// Longest step of more than [`LONE_TOKENS_MIN`] tokens of a prompt that has the engine to itself,
    /// ms: whoever comes waits for its end.
    pub admission_ms_max: f64,
}

/// What a share of a step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Prefill,
    Decode,
}

/// One sequence's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index into the sequences given to [`Scheduler::plan_step`].
    pub sequence: usize,
    pub work: Work,
    /// Tokens before the first of the share.
    pub depth: usize,
    /// Where it decodes, those beyond the first are drafted.
    pub tokens: usize,
    /// Of how many of its last tokens the logits are wanted.
    pub logits: usize,
}

impl Share {
    /// Tokens that may turn out to be wrong.
    pub fn drafted(&self) -> usize {
        self.logits.saturating_sub(1)
    }

    /// Takes back all drafted tokens but `drafted`.
    pub fn shorten_draft(&mut self, drafted: usize) {
        let less = self.drafted().saturating_sub(drafted);
        self.tokens -= less;
        self.logits -= less;
    }
}

/// What a step of these shares that took so long counts as, ms.
pub type StepMs = fn(&[Share], Duration) -> f64;

/// The time it took, whatever it did.
pub fn measured_ms(_: &[Share], took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

/// Plans steps, and learns from what they took.
#[derive(Clone, Debug)]
pub struct Scheduler {
    bounds: StepBounds,
    cost: StepCost,
    turns: PrefillTurns,
}

impl Scheduler {
    pub fn new(bounds: StepBounds) -> Self {
        Self {
            bounds,
            cost: StepCost::default(),
            turns: PrefillTurns::new(bounds.decode_stall_ms_max),
        }
    }

    pub fn cost(&self) -> &StepCost {
        &self.cost
    }

    /// Plans a step over the running sequences, oldest first.
    ///
    /// Every decoding sequence gets its token as long as `tokens_max` allows (callers keep it at or
    /// above the number of sequences). Prefill gets the rest of the time that the step may take; where
    /// there is none to do, drafted tokens are verified if that pays.
    pub fn plan_step(&mut self, sequences: &[SequenceView<'_>]) -> Vec<Share> {
        let mut shares: Vec<Share> = Vec::new();
        let (mut prompts, mut indices) = (Vec::new(), Vec::new());
        for (sequence, view) in sequences.iter().enumerate() {
            match view.phase {
                Phase::Decode if shares.len() < self.bounds.tokens_max => shares.push(Share {
                    sequence,
                    work: Work::Decode,
                    depth: view.depth,
                    tokens: 1,
                    logits: 1,
                }),
                Phase::Prefill { tokens_left } if tokens_left > 0 => {
                    indices.push(sequence);
                    prompts.push(Prompt {
                        ownership: view.ownership,
                        depth: view.depth,
                        tokens_left,
                    });
                }
                Phase::Prefill { .. } | Phase::Decode | Phase::Paused => {}
            }
        }
        let decoding = shares.len();
        let ms = match (decoding, prompts.len()) {
            (0, 0) => self.bounds.admission_ms_max,
            (0, 1) => {
                let least = PrefillRun {
                    depth: prompts[0].depth,
                    tokens: LONE_TOKENS_MIN,
                };
                self.cost
                    .prefill_ms(least)
                    .max(self.bounds.admission_ms_max)
            }
            _ => self.bounds.decode_stall_ms_max - self.cost.decode_ms(decoding),
        };
        let room = StepRoom {
            ms,
            tokens: self.bounds.tokens_max - decoding,
        };
        let given = self.turns.share_out(&prompts, room, &self.cost);
        for ((sequence, prompt), tokens) in indices.into_iter().zip(&prompts).zip(given) {
            if tokens > 0 {
                shares.push(Share {
                    sequence,
                    work: Work::Prefill,
                    depth: prompt.depth,
                    tokens,
                    logits: usize::from(tokens == prompt.tokens_left),
                });
            }
        }
        if prompts.is_empty() && decoding > 0 {
            self.add_drafts(sequences, &mut shares);
        }
        shares
    }

    /// Adds drafted tokens to the shares of decoding sequences.
    fn add_drafts(&mut self, sequences: &[SequenceView<'_>], shares: &mut [Share]) {
        let drafts = shares.iter().map(|share| sequences[share.sequence].draft);
        let drafts: Vec<Draft> = drafts.collect();
        let decode_ms = self.cost.decode_ms(drafts.len());
        let ms_max = match drafts.len() {
            // Nobody but whoever gains by it waits; a newcomer does so no longer than for two tokens.
            1 => self.bounds.decode_stall_ms_max.max(2.0 * decode_ms),
            _ => self.bounds.decode_stall_ms_max,
        };
        let tokens_max = DRAFTED_MAX.min(self.bounds.tokens_max - drafts.len());
        let given = plan_drafts(&drafts, &self.cost, tokens_max, ms_max);
        for (share, drafted) in shares.iter_mut().zip(&given) {
            share.tokens += drafted;
            share.logits += drafted;
        }
        let hopeful = |draft: &Draft| draft.tokens > 0 && draft.acceptance >= HOPE;
        let none = given.iter().all(|&drafted| drafted == 0);
        if none
            && tokens_max > 0
            && drafts.iter().any(hopeful)
            && decode_ms + self.cost.draft_ms(1) <= ms_max
        {
            self.cost.doubt_drafts();
        }
    }

    /// Time that a step of these shares is expected to take, ms.
    pub fn predict_ms(&self, shares: &[Share]) -> f64 {
        let (decoding, drafted, prefill) = shape(shares);
        let prefill = prefill.iter().map(|run| self.cost.prefill_ms(*run));
        self.cost.decode_ms(decoding) + self.cost.draft_ms(drafted) + prefill.sum::<f64>()
    }

    /// A step of these shares took `took_ms`.
    pub fn observe_step(&mut self, shares: &[Share], took_ms: f64) {
        let (decoding, drafted, prefill) = shape(shares);
        match drafted {
            0 => self.cost.observe(decoding, &prefill, took_ms),
            _ => self.cost.observe_drafts(decoding, drafted, took_ms),
        }
    }
}

/// Sequences that decode, tokens drafted for them, and the runs of prefill.
fn shape(shares: &[Share]) -> (usize, usize, Vec<PrefillRun>) {
    let of = |work| shares.iter().filter(move |share| share.work == work);
    let run = |share: &Share| PrefillRun {
        depth: share.depth,
        tokens: share.tokens,
    };
    let drafted = shares.iter().map(Share::drafted).sum();
    let prefill = of(Work::Prefill).map(run).collect();
    (of(Work::Decode).count(), drafted, prefill)
}

#[cfg(test)]
mod tests {
    use super::super::{CHUNK_TOKENS_MIN, Priority};
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: StepBounds = StepBounds {
        tokens_max: 512,
        decode_stall_ms_max: 80.0,
        admission_ms_max: 160.0,
    };
    const LONG: Phase = Phase::Prefill { tokens_left: 6000 };

    /// A scheduler that has learnt: 10 ms for a decoding sequence, 0.5 ms for a prompt token.
    fn scheduler() -> Scheduler {
        let mut scheduler = Scheduler::new(BOUNDS);
        for _ in 0..100 {
            scheduler.cost.observe(1, &[], 10.0);
            let tokens = 100;
            for depth in [0, 4000] {
                scheduler
                    .cost
                    .observe(0, &[PrefillRun { depth, tokens }], 50.0);
            }
        }
        scheduler
    }

    fn owner(request: u64) -> Ownership {
        Ownership::new("", "", request, Priority::Interactive)
    }

    fn plan(scheduler: &mut Scheduler, phases: &[Phase]) -> Vec<(usize, usize, usize)> {
        let owners: Vec<_> = (0..phases.len() as u64).map(owner).collect();
        let views: Vec<_> = phases
            .iter()
            .zip(&owners)
            .map(|(&phase, ownership)| SequenceView {
                ownership,
                phase,
                depth: 0,
                draft: Draft::default(),
            })
            .collect();
        let shares = scheduler.plan_step(&views);
        shares
            .iter()
            .map(|s| (s.sequence, s.tokens, s.logits))
            .collect()
    }

    #[test]
    fn a_lone_prompt_gets_as_much_as_keeps_the_door_open() {
        let shares = plan(&mut scheduler(), &[LONG]);
        assert!(matches!(shares[..], [(0, 315..=322, 0)]), "{shares:?}");
        let tail = plan(&mut scheduler(), &[Phase::Prefill { tokens_left: 20 }]);
        assert_eq!(tail, [(0, 20, 1)], "its last token's logits are wanted");
    }

    #[test]
    fn a_running_answer_bounds_the_step() {
        let shares = plan(&mut scheduler(), &[Phase::Decode, LONG]);
        assert_eq!(shares[0], (0, 1, 1));
        assert!(
            matches!(shares[1], (1, 135..=142, 0)),
            "70 ms are left: {shares:?}"
        );
    }

    #[test]
    fn a_short_prompt_overtakes_a_long_one() {
        let mut scheduler = scheduler();
        plan(&mut scheduler, &[LONG]);
        let shares = plan(&mut scheduler, &[LONG, Phase::Prefill { tokens_left: 20 }]);
        assert!(shares.contains(&(1, 20, 1)), "{shares:?}");
        assert!(shares.iter().any(|s| s.0 == 0 && s.1 > 100), "{shares:?}");
    }

    #[test]
    fn prefill_moves_beside_whatever_decodes() {
        let mut scheduler = scheduler();
        let mut phases = vec![Phase::Decode; 40];
        for _ in 0..50 {
            scheduler.cost.observe(40, &[], 200.0);
        }
        phases.push(LONG);
        let shares = plan(&mut scheduler, &phases);
        assert_eq!(shares.last(), Some(&(40, CHUNK_TOKENS_MIN, 0)));
        assert_eq!(shares.len(), 41);
    }

    fn phase() -> impl Strategy<Value = Phase> {
        prop_oneof![
            (0usize..3000).prop_map(|tokens_left| Phase::Prefill { tokens_left }),
            Just(Phase::Decode),
            Just(Phase::Paused),
        ]
    }

    proptest! {
        /// Bounds hold, and no time is left while somebody wants it.
        #[test]
        fn bounds_hold(steps in prop::collection::vec(
            prop::collection::vec((phase(), 0usize..20_000, 0u64..6, any::<bool>()), 0..20), 1..6,
        )) {
            let mut scheduler = scheduler();
            for sequences in steps {
                let priority = |background| match background {
                    true => Priority::Background,
                    false => Priority::Interactive,
                };
                let owners: Vec<_> = sequences
                    .iter()
                    .map(|&(_, _, request, low)| Ownership::new("", "", request, priority(low)))
                    .collect();
                let views: Vec<_> = sequences
                    .iter()
                    .zip(&owners)
                    .map(|(&(phase, depth, request, _), ownership)| {
                        let (tokens, acceptance) = (depth % 9, request as f64 / 10.0);
                        let draft = Draft { tokens, acceptance };
                        SequenceView { ownership, phase, depth, draft }
                    })
                    .collect();
                let shares = scheduler.plan_step(&views);
                let (mut got, mut drafted) = (vec![0usize; views.len()], 0);
                for share in &shares {
                    prop_assert!(share.tokens > 0);
                    prop_assert_eq!(got[share.sequence], 0, "one share each");
                    got[share.sequence] = share.tokens;
                    drafted += share.drafted();
                }
                let (mut prefill, mut wanted) = (0, 0);
                for (view, &tokens) in views.iter().zip(&got) {
                    match view.phase {
                        Phase::Decode => {
                            prop_assert!((1..=1 + view.draft.tokens).contains(&tokens));
                        }
                        Phase::Paused => prop_assert_eq!(tokens, 0),
                        Phase::Prefill { tokens_left } => {
                            prop_assert!(tokens <= tokens_left);
                            prefill += tokens;
                            wanted += tokens_left;
                        }
                    }
                }
                prop_assert!(prefill > 0 || wanted == 0, "prefill moves");
                prop_assert!(drafted == 0 || wanted == 0, "no drafts beside prefill");
                prop_assert!(drafted <= DRAFTED_MAX);
                prop_assert!(got.iter().sum::<usize>() <= 512);
                let ms = scheduler.predict_ms(&shares);
                let bound = match wanted == prefill || prefill > CHUNK_TOKENS_MIN {
                    // A lone prompt has the longer bound.
                    true => BOUNDS.admission_ms_max,
                    false => f64::INFINITY,
                };
                prop_assert!(ms <= bound.max(scheduler.cost.decode_ms(20) + 20.0), "{ms} ms");
            }
        }
    }
}
