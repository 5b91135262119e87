//! One run of a daemon's process: its birth, its standard error and its end.

use std::{
    ffi::OsString,
    io,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, ChildStderr, Command},
    sync::mpsc,
    task::JoinHandle,
};
use vitriol_chassis::SUPERVISED;

use super::{
    fd_store::Kept,
    log::{BoundedLog, is_alarming},
    supervise::{DaemonId, Ending},
};

/// Longest line that is kept; a longer one goes on as the next.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// What standard error still gets after its process has ended, should a child of it hold the pipe.
const LAST_WORDS_DEADLINE: Duration = Duration::from_secs(1);

/// A daemon as the supervisor starts it.
#[derive(Clone, Debug)]
pub struct Launch {
    pub binary: PathBuf,
    pub args: Vec<OsString>,
    pub log: PathBuf,
    pub log_bytes_max: u64,
    /// Where it says what is to outlive it, and what did.
    pub kept: Option<Kept>,
}

/// What a run reports.
#[derive(Debug)]
pub enum Report {
    /// Something that the user should see.
    Said(DaemonId, String),
    /// The process is gone; with the last line it wrote.
    Exited(DaemonId, Ending, String),
}

/// A living process. Signals go through the task that waits for it, so that none can reach a process
/// that took over its pid.
#[derive(Debug)]
pub struct Run {
    pub pid: u32,
    signals: mpsc::Sender<Signal>,
}

impl Run {
    /// Starts the process in a process group of its own (a terminal's ctrl-C reaches only the
    /// supervisor) with a standard input that ends when the supervisor does.
    pub fn start(id: DaemonId, launch: &Launch, reports: mpsc::Sender<Report>) -> io::Result<Self> {
        let log = BoundedLog::open(&launch.log, launch.log_bytes_max)?;
        let mut command = Command::new(&launch.binary);
        command
            .args(&launch.args)
            .env(SUPERVISED.0, SUPERVISED.1)
            // Meant for the supervisor, should systemd have started it.
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC");
        if let Some(kept) = &launch.kept {
            kept.hand_over(command.as_std_mut())?;
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().unwrap_or_default();
        let stderr = child
            .stderr
            .take()
            .ok_or_else(|| io::Error::other("no pipe"))?;
        let words = tokio::spawn(read_words(id, stderr, log, reports.clone()));
        let (signals, wanted) = mpsc::channel(4);
        tokio::spawn(attend(id, child, wanted, words, reports));
        Ok(Self { pid, signals })
    }

    /// Sends a signal, unless the process has ended.
    pub fn signal(&self, signal: Signal) {
        // Full only if the task is far behind, with the same signals waiting already.
        let _ = self.signals.try_send(signal);
    }
}

/// Waits for the end of the process, passing signals on, and reports it.
async fn attend(
    id: DaemonId,
    mut child: Child,
    mut signals: mpsc::Receiver<Signal>,
    mut words: JoinHandle<String>,
    reports: mpsc::Sender<Report>,
) {
    // `wait` would close it, and with it tell the daemon to end.
    let _held_open = child.stdin.take();
    let status = loop {
        tokio::select! {
            status = child.wait() => break status,
            Some(signal) = signals.recv() => {
                let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
                if let Some(pid) = pid {
                    // Fails only for a process that has just ended, which `wait` will tell.
                    let _ = kill_process(pid, signal);
                }
            }
        }
    };
    let last_words = tokio::time::timeout(LAST_WORDS_DEADLINE, &mut words).await;
    words.abort();
    let last_line = last_words.ok().and_then(Result::ok).unwrap_or_default();
    let ending = status.map_or(Ending::Code(-1), ending_of);
    // The supervisor's loop outlives its daemons; without it nobody needs the report.
    let _ = reports.send(Report::Exited(id, ending, last_line)).await;
}

fn ending_of(status: ExitStatus) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Code(code),
        (None, Some(signal)) => Ending::Signal(signal),
        (None, None) => Ending::Code(-1),
    }
}

/// Copies standard error to the log and shows its alarming lines; gives back the last line.
async fn read_words(
    id: DaemonId,
    stderr: ChildStderr,
    mut log: BoundedLog,
    reports: mpsc::Sender<Report>,
) -> String {
    let mut reader = BufReader::new(stderr);
    let (mut line, mut last) = (Vec::new(), String::new());
    let mut log_broken = false;
    loop {
        line.clear();
        match (&mut reader)
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
            .await
        {
            Ok(0) | Err(_) => return last,
            Ok(_) => {}
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        match log.append(text) {
            Ok(()) => log_broken = false,
            // A full disk must not stop the daemon, so its pipe is read on; said once a time.
            Err(error) if !log_broken => {
                log_broken = true;
                let _ = reports
                    .send(Report::Said(
                        id,
                        format!("its log cannot be written: {error}"),
                    ))
                    .await;
            }
            Err(_) => {}
        }
        let text = String::from_utf8_lossy(text);
        if is_alarming(&text) {
            let _ = reports
                .send(Report::Said(id, text.clone().into_owned()))
                .await;
        }
        if !text.trim().is_empty() {
            last = text.into_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(20);

    fn shell(dir: &tempfile::TempDir, script: &str) -> Launch {
        Launch {
            binary: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            log: dir.path().join("test.log"),
            log_bytes_max: 1 << 20,
            kept: None,
        }
    }

    async fn next(reports: &mut mpsc::Receiver<Report>) -> Report {
        tokio::time::timeout(DEADLINE, reports.recv())
            .await
            .unwrap()
            .unwrap()
    }

    #[tokio::test]
    async fn the_end_is_reported_with_the_last_line_and_all_is_logged() {
        let dir = tempfile::tempdir().unwrap();
        let (tx, mut rx) = mpsc::channel(8);
        let script = "echo 'x ERROR y' >&2; echo 'engine: no model' >&2; exit 69";
        Run::start(3, &shell(&dir, script), tx).unwrap();
        assert!(matches!(next(&mut rx).await, Report::Said(3, text) if text == "x ERROR y"));
        let end = next(&mut rx).await;
        assert!(
            matches!(&end, Report::Exited(3, Ending::Code(69), last) if last == "engine: no model"),
            "{end:?}"
        );
        let log = std::fs::read_to_string(dir.path().join("test.log")).unwrap();
        assert_eq!(log, "x ERROR y\nengine: no model\n");
    }

    #[tokio::test]
    async fn signals_reach_the_process_and_its_input_stays_open() {
        let dir = tempfile::tempdir().unwrap();
        let (tx, mut rx) = mpsc::channel(8);
        // `read` returns only when standard input ends or the signal comes.
        let script = "trap 'exit 7' TERM; echo 'x ERROR up' >&2; while :; do sleep 0.05; done";
        let run = Run::start(0, &shell(&dir, script), tx).unwrap();
        assert!(matches!(next(&mut rx).await, Report::Said(..)));
        run.signal(Signal::TERM);
        assert!(matches!(
            next(&mut rx).await,
            Report::Exited(0, Ending::Code(7), _)
        ));

        let (tx, mut rx) = mpsc::channel(8);
        let run = Run::start(
            0,
            &shell(&dir, "echo 'x ERROR up' >&2; read line; exit 9"),
            tx,
        )
        .unwrap();
        assert!(matches!(next(&mut rx).await, Report::Said(..)));
        run.signal(Signal::KILL);
        assert!(matches!(
            next(&mut rx).await,
            Report::Exited(0, Ending::Signal(9), _)
        ));
    }

    #[tokio::test]
    async fn a_binary_that_is_not_there_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let launch = Launch {
            binary: "/nonexistent/engine".into(),
            ..shell(&dir, "")
        };
        assert!(Run::start(0, &launch, mpsc::channel(1).0).is_err());
    }
}
