//! What the next step computes: pure decisions over the sequences' state and a token budget.
//!
//! A step gives every decoding sequence one token and spends the rest of its budget on prefill.
//! While any sequence decodes, the prefill share of a step is bounded by `prefill_tokens_busy`, so
//! that one long prompt cannot stall running answers.

/// How far a running sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Prompt tokens still to compute.
    Prefill {
        tokens_left: usize,
    },
    Decode,
    /// Its reader is slow: nothing to do until credit comes.
    Paused,
}

/// Budget of a step, tokens.
#[derive(Clone, Copy, Debug)]
pub struct StepBudget {
    /// Most tokens of one step, all sequences together.
    pub tokens_max: usize,
    /// Most prefill tokens of a step in which a sequence decodes.
    pub prefill_tokens_busy: usize,
}

/// One sequence's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index into the phases given to [`plan_step`].
    pub sequence: usize,
    pub tokens: usize,
}

/// Plans a step over `phases` (running sequences, oldest first). `turn` rises by one each step and
/// decides who goes first when the prefill budget does not suffice for all.
///
/// Every decoding sequence gets its token as long as `tokens_max` allows (callers keep it at or
/// above the number of sequences); prefilling ones share what remains evenly, what one does not need
/// goes to the others.
pub fn plan_step(phases: &[Phase], budget: StepBudget, turn: u64) -> Vec<Share> {
    let decoding = phases.iter().filter(|p| **p == Phase::Decode).count();
    let mut shares: Vec<Share> = phases
        .iter()
        .enumerate()
        .filter(|(_, p)| **p == Phase::Decode)
        .map(|(sequence, _)| Share {
            sequence,
            tokens: 1,
        })
        .take(budget.tokens_max)
        .collect();
    let mut left = budget.tokens_max.saturating_sub(decoding);
    if decoding > 0 {
        left = left.min(budget.prefill_tokens_busy);
    }
    let waiting: Vec<(usize, usize)> = phases
        .iter()
        .enumerate()
        .filter_map(|(i, p)| match p {
            Phase::Prefill { tokens_left } if *tokens_left > 0 => Some((i, *tokens_left)),
            _ => None,
        })
        .collect();
    if waiting.is_empty() || left == 0 {
        return shares;
    }
    let first = (turn % waiting.len() as u64) as usize;
    let order: Vec<(usize, usize)> = waiting[first..]
        .iter()
        .chain(&waiting[..first])
        .copied()
        .collect();
    shares.extend(split_evenly(&order, left));
    shares
}

/// Gives each of `(sequence, want)` an equal part of `budget`, no more than it wants; those first in
/// order get the tokens that do not divide.
fn split_evenly(order: &[(usize, usize)], budget: usize) -> Vec<Share> {
    let mut given = vec![0usize; order.len()];
    let mut left = budget;
    loop {
        let open: Vec<usize> = (0..order.len())
            .filter(|&i| given[i] < order[i].1)
            .collect();
        if open.is_empty() || left == 0 {
            break;
        }
        let part = (left / open.len()).max(1);
        for i in open {
            let more = part.min(order[i].1 - given[i]).min(left);
            given[i] += more;
            left -= more;
        }
    }
    order
        .iter()
        .zip(given)
        .filter(|(_, tokens)| *tokens > 0)
        .map(|(&(sequence, _), tokens)| Share { sequence, tokens })
        .collect()
}

/// Whether the oldest waiting request can start. `demand`: pages it needs at its longest;
/// `available`: pages that are free or only cached; `promised`: pages running sequences may still
/// take. Counting the worst case of all keeps every admitted sequence able to finish.
pub fn decide_admission(demand: usize, available: usize, promised: usize) -> bool {
    available.saturating_sub(promised) >= demand
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUDGET: StepBudget = StepBudget {
        tokens_max: 512,
        prefill_tokens_busy: 64,
    };

    #[test]
    fn a_lone_prompt_gets_the_whole_step() {
        let plan = plan_step(&[Phase::Prefill { tokens_left: 2000 }], BUDGET, 0);
        assert_eq!(
            plan,
            [Share {
                sequence: 0,
                tokens: 512
            }]
        );
    }

    #[test]
    fn a_running_answer_bounds_the_prefill_share() {
        let phases = [
            Phase::Decode,
            Phase::Prefill { tokens_left: 2000 },
            Phase::Decode,
        ];
        let plan = plan_step(&phases, BUDGET, 0);
        let tokens: Vec<_> = plan.iter().map(|s| (s.sequence, s.tokens)).collect();
        assert_eq!(tokens, [(0, 1), (2, 1), (1, 64)]);
    }

    #[test]
    fn a_short_prompt_beside_a_long_one_is_done_in_one_step() {
        let phases = [
            Phase::Prefill { tokens_left: 6000 },
            Phase::Prefill { tokens_left: 20 },
        ];
        let plan = plan_step(&phases, BUDGET, 0);
        assert_eq!(
            plan[1],
            Share {
                sequence: 1,
                tokens: 20
            }
        );
        assert_eq!(
            plan[0],
            Share {
                sequence: 0,
                tokens: 492
            }
        );
    }

    fn phase() -> impl Strategy<Value = Phase> {
        prop_oneof![
            (0usize..3000).prop_map(|tokens_left| Phase::Prefill { tokens_left }),
            Just(Phase::Decode),
            Just(Phase::Paused),
        ]
    }

    proptest! {
        /// Bounds hold and no budget is left while somebody wants it.
        #[test]
        fn bounds_hold(phases in prop::collection::vec(phase(), 0..20), turn: u64) {
            let plan = plan_step(&phases, BUDGET, turn);
            let mut got = vec![0usize; phases.len()];
            for share in &plan {
                prop_assert!(share.tokens > 0);
                prop_assert_eq!(got[share.sequence], 0, "one share each");
                got[share.sequence] = share.tokens;
            }
            let decoding = phases.iter().filter(|p| **p == Phase::Decode).count();
            let (mut prefill, mut wanted) = (0, 0);
            for (phase, tokens) in phases.iter().zip(&got) {
                match phase {
                    Phase::Decode => prop_assert_eq!(*tokens, 1),
                    Phase::Paused => prop_assert_eq!(*tokens, 0),
                    Phase::Prefill { tokens_left } => {
                        prop_assert!(tokens <= tokens_left);
                        prefill += tokens;
                        wanted += tokens_left;
                    }
                }
            }
            let most = if decoding > 0 { 64 } else { 512 - decoding };
            prop_assert_eq!(prefill, wanted.min(most));
        }

        /// Nobody starves: over as many turns as there are prompts each gets at least one token.
        #[test]
        fn every_prompt_moves(n in 1usize..200) {
            let phases = vec![Phase::Prefill { tokens_left: 100 }; n];
            let budget = StepBudget { tokens_max: 8, prefill_tokens_busy: 8 };
            let mut got = vec![0usize; n];
            for turn in 0..n as u64 {
                for share in plan_step(&phases, budget, turn) { got[share.sequence] += share.tokens; }
            }
            prop_assert!(got.iter().all(|&g| g > 0));
        }
    }

    #[test]
    fn admission_counts_the_worst_case_of_all() {
        assert!(decide_admission(4, 10, 6));
        assert!(!decide_admission(5, 10, 6));
        assert!(!decide_admission(1, 5, 6));
    }
}
