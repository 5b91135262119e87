//! What a daemon says about itself: `vitriol.status.v1`, `grpc.health.v1`, systemd and the metrics
//! all read from here.

use std::{
    fmt::Error as FmtError,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, text::encode_registry},
    metrics::{family::Family, gauge::ConstGauge, gauge::Gauge},
    registry::{Registry, Unit},
};
use sd_notify::NotifyState;
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use vitriol_proto::status::v1::{Field, GetRequest, GetResponse, status_server};
use vitriol_sysfs::Sysfs;

pub use vitriol_proto::status::v1::Health;

use crate::{
    Fingerprint, event,
    notify::{Heartbeat, Notifier},
};

/// A load that reports this often is still alive; systemd waits this long for the next report.
const LOAD_REPORT_TIMEOUT: Duration = Duration::from_secs(60);

/// Loads report per chunk; the service manager hears of it no oftener than this.
const LOAD_NOTIFY_INTERVAL: Duration = Duration::from_millis(500);

/// The daemon's notice board. Cheap to clone; every method answers at once.
///
/// ```text
/// Starting ── ready ──▶ Ready ── draining ──▶ Draining
///     └────── failed ─────┴──▶ Failed            (no way back from Draining and Failed)
/// ```
#[derive(Clone, Debug)]
pub struct StatusBoard {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    daemon: &'static str,
    version: &'static str,
    started: Instant,
    started_at_ms: u64,
    notice: Mutex<Notice>,
    health: watch::Sender<Health>,
    progress: Arc<AtomicU64>,
    registry: Mutex<Registry>,
    notifier: Notifier,
}

#[derive(Debug, Default)]
struct Notice {
    detail: String,
    load_bytes_done: u64,
    load_bytes_all: u64,
    load_notified: Option<Instant>,
    fingerprint: Vec<Field>,
}

impl StatusBoard {
    /// A board in the state Starting, with the metrics every daemon has. Metric names begin with
    /// `vitriol_<daemon>_`.
    pub fn new(daemon: &'static str, version: &'static str, notifier: Notifier) -> Self {
        let started = Instant::now();
        let mut registry = Registry::with_prefix(format!("vitriol_{}", daemon.replace('-', "_")));
        let build = Family::<[(&'static str, &'static str); 1], Gauge>::default();
        build.get_or_create(&[("version", version)]).set(1);
        registry.register("build_info", "Version of the running binary", build);
        registry.register_collector(Box::new(ProcessCollector { started }));
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let shared = Shared {
            daemon,
            version,
            started,
            started_at_ms: since_epoch.map_or(0, |since| since.as_millis() as u64),
            notice: Mutex::default(),
            health: watch::Sender::new(Health::Starting),
            progress: Arc::default(),
            registry: Mutex::new(registry),
            notifier,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Says what the daemon is at, in one line: "3 sequences running".
    pub fn detail(&self, detail: impl Into<String>) {
        let detail = detail.into();
        self.shared.notifier.send(&[NotifyState::Status(&detail)]);
        self.notice().detail = detail;
    }

    /// Reports a load: `done` of `all` bytes. Each report gives the load another minute under
    /// systemd's start timeout.
    pub fn loading(&self, detail: &str, done: u64, all: u64) {
        let mut notice = self.notice();
        notice.load_bytes_done = done;
        notice.load_bytes_all = all;
        if notice.detail != detail {
            detail.clone_into(&mut notice.detail);
        }
        let quiet = notice
            .load_notified
            .is_some_and(|at| at.elapsed() < LOAD_NOTIFY_INTERVAL);
        if quiet {
            return;
        }
        notice.load_notified = Some(Instant::now());
        drop(notice);
        let percent = u128::from(done) * 100 / u128::from(all.max(1));
        self.shared.notifier.send(&[
            NotifyState::Status(&format!("{detail}: {percent}%")),
            NotifyState::ExtendTimeoutUsec(LOAD_REPORT_TIMEOUT.as_micros() as u32),
        ]);
    }

    /// Says once, in the log and from then on in the status, what this launch is made of.
    pub fn fingerprint(&self, fingerprint: &Fingerprint) {
        tracing::info!(message_id = event::LAUNCH_FINGERPRINT, "{fingerprint}");
        self.notice().fingerprint = fingerprint.to_wire();
    }

    /// The daemon can do its job now; without effect when it is draining already.
    pub fn ready(&self, detail: impl Into<String>) {
        let detail = detail.into();
        if self.advance(Health::Ready) {
            // Before the manager hears of it, so that the journal has them in this order.
            tracing::info!(
                message_id = event::DAEMON_READY,
                detail,
                "{} is ready",
                self.shared.daemon
            );
            self.shared
                .notifier
                .send(&[NotifyState::Ready, NotifyState::Status(&detail)]);
            self.notice().detail = detail;
        }
    }

    /// The daemon finishes what runs, within `longest`, and takes nothing new.
    pub fn draining(&self, longest: Duration) {
        if self.advance(Health::Draining) {
            tracing::info!(
                message_id = event::DAEMON_DRAINS,
                "{} drains",
                self.shared.daemon
            );
            let longest_us = u32::try_from(longest.as_micros()).unwrap_or(u32::MAX);
            self.shared.notifier.send(&[
                NotifyState::Stopping,
                NotifyState::Status("draining"),
                NotifyState::ExtendTimeoutUsec(longest_us),
            ]);
            "draining".clone_into(&mut self.notice().detail);
        }
    }

    /// The daemon will not become ready without a restart; `cause` names the remedy too.
    pub fn failed(&self, cause: impl Into<String>) {
        let cause = cause.into();
        if self.advance(Health::Failed) {
            self.shared.notifier.send(&[NotifyState::Status(&cause)]);
            self.notice().detail = cause;
        }
    }

    /// The state it shows.
    pub fn health(&self) -> Health {
        *self.shared.health.borrow()
    }

    /// Follows the state; the first value is the present one.
    pub fn watch_health(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }

    /// Registers metrics; names come out as `vitriol_<daemon>_<noun>_<unit>[_total]`. Counters get
    /// `_total` and units are appended by the encoder.
    pub fn register(&self, register: impl FnOnce(&mut Registry)) {
        register(
            &mut self
                .shared
                .registry
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// All metrics as OpenMetrics text without the closing `# EOF` line.
    pub fn metrics(&self) -> String {
        let registry = self
            .shared
            .registry
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        // Writing to a string fails only when a metric's own encoder does.
        if encode_registry(&mut text, &registry).is_err() {
            tracing::error!("a metric could not be encoded; the rest is served");
        }
        text
    }

    pub(crate) fn notifier(&self) -> &Notifier {
        &self.shared.notifier
    }

    /// The heartbeat for the loop that can hang.
    pub(crate) fn heartbeat(&self, watchdog: Option<Duration>) -> Heartbeat {
        Heartbeat::new(
            self.shared.progress.clone(),
            self.shared.notifier.clone(),
            watchdog,
        )
    }

    /// What `vitriol.status.v1` answers.
    pub fn snapshot(&self) -> GetResponse {
        let metrics = self.metrics();
        let notice = self.notice();
        GetResponse {
            daemon: self.shared.daemon.to_owned(),
            version: self.shared.version.to_owned(),
            pid: std::process::id(),
            health: self.health().into(),
            detail: notice.detail.clone(),
            load_bytes_done: notice.load_bytes_done,
            load_bytes_all: notice.load_bytes_all,
            progress: self.shared.progress.load(Ordering::Relaxed),
            uptime_ms: u64::try_from(self.shared.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            metrics,
            fingerprint: notice.fingerprint.clone(),
            started_at_ms: self.shared.started_at_ms,
        }
    }

    fn advance(&self, to: Health) -> bool {
        self.shared.health.send_if_modified(|health| {
            let allowed = may_become(*health, to);
            if allowed {
                *health = to;
            }
            allowed
        })
    }

    fn notice(&self) -> MutexGuard<'_, Notice> {
        self.shared
            .notice
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn may_become(from: Health, to: Health) -> bool {
    match from {
        Health::Unspecified | Health::Starting => to != Health::Starting,
        Health::Ready => matches!(to, Health::Draining | Health::Failed),
        Health::Draining | Health::Failed => false,
    }
}

/// The board as the gRPC service `vitriol.status.v1`.
#[derive(Clone, Debug)]
pub(crate) struct StatusService(pub StatusBoard);

#[tonic::async_trait]
impl status_server::Status for StatusService {
    async fn get(&self, _: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        Ok(Response::new(self.0.snapshot()))
    }
}

/// Memory and age of this process, read when somebody asks.
#[derive(Debug)]
struct ProcessCollector {
    started: Instant,
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), FmtError> {
        let mut gauge = |name: &str, help: &str, unit: Unit, value: f64| {
            let gauge = ConstGauge::new(value);
            let metric = encoder.encode_descriptor(name, help, Some(&unit), gauge.metric_type())?;
            gauge.encode(metric)
        };
        let uptime = self.started.elapsed().as_secs_f64();
        gauge(
            "uptime",
            "Time since the process started",
            Unit::Seconds,
            uptime,
        )?;
        // Where /proc is not mounted the figure is left out rather than made up.
        if let Ok(bytes) = Sysfs::host().process_resident_bytes(std::process::id()) {
            let help = "Resident memory of the process";
            gauge("process_resident", help, Unit::Bytes, bytes as f64)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use proptest::prelude::*;

    use super::*;

    fn board() -> StatusBoard {
        StatusBoard::new("oom-shield", "0.1.0", Notifier::default())
    }

    #[test]
    fn the_snapshot_tells_what_was_said() {
        let board = board();
        board.loading("loading weights", 5, 10);
        let snapshot = board.snapshot();
        assert_eq!(snapshot.health(), Health::Starting);
        assert_eq!((snapshot.load_bytes_done, snapshot.load_bytes_all), (5, 10));
        assert_eq!(snapshot.detail, "loading weights");
        board.heartbeat(None).beat();
        board.ready("serving");
        let snapshot = board.snapshot();
        assert_eq!((snapshot.health(), snapshot.progress), (Health::Ready, 1));
        assert_eq!(snapshot.detail, "serving");
        assert_eq!(snapshot.pid, std::process::id());
    }

    #[test]
    fn a_launch_is_known_by_its_process_and_says_what_it_is_made_of() {
        let board = board();
        let before = board.snapshot();
        assert_eq!(before.fingerprint, []);
        assert!(before.started_at_ms > 0);
        let fingerprint = Fingerprint::default().with("isa", "avx2").with("tier", "");
        board.fingerprint(&fingerprint);
        let after = board.snapshot();
        assert_eq!(Fingerprint::from_wire(after.fingerprint), fingerprint);
        assert_eq!(after.started_at_ms, before.started_at_ms);
    }

    #[test]
    fn metrics_carry_the_daemons_prefix_and_no_end_line() {
        let board = board();
        let requests = Counter::<u64>::default();
        board.register(|registry| registry.register("requests", "Requests", requests.clone()));
        requests.inc();
        let text = board.metrics();
        assert!(
            text.contains("vitriol_oom_shield_requests_total 1\n"),
            "{text}"
        );
        assert!(
            text.contains("vitriol_oom_shield_build_info{version=\"0.1.0\"} 1\n"),
            "{text}"
        );
        assert!(
            text.contains("vitriol_oom_shield_process_resident_bytes "),
            "{text}"
        );
        assert!(
            text.contains("vitriol_oom_shield_uptime_seconds "),
            "{text}"
        );
        assert!(!text.contains("# EOF"), "{text}");
    }

    #[test]
    fn readiness_after_draining_has_no_effect() {
        let board = board();
        board.draining(Duration::from_secs(10));
        board.ready("serving");
        assert_eq!(board.health(), Health::Draining);
        assert_eq!(board.snapshot().detail, "draining");
    }

    fn any_health() -> impl Strategy<Value = Health> {
        (1..=4).prop_map(|n| Health::try_from(n).unwrap())
    }

    proptest! {
        #[test]
        fn no_way_leads_back(steps in proptest::collection::vec(any_health(), 0..20)) {
            let board = board();
            let mut last = board.health();
            for step in steps {
                board.advance(step);
                prop_assert!(board.health() as i32 >= last as i32);
                let ended = matches!(last, Health::Draining | Health::Failed);
                prop_assert!(!ended || board.health() == last);
                last = board.health();
            }
        }
    }
}
