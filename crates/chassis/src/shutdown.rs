//! The ways a daemon is told to end: SIGTERM, SIGINT, and the end of its supervisor.

use std::{io::Read, thread};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code of a process that a person did not want to wait for (128 + SIGINT, as shells count).
const IMPATIENT: i32 = 130;

/// A request to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// SIGTERM: a program asks, and may ask several times without meaning more.
    Terminate,
    /// SIGINT: somebody presses ctrl-C.
    Interrupt,
}

/// What is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Drain,
    /// It drains already; running answers are not lost to an impatient script.
    GoOn,
    EndNow,
}

fn decide(asked: Asked, draining: bool) -> Answer {
    match (asked, draining) {
        (_, false) => Answer::Drain,
        (Asked::Terminate, true) => Answer::GoOn,
        (Asked::Interrupt, true) => Answer::EndNow,
    }
}

/// Cancels `shutdown` on the first SIGTERM or SIGINT. While the process drains, SIGINT ends it at once
/// and SIGTERM changes nothing.
pub(crate) fn on_signals(shutdown: CancellationToken) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        loop {
            let asked = tokio::select! {
                _ = terminate.recv() => Asked::Terminate,
                _ = interrupt.recv() => Asked::Interrupt,
            };
            match decide(asked, shutdown.is_cancelled()) {
                Answer::Drain => {
                    tracing::info!(?asked, "stopping");
                    shutdown.cancel();
                }
                Answer::GoOn => {
                    tracing::info!(?asked, "draining already; SIGINT ends without it");
                }
                Answer::EndNow => {
                    tracing::warn!(?asked, "interrupted again: ending without draining");
                    std::process::exit(IMPATIENT);
                }
            }
        }
    });
    Ok(())
}

/// Cancels `shutdown` when standard input ends, which its holder's death brings about in every
/// case, `kill -9` included. A thread of its own: a blocking read would keep the runtime alive.
pub(crate) fn on_supervisor_gone(shutdown: CancellationToken) -> std::io::Result<()> {
    thread::Builder::new()
        .name("supervisor".into())
        .spawn(move || {
            let mut input = std::io::stdin().lock();
            let mut buffer = [0; 64];
            loop {
                match input.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            if !shutdown.is_cancelled() {
                tracing::info!("the supervisor is gone: stopping");
                shutdown.cancel();
            }
        })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_sigterm_goes_on_draining_and_a_second_sigint_does_not() {
        for first in [Asked::Terminate, Asked::Interrupt] {
            assert_eq!(decide(first, false), Answer::Drain);
        }
        assert_eq!(decide(Asked::Terminate, true), Answer::GoOn);
        assert_eq!(decide(Asked::Interrupt, true), Answer::EndNow);
    }
}
