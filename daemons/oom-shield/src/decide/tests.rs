use proptest::prelude::*;
use vitriol_profile::{Overrides, Profile};

use super::*;

const RAISE_TO: i32 = 300;
const MIN_BYTES: u64 = 300 << 20;

fn policy(scope: Scope) -> Policy {
    let extra = Overrides::new().set("shield.extra", Some("postgres"), "--set");
    Policy {
        raise_to: RAISE_TO,
        resident_bytes_min: MIN_BYTES,
        scope,
        extra: Profile::load(None, &extra).unwrap().shield.extra,
    }
}

fn fat(pid: u32, uid: u32, name: &str) -> Process {
    Process {
        id: ProcessId {
            pid,
            start_ticks: u64::from(pid),
        },
        name: name.to_owned(),
        uid,
        leads_session: false,
        resident_bytes: MIN_BYTES,
        oom_score: 700,
        oom_score_adj: 0,
    }
}

/// The pids that are raised when nothing is recorded.
fn raised(processes: &[Process], policy: &Policy) -> Vec<u32> {
    decide_changes(processes, &Recorded::default(), policy)
        .into_iter()
        .map(|change| match change {
            Change::Raise { id, raised } => {
                assert_eq!(raised.set, RAISE_TO);
                id.pid
            }
            Change::Forget(id) => panic!("nothing is recorded of {id:?}"),
        })
        .collect()
}

#[test]
fn size_score_and_owner_decide() {
    let of = |change: fn(&mut Process)| {
        let mut process = fat(7, 1000, "firefox");
        change(&mut process);
        raised(&[process], &policy(Scope::People)) == [7]
    };
    assert!(of(|_| {}));
    assert!(!of(|p| p.resident_bytes -= 1));
    assert!(of(|p| p.oom_score_adj = RAISE_TO - 1));
    assert!(!of(|p| p.oom_score_adj = RAISE_TO), "as high already");
    assert!(!of(|p| p.oom_score_adj = 900), "higher already");
    assert!(!of(|p| p.oom_score_adj = -1), "protected");
    assert!(!of(|p| p.name = "postgres".into()));
    assert!(!of(|p| p.name = "vitriol-engine".into()));
    assert!(!of(|p| p.name = "sshd".into()));
}

#[test]
fn only_people_are_raised_and_in_a_users_house_only_the_user() {
    let owners = [
        0, 100, 999, 1000, 1001, 60_000, 61_184, 65_534, 65_535, 65_536, 100_000,
    ];
    let processes: Vec<Process> = owners
        .iter()
        .map(|&uid| fat(uid + 2, uid, "java"))
        .collect();
    let of = |scope| {
        let pids = raised(&processes, &policy(scope));
        pids.into_iter().map(|pid| pid - 2).collect::<Vec<u32>>()
    };
    assert_eq!(of(Scope::People), [1000, 1001, 60_000, 65_536, 100_000]);
    assert_eq!(of(Scope::User(1001)), [1001]);
    assert_eq!(
        of(Scope::User(0)),
        [0; 0],
        "root's processes are the machine's"
    );
}

#[test]
fn nothing_is_raised_to_nothing() {
    let off = Policy {
        raise_to: 0,
        ..policy(Scope::People)
    };
    assert_eq!(
        decide_changes(&[fat(7, 1000, "java")], &Recorded::default(), &off),
        []
    );
}

#[test]
fn who_refused_is_not_asked_again_and_the_dead_are_forgotten() {
    let process = fat(7, 1000, "java");
    let mut recorded = Recorded::default();
    recorded.refused.insert(process.id);
    let policy = policy(Scope::People);
    assert_eq!(
        decide_changes(std::slice::from_ref(&process), &recorded, &policy),
        []
    );
    // The same pid, another process.
    let mut heir = process.clone();
    heir.id.start_ticks += 1;
    let changes = decide_changes(&[heir.clone()], &recorded, &policy);
    let raise = Change::Raise {
        id: heir.id,
        raised: Raised {
            was: 0,
            set: RAISE_TO,
        },
    };
    assert_eq!(changes, [Change::Forget(process.id), raise]);
}

/// What can happen on a machine with a shield.
#[derive(Clone, Debug)]
enum Happening {
    Born {
        pid: u32,
        uid: u32,
        name: &'static str,
        bytes: u64,
        adj: i32,
    },
    Dies(usize),
    Grows(usize),
    /// Somebody else sets the score.
    Set(usize, i32),
    Round,
    /// kill -9 of the shield, and its next start.
    KilledAndStarted,
    StoppedAndStarted,
}

fn happening() -> impl Strategy<Value = Happening> {
    let name = prop_oneof![
        Just("java"),
        Just("sshd"),
        Just("postgres"),
        Just("vitriol-engine")
    ];
    let uid = prop_oneof![Just(0u32), Just(1000), Just(1001)];
    let bytes = prop_oneof![Just(1u64 << 20), Just(MIN_BYTES), Just(4 << 30)];
    let adj = prop_oneof![Just(-500), Just(0), Just(200), Just(800)];
    let born = (2u32..6, uid, name, bytes, adj.clone()).prop_map(|(pid, uid, name, bytes, adj)| {
        Happening::Born {
            pid,
            uid,
            name,
            bytes,
            adj,
        }
    });
    prop_oneof![
        4 => born,
        1 => (0usize..4).prop_map(Happening::Dies),
        1 => (0usize..4).prop_map(Happening::Grows),
        1 => (0usize..4, adj).prop_map(|(who, adj)| Happening::Set(who, adj)),
        4 => Just(Happening::Round),
        1 => Just(Happening::KilledAndStarted),
        1 => Just(Happening::StoppedAndStarted),
    ]
}

struct Living {
    process: Process,
    /// Its score before anybody's shield came.
    born_with: i32,
    /// What somebody else set last.
    set_by_other: Option<i32>,
}

/// A machine and a shield on it, whose record is `disk`.
struct Machine {
    policy: Policy,
    living: Vec<Living>,
    births: u64,
    recorded: Recorded,
    disk: BTreeMap<ProcessId, Raised>,
}

impl Machine {
    fn happen(&mut self, happening: &Happening) {
        let count = self.living.len().max(1);
        match *happening {
            Happening::Born {
                pid,
                uid,
                name,
                bytes,
                adj,
            } => {
                if self.living.iter().any(|one| one.process.id.pid == pid) {
                    return;
                }
                self.births += 1;
                let mut process = fat(pid, uid, name);
                process.id.start_ticks = self.births;
                process.resident_bytes = bytes;
                process.oom_score_adj = adj;
                let (born_with, set_by_other) = (adj, None);
                self.living.push(Living {
                    process,
                    born_with,
                    set_by_other,
                });
            }
            Happening::Dies(who) if who < self.living.len() => drop(self.living.remove(who)),
            Happening::Grows(who) => {
                if let Some(one) = self.living.get_mut(who % count) {
                    one.process.resident_bytes = MIN_BYTES;
                }
            }
            Happening::Set(who, adj) => {
                if let Some(one) = self.living.get_mut(who % count) {
                    one.process.oom_score_adj = adj;
                    one.set_by_other = Some(adj);
                }
            }
            Happening::Dies(_) => {}
            Happening::Round => self.round(),
            Happening::KilledAndStarted => {
                self.recorded = Recorded::default();
                self.give_back();
            }
            Happening::StoppedAndStarted => {
                self.give_back();
                self.recorded = Recorded::default();
                self.check_all_given_back();
            }
        }
    }

    fn round(&mut self) {
        let processes: Vec<Process> = self.living.iter().map(|one| one.process.clone()).collect();
        for change in decide_changes(&processes, &self.recorded, &self.policy) {
            match change {
                Change::Forget(id) => {
                    assert!(!processes.iter().any(|process| process.id == id));
                    self.recorded.raised.remove(&id);
                }
                Change::Raise { id, raised } => {
                    self.recorded.raised.insert(id, raised);
                    self.set_score(id, raised.was, raised.set);
                }
            }
        }
        self.disk = self.recorded.raised.clone();
        let processes: Vec<Process> = self.living.iter().map(|one| one.process.clone()).collect();
        let again = decide_changes(&processes, &self.recorded, &self.policy);
        assert_eq!(again, [], "a second look finds nothing to do");
    }

    fn give_back(&mut self) {
        for (id, raised) in std::mem::take(&mut self.disk) {
            self.set_score(id, raised.set, raised.was);
        }
    }

    /// As the kernel does it: the process must be the same, and its score what is expected.
    fn set_score(&mut self, id: ProcessId, expected: i32, to: i32) {
        let mut living = self.living.iter_mut().map(|one| &mut one.process);
        if let Some(process) = living.find(|p| p.id == id && p.oom_score_adj == expected) {
            process.oom_score_adj = to;
        }
    }

    fn check(&self) {
        for one in &self.living {
            let Living {
                process,
                born_with,
                set_by_other,
            } = one;
            let basis = set_by_other.unwrap_or(*born_with);
            let now = process.oom_score_adj;
            assert!(
                now == basis || now == RAISE_TO && basis < RAISE_TO,
                "{process:?} {basis}"
            );
            let untouchable = process.uid == 0 || process.name != "java" || basis < 0;
            assert!(!untouchable || now == basis, "{process:?} {basis}");
        }
        assert!(self.disk.len() <= self.births as usize);
    }

    fn check_all_given_back(&self) {
        for one in &self.living {
            let basis = one.set_by_other.unwrap_or(one.born_with);
            assert_eq!(one.process.oom_score_adj, basis, "{:?}", one.process);
        }
    }
}

proptest! {
    #[test]
    fn scores_are_only_raised_and_all_given_back(
        happenings in prop::collection::vec(happening(), 1..120),
        of_user in any::<bool>(),
    ) {
        let scope = if of_user { Scope::User(1000) } else { Scope::People };
        let mut machine = Machine {
            policy: policy(scope),
            living: Vec::new(),
            births: 0,
            recorded: Recorded::default(),
            disk: BTreeMap::new(),
        };
        for happening in &happenings {
            machine.happen(happening);
            machine.check();
        }
        machine.happen(&Happening::StoppedAndStarted);
    }
}
