//! The shield itself: looks at the processes, raises scores and gives them back. Blocks on /proc and on
//! the state directory, so it runs beside the async runtime.

use std::{collections::BTreeMap, time::Instant};

use vitriol_chassis::event;

use crate::{
    decide::{Change, Policy, Raised, Recorded, Scope, decide_changes},
    look::Look,
    metrics::Metrics,
    process::{Process, ProcessId},
    procfs::{Procfs, SetError},
    record::RecordFile,
    spared::is_house,
};

/// What has been said, so that it is said once.
#[derive(Debug, Default)]
struct Said {
    refused: bool,
    unrecorded: bool,
    unlisted: bool,
    unprotected: bool,
}

/// The shield of one house.
#[derive(Debug)]
pub struct Shield {
    procfs: Procfs,
    policy: Policy,
    file: RecordFile,
    recorded: Recorded,
    metrics: Metrics,
    said: Said,
}

impl Shield {
    /// A shield that has given back what one before it left.
    pub fn open(procfs: Procfs, policy: Policy, file: RecordFile, metrics: Metrics) -> Self {
        let left = file.load().unwrap_or_else(|error| {
            let path = file.path().display();
            tracing::warn!(%path, %error, "the record of raised scores is useless and begun anew");
            BTreeMap::new()
        });
        let mut shield = Self {
            procfs,
            policy,
            file,
            recorded: Recorded {
                raised: left,
                ..Recorded::default()
            },
            metrics,
            said: Said::default(),
        };
        if !shield.recorded.raised.is_empty() {
            shield.give_back();
        }
        shield
    }

    /// Looks at the processes once and does what is to be done about them; they are shown as they are then,
    /// or none, when they cannot be listed.
    pub fn round(&mut self) -> Look {
        let mut processes = self.list();
        self.check_house(&processes);
        let changes = decide_changes(&processes, &self.recorded, &self.policy);
        if !changes.is_empty() {
            self.apply(&changes, &processes);
            processes = self.list();
        }
        self.metrics
            .processes_raised
            .set(self.raised().len() as i64);
        Look::new(Instant::now(), processes, &self.recorded, &self.policy)
    }

    fn list(&mut self) -> Vec<Process> {
        self.procfs.processes().unwrap_or_else(|error| {
            self.metrics.scan_failures.inc();
            if !std::mem::replace(&mut self.said.unlisted, true) {
                tracing::warn!(%error, "/proc cannot be listed; no score is raised");
            }
            Vec::new()
        })
    }

    /// What is raised, also by those who changed it since.
    pub fn raised(&self) -> &BTreeMap<ProcessId, Raised> {
        &self.recorded.raised
    }

    fn apply(&mut self, changes: &[Change], processes: &[Process]) {
        let mut to_raise = Vec::new();
        for change in changes {
            match *change {
                Change::Raise { id, raised } => {
                    self.recorded.raised.insert(id, raised);
                    to_raise.push((id, raised));
                }
                Change::Forget(id) => {
                    self.recorded.raised.remove(&id);
                    self.recorded.refused.remove(&id);
                }
            }
        }
        if !self.save() {
            // What cannot be recorded would stay raised for good if this process were killed.
            for (id, _) in to_raise {
                self.recorded.raised.remove(&id);
            }
            return;
        }
        let on_disk = self.recorded.raised.clone();
        for (id, raised) in to_raise {
            let process = processes.iter().find(|process| process.id == id);
            self.raise(id, raised, process);
        }
        if self.recorded.raised != on_disk {
            self.save();
        }
    }

    fn raise(&mut self, id: ProcessId, raised: Raised, process: Option<&Process>) {
        let Raised { was, set } = raised;
        match self.procfs.set_score(id, was, set) {
            Ok(()) => {
                self.metrics.raises.inc();
                let name = process.map(|process| process.name.as_str());
                let resident_bytes = process.map(|process| process.resident_bytes);
                tracing::info!(
                    process = id.pid,
                    name,
                    resident_bytes,
                    was,
                    set,
                    "score raised"
                );
            }
            Err(SetError::Refused(error)) => {
                self.recorded.raised.remove(&id);
                self.recorded.refused.insert(id);
                self.note_refusal(id, &error);
            }
            // It will be seen as it is in the next round.
            Err(SetError::Gone | SetError::Changed { .. }) => {
                self.recorded.raised.remove(&id);
            }
        }
    }

    /// Gives every raised score back to the process that still has it. What the kernel refuses stays in
    /// the record, for the next one to try.
    pub fn give_back(&mut self) {
        let mut left = BTreeMap::new();
        for (id, raised) in std::mem::take(&mut self.recorded.raised) {
            match self.procfs.set_score(id, raised.set, raised.was) {
                Ok(()) => {
                    self.metrics.returns.inc();
                    tracing::info!(
                        process = id.pid,
                        was = raised.set,
                        set = raised.was,
                        "score given back"
                    );
                }
                Err(SetError::Gone | SetError::Changed { .. }) => {}
                Err(SetError::Refused(error)) => {
                    left.insert(id, raised);
                    self.note_refusal(id, &error);
                }
            }
        }
        self.recorded.raised = left;
        self.metrics
            .processes_raised
            .set(self.raised().len() as i64);
        self.save();
    }

    /// Says whether the record is on disk.
    fn save(&mut self) -> bool {
        let Err(error) = self.file.save(&self.recorded.raised) else {
            return true;
        };
        self.metrics.record_failures.inc();
        if !std::mem::replace(&mut self.said.unrecorded, true) {
            let path = self.file.path().display();
            tracing::error!(
                message_id = event::SHIELD_DEGRADED,
                %path,
                %error,
                "raised scores cannot be recorded, so none is raised; make room or mend the directory"
            );
        }
        false
    }

    fn note_refusal(&mut self, id: ProcessId, error: &std::io::Error) {
        self.metrics.refusals.inc();
        if !std::mem::replace(&mut self.said.refused, true) {
            tracing::warn!(
                message_id = event::SHIELD_DEGRADED,
                process = id.pid,
                %error,
                "the kernel does not let the shield set a score; the process stays as it is (later \
                 ones are only counted)"
            );
        }
    }

    /// Whether the units' OOMScoreAdjust= took effect, which only an installed house has.
    fn check_house(&mut self, processes: &[Process]) {
        if self.policy.scope != Scope::People {
            return;
        }
        let of_house =
            |process: &&Process| is_house(process) && !self.policy.scope.includes(process.uid);
        let house = processes.iter().filter(of_house);
        let unprotected = house.filter(|process| process.oom_score_adj >= 0).count();
        self.metrics.house_unprotected.set(unprotected as i64);
        if unprotected > 0 && !std::mem::replace(&mut self.said.unprotected, true) {
            tracing::warn!(
                message_id = event::SHIELD_DEGRADED,
                unprotected,
                "the kernel did not take OOMScoreAdjust= of the house's units (a container?); the house \
                 is protected only by what is raised beside it"
            );
        }
    }
}

#[cfg(test)]
mod tests;
