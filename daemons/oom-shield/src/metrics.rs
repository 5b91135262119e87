//! What the shield counts. Names come out as `vitriol_oom_shield_<name>`.

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Unit,
};
use vitriol_chassis::Registry;

/// Handles to the shield's metrics; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub processes_raised: Gauge,
    pub raises: Counter,
    pub returns: Counter,
    pub refusals: Counter,
    pub record_failures: Counter,
    pub scan_failures: Counter,
    pub house_unprotected: Gauge,
    pub guarded: Gauge,
    pub memory_locked: Gauge,
    pub pressure_some: Counter,
    pub pressure_full: Counter,
    pub trims: Counter,
    pub trimmed_bytes: Counter,
    pub trim_failures: Counter,
    pub sheds: Counter,
    pub shed_failures: Counter,
}

impl Metrics {
    pub fn register(&self, to: &mut Registry) {
        let raised = "Living processes whose score the shield has raised";
        to.register("processes_raised", raised, self.processes_raised.clone());
        to.register("raises", "Scores raised", self.raises.clone());
        to.register("returns", "Scores given back", self.returns.clone());
        let refusals = "Scores that the kernel did not let the shield set";
        to.register("refusals", refusals, self.refusals.clone());
        let failures = "Times that nothing was raised because it could not be recorded";
        to.register("record_failures", failures, self.record_failures.clone());
        let failures = "Times that the processes could not be listed";
        to.register("scan_failures", failures, self.scan_failures.clone());
        let unprotected = "Processes of an installed house whose score is not below 0";
        to.register(
            "house_unprotected",
            unprotected,
            self.house_unprotected.clone(),
        );
        let guarded = "1 while memory pressure is watched";
        to.register("guarded", guarded, self.guarded.clone());
        let locked = "1 if the shield's own memory is locked";
        to.register("memory_locked", locked, self.memory_locked.clone());
        let some = "Windows in which some task waited for memory beyond pressure_some_ms";
        to.register("pressure_some", some, self.pressure_some.clone());
        let full = "Windows in which all tasks waited for memory beyond pressure_full_ms";
        to.register("pressure_full", full, self.pressure_full.clone());
        let trims = "Times that pressure called for memory that is cheap to have again";
        to.register("trims", trims, self.trims.clone());
        let trimmed = "Memory that the KV tier gave back";
        to.register_with_unit("trimmed", trimmed, Unit::Bytes, self.trimmed_bytes.clone());
        let failures = "Calls to the KV tier that failed or took too long";
        to.register("trim_failures", failures, self.trim_failures.clone());
        let sheds = "Times that pressure called for the engine to take nothing new";
        to.register("sheds", sheds, self.sheds.clone());
        let failures = "Calls to the engine that failed or took too long";
        to.register("shed_failures", failures, self.shed_failures.clone());
    }
}
