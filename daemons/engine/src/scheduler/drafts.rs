use super::StepCost;

/// A token less likely to be accepted is not worth verifying, however cheap that looks: what steps cost is
/// known to a tenth or so, and where verifying seems to cost nothing long drafts would be all it takes.
const CHANCE_MIN: f64 = 0.1;

/// What is drafted for a decoding sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Draft {
    /// 0: nothing.
    pub tokens: usize,
    /// Chance that one of them is accepted if those before it are, 0 to 1.
    pub acceptance: f64,
}

/// How many drafted tokens of each of `drafts`, one for every decoding sequence, a step verifies: as many
/// as give the most tokens a ms, all sequences together, by what steps have cost. No more than
/// `tokens_max` together, and no step longer than `ms_max`.
pub fn plan_drafts(
    drafts: &[Draft],
    cost: &StepCost,
    tokens_max: usize,
    ms_max: f64,
) -> Vec<usize> {
    let decode_ms = cost.decode_ms(drafts.len());
    let mut expected = drafts.len() as f64;
    let mut given = vec![0; drafts.len()];
    let mut best = (expected / decode_ms, given.clone());
    for all in 1..=tokens_max {
        let ms = decode_ms + cost.draft_ms(all);
        // The next token goes to whoever most likely makes use of it.
        let chance = |index: &usize| drafts[*index].acceptance.powi(given[*index] as i32 + 1);
        let wants = (0..drafts.len()).filter(|&index| given[index] < drafts[index].tokens);
        let Some(index) = wants.max_by(|a, b| chance(a).total_cmp(&chance(b))) else {
            break;
        };
        if ms > ms_max || chance(&index) < CHANCE_MIN {
            break;
        }
        expected += chance(&index);
        given[index] += 1;
        if expected / ms > best.0 {
            best = (expected / ms, given.clone());
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 10 ms for a decoding sequence and 1 ms for each more, `draft_ms` for a drafted token.
    fn cost(draft_ms: f64) -> StepCost {
        let mut cost = StepCost::default();
        for step in 0..400 {
            let (decoding, drafted) = (1 + step % 3, 1 + step % 12);
            let decode_ms = 9.0 + decoding as f64;
            cost.observe(decoding, &[], decode_ms);
            cost.observe_drafts(decoding, drafted, decode_ms + draft_ms * drafted as f64);
        }
        cost
    }

    fn draft(tokens: usize, acceptance: f64) -> Draft {
        Draft { tokens, acceptance }
    }

    fn lone(tokens: usize, acceptance: f64, draft_ms: f64) -> usize {
        plan_drafts(&[draft(tokens, acceptance)], &cost(draft_ms), 15, 1e3)[0]
    }

    #[test]
    fn the_likelier_and_the_cheaper_the_longer() {
        assert_eq!(lone(15, 0.99, 0.5), 15);
        assert!(
            (2..=5).contains(&lone(15, 0.6, 1.0)),
            "{}",
            lone(15, 0.6, 1.0)
        );
        assert_eq!(lone(15, 0.1, 2.0), 0);
        assert_eq!(lone(15, 0.9, 20.0), 0, "a drafted token costs two steps");
        assert_eq!(lone(3, 0.99, 0.5), 3, "no more than there are");
        assert_eq!(lone(15, 0.5, 1e-3), 3, "0.5 to the fourth is not worth it");
    }

    #[test]
    fn the_bounds_hold() {
        let drafts = [draft(15, 0.99), draft(15, 0.9), Draft::default()];
        let cost = cost(1.0);
        let given = plan_drafts(&drafts, &cost, 6, 1e3);
        assert_eq!(given.iter().sum::<usize>(), 6);
        assert!(given[0] >= given[1] && given[2] == 0, "{given:?}");
        // 12 ms without drafts.
        let given = plan_drafts(&drafts, &cost, 15, 15.2);
        assert!((2..=3).contains(&given.iter().sum::<usize>()), "{given:?}");
        assert_eq!(plan_drafts(&drafts, &cost, 15, 11.0), [0; 3]);
    }

    proptest! {
        /// What is planned is never slower than no drafts, by what is known.
        #[test]
        fn a_plan_pays(
            drafts in prop::collection::vec((0usize..20, 0.0f64..=1.0), 1..6),
            draft_ms in 0.1f64..20.0,
            tokens_max in 0usize..16,
            ms_max in 1.0f64..60.0,
        ) {
            let cost = cost(draft_ms);
            let drafts: Vec<Draft> = drafts.into_iter().map(|(n, p)| draft(n, p)).collect();
            let given = plan_drafts(&drafts, &cost, tokens_max, ms_max);
            let all: usize = given.iter().sum();
            prop_assert!(all <= tokens_max);
            let ms = cost.decode_ms(drafts.len()) + cost.draft_ms(all);
            prop_assert!(all == 0 || ms <= ms_max);
            let mut expected = drafts.len() as f64;
            for (draft, &given) in drafts.iter().zip(&given) {
                prop_assert!(given <= draft.tokens);
                expected += (1..=given as i32).map(|n| draft.acceptance.powi(n)).sum::<f64>();
            }
            let alone = drafts.len() as f64 / cost.decode_ms(drafts.len());
            prop_assert!(expected / ms >= alone * (1.0 - 1e-9));
        }
    }
}
