//! `vitriol.oom_shield.v1`: answered from the last look.

use std::sync::{Arc, Mutex, PoisonError};

use tonic::{Request, Response, Status};
use vitriol_proto::oom_shield::v1::{
    GetReportRequest, GetReportResponse, PressureWatch, Process as WireProcess,
    Standing as WireStanding, oom_shield_server,
};

use crate::{
    look::{Look, Standing},
    metrics::Metrics,
    process::Process,
    spared::Spared,
};

/// Processes in a report: those that matter are the first ones.
const PROCESSES_MAX: usize = 64;

/// The service; clones share what they show.
#[derive(Clone, Debug)]
pub struct ShieldService {
    look: Arc<Mutex<Option<Arc<Look>>>>,
    watch: PressureWatch,
    metrics: Metrics,
}

impl ShieldService {
    pub fn new(watch: PressureWatch, metrics: Metrics) -> Self {
        Self {
            look: Arc::default(),
            watch,
            metrics,
        }
    }

    /// From now on this is what is shown.
    pub fn show(&self, look: Look) {
        *self.look.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(look));
    }
}

#[tonic::async_trait]
impl oom_shield_server::OomShield for ShieldService {
    async fn get_report(
        &self,
        _: Request<GetReportRequest>,
    ) -> Result<Response<GetReportResponse>, Status> {
        let look = self
            .look
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let look =
            look.ok_or_else(|| Status::unavailable("has not looked at the processes yet"))?;
        let age = look.at.elapsed();
        let shown = look.processes.iter().take(PROCESSES_MAX);
        let metrics = &self.metrics;
        // A guard that has ended watches no more.
        let watch = match metrics.guarded.get() {
            0 => PressureWatch::None,
            _ => self.watch,
        };
        Ok(Response::new(GetReportResponse {
            processes: shown
                .map(|(process, standing)| on_wire(process, *standing))
                .collect(),
            processes_all: count(look.processes.len()),
            processes_raised: count(look.raised),
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            pressure_watch: watch.into(),
            memory_locked: metrics.memory_locked.get() > 0,
            pressure_some: metrics.pressure_some.get(),
            pressure_full: metrics.pressure_full.get(),
            sheds: metrics.sheds.get(),
            shed_failures: metrics.shed_failures.get(),
            refusals: metrics.refusals.get(),
            house_unprotected: u32::try_from(metrics.house_unprotected.get()).unwrap_or(0),
        }))
    }
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

fn on_wire(process: &Process, standing: Standing) -> WireProcess {
    let raised_from = match standing {
        Standing::Raised { from } => Some(from),
        _ => None,
    };
    let standing = match standing {
        Standing::Raised { .. } => WireStanding::Raised,
        Standing::Refused => WireStanding::Refused,
        Standing::Spared(Spared::House) => WireStanding::House,
        Standing::Spared(Spared::Vital(_)) => WireStanding::Vital,
        Standing::Spared(Spared::Extra) => WireStanding::Extra,
        Standing::Spared(Spared::Protected) => WireStanding::Protected,
        Standing::NotMeant => WireStanding::NotMeant,
    };
    WireProcess {
        pid: process.id.pid,
        name: process.name.clone(),
        uid: process.uid,
        resident_bytes: process.resident_bytes,
        oom_score: process.oom_score,
        oom_score_adj: process.oom_score_adj,
        standing: standing.into(),
        raised_from,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tonic::Code;
    use vitriol_proto::oom_shield::v1::oom_shield_server::OomShield;

    use super::*;
    use crate::process::ProcessId;

    fn looked(count: u32) -> Look {
        let process = |pid| Process {
            id: ProcessId {
                pid,
                start_ticks: 1,
            },
            name: "java".to_owned(),
            uid: 1000,
            leads_session: false,
            resident_bytes: 1 << 30,
            oom_score: 700,
            oom_score_adj: 300,
        };
        let standing = |pid| match pid {
            0 => Standing::Raised { from: 0 },
            _ => Standing::NotMeant,
        };
        Look {
            at: Instant::now(),
            processes: (0..count)
                .map(|pid| (process(pid), standing(pid)))
                .collect(),
            raised: 1,
        }
    }

    #[tokio::test]
    async fn the_last_look_is_shown_and_no_more_of_it_than_matters() {
        let metrics = Metrics::default();
        let service = ShieldService::new(PressureWatch::Triggers, metrics.clone());
        let ask = || service.get_report(Request::new(GetReportRequest {}));
        assert_eq!(ask().await.unwrap_err().code(), Code::Unavailable);
        service.show(looked(100));
        metrics.guarded.set(1);
        metrics.refusals.inc();
        let report = ask().await.unwrap().into_inner();
        assert_eq!(
            (report.processes.len(), report.processes_all),
            (PROCESSES_MAX, 100)
        );
        assert_eq!(report.processes[0].standing(), WireStanding::Raised);
        assert_eq!(report.processes[0].raised_from, Some(0));
        assert_eq!(report.processes[1].raised_from, None);
        assert_eq!((report.processes_raised, report.refusals), (1, 1));
        assert_eq!(report.pressure_watch(), PressureWatch::Triggers);
        metrics.guarded.set(0);
        let report = ask().await.unwrap().into_inner();
        assert_eq!(report.pressure_watch(), PressureWatch::None);
    }
}
