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
const MANAGER_DEADLINE: Duration = Duration::from_secs(5);

/// The service manager whose units the daemons are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Manager {
    /// That of the machine.
    System,
    /// That of this user.
    User,
}

/// How far it had to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Aborted,
    Killed,
}

/// Ends `process`, the main one of `unit`: with SIGABRT, then with SIGKILL.
///
/// Errors: it may not be signalled, the manager refuses, or it does not end.
pub async fn end(process: &Process, unit: &str, manager: Option<Manager>) -> io::Result<Ended> {
    for (signal, grace, ended) in [
        (Signal::ABORT, ABORT_GRACE, Ended::Aborted),
        (Signal::KILL, KILL_GRACE, Ended::Killed),
    ] {
        match manager {
            None => process.signal(signal)?,
            Some(manager) => ask(manager, signal, unit).await?,
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

/// By the manager, which may signal daemons of other users where its policy lets this one ask for it.
async fn ask(manager: Manager, signal: Signal, unit: &str) -> io::Result<()> {
    let mut command = Command::new("systemctl");
    if manager == Manager::User {
        command.arg("--user");
    }
    let signal = match signal {
        Signal::KILL => "SIGKILL",
        _ => "SIGABRT",
    };
    command
        .args(["--no-ask-password", "--kill-whom=main"])
        .arg(format!("--signal={signal}"))
        .args(["kill", "--", unit])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let output = timeout(MANAGER_DEADLINE, command.output())
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "systemctl did not come back"))??;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("systemctl: {}", said.trim())))
}
