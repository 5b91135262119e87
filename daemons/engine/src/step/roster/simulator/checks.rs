use super::{World, extend, next_token};
use crate::{
    scheduler::{
        CHUNK_TOKENS_MIN, LONE_TOKENS_MIN, Owner, Phase, PrefillRun, Priority, Share, Work,
    },
    sequence::EndReason,
};
use std::collections::BTreeMap;

impl World {
    /// The step takes no longer than the contract says, by what the scheduler knows.
    pub fn check_bound(&self, phases: &[Phase], shares: &[Share]) {
        let prefill = shares.iter().filter(|share| share.work == Work::Prefill);
        let tokens = prefill.map(|share| share.tokens).sum::<usize>();
        let decodes = phases.contains(&Phase::Decode);
        let prompts = phases
            .iter()
            .filter(|phase| matches!(phase, Phase::Prefill { .. }));
        let (bound, least) = match decodes || prompts.count() > 1 {
            true => (self.bounds.decode_stall_ms_max, CHUNK_TOKENS_MIN),
            false => (self.bounds.admission_ms_max, LONE_TOKENS_MIN),
        };
        let drafted: usize = shares.iter().map(Share::drafted).sum();
        let predicted = self.roster.scheduler.predict_ms(shares);
        if drafted > 0 {
            assert_eq!(tokens, 0, "drafts are made beside no prompt");
            let twice = match shares.len() {
                1 => 2.0 * self.roster.scheduler.cost().decode_ms(1),
                _ => 0.0,
            };
            let bound = self.bounds.decode_stall_ms_max.max(twice);
            assert!(
                predicted <= bound * (1.0 + 1e-9),
                "{predicted} ms with drafts, bound {bound}: {shares:?}"
            );
        }
        if tokens <= least {
            return;
        }
        assert!(
            predicted <= bound * (1.0 + 1e-9),
            "{predicted} ms, bound {bound}: {shares:?}"
        );
    }

    /// Of two tenants of a priority that both prefill all the time, none is ahead by more than what
    /// two turns may differ.
    pub fn check_fairness(&mut self, who: &[(Owner, Priority)], shares: &[Share], gave_way: usize) {
        if gave_way > 0 {
            // Some shares were given and could not be used.
            return self.ahead_ms.clear();
        }
        let cost = self.roster.scheduler.cost();
        let mut spent: BTreeMap<&Owner, f64> = BTreeMap::new();
        for share in shares.iter().filter(|share| share.work == Work::Prefill) {
            let run = |tokens| PrefillRun {
                depth: share.depth,
                tokens,
            };
            let ownership = &self.roster.running[share.sequence].sequence.new.ownership;
            *spent.entry(&ownership.tenant).or_default() += cost.prefill_ms(run(share.tokens));
            let chunk_ms = cost.prefill_ms(run(CHUNK_TOKENS_MIN));
            self.chunk_ms_max = self.chunk_ms_max.max(chunk_ms);
        }
        let of = |owner: &Owner| spent.get(owner).copied().unwrap_or(0.0);
        let mut ahead_ms = BTreeMap::new();
        for (one, priority) in who {
            // A tenant with prompts of both priorities shares in two ways.
            let mixed = |owner: &Owner| who.iter().any(|(o, p)| o == owner && p != priority);
            for (other, _) in who.iter().filter(|(other, p)| one < other && p == priority) {
                if mixed(one) || mixed(other) {
                    continue;
                }
                let pair = (one.clone(), other.clone());
                let before = self.ahead_ms.get(&pair).copied().unwrap_or(0.0);
                let ahead = before + of(one) - of(other);
                let most = 2.0 * self.bounds.decode_stall_ms_max + 3.0 * self.chunk_ms_max;
                assert!(
                    ahead.abs() <= most,
                    "{one:?} is {ahead} ms ahead of {other:?}"
                );
                ahead_ms.insert(pair, ahead);
            }
        }
        self.ahead_ms = ahead_ms;
    }

    /// Nothing is left, and everybody has what they would have had alone.
    pub fn check_end(&self) {
        assert_eq!(self.roster.usage().held, 0, "every page is given back");
        assert!(self.roster.running.is_empty() && self.roster.waiting.is_empty());
        for client in self.clients.values() {
            let mut tokens = client.prompt.clone();
            let mut history = Vec::new();
            while tokens.len() < client.prompt.len() + client.got.len() {
                extend(&mut history, &tokens);
                tokens.push(next_token(history[tokens.len() - 1]));
            }
            assert_eq!(
                client.got,
                tokens[client.prompt.len()..],
                "as if it had been alone"
            );
            match client.ended {
                Some(EndReason::Length) => assert_eq!(client.got.len(), client.tokens_max),
                Some(EndReason::Cancelled) => assert!(client.leaves_at_ms.is_finite()),
                other => panic!("a sequence ended with {other:?}"),
            }
        }
    }
}
