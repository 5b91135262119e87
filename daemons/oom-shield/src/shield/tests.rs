//! On real processes: a directory that shows the shield these children and nothing else of /proc.

use std::{
    fs,
    os::unix::{fs::symlink, process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;
use vitriol_profile::ProcessNames;
use vitriol_testkit::eventually;

use super::*;
use crate::look::Standing;

/// For children of root, whose own processes are nobody's to raise.
const SOMEBODY: u32 = 54_321;

struct Machine {
    directory: TempDir,
    children: Vec<Child>,
    uid: u32,
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let random = directory.path().join("proc/sys/kernel/random");
        fs::create_dir_all(&random).unwrap();
        symlink("/proc/sys/kernel/random/boot_id", random.join("boot_id")).unwrap();
        let own = rustix::process::geteuid();
        Self {
            directory,
            children: Vec::new(),
            uid: if own.is_root() {
                SOMEBODY
            } else {
                own.as_raw()
            },
        }
    }

    /// A process that does nothing, with this score.
    fn spawn(&mut self, score: i32) -> u32 {
        let mut command = Command::new("sleep");
        command.arg("1000").stdin(Stdio::null());
        if rustix::process::geteuid().is_root() {
            command.uid(self.uid);
        }
        let child = command.spawn().unwrap();
        let pid = child.id();
        self.children.push(child);
        set(pid, score);
        let proc = self.directory.path().join("proc");
        symlink(format!("/proc/{pid}"), proc.join(pid.to_string())).unwrap();
        // For a moment it still looks like the test it was forked from.
        let in_sight = |process: &Process| {
            process.id.pid == pid && process.name == "sleep" && process.uid == self.uid
        };
        eventually(Duration::from_secs(30), "a child", || {
            self.procfs()
                .processes()
                .unwrap()
                .iter()
                .any(in_sight)
                .then_some(())
        })
        .unwrap();
        pid
    }

    fn end(&mut self, pid: u32) {
        let child = self
            .children
            .iter_mut()
            .find(|child| child.id() == pid)
            .unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn state(&self) -> &Path {
        self.directory.path()
    }

    fn procfs(&self) -> Procfs {
        Procfs::at(self.directory.path().join("proc"))
    }

    fn shield_to(&self, raise_to: i32, state: &Path) -> Shield {
        let policy = Policy {
            raise_to,
            resident_bytes_min: 1,
            scope: Scope::User(self.uid),
            extra: ProcessNames::default(),
        };
        let file = RecordFile::new(state, self.procfs().boot_id().unwrap());
        Shield::open(self.procfs(), policy, file, Metrics::default())
    }

    fn shield(&self) -> Shield {
        self.shield_to(300, self.state())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for child in &mut self.children {
            // One may have been ended by its test.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn score(pid: u32) -> i32 {
    let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    text.trim().parse().unwrap()
}

fn set(pid: u32, score: i32) {
    fs::write(format!("/proc/{pid}/oom_score_adj"), format!("{score}")).unwrap();
}

#[test]
fn scores_are_raised_and_given_back() {
    let mut machine = Machine::new();
    let (plain, higher, highest) = (machine.spawn(0), machine.spawn(120), machine.spawn(700));
    let mut shield = machine.shield();
    let look = shield.round();
    assert_eq!([plain, higher, highest].map(score), [300, 300, 700]);
    let mut shown = look.processes.iter();
    let (seen, standing) = shown.find(|(process, _)| process.id.pid == plain).unwrap();
    assert_eq!(seen.oom_score_adj, 300, "it is shown as it is");
    assert_eq!(*standing, Standing::Raised { from: 0 });
    shield.round();
    assert_eq!(shield.metrics.raises.get(), 2);
    assert_eq!(shield.metrics.processes_raised.get(), 2);
    shield.give_back();
    assert_eq!([plain, higher, highest].map(score), [0, 120, 700]);
    assert_eq!(
        (
            shield.metrics.returns.get(),
            shield.metrics.processes_raised.get()
        ),
        (2, 0)
    );
    assert!(!shield.file.path().exists(), "nothing is owed any more");
}

#[test]
fn what_a_killed_shield_left_the_next_one_gives_back() {
    let mut machine = Machine::new();
    let (stays, changes) = (machine.spawn(10), machine.spawn(20));
    let mut killed = machine.shield();
    killed.round();
    assert_eq!([stays, changes].map(score), [300, 300]);
    drop(killed);
    set(changes, 450);
    let next = machine.shield();
    assert_eq!([stays, changes].map(score), [10, 450]);
    assert_eq!(next.metrics.returns.get(), 1);
    assert!(next.raised().is_empty() && !next.file.path().exists());
}

#[test]
fn somebody_elses_word_is_final() {
    let mut machine = Machine::new();
    let (lowered, raised) = (machine.spawn(0), machine.spawn(0));
    let mut shield = machine.shield();
    shield.round();
    set(lowered, 100);
    set(raised, 900);
    shield.round();
    shield.round();
    assert_eq!([lowered, raised].map(score), [100, 900]);
    shield.give_back();
    assert_eq!([lowered, raised].map(score), [100, 900]);
}

#[test]
fn a_pid_that_was_given_away_is_another_process() {
    let mut machine = Machine::new();
    let pid = machine.spawn(300);
    let file = RecordFile::new(machine.state(), machine.procfs().boot_id().unwrap());
    let id = ProcessId {
        pid,
        start_ticks: 1,
    };
    file.save(&BTreeMap::from([(id, Raised { was: 0, set: 300 })]))
        .unwrap();
    let shield = machine.shield();
    assert_eq!(score(pid), 300);
    assert!(shield.raised().is_empty());
}

#[test]
fn who_has_ended_is_forgotten() {
    let mut machine = Machine::new();
    let pid = machine.spawn(0);
    let mut shield = machine.shield();
    shield.round();
    assert_eq!(shield.file.load().unwrap().len(), 1);
    machine.end(pid);
    shield.round();
    assert!(shield.raised().is_empty() && !shield.file.path().exists());
    assert_eq!(shield.metrics.processes_raised.get(), 0);
}

/// No kernel takes a score above 1000, whoever asks.
#[test]
fn a_kernel_that_refuses_is_counted_and_not_asked_again() {
    let mut machine = Machine::new();
    let pid = machine.spawn(0);
    let mut shield = machine.shield_to(1001, machine.state());
    for _ in 0..3 {
        shield.round();
    }
    assert_eq!(score(pid), 0);
    assert_eq!(
        (shield.metrics.refusals.get(), shield.metrics.raises.get()),
        (1, 0)
    );
    assert!(shield.said.refused && shield.raised().is_empty() && !shield.file.path().exists());
}

#[test]
fn what_cannot_be_recorded_is_not_raised() {
    let mut machine = Machine::new();
    let pid = machine.spawn(0);
    let state = machine.state().join("later");
    let mut shield = machine.shield_to(300, &state);
    shield.round();
    assert_eq!(score(pid), 0);
    assert_eq!(shield.metrics.record_failures.get(), 1);
    // Once there is room again it goes on.
    fs::create_dir(&state).unwrap();
    shield.round();
    assert_eq!(score(pid), 300);
    shield.give_back();
}

#[test]
fn a_damaged_record_is_begun_anew() {
    let mut machine = Machine::new();
    let pid = machine.spawn(0);
    fs::write(
        machine.state().join("raised"),
        "vitriol-oom-shield 1 what?\n7 7",
    )
    .unwrap();
    let mut shield = machine.shield();
    shield.round();
    assert_eq!(score(pid), 300);
    shield.give_back();
    assert_eq!(score(pid), 0);
}

/// The house of a machine whose units should have lowered their scores.
#[test]
fn units_whose_scores_the_kernel_did_not_take_are_told() {
    let machine = Machine::new();
    let of = machine.directory.path().join("proc/42");
    fs::create_dir(&of).unwrap();
    let stat = "42 (vitriol-engine) S 1 42 42 0 -1 0 1 0 0 0 2 5 9 9 20 0 3 0 777 12345 1000 9\n";
    fs::write(of.join("stat"), stat).unwrap();
    fs::write(of.join("oom_score"), "666\n").unwrap();
    let mut shield = machine.shield();
    shield.policy.scope = Scope::People;
    // Its files belong to whoever runs this test, and a person's own house promises nothing.
    let is_machines = !Scope::People.includes(rustix::process::geteuid().as_raw());
    for (adj, unprotected) in [("0\n", i64::from(is_machines)), ("-500\n", 0)] {
        fs::write(of.join("oom_score_adj"), adj).unwrap();
        shield.round();
        assert_eq!(shield.metrics.house_unprotected.get(), unprotected, "{adj}");
        assert_eq!(shield.said.unprotected, is_machines);
    }
}
