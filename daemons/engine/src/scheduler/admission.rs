use super::{Owner, Ownership, Priority};
use std::collections::{BTreeMap, BTreeSet};

/// How often who has waited may be overtaken by others; then nobody passes it any more.
pub const OVERTAKEN_MAX: u32 = 9;
/// How many are asked in one round whether they fit, beside those for whose tenant pages are kept.
const ASKED_MAX: usize = 8;

/// A sequence that waits for a place.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub ownership: &'a Ownership,
    /// Rises with each sequence that is submitted; stays when it gives way and comes back.
    pub arrival: u64,
    /// It gave way to another and is to go on before anybody new starts.
    pub preempted: bool,
    /// Nobody would read what it computed now.
    pub paused: bool,
    /// Pages are kept for its tenant.
    pub has_share: bool,
}

/// Whether there are pages for a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    No,
    Yes,
    /// In pages that are kept for its tenant and that nobody else could have.
    Reserved,
}

/// In what order waiting sequences start: interactive before background, round robin over tenants,
/// within a tenant the oldest first.
///
/// One that does not fit is passed by others, and the first background one by interactive ones, but
/// only [`OVERTAKEN_MAX`] times: then it is *overdue*, as one is that gave way, and comes before all
/// that are not; until it fits, nobody else starts but in pages that are kept for him.
#[derive(Clone, Debug, Default)]
pub struct AdmissionOrder {
    /// Turns taken, all tenants together.
    turn: u64,
    /// By tenant that waits, its last turn, or the one at which it came.
    turns: BTreeMap<Owner, u64>,
    /// By arrival, how often it was overtaken.
    overtaken: BTreeMap<u64, u32>,
}

impl AdmissionOrder {
    /// The index of the one of `waiting` that starts now, if any; `fits` is asked for a few of them.
    pub fn choose(
        &mut self,
        waiting: &[Candidate<'_>],
        mut fits: impl FnMut(usize) -> Fit,
    ) -> Option<usize> {
        self.meet(waiting);
        let heads = self.heads(waiting);
        let mut passed: Vec<usize> = Vec::new();
        let mut is_blocked = false;
        for &head in &heads {
            if passed.len() >= ASKED_MAX && !waiting[head].has_share {
                continue;
            }
            let fit = fits(head);
            if fit == Fit::No || is_blocked && fit != Fit::Reserved {
                is_blocked |= self.is_overdue(&waiting[head]);
                passed.push(head);
                continue;
            }
            let chosen = &waiting[head];
            if chosen.ownership.priority == Priority::Interactive && !self.is_overdue(chosen) {
                let is_background =
                    |&&head: &&usize| waiting[head].ownership.priority == Priority::Background;
                let first = heads.iter().find(is_background).copied();
                passed.extend(first.filter(|first| !passed.contains(first)));
            }
            for passed in passed {
                *self.overtaken.entry(waiting[passed].arrival).or_default() += 1;
            }
            self.overtaken.remove(&chosen.arrival);
            self.turn += 1;
            self.turns
                .insert(chosen.ownership.tenant.clone(), self.turn);
            return Some(head);
        }
        None
    }

    /// The first of each tenant and priority, in the order in which they are to start.
    fn heads(&self, waiting: &[Candidate<'_>]) -> Vec<usize> {
        let mut first: BTreeMap<(Priority, &Owner), usize> = BTreeMap::new();
        let age = |index: usize| (!waiting[index].preempted, waiting[index].arrival);
        for (index, candidate) in waiting.iter().enumerate().filter(|(_, c)| !c.paused) {
            let queue = (candidate.ownership.priority, &candidate.ownership.tenant);
            let head = first.entry(queue).or_insert(index);
            if age(index) < age(*head) {
                *head = index;
            }
        }
        let mut heads: Vec<usize> = first.into_values().collect();
        heads.sort_by_key(|&index| {
            let candidate = &waiting[index];
            let Ownership {
                tenant, priority, ..
            } = candidate.ownership;
            match self.is_overdue(candidate) {
                true => (false, Priority::Interactive, 0, candidate.arrival),
                false => {
                    let turn = self.turns.get(tenant).copied().unwrap_or(0);
                    (true, *priority, turn, candidate.arrival)
                }
            }
        });
        heads
    }

    fn is_overdue(&self, candidate: &Candidate<'_>) -> bool {
        let overtaken = self.overtaken.get(&candidate.arrival).copied().unwrap_or(0);
        candidate.preempted || overtaken >= OVERTAKEN_MAX
    }

    fn meet(&mut self, waiting: &[Candidate<'_>]) {
        let arrivals: BTreeSet<u64> = waiting.iter().map(|c| c.arrival).collect();
        self.overtaken
            .retain(|arrival, _| arrivals.contains(arrival));
        let tenants: BTreeSet<&Owner> = waiting.iter().map(|c| &c.ownership.tenant).collect();
        self.turns.retain(|tenant, _| tenants.contains(tenant));
        for tenant in tenants {
            if !self.turns.contains_key(tenant) {
                // Behind those who waited at this turn, before who had one since.
                self.turns.insert(tenant.clone(), self.turn);
            }
        }
    }
}

/// Whether pages suffice for one more sequence. `demand`: pages it is to have; `available`: pages that
/// are free or only cached; `promised`: pages of those that running sequences are to have too, or that
/// are kept for others.
pub fn decide_admission(demand: usize, available: usize, promised: usize) -> bool {
    available.saturating_sub(promised) >= demand
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(of: &[(&str, Priority)]) -> Vec<Ownership> {
        of.iter()
            .map(|&(tenant, priority)| Ownership::new(tenant, "", 0, priority))
            .collect()
    }

    fn queue(owners: &[Ownership]) -> Vec<Candidate<'_>> {
        let candidate = |(ownership, arrival)| Candidate {
            ownership,
            arrival,
            preempted: false,
            paused: false,
            has_share: false,
        };
        owners.iter().zip(0..).map(candidate).collect()
    }

    /// The arrivals in the order in which they start while `fits` says so.
    fn starts(mut waiting: Vec<Candidate<'_>>, fits: impl Fn(&Candidate<'_>) -> Fit) -> Vec<u64> {
        let (mut order, mut starts) = (AdmissionOrder::default(), Vec::new());
        while let Some(index) = order.choose(&waiting, |index| fits(&waiting[index])) {
            starts.push(waiting.remove(index).arrival);
        }
        starts
    }

    const HIGH: Priority = Priority::Interactive;
    const LOW: Priority = Priority::Background;

    #[test]
    fn tenants_take_turns_and_each_sends_its_oldest() {
        let owners = owners(&[
            ("a", HIGH),
            ("a", HIGH),
            ("a", HIGH),
            ("b", HIGH),
            ("c", HIGH),
        ]);
        assert_eq!(starts(queue(&owners), |_| Fit::Yes), [0, 3, 4, 1, 2]);
    }

    #[test]
    fn a_stream_of_newcomers_does_not_starve_who_has_had_a_turn() {
        let tenants: Vec<_> = (0..40).map(|n| n.to_string()).collect();
        let mut of = vec![("a", HIGH); 10];
        of.extend(tenants.iter().map(|tenant| (tenant.as_str(), HIGH)));
        let owners = owners(&of);
        let all = queue(&owners);
        let (mut waiting, mut order, mut starts) =
            (all[..10].to_vec(), AdmissionOrder::default(), Vec::new());
        // One place becomes free for each that comes.
        for newcomer in &all[10..30] {
            waiting.push(*newcomer);
            let index = order.choose(&waiting, |_| Fit::Yes).unwrap();
            starts.push(waiting.remove(index).arrival);
        }
        let of_a = starts.iter().filter(|&&arrival| arrival < 10).count();
        assert_eq!(
            of_a, 5,
            "a turn in each round, which become longer: {starts:?}"
        );
    }

    #[test]
    fn background_waits_but_not_for_ever() {
        let mut of = vec![("b", LOW)];
        of.extend([("a", HIGH); 30]);
        let starts = starts(queue(&owners(&of)), |_| Fit::Yes);
        let at = starts.iter().position(|&arrival| arrival == 0);
        assert_eq!(at, Some(OVERTAKEN_MAX as usize));
    }

    #[test]
    fn who_does_not_fit_is_passed_a_bounded_number_of_times() {
        let mut of = vec![("large", HIGH)];
        let tenants: Vec<_> = (0..30).map(|n| n.to_string()).collect();
        of.extend(tenants.iter().map(|t| (t.as_str(), HIGH)));
        let owners = owners(&of);
        let large_never = |c: &Candidate<'_>| match c.arrival {
            0 => Fit::No,
            _ => Fit::Yes,
        };
        let started = starts(queue(&owners), large_never);
        assert_eq!(started, (1..=u64::from(OVERTAKEN_MAX)).collect::<Vec<_>>());
        let mut waiting = queue(&owners);
        waiting[20].has_share = true;
        let in_own_pages = |c: &Candidate<'_>| match c.arrival {
            0 => Fit::No,
            20 => Fit::Reserved,
            _ => Fit::Yes,
        };
        let started = starts(waiting, in_own_pages);
        assert_eq!(started.len(), OVERTAKEN_MAX as usize + 1);
        assert_eq!(
            started.last(),
            Some(&20),
            "in pages that nobody else could have"
        );
    }

    #[test]
    fn who_gave_way_comes_first_and_whose_reader_is_slow_is_left_out() {
        let owners = owners(&[("a", HIGH), ("b", LOW), ("c", HIGH)]);
        let mut waiting = queue(&owners);
        waiting[1].preempted = true;
        waiting[2].paused = true;
        let mut order = AdmissionOrder::default();
        assert_eq!(order.choose(&waiting, |_| Fit::Yes), Some(1));
        let others_only = |index| if index == 1 { Fit::No } else { Fit::Yes };
        assert_eq!(
            order.choose(&waiting, others_only),
            None,
            "nobody passes it"
        );
    }

    #[test]
    fn admission_counts_what_is_promised() {
        assert!(decide_admission(4, 10, 6));
        assert!(!decide_admission(5, 10, 6));
        assert!(!decide_admission(1, 5, 6));
    }
}
