//! Looks at one daemon again and again, and ends it when it hangs.

use std::{io, path::Path, time::Duration};

use tonic::{Code, transport::Channel};
use vitriol_chassis::{Fingerprint, event};
use vitriol_ipc::connect;
use vitriol_proto::status::v1::{GetRequest, GetResponse, Health, status_client::StatusClient};

use crate::{
    config::{Config, Watched},
    ending::{ABORT_THEN_KILL, Held, end, hold},
    hang::{Answer, HangWatch, Verdict},
    journal::Launch,
    metrics::{DaemonLabels, Metrics},
    restarts::{Decision, Restarts},
    threads::{PROC, describe_threads},
};

/// The watch over one daemon.
#[derive(Debug)]
pub struct DaemonWatch {
    watched: Watched,
    status: StatusClient<Channel>,
    deadline: Duration,
    ask_systemd: bool,
    hang: HangWatch,
    restarts: Restarts,
    /// What the last answer told of its launch, until somebody takes it.
    launch: Option<Launch>,
    /// Process and start of the launch that was told last.
    launched: Option<(u32, u64)>,
    /// The process that answered last, held from then on.
    process: Option<Held>,
    labels: DaemonLabels,
    metrics: Metrics,
    /// It hangs, and that was said.
    told: bool,
}

impl DaemonWatch {
    pub fn new(watched: Watched, config: &Config, metrics: Metrics) -> Self {
        let labels = DaemonLabels {
            unit: watched.unit.clone(),
        };
        Self {
            status: StatusClient::new(connect(&watched.socket)),
            deadline: config.poll_deadline,
            ask_systemd: config.ask_systemd,
            hang: HangWatch::new(config.hang_polls),
            restarts: Restarts::new(config.back_off),
            launch: None,
            launched: None,
            process: None,
            labels,
            metrics,
            told: false,
            watched,
        }
    }

    /// Looks at the daemon once, at `now`, and ends it if it hangs and may be ended again.
    pub async fn round(&mut self, now: Duration) {
        let answer = self.ask().await;
        let verdict = self.hang.poll(answer);
        let still = self.metrics.still_polls.get_or_create_owned(&self.labels);
        still.set(self.hang.strikes().into());
        if verdict == Verdict::Lives {
            self.told = false;
            return;
        }
        let first = !std::mem::replace(&mut self.told, true);
        if first {
            self.metrics.hangs.get_or_create_owned(&self.labels).inc();
        }
        match self.restarts.decide_restart(now) {
            Decision::Restart => self.end().await,
            Decision::Hold { until } if first => {
                let (daemon, unit) = (&self.watched.name, &self.watched.unit);
                let seconds = until.saturating_sub(now).as_secs();
                tracing::warn!(
                    message_id = event::DAEMON_HUNG,
                    daemon,
                    unit,
                    "hangs again; it is left alone for {seconds} s"
                );
            }
            Decision::Hold { .. } => {}
        }
    }

    /// The launch that a look since the last call was the first to see.
    pub fn take_launch(&mut self) -> Option<Launch> {
        self.launch.take()
    }

    async fn ask(&mut self) -> Answer {
        let call = self.status.get(GetRequest {});
        let status = match tokio::time::timeout(self.deadline, call).await {
            Err(_) => return Answer::Silent,
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => {
                if status.code() != Code::Unavailable {
                    let (code, unit) = (status.code(), &self.watched.unit);
                    tracing::debug!(?code, unit, "no status");
                }
                return Answer::Absent;
            }
        };
        self.hold(status.pid);
        let answer = read(&status);
        self.note_launch(status);
        answer
    }

    fn note_launch(&mut self, status: GetResponse) {
        let launched = Some((status.pid, status.started_at_ms));
        if status.fingerprint.is_empty() || self.launched == launched {
            return;
        }
        self.launched = launched;
        self.launch = Some(Launch {
            unit: self.watched.unit.clone(),
            pid: status.pid,
            started_at_ms: status.started_at_ms,
            fingerprint: Fingerprint::from_wire(status.fingerprint),
        });
    }

    /// Holds the process that answered, if it is one of the house's.
    fn hold(&mut self, pid: u32) {
        if self.process.as_ref().is_some_and(|held| held.pid == pid) {
            return;
        }
        self.process = hold(pid);
        if self.process.is_some() {
            let (daemon, unit) = (&self.watched.name, &self.watched.unit);
            tracing::info!(daemon, unit, pid, "watched");
        }
    }

    async fn end(&mut self) {
        let (daemon, unit) = (&self.watched.name, &self.watched.unit);
        let Some(held) = &self.process else {
            self.metrics
                .end_failures
                .get_or_create_owned(&self.labels)
                .inc();
            tracing::error!(
                message_id = event::DAEMON_HUNG,
                daemon,
                unit,
                "hangs, and who answered for it is no process of the house; end it by hand"
            );
            return;
        };
        // It may be gone by now.
        let pid = held.pid;
        let threads = describe_threads(Path::new(PROC), pid).unwrap_or_default();
        let polls = self.hang.strikes();
        match end(held, unit, self.ask_systemd, ABORT_THEN_KILL).await {
            Ok(signal) => {
                self.metrics.ends.get_or_create_owned(&self.labels).inc();
                tracing::error!(
                    message_id = event::DAEMON_HUNG,
                    daemon,
                    unit,
                    pid,
                    polls,
                    signal,
                    threads,
                    "stood still and was ended"
                );
                self.process = None;
                self.hang.restarted();
                self.told = false;
            }
            Err(error) => self.tell_failure(&error, &threads),
        }
    }

    fn tell_failure(&self, error: &io::Error, threads: &str) {
        self.metrics
            .end_failures
            .get_or_create_owned(&self.labels)
            .inc();
        let (daemon, unit) = (&self.watched.name, &self.watched.unit);
        tracing::error!(
            message_id = event::DAEMON_HUNG,
            daemon,
            unit,
            %error,
            threads,
            "hangs and could not be ended; end it by hand"
        );
    }
}

fn read(status: &GetResponse) -> Answer {
    let pid = status.pid;
    match status.health() {
        Health::Starting => Answer::Starting {
            pid,
            load_bytes_done: status.load_bytes_done,
        },
        Health::Ready => Answer::Ready {
            pid,
            progress: status.progress,
        },
        Health::Draining | Health::Failed | Health::Unspecified => Answer::Ending { pid },
    }
}
