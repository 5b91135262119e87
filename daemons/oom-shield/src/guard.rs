//! The guard: a thread that learns of memory pressure and asks for relief. When memory is short nothing
//! may be needed to do that: once it waits, the thread allocates nothing, and the process's pages are
//! locked where the kernel allows it.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Instant,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
    mm::{MlockAllFlags, mlockall},
};
use vitriol_chassis::event;

use crate::{
    metrics::Metrics,
    pressure::{Escalation, Stalled, Wake, Watch},
};

/// It calls little and holds nothing.
const STACK_BYTES: usize = 128 << 10;

/// Those who can give memory back. Called on the guard thread: the calls neither wait nor allocate, and
/// nobody hears what came of them.
pub trait Relievers: Send + Sync {
    /// Of kvtier: memory that is cheap to have again.
    fn trim(&self);
    /// Of the engine: to take nothing new for a while.
    fn shed(&self);
}

/// The running thread. Dropping it ends it.
#[derive(Debug)]
pub struct Guard {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Starts the thread.
    pub fn start(
        mut watch: Watch,
        relievers: Arc<dyn Relievers>,
        metrics: Metrics,
    ) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let for_thread = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("guard".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                if let Err(errno) =
                    keep_watch(&mut watch, for_thread.as_fd(), &*relievers, &metrics)
                {
                    metrics.guarded.set(0);
                    tracing::error!(
                        message_id = event::SHIELD_DEGRADED,
                        error = %io::Error::from(errno),
                        "memory pressure is no longer told; the shield only raises scores"
                    );
                }
            })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // An event file takes eight bytes for as long as it is not full, and this is its only writer.
        let told = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let (Ok(_), Some(thread)) = (told, self.thread.take()) {
            // It has reported a panic of its own.
            let _ = thread.join();
        }
    }
}

/// Watches until `stop` can be read. Errors: the kernel gives no more events.
/// Cost: nothing is allocated.
fn keep_watch(
    watch: &mut Watch,
    stop: BorrowedFd<'_>,
    relievers: &dyn Relievers,
    metrics: &Metrics,
) -> Result<(), Errno> {
    let born = Instant::now();
    let mut escalation = Escalation::default();
    loop {
        let stalled = match watch.wait(stop)? {
            Wake::Stop => return Ok(()),
            Wake::Quiet => Stalled::default(),
            Wake::Pressure(stalled) => {
                metrics.pressure_some.inc_by(stalled.some.into());
                metrics.pressure_full.inc_by(stalled.full.into());
                stalled
            }
        };
        let relief = escalation.decide_relief(stalled, born.elapsed());
        if relief.trim {
            metrics.trims.inc();
            relievers.trim();
        }
        if relief.shed {
            metrics.sheds.inc();
            relievers.shed();
        }
    }
}

/// Keeps in memory what the process has there, now and when it comes back to it.
///
/// Errors: RLIMIT_MEMLOCK is smaller than the process's address space, without CAP_IPC_LOCK.
pub fn lock_memory() -> io::Result<()> {
    Ok(mlockall(MlockAllFlags::CURRENT | MlockAllFlags::ONFAULT)?)
}

#[cfg(test)]
mod tests;
