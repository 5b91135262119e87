//! The ways a daemon is told to end: SIGTERM, SIGINT, and the end of its supervisor.

use std::{io::Read, thread};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code of a process that was told to end twice (128 + SIGINT, as shells count).
const IMPATIENT: i32 = 130;

/// Cancels `shutdown` on the first SIGTERM or SIGINT; the second one ends the process at once.
pub(crate) fn on_signals(shutdown: CancellationToken) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        loop {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            if shutdown.is_cancelled() {
                tracing::warn!(signal = name, "told to stop again: ending without draining");
                std::process::exit(IMPATIENT);
            }
            tracing::info!(signal = name, "stopping");
            shutdown.cancel();
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
