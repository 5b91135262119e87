//! What persist counts. Names come out as `vitriol_persist_<name>`.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Unit,
};
use vitriol_chassis::Registry;

/// A daemon, by the unit it is or would be.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct DaemonLabels {
    pub unit: String,
}

/// Handles to persist's metrics; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub still_polls: Family<DaemonLabels, Gauge>,
    pub hangs: Family<DaemonLabels, Counter>,
    pub ends: Family<DaemonLabels, Counter>,
    pub end_failures: Family<DaemonLabels, Counter>,
    pub launches: Family<DaemonLabels, Counter>,
    pub changed_fields: Family<DaemonLabels, Gauge>,
    pub memory_available: Gauge,
    pub bounces: Family<DaemonLabels, Counter>,
    pub bounce_failures: Family<DaemonLabels, Counter>,
    pub warmups: Counter,
    pub warmup_sessions: Counter,
    pub warmup_bytes: Counter,
}

impl Metrics {
    pub fn register(&self, to: &mut Registry) {
        let still = "Looks in a row in which nothing of the daemon has moved";
        to.register("still_polls", still, self.still_polls.clone());
        let hangs = "Times that the daemon was found to hang";
        to.register("hangs", hangs, self.hangs.clone());
        let ends = "Times that the daemon was ended because it hung";
        to.register("ends", ends, self.ends.clone());
        let failures = "Times that the daemon hung and could not be ended";
        to.register("end_failures", failures, self.end_failures.clone());
        let available = "Memory of the machine that new work can take";
        to.register_with_unit(
            "memory_available",
            available,
            Unit::Bytes,
            self.memory_available.clone(),
        );
        let bounces = "Times that the engine was restarted because memory was short";
        to.register("bounces", bounces, self.bounces.clone());
        let failures = "Times that it was to be and could not";
        to.register("bounce_failures", failures, self.bounce_failures.clone());
        let warmups = "Times that the KV tier was warmed up, as its memory was new";
        to.register("warmups", warmups, self.warmups.clone());
        let sessions = "Conversations of which something was brought back to its memory then";
        to.register("warmup_sessions", sessions, self.warmup_sessions.clone());
        let bytes = "Brought back to its memory then";
        to.register_with_unit("warmup", bytes, Unit::Bytes, self.warmup_bytes.clone());
        let launches = "Launches of the daemon that were seen";
        to.register("launches", launches, self.launches.clone());
        let changed = "Fields in which the newest launch differs from the blessed one, else from the one before";
        to.register(
            "launch_changed_fields",
            changed,
            self.changed_fields.clone(),
        );
    }
}
