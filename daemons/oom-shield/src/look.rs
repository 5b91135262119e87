//! What one look at the processes shows to people: pure.

use std::time::Instant;

use crate::{
    decide::{Policy, Recorded},
    process::Process,
    spared::{Spared, spared},
};

/// The kernel never kills a process with this adjustment.
const NEVER: i32 = -1000;

/// What the shield makes of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Raised {
        from: i32,
    },
    Refused,
    Spared(Spared),
    /// Small, of somebody who is not in scope, or as high by itself.
    NotMeant,
}

/// The processes at one moment.
#[derive(Clone, Debug)]
pub struct Look {
    pub at: Instant,
    /// In the order in which the kernel would kill them; those that it never kills are left out.
    pub processes: Vec<(Process, Standing)>,
    pub raised: usize,
}

impl Look {
    /// `processes` as they were at `at`.
    pub fn new(
        at: Instant,
        mut processes: Vec<Process>,
        recorded: &Recorded,
        policy: &Policy,
    ) -> Self {
        processes.retain(|process| process.oom_score_adj > NEVER);
        processes.sort_by_key(|process| {
            let large_first = std::cmp::Reverse((process.oom_score, process.resident_bytes));
            (large_first, process.id)
        });
        let stands = |process: Process| {
            let standing = standing(&process, recorded, policy);
            (process, standing)
        };
        Self {
            at,
            processes: processes.into_iter().map(stands).collect(),
            raised: recorded.raised.len(),
        }
    }
}

fn standing(process: &Process, recorded: &Recorded, policy: &Policy) -> Standing {
    if let Some(raised) = recorded.raised.get(&process.id) {
        return Standing::Raised { from: raised.was };
    }
    if recorded.refused.contains(&process.id) {
        return Standing::Refused;
    }
    spared(process, &policy.extra).map_or(Standing::NotMeant, Standing::Spared)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use vitriol_profile::ProcessNames;

    use super::*;
    use crate::{
        decide::{Raised, Scope},
        process::ProcessId,
    };

    fn process(pid: u32, name: &str, oom_score: u32, adj: i32) -> Process {
        Process {
            id: ProcessId {
                pid,
                start_ticks: 1,
            },
            name: name.to_owned(),
            uid: 1000,
            leads_session: false,
            resident_bytes: u64::from(pid) << 20,
            oom_score,
            oom_score_adj: adj,
        }
    }

    #[test]
    fn the_order_is_the_kernels() {
        let processes = vec![
            process(1, "systemd", 0, -1000),
            process(2, "vitriol-engine", 400, 0),
            process(3, "java", 900, 300),
            process(4, "sshd", 400, 0),
            process(5, "cat", 10, 0),
            process(6, "java", 666, 0),
        ];
        let policy = Policy {
            raise_to: 300,
            resident_bytes_min: 1,
            scope: Scope::People,
            extra: ProcessNames::default(),
        };
        let recorded = Recorded {
            raised: BTreeMap::from([(processes[2].id, Raised { was: 7, set: 300 })]),
            refused: BTreeSet::from([processes[5].id]),
        };
        let look = Look::new(Instant::now(), processes, &recorded, &policy);
        let order: Vec<u32> = look.processes.iter().map(|(p, _)| p.id.pid).collect();
        assert_eq!(order, [3, 6, 4, 2, 5], "by score, then by memory");
        let standings: Vec<Standing> = look.processes.iter().map(|(_, s)| *s).collect();
        assert_eq!(standings[0], Standing::Raised { from: 7 });
        assert_eq!(standings[1], Standing::Refused);
        assert!(matches!(standings[2], Standing::Spared(Spared::Vital(_))));
        assert_eq!(standings[3], Standing::Spared(Spared::House));
        assert_eq!((standings[4], look.raised), (Standing::NotMeant, 1));
    }
}
