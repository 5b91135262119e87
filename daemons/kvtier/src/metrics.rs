//! What the tier counts, read from it when somebody asks. Names come out as `vitriol_kvtier_<name>`.

use std::{fmt::Error as FmtError, sync::Weak};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

use crate::{catalogue::Catalogue, mirror::writer::MirrorStats, tier::Tier};

/// The metrics of a tier, for as long as there is one.
#[derive(Debug)]
pub struct TierCollector(pub Weak<Tier>);

impl Collector for TierCollector {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), FmtError> {
        let Some(tier) = self.0.upgrade() else {
            return Ok(());
        };
        let stats = tier.stats();
        gauge(&mut to, "slots", "Slots of the arena", None, stats.slots)?;
        gauge(
            &mut to,
            "slots_free",
            "Slots that hold nothing",
            None,
            stats.slots_free,
        )?;
        let given_back = "Slots that hold nothing, whose memory the machine has";
        gauge(
            &mut to,
            "slots_given_back",
            given_back,
            None,
            stats.slots_given_back,
        )?;
        let quarantined = "Slots of engines from before a restart that have not come back";
        gauge(
            &mut to,
            "slots_quarantined",
            quarantined,
            None,
            stats.slots_quarantined,
        )?;
        let unmirrored = "Records that are to be on the mirror and are not yet";
        gauge(
            &mut to,
            "records_unmirrored",
            unmirrored,
            None,
            tier.unmirrored() as u64,
        )?;
        let found = "Records that were looked up and found in the arena";
        counter(&mut to, "found_arena", found, stats.found_arena)?;
        let found = "Records that were looked up and found on the mirror alone";
        counter(&mut to, "found_mirror", found, stats.found_mirror)?;
        let found = "Records that were looked up and not found";
        counter(&mut to, "found_nowhere", found, stats.found_nowhere)?;
        counter(&mut to, "evicted", "Records that made room", stats.evicted)?;
        let not_worth = "Records that were worth less than any that was stored";
        counter(&mut to, "not_worth", not_worth, stats.not_worth)?;
        let damaged = "Payloads in the arena that were not what had been sealed";
        counter(&mut to, "damaged", damaged, stats.damaged)?;
        match &stats.mirror {
            Some(mirror) => encode_mirror(&mut to, mirror),
            None => Ok(()),
        }
    }
}

/// The metrics of a catalogue, for as long as there is one.
#[derive(Debug)]
pub struct CatalogueCollector(pub Weak<Catalogue>);

impl Collector for CatalogueCollector {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), FmtError> {
        let Some(catalogue) = self.0.upgrade() else {
            return Ok(());
        };
        let stats = catalogue.stats();
        let sessions = "Conversations of the catalogue";
        gauge(&mut to, "sessions", sessions, None, stats.sessions)?;
        let damaged = "Files of the catalogue that were no entries";
        counter(&mut to, "session_files_damaged", damaged, stats.damaged)?;
        let failures = "Times that an entry of the catalogue could not be written";
        counter(&mut to, "session_write_failures", failures, stats.failures)
    }
}

fn encode_mirror(to: &mut DescriptorEncoder<'_>, mirror: &MirrorStats) -> Result<(), FmtError> {
    let up = "1 while the mirror takes records";
    gauge(to, "mirror_up", up, None, mirror.down.is_none().into())?;
    gauge(
        to,
        "mirror_records",
        "Records on the mirror",
        None,
        mirror.usage.records,
    )?;
    let bytes = "Size of the mirror";
    gauge(to, "mirror", bytes, Some(&Unit::Bytes), mirror.usage.bytes)?;
    let today = "Written to the mirror on this day (UTC)";
    gauge(
        to,
        "mirror_written_today",
        today,
        Some(&Unit::Bytes),
        mirror.bytes_today,
    )?;
    let stored = "Records that were made durable";
    counter(to, "mirror_stored", stored, mirror.stored)?;
    let refused = "Records that the mirror did not take";
    counter(to, "mirror_refused", refused, mirror.refused)?;
    let loaded = "Records that were read from the mirror";
    counter(to, "mirror_loaded", loaded, mirror.loaded)?;
    let damaged = "Records on the mirror that were not what had been written";
    counter(to, "mirror_damaged", damaged, mirror.usage.records_damaged)
}

fn gauge(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    value: u64,
) -> Result<(), FmtError> {
    let gauge = ConstGauge::new(value);
    let metric = to.encode_descriptor(name, help, unit, gauge.metric_type())?;
    gauge.encode(metric)
}

fn counter(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), FmtError> {
    let counter = ConstCounter::new(value);
    let metric = to.encode_descriptor(name, help, None, counter.metric_type())?;
    counter.encode(metric)
}
