//! What is raised and what is forgotten: pure.

use std::collections::{BTreeMap, BTreeSet};

use vitriol_profile::ProcessNames;

use crate::{
    process::{Process, ProcessId},
    spared::spared,
};

/// The first uid of a person on Linux; below are the machine's own.
const PEOPLE_FROM: u32 = 1000;

/// In between, uids that systemd gives to services for as long as they run, and `nobody`.
/// Source: systemd, docs/UIDS-GIDS.md.
const NO_PEOPLE: std::ops::RangeInclusive<u32> = 61_184..=65_535;

/// Whose processes may be raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This user's, unless it is no person: the machine's own processes are not offered to the kernel
    /// because root, too, tried the house.
    User(u32),
    /// Every person's.
    People,
}

impl Scope {
    pub fn includes(self, uid: u32) -> bool {
        let is_person = uid >= PEOPLE_FROM && !NO_PEOPLE.contains(&uid);
        match self {
            Scope::User(own) => uid == own && is_person,
            Scope::People => is_person,
        }
    }
}

/// What is raised, and how far.
#[derive(Clone, Debug)]
pub struct Policy {
    /// oom_score_adj, 0 to 1000.
    pub raise_to: i32,
    pub resident_bytes_min: u64,
    pub scope: Scope,
    pub extra: ProcessNames,
}

/// A score that the shield has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    pub was: i32,
    pub set: i32,
}

/// What the shield has done to processes that live.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Also those whose score somebody has changed since: theirs is the last word.
    pub raised: BTreeMap<ProcessId, Raised>,
    /// The kernel did not let the shield raise them.
    pub refused: BTreeSet<ProcessId>,
}

/// Something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Raise {
        id: ProcessId,
        raised: Raised,
    },
    /// It has ended.
    Forget(ProcessId),
}

/// What is to be done about `processes`, which are all there are.
///
/// A process is raised once in its life: who lowers it again, or raises it further, is not contradicted.
pub fn decide_changes(processes: &[Process], recorded: &Recorded, policy: &Policy) -> Vec<Change> {
    let living: BTreeSet<ProcessId> = processes.iter().map(|process| process.id).collect();
    let known = recorded.raised.keys().chain(&recorded.refused);
    let gone = known.filter(|id| !living.contains(id));
    let mut changes: Vec<Change> = gone.map(|id| Change::Forget(*id)).collect();
    let is_new = |process: &&Process| {
        !recorded.raised.contains_key(&process.id) && !recorded.refused.contains(&process.id)
    };
    let raised = processes
        .iter()
        .filter(is_new)
        .filter(|process| may_raise(process, policy))
        .map(|process| Change::Raise {
            id: process.id,
            raised: Raised {
                was: process.oom_score_adj,
                set: policy.raise_to,
            },
        });
    changes.extend(raised);
    changes
}

fn may_raise(process: &Process, policy: &Policy) -> bool {
    policy.scope.includes(process.uid)
        && process.resident_bytes >= policy.resident_bytes_min
        && process.oom_score_adj < policy.raise_to
        && spared(process, &policy.extra).is_none()
}

#[cfg(test)]
mod tests;
