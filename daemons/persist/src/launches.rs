//! Puts launches on record and says what changed.

use std::io;

use vitriol_chassis::{Difference, Failure, event};

use crate::{
    journal::{Journal, Launch},
    metrics::{DaemonLabels, Metrics},
    service::SharedJournal,
};

/// Who keeps the journal up to date.
#[derive(Debug)]
pub struct Launches {
    journal: SharedJournal,
    metrics: Metrics,
    /// Writing failed, and that was said.
    told: bool,
}

impl Launches {
    pub fn new(journal: SharedJournal, metrics: Metrics) -> Self {
        Self {
            journal,
            metrics,
            told: false,
        }
    }

    /// Puts a launch on record, unless it is there from before this persist, and compares it.
    ///
    /// Errors: a fault of ours (70). A disk that does not take it is said, and tried again by [`save`].
    ///
    /// [`save`]: Self::save
    pub async fn record(&mut self, launch: Launch) -> Result<(), Failure> {
        let labels = DaemonLabels {
            unit: launch.unit.clone(),
        };
        let (unit, pid) = (launch.unit.clone(), launch.pid);
        let work = move |journal: &mut Journal| {
            let written = journal.record(launch.clone());
            let is_new = !matches!(written, Ok(false));
            let last = journal.last();
            let last = last.filter(|last| is_new && *last.launch == launch);
            let compared = last.map(|last| (last.since_last, last.since_blessed));
            (written.map(drop), compared)
        };
        let (written, compared) = self.journal.with(work).await?;
        self.judge(written);
        let Some((since_last, since_blessed)) = compared else {
            return Ok(());
        };
        self.metrics.launches.get_or_create_owned(&labels).inc();
        let base = since_blessed.as_ref().or(since_last.as_ref());
        let changed = self.metrics.changed_fields.get_or_create_owned(&labels);
        changed.set(base.map_or(0, Vec::len) as i64);
        let described = |changes: &Option<Vec<Difference>>| {
            let changes = changes.as_ref().filter(|changes| !changes.is_empty());
            changes.map(|changes| describe(changes))
        };
        match (described(&since_last), described(&since_blessed)) {
            (Some(changes), _) => tracing::warn!(
                message_id = event::LAUNCH_CHANGED,
                unit,
                pid,
                changes,
                "launched otherwise than the last time"
            ),
            (None, Some(changes)) => tracing::warn!(
                message_id = event::LAUNCH_CHANGED,
                unit,
                pid,
                changes,
                "launched otherwise than the blessed launch"
            ),
            (None, None) if since_last.is_some() => {
                tracing::info!(unit, pid, "launched as the last time");
            }
            (None, None) => tracing::info!(unit, pid, "the first launch on record"),
        }
        Ok(())
    }

    /// Tries again to write what a disk did not take.
    ///
    /// Errors: a fault of ours (70).
    pub async fn save(&mut self) -> Result<(), Failure> {
        if self.told {
            let written = self.journal.with(|journal| journal.save()).await?;
            self.judge(written);
        }
        Ok(())
    }

    fn judge(&mut self, written: io::Result<()>) {
        let was_told = std::mem::replace(&mut self.told, written.is_err());
        match written {
            Err(error) if !was_told => tracing::warn!(
                %error,
                "launches are not written to disk; it is tried again with every look"
            ),
            Ok(()) if was_told => tracing::info!("launches are written to disk again"),
            _ => {}
        }
    }
}

/// `engine.threads: 2 -> 4, isa: avx2 -> (none)`
fn describe(changes: &[Difference]) -> String {
    let side = |value: &Option<String>| match value.as_deref() {
        None => "(none)".to_owned(),
        Some("") => "\"\"".to_owned(),
        Some(value) => value.to_owned(),
    };
    let one = |change: &Difference| {
        let (from, to) = (side(&change.from), side(&change.to));
        format!("{}: {from} -> {to}", change.field)
    };
    changes.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_empty_and_one_that_is_not_there_differ() {
        let change = |field: &str, from: Option<&str>, to: Option<&str>| Difference {
            field: field.to_owned(),
            from: from.map(str::to_owned),
            to: to.map(str::to_owned),
        };
        let changes = [
            change("engine.threads", Some("2"), Some("4")),
            change("alias", Some("smol"), Some("")),
            change("isa", None, Some("avx2")),
        ];
        let said = "engine.threads: 2 -> 4, alias: smol -> \"\", isa: (none) -> avx2";
        assert_eq!(describe(&changes), said);
    }
}
