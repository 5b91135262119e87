use super::*;
use proptest::prelude::*;

const QUANTUM_MS: f64 = 80.0;

/// 0.5 ms a token, and 0.5 ms more for each 1,024 tokens of depth.
fn cost() -> StepCost {
    let mut cost = StepCost::default();
    for _ in 0..500 {
        for depth in [0, 2048, 8192] {
            let ms = 0.5 + 0.5 * (depth as f64 + 32.0) / 1024.0;
            let run = PrefillRun { depth, tokens: 64 };
            cost.observe(0, &[run], 64.0 * ms);
        }
    }
    cost
}

const ROOM: StepRoom = StepRoom {
    ms: 80.0,
    tokens: 100_000,
};

/// Tenants that prefill without end, from a depth on: ms that each got in `steps` steps.
fn race(who: &[(Ownership, usize)], steps: usize) -> Vec<f64> {
    let (mut turns, cost) = (PrefillTurns::new(QUANTUM_MS), cost());
    let mut got = vec![0.0; who.len()];
    for _ in 0..steps {
        let prompts: Vec<_> = who
            .iter()
            .map(|(ownership, depth)| Prompt {
                ownership,
                depth: *depth,
                tokens_left: 1_000_000,
            })
            .collect();
        let given = turns.share_out(&prompts, ROOM, &cost);
        for ((got, (_, depth)), tokens) in got.iter_mut().zip(who).zip(given) {
            *got += cost.prefill_ms(PrefillRun {
                depth: *depth,
                tokens,
            });
        }
    }
    got
}

fn of(tenant: &str, session: &str, priority: Priority) -> Ownership {
    Ownership::new(tenant, session, 0, priority)
}

#[test]
fn tenants_share_time_not_tokens() {
    let high = Priority::Interactive;
    let who = [(of("shallow", "", high), 0), (of("deep", "", high), 16_000)];
    let got = race(&who, 100);
    assert!((got[0] / got[1] - 1.0).abs() < 0.05, "{got:?}");
}

#[test]
fn sessions_of_a_tenant_share_what_it_gets() {
    let high = Priority::Interactive;
    let who = [
        (of("many", "1", high), 0),
        (of("many", "2", high), 0),
        (of("many", "3", high), 0),
        (of("one", "", high), 0),
    ];
    let got = race(&who, 300);
    for session in &got[..3] {
        assert!((session / got[3] - 1.0 / 3.0).abs() < 0.05, "{got:?}");
    }
}

#[test]
fn a_tenth_is_left_for_background() {
    let who = [
        (of("a", "", Priority::Interactive), 0),
        (of("b", "", Priority::Background), 0),
    ];
    let got = race(&who, 300);
    let share = got[1] / (got[0] + got[1]);
    assert!((0.08..0.12).contains(&share), "{share}");
    let alone = race(&who[1..], 10);
    assert!(
        alone[0] > 9.0 * QUANTUM_MS,
        "all of it when nobody else wants it"
    );
}

#[test]
fn a_newcomer_has_its_quantum_at_once_and_leaves_others_theirs() {
    let (mut turns, cost) = (PrefillTurns::new(QUANTUM_MS), cost());
    let owners: Vec<_> = (0..40)
        .map(|n| of(&n.to_string(), "", Priority::Interactive))
        .collect();
    let prompt = |index: usize, tokens_left| Prompt {
        ownership: &owners[index],
        depth: 0,
        tokens_left,
    };
    turns.share_out(&[prompt(0, 6000)], ROOM, &cost);
    let given = turns.share_out(&[prompt(0, 6000), prompt(1, 60)], ROOM, &cost);
    assert_eq!(given[1], 60);
    assert!(given[0] > 60, "{given:?}");
    // A crowd that never ends leaves a quarter of the time to those that are no longer new.
    let mut of_old = 0.0;
    for n in 0..30 {
        let prompts = [prompt(0, 6000), prompt(n + 2, 6000), prompt(n + 3, 6000)];
        let given = turns.share_out(&prompts, ROOM, &cost);
        of_old += cost.prefill_ms(PrefillRun {
            depth: 0,
            tokens: given[0],
        });
    }
    assert!(of_old >= 0.1 * 30.0 * ROOM.ms, "{of_old}");
}

proptest! {
    /// Two who prefill all the time are never further apart than what one turn each may differ by.
    #[test]
    fn nobody_gets_ahead_by_more_than_its_turn(
        depths in prop::collection::vec(0usize..20_000, 2..8), steps in 1usize..60,
    ) {
        let who: Vec<_> = depths
            .iter()
            .enumerate()
            .map(|(n, &depth)| (of(&n.to_string(), "", Priority::Interactive), depth))
            .collect();
        let got = race(&who, steps);
        let chunk = cost().prefill_ms(PrefillRun { depth: 20_000, tokens: CHUNK_TOKENS_MIN });
        let (least, most) = got.iter().fold((f64::MAX, 0.0f64), |(a, b), &ms| (a.min(ms), b.max(ms)));
        prop_assert!(most - least <= QUANTUM_MS + 2.0 * chunk, "{got:?}");
    }
}
