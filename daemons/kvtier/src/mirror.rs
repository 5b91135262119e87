//! The disk tier: records that outlive the machine's being switched off.
//!
//! `segment` has the bytes of a record, `disk` the files, `store` finds, appends and forgets records,
//! `writer` is the thread that does it while nobody waits.

mod aligned;
pub mod disk;
pub mod endurance;
#[cfg(test)]
pub(crate) mod fault;
pub mod segment;
pub mod store;
pub mod writer;

use std::io;

use crate::record::{Record, RecordName};

/// Keeps records. What it gives back is proven to be what was put.
pub trait BlockStore: Send {
    /// Adds a record, whose payload the caller has proven; not durable before [`sync`](Self::sync). One
    /// that is there already is left as it is.
    ///
    /// Errors: the medium fails, and then no record since the last sync is kept either; the record is
    /// too large for the store.
    fn put(&mut self, record: &Record, payload: &[u8]) -> Result<(), StoreError>;

    /// Makes all records durable.
    ///
    /// Errors: the medium fails, and then no record since the last sync is kept, unless a later opening
    /// finds one whole.
    fn sync(&mut self) -> Result<(), StoreError>;

    /// A record and its payload; None when there is none, or it cannot be read as it was put, and then
    /// it is forgotten.
    fn get(&mut self, name: &RecordName) -> Option<(Record, &[u8])>;

    /// Overwrites every copy of these records that the store has, also those that it would not give out, and
    /// makes that durable. What has no copy is none.
    ///
    /// Errors: the medium fails; some copies may be left, and the next call finds them.
    fn erase(&mut self, names: &[RecordName]) -> Result<(), StoreError>;

    fn contains(&self, name: &RecordName) -> bool;

    /// Names of all records, and the bytes of their payloads.
    fn records(&self) -> Vec<(RecordName, u64)>;

    /// Names of the records that are there no more, pushed out or damaged, since the last call.
    fn take_forgotten(&mut self) -> Vec<RecordName>;

    /// What there is of it.
    fn usage(&self) -> Usage;
}

/// Size and wear of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub records: u64,
    /// On the medium, padding included.
    pub bytes: u64,
    /// Written since it was opened.
    pub bytes_written: u64,
    /// Records that were not what was put when they were read.
    pub records_damaged: u64,
}

/// Why a store did not keep what it was given.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {operation} segment {segment}")]
    Segment {
        operation: &'static str,
        segment: u64,
        source: io::Error,
    },
    #[error("cannot list segments")]
    List(#[source] io::Error),
    #[error("a record of {bytes} bytes, segments hold {segment_bytes}; raise mirror_bytes_max")]
    TooLarge { bytes: u64, segment_bytes: u64 },
}

impl StoreError {
    /// Whether the store is of a disk that is there no more, or not in its place, so that it must be opened again.
    pub fn is_stale(&self) -> bool {
        match self {
            Self::Segment { source, .. } | Self::List(source) => {
                source.kind() == io::ErrorKind::StaleNetworkFileHandle
            }
            Self::TooLarge { .. } => false,
        }
    }
}
