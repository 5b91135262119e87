//! The life of a process: main, run, drain.

use std::{
    io::{self, Write},
    os::fd::BorrowedFd,
    process::ExitCode,
    time::Duration,
};

use tokio_util::sync::CancellationToken;
use vitriol_profile::LogFormat;

use crate::{
    Environment, Exit, Failure, Heartbeat, Notifier, OrExit, StatusBoard, event, shutdown, trace,
};

/// What blocking threads get to end in after the daemon's body has.
const RUNTIME_DEADLINE: Duration = Duration::from_secs(1);

/// What a daemon gets beyond its own drain deadline before it is ended from outside its body.
const STUCK_GRACE: Duration = Duration::from_secs(5);

/// The `main` of every binary: reads the environment, runs `body`, and on failure says why and ends
/// with the failure's code. It is said as `<binary>: <message>` on standard error, or as an event in
/// the journal where standard error leads there.
pub fn main(binary: &str, body: impl FnOnce(Environment) -> Result<(), Failure>) -> ExitCode {
    let environment = Environment::from_process();
    let in_journal = Environment {
        journal: environment.journal,
        ..Environment::default()
    };
    match body(environment) {
        Ok(()) => Exit::Ok.into(),
        Err(failure) => {
            if in_journal.journal && !failure.message.is_empty() {
                // Fails when the body had started its log, which then serves.
                let _ = trace::init(LogFormat::Text, &in_journal);
                log_failure(&failure);
            } else if !failure.message.is_empty() {
                // With standard error closed the exit code still tells.
                let _ = writeln!(std::io::stderr(), "{binary}: {failure}");
            }
            failure.exit.into()
        }
    }
}

fn log_failure(failure: &Failure) {
    let message_id = match failure.exit {
        Exit::Usage | Exit::Config => event::CONFIGURATION_REFUSED,
        Exit::Dependency => event::DEPENDENCY_MISSING,
        Exit::Internal | Exit::Finding | Exit::Ok => event::DAEMON_FAILED,
    };
    tracing::error!(message_id, exit_code = failure.exit.code(), "{failure}");
}

/// What [`run`] needs to know of a daemon.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    daemon: &'static str,
    version: &'static str,
    log_format: LogFormat,
    worker_threads: usize,
    drain: Duration,
}

impl Setup {
    /// A daemon by its house name ("engine") and version; text log, two runtime threads, ten
    /// seconds to drain.
    pub fn new(daemon: &'static str, version: &'static str) -> Self {
        let drain = Duration::from_secs(10);
        Self {
            daemon,
            version,
            log_format: LogFormat::Text,
            worker_threads: 2,
            drain,
        }
    }

    #[must_use]
    pub fn log_format(self, log_format: LogFormat) -> Self {
        Self { log_format, ..self }
    }

    /// Threads of the async runtime; compute threads are not among them.
    #[must_use]
    pub fn worker_threads(self, worker_threads: usize) -> Self {
        Self {
            worker_threads,
            ..self
        }
    }

    /// The daemon's drain deadline; five seconds past it [`run`] gives the daemon up.
    #[must_use]
    pub fn drain(self, drain: Duration) -> Self {
        Self { drain, ..self }
    }
}

/// What a daemon's body works with.
#[derive(Clone, Debug)]
pub struct Daemon {
    pub board: StatusBoard,
    /// Cancelled when the daemon is told to end: drain, then return.
    pub shutdown: CancellationToken,
    /// For the loop that can hang.
    pub heartbeat: Heartbeat,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// What ran has finished.
    Done,
    /// The deadline passed first; what still runs must be cut.
    DeadlinePassed,
}

impl Daemon {
    /// Has the service manager keep a copy of `descriptor` under `name`, so that the service's next start
    /// finds it (`Inherited::take_kept`) however this process ends. Without a manager nothing happens.
    ///
    /// Errors: the manager does not listen or is busy; nothing is kept then.
    pub fn keep(&self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.board.notifier().keep(name, descriptor)
    }

    /// Has the service manager forget what it keeps under `name`.
    pub fn forget(&self, name: &str) {
        self.board.notifier().forget(name);
    }

    /// Says "draining" and waits for `finished` until `deadline` has passed. The service manager is
    /// asked for as much time, whatever its own timeout for stopping.
    pub async fn drain(&self, deadline: Duration, finished: impl Future<Output = ()>) -> Drained {
        self.board
            .draining(deadline + STUCK_GRACE + RUNTIME_DEADLINE);
        match tokio::time::timeout(deadline, finished).await {
            Ok(()) => Drained::Done,
            Err(_) => {
                tracing::warn!(
                    message_id = event::DRAIN_DEADLINE_PASSED,
                    deadline_ms = deadline.as_millis(),
                    "drain deadline passed"
                );
                Drained::DeadlinePassed
            }
        }
    }
}

/// Runs a daemon: starts the log and the runtime, listens for SIGTERM, SIGINT and the end of the
/// supervisor, runs `body`, and shows its failure on the status board before returning it.
///
/// A body that has not returned five seconds after its drain deadline is given up (exit 70), so that
/// a stuck daemon ends without `kill -9`.
pub fn run(
    setup: Setup,
    environment: &Environment,
    body: impl AsyncFnOnce(Daemon) -> Result<(), Failure>,
) -> Result<(), Failure> {
    trace::init(setup.log_format, environment)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(setup.worker_threads)
        .thread_name(format!("{}-rt", setup.daemon))
        .enable_all()
        .build()
        .or_exit(Exit::Internal)?;
    let result = runtime.block_on(live(setup, environment, body));
    runtime.shutdown_timeout(RUNTIME_DEADLINE);
    result
}

async fn live(
    setup: Setup,
    environment: &Environment,
    body: impl AsyncFnOnce(Daemon) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let shutdown = CancellationToken::new();
    shutdown::on_signals(shutdown.clone()).or_exit(Exit::Internal)?;
    if environment.supervised {
        shutdown::on_supervisor_gone(shutdown.clone()).or_exit(Exit::Internal)?;
    }
    let notifier = Notifier::new(environment.notify_socket.as_deref()).unwrap_or_else(|error| {
        tracing::warn!(%error, "NOTIFY_SOCKET cannot be reached; readiness is not announced");
        Notifier::default()
    });
    let board = StatusBoard::new(setup.daemon, setup.version, notifier);
    let heartbeat = board.heartbeat(environment.watchdog);
    let daemon = Daemon {
        board: board.clone(),
        shutdown: shutdown.clone(),
        heartbeat,
    };
    tracing::info!(
        version = setup.version,
        pid = std::process::id(),
        "{} starts",
        setup.daemon
    );

    let stuck = async {
        shutdown.cancelled().await;
        tokio::time::sleep(setup.drain + STUCK_GRACE).await;
    };
    let result = tokio::select! {
        result = body(daemon) => result,
        () = stuck => {
            let seconds = (setup.drain + STUCK_GRACE).as_secs();
            Err(Failure::new(Exit::Internal, format!("still draining after {seconds} s; gave up")))
        }
    };
    if let Err(failure) = &result {
        board.failed(failure.message.clone());
    }
    result
}

/// Runs what waits for a disk or computes for long beside the runtime's own threads.
///
/// Errors: it panicked (exit 70).
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .or_exit(Exit::Internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_beside_the_runtime_is_a_fault_of_ours() {
        assert_eq!(blocking(|| 7).await, Ok(7));
        let failure = blocking(|| assert_eq!(1, 2)).await.unwrap_err();
        assert_eq!(failure.exit, Exit::Internal);
    }

    fn daemon() -> Daemon {
        let board = StatusBoard::new("test", "0", Notifier::default());
        let heartbeat = board.heartbeat(None);
        Daemon {
            board,
            shutdown: CancellationToken::new(),
            heartbeat,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_with_its_work_or_at_its_deadline() {
        let daemon = daemon();
        let deadline = Duration::from_secs(10);
        assert_eq!(daemon.drain(deadline, async {}).await, Drained::Done);
        assert_eq!(daemon.board.health(), crate::Health::Draining);
        let forever = std::future::pending();
        assert_eq!(
            daemon.drain(deadline, forever).await,
            Drained::DeadlinePassed
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_drain_is_given_up() {
        let setup = Setup::new("test", "0").drain(Duration::from_secs(3));
        let began = tokio::time::Instant::now();
        let result = live(setup, &Environment::default(), async |daemon: Daemon| {
            daemon.shutdown.cancel();
            std::future::pending::<Result<(), Failure>>().await
        })
        .await;
        assert_eq!(result.unwrap_err().exit, Exit::Internal);
        assert_eq!(began.elapsed().as_secs(), 8);
    }

    #[test]
    fn failures_become_exit_codes() {
        let refused = main("t", |_| Err(Failure::new(Exit::Config, "")));
        assert_eq!(format!("{refused:?}"), format!("{:?}", ExitCode::from(78)));
        let fine = main("t", |_| Ok(()));
        assert_eq!(format!("{fine:?}"), format!("{:?}", ExitCode::SUCCESS));
    }
}
