//! Knowing when a process that is not our child has ended.

use std::{io, os::fd::OwnedFd};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use tokio::io::{Interest, unix::AsyncFd};

/// A process held by a pidfd: never mistaken for a later one of the same number.
#[derive(Debug)]
pub struct Process {
    pidfd: AsyncFd<OwnedFd>,
}

impl Process {
    /// Holds on to the process that has this number now. Must be called inside a tokio runtime.
    ///
    /// Errors: ESRCH ([`is_gone`]) when there is none; descriptors have run out.
    #[allow(unsafe_code, reason = "registering a descriptor with tokio is unsafe")]
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pidfd = pidfd_open(pid.ok_or(Errno::SRCH)?, PidfdFlags::NONBLOCK)?;
        // SAFETY: an OwnedFd is the same open descriptor from here to its drop, and the AsyncFd, which
        // owns it, gives it up before it is closed.
        let pidfd = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }?;
        Ok(Self { pidfd })
    }

    /// Errors: it has ended (ESRCH), or is not this user's to signal (EPERM).
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.pidfd, signal)?)
    }

    /// Waits for the process to end. Cancel-safe.
    pub async fn ended(&self) -> io::Result<()> {
        // A pidfd becomes readable when the last thread has ended, and stays so.
        self.pidfd.readable().await.map(|_| ())
    }
}

/// Whether [`Process::open`] failed because there is no such process.
pub fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

#[cfg(test)]
mod tests {
    use std::{process::Command, time::Duration};

    use super::*;

    #[tokio::test]
    async fn the_end_of_a_process_is_told() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        tokio::select! {
            biased;
            ended = process.ended() => panic!("it runs: {ended:?}"),
            () = tokio::task::yield_now() => {}
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let told = tokio::time::timeout(Duration::from_secs(60), process.ended()).await;
        told.expect("the end is told").unwrap();
        assert!(is_gone(&Process::open(child.id()).unwrap_err()));
        assert!(is_gone(&Process::open(u32::MAX).unwrap_err()));
    }
}
