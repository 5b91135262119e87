//! decisions.jsonl: one line a request, saying where it was answered, why, and how it ended.
//!
//! No line holds text of a prompt or an answer. Lines go through a bounded channel to one writer
//! thread; a disk that is full or slow costs lines, which are counted, and never a request.

mod file;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use vitriol_chassis::event;

use crate::lane::{Cause, Lane, LaneInputs};
use crate::metrics::Metrics;

use file::DecisionFile;

/// Lines that may wait for the disk.
const LINES_WAITING_MAX: usize = 1024;

/// Version of the line's fields.
pub const SCHEMA: u32 = 1;

/// One line. Tokens, ms; None where the request did not get so far.
#[derive(Clone, Debug, Serialize)]
pub struct Decision {
    pub schema: u32,
    /// When the request came, RFC 3339 in UTC.
    pub ts: String,
    pub request_id: String,
    /// The client's X-Session-Id.
    pub session: Option<String>,
    pub route: &'static str,
    pub lane: Lane,
    pub cause: Cause,
    /// What the lane decision was made of; with it the decision can be replayed.
    pub inputs: LaneInputs,
    /// Name of the model that answered, ours, never the client's word for it.
    pub model: Option<String>,
    /// Engines that got the request: 0 = none, 2 = the first was lost before its answer began.
    pub tries: u32,
    pub stream: bool,
    /// HTTP status; 499 when the client left, whether or not its stream had begun.
    pub status: u16,
    /// `stop`, `length`, `cancelled` or `error`.
    pub finish: &'static str,
    /// Code of the error, when it ended with one.
    pub error: Option<&'static str>,
    pub prompt_tokens: Option<u32>,
    pub cached_tokens: Option<u32>,
    /// Of an answer that did not finish: those whose text was on its way to the client.
    pub completion_tokens: Option<u32>,
    pub queue_ms: Option<f64>,
    pub ttft_ms: Option<f64>,
    pub total_ms: f64,
}

enum Order {
    Write(Vec<u8>),
    /// Answered when everything before it is written.
    Flush(SyncSender<()>),
}

/// The sending end; cheap to clone.
#[derive(Clone)]
pub struct DecisionLog {
    orders: SyncSender<Order>,
    metrics: Metrics,
}

impl DecisionLog {
    /// Starts the writer. A file that cannot be opened now is tried again with every line.
    ///
    /// Errors: the thread cannot be started.
    pub fn start(
        path: PathBuf,
        bytes_max: u64,
        metrics: Metrics,
    ) -> Result<DecisionLog, std::io::Error> {
        let (orders, inbox) = sync_channel(LINES_WAITING_MAX);
        let writer_metrics = metrics.clone();
        thread::Builder::new()
            .name("decisions".into())
            .spawn(move || {
                write_all(DecisionFile::new(path, bytes_max), &inbox, &writer_metrics)
            })?;
        Ok(DecisionLog { orders, metrics })
    }

    /// Hands a line to the writer; never waits. A line that finds the channel full is lost and
    /// counted.
    pub fn record(&self, decision: &Decision) {
        let mut line = serde_json::to_vec(decision).expect("strings and numbers are always JSON");
        line.push(b'\n');
        match self.orders.try_send(Order::Write(line)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.metrics.decisions_lost.inc();
            }
        }
    }

    /// Waits until what was recorded before is written, for at most `deadline`. Blocks.
    pub fn flush(&self, deadline: Duration) {
        let (written, done) = sync_channel(1);
        if self.orders.try_send(Order::Flush(written)).is_ok() {
            // Late or gone: the process ends all the same.
            let _ = done.recv_timeout(deadline);
        }
    }
}

fn write_all(mut file: DecisionFile, inbox: &Receiver<Order>, metrics: &Metrics) {
    let mut degraded = false;
    for order in inbox {
        let line = match order {
            Order::Write(line) => line,
            Order::Flush(written) => {
                // The one who waits may have given up.
                let _ = written.try_send(());
                continue;
            }
        };
        match file.append(&line) {
            Ok(()) => {
                metrics.decisions_written.inc();
                if degraded {
                    tracing::info!(
                        message_id = event::DECISIONS_RESUMED,
                        path = %file.path().display(),
                        "decisions are written again"
                    );
                }
                degraded = false;
            }
            Err(error) => {
                metrics.decisions_lost.inc();
                if !degraded {
                    tracing::error!(
                        message_id = event::DECISIONS_LOST,
                        path = %file.path().display(),
                        %error,
                        "decisions cannot be written; requests go on without"
                    );
                }
                degraded = true;
            }
        }
        metrics.decisions_degraded.set(i64::from(degraded));
    }
}
