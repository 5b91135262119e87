//! `vitriol.persist.v1`: what is known of launches.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tonic::{Request, Response, Status};
use vitriol_chassis::{Difference, Failure, blocking};
use vitriol_proto::persist::v1::{
    self as wire, BlessRequest, BlessResponse, Comparison, ListLaunchesRequest,
    ListLaunchesResponse, persist_server,
};

use crate::journal::{Compared, Journal};

/// The journal, for the watch that writes it and the calls that read it.
#[derive(Clone, Debug)]
pub struct SharedJournal(Arc<Mutex<Journal>>);

impl SharedJournal {
    pub fn new(journal: Journal) -> Self {
        Self(Arc::new(Mutex::new(journal)))
    }

    /// Does `work` with the journal where a slow disk holds nobody up but others who want it.
    ///
    /// Errors: it panicked (exit 70).
    pub async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Journal) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let journal = Arc::clone(&self.0);
        blocking(move || work(&mut lock(&journal))).await
    }
}

fn lock(journal: &Mutex<Journal>) -> MutexGuard<'_, Journal> {
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}

#[tonic::async_trait]
impl persist_server::Persist for SharedJournal {
    async fn list_launches(
        &self,
        request: Request<ListLaunchesRequest>,
    ) -> Result<Response<ListLaunchesResponse>, Status> {
        let limit = match request.into_inner().limit {
            0 => usize::MAX,
            limit => limit as usize,
        };
        let launches = self.with(move |journal| journal.newest(limit).map(to_wire).collect());
        let launches = launches.await.map_err(internal)?;
        Ok(Response::new(ListLaunchesResponse { launches }))
    }

    async fn bless(&self, _: Request<BlessRequest>) -> Result<Response<BlessResponse>, Status> {
        let blessed = self.with(Journal::bless).await.map_err(internal)?;
        let units = blessed.map_err(|error| {
            Status::unavailable(format!("blessed, but not written to disk yet: {error}"))
        })?;
        Ok(Response::new(BlessResponse { units }))
    }
}

fn internal(failure: Failure) -> Status {
    Status::internal(failure.message)
}

fn to_wire(compared: Compared<'_>) -> wire::Launch {
    let comparison = |differences: Vec<Difference>| Comparison {
        differences: differences
            .into_iter()
            .map(|Difference { field, from, to }| wire::Difference { field, from, to })
            .collect(),
    };
    let launch = compared.launch;
    wire::Launch {
        unit: launch.unit.clone(),
        pid: launch.pid,
        started_at_ms: launch.started_at_ms,
        fingerprint: launch.fingerprint.to_wire(),
        since_last: compared.since_last.map(comparison),
        since_blessed: compared.since_blessed.map(comparison),
    }
}
