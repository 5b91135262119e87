//! Ending a daemon. Whoever supervises it starts it again, as after any other end.

use std::{fs, io, path::Path, process::Stdio, time::Duration};

use rustix::process::Signal;
use tokio::{process::Command, time::timeout};
use vitriol_ipc::Process;

use crate::threads::{PROC, is_stopped};

/// Time that a process has to end by SIGABRT, a core dump included, before it gets SIGKILL.
const ABORT_GRACE: Duration = Duration::from_secs(3);

/// Time that a process has to end by SIGKILL.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Time that systemctl has.
const SYSTEMCTL_DEADLINE: Duration = Duration::from_secs(5);

/// What the binaries of the house are called, as the kernel shortens it.
const BINARIES: &str = "vitriol-";

/// Signals in their order, SIGKILL the last, each with the time that a process has to end by it.
pub type Signals = [(Signal, Duration); 2];

/// For a daemon that hangs.
pub const ABORT_THEN_KILL: Signals = [(Signal::ABORT, ABORT_GRACE), (Signal::KILL, KILL_GRACE)];

/// For one that is to finish what it does, which it has `drain` for.
pub fn drain_then_kill(drain: Duration) -> Signals {
    [(Signal::TERM, drain), (Signal::KILL, KILL_GRACE)]
}

/// A process of the house that is held: its number may be another's when it is to end.
#[derive(Debug)]
pub struct Held {
    pub pid: u32,
    process: Process,
}

/// Holds the process of this number, if it is one of the house's: a daemon tells its own, and whoever tells
/// another's must not have that one ended.
pub fn hold(pid: u32) -> Option<Held> {
    // One that ended meanwhile is seen with the next look.
    let process = Process::open(pid).ok()?;
    let name = fs::read_to_string(format!("{PROC}/{pid}/comm")).ok()?;
    (pid > 1 && name.starts_with(BINARIES)).then_some(Held { pid, process })
}

/// Ends the main process of `unit`; the signal that did it.
///
/// Errors: it may not be signalled, systemd refuses, or it does not end.
pub async fn end(
    Held { pid, process }: &Held,
    unit: &str,
    ask_systemd: bool,
    signals: Signals,
) -> io::Result<&'static str> {
    // One that is stopped hears nothing but SIGKILL.
    let first = usize::from(is_stopped(Path::new(PROC), *pid));
    for &(signal, grace) in &signals[first..] {
        match ask_systemd {
            false => process.signal(signal)?,
            true => ask(signal, unit).await?,
        }
        if let Ok(waited) = timeout(grace, process.ended()).await {
            waited?;
            return Ok(name(signal));
        }
    }
    Err(io::Error::other(
        "it goes on after SIGKILL: it waits in the kernel, for a device mostly",
    ))
}

fn name(signal: Signal) -> &'static str {
    match signal {
        Signal::TERM => "SIGTERM",
        Signal::ABORT => "SIGABRT",
        _ => "SIGKILL",
    }
}

/// Has systemd send `signal` to the main process of `unit`, which is another user's.
async fn ask(signal: Signal, unit: &str) -> io::Result<()> {
    let mut command = Command::new("systemctl");
    command
        .args(["--no-ask-password", "--kill-whom=main"])
        .arg(format!("--signal={}", name(signal)))
        .args(["kill", "--", unit])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let output = timeout(SYSTEMCTL_DEADLINE, command.output())
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "systemctl did not come back"))??;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("systemctl: {}", said.trim())))
}
