//! Ending a daemon that hangs. Whoever supervises it starts it again, as after any other end.

use std::{io, process::Stdio, time::Duration};

use rustix::process::Signal;
use tokio::{process::Command, time::timeout};
use vitriol_ipc::Process;

/// Time that a process has to end by SIGABRT, a core dump included, before it gets SIGKILL: one that is
/// stopped does not even hear the first.
const ABORT_GRACE: Duration = Duration::from_secs(3);

/// Time that a process has to end by SIGKILL.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Time that systemctl has.
const SYSTEMCTL_DEADLINE: Duration = Duration::from_secs(5);

/// How far it had to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Aborted,
    Killed,
}

/// Ends `process`, the main one of `unit`: with SIGABRT, then with SIGKILL.
///
/// Errors: it may not be signalled, systemd refuses, or it does not end.
pub async fn end(process: &Process, unit: &str, ask_systemd: bool) -> io::Result<Ended> {
    for (signal, grace, ended) in [
        (Signal::ABORT, ABORT_GRACE, Ended::Aborted),
        (Signal::KILL, KILL_GRACE, Ended::Killed),
    ] {
        match ask_systemd {
            false => process.signal(signal)?,
            true => ask(signal, unit).await?,
        }
        if let Ok(waited) = timeout(grace, process.ended()).await {
            waited?;
            return Ok(ended);
        }
    }
    Err(io::Error::other(
        "it goes on after SIGKILL: it waits in the kernel, for a device mostly",
    ))
}

/// Has systemd send `signal` to the main process of `unit`, which is another user's.
async fn ask(signal: Signal, unit: &str) -> io::Result<()> {
    let signal = match signal {
        Signal::KILL => "SIGKILL",
        _ => "SIGABRT",
    };
    let mut command = Command::new("systemctl");
    command
        .args(["--no-ask-password", "--kill-whom=main"])
        .arg(format!("--signal={signal}"))
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
