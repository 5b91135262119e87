//! How the kernel tells that tasks wait for memory (pressure stall information), and what follows.

mod escalation;

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, pread},
};

pub use escalation::Escalation;

/// The shortest window that the kernel gives to whoever lacks CAP_SYS_RESOURCE.
/// Source: Linux, Documentation/accounting/psi.rst.
pub const WINDOW: Duration = Duration::from_secs(2);

/// More than /proc/pressure/memory has.
const FILE_BYTES_MAX: usize = 256;

/// Who waited for memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalled {
    /// Some task, for at least the threshold.
    pub some: bool,
    /// All tasks that were not idle, likewise.
    pub full: bool,
}

/// From how much stall in a window on there is an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    pub some: Duration,
    pub full: Duration,
}

/// Stall since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    some_us: u64,
    full_us: u64,
}

/// A way to learn of pressure that neither allocates nor wakes up without need.
#[derive(Debug)]
pub enum Watch {
    /// The kernel wakes the reader as soon as the threshold is reached within a window.
    ///
    /// The first event of a trigger counts stall since boot instead of within its window (Linux 6.18: the
    /// window of a trigger without CAP_SYS_RESOURCE begins at the other aggregator's total, mostly 0), so
    /// an event is believed when the totals have grown by as much since the one before.
    Triggers {
        some: OwnedFd,
        full: OwnedFd,
        totals: Growth,
    },
    /// The totals are read once a window: before Linux 6.5 triggers are root's alone.
    Samples { window: Duration, totals: Growth },
}

/// The file with the totals, and what was in it last.
#[derive(Debug)]
pub struct Growth {
    file: File,
    thresholds: Thresholds,
    last: Totals,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    Stop,
    Pressure(Stalled),
    /// There was not enough of it.
    Quiet,
}

impl Watch {
    /// Watches `file`, /proc/pressure/memory, by triggers where the kernel gives them.
    ///
    /// Errors: the kernel keeps no such information (not built in, or `psi=0`).
    pub fn open(file: &Path, thresholds: Thresholds) -> io::Result<Self> {
        let trigger = |kind, threshold| trigger(file, kind, threshold);
        let both = trigger("some", thresholds.some)
            .and_then(|some| Ok((some, trigger("full", thresholds.full)?)));
        let totals = Growth::open(file, thresholds)?;
        Ok(match both {
            Ok((some, full)) => Self::Triggers { some, full, totals },
            Err(_) => Self::Samples {
                window: WINDOW,
                totals,
            },
        })
    }

    /// Waits for pressure, for the end of a window, or until `stop` can be read.
    ///
    /// Errors: the kernel gives no more events.
    /// Cost: no allocation, one poll, and with samples one read a window.
    pub fn wait(&mut self, stop: BorrowedFd<'_>) -> Result<Wake, Errno> {
        match self {
            Self::Triggers { some, full, totals } => {
                let mut fds = [
                    PollFd::new(&*some, PollFlags::PRI),
                    PollFd::new(&*full, PollFlags::PRI),
                    PollFd::from_borrowed_fd(stop, PollFlags::IN),
                ];
                wait_for(&mut fds, None)?;
                let came = |at: usize| fds[at].revents();
                if !came(2).is_empty() {
                    return Ok(Wake::Stop);
                }
                if (came(0) | came(1)).intersects(PollFlags::ERR | PollFlags::NVAL) {
                    return Err(Errno::NODEV);
                }
                totals.wake(Stalled {
                    some: came(0).contains(PollFlags::PRI),
                    full: came(1).contains(PollFlags::PRI),
                })
            }
            Self::Samples { window, totals } => {
                let mut fds = [PollFd::from_borrowed_fd(stop, PollFlags::IN)];
                if wait_for(&mut fds, Some(*window))? > 0 {
                    return Ok(Wake::Stop);
                }
                let both = Stalled {
                    some: true,
                    full: true,
                };
                let wake = totals.wake(both)?;
                // What is too little for one window is not added to the next.
                totals.last = totals.read()?;
                Ok(wake)
            }
        }
    }
}

impl Growth {
    /// Errors: the file cannot be read, or holds something else.
    pub fn open(path: &Path, thresholds: Thresholds) -> io::Result<Self> {
        let file = File::open(path)?;
        let last = Totals::read(&file)?;
        Ok(Self {
            file,
            thresholds,
            last,
        })
    }

    fn read(&self) -> Result<Totals, Errno> {
        Totals::read(&self.file)
    }

    /// What is to be thought of `claimed`: pressure, as far as the totals have grown for it.
    fn wake(&mut self, claimed: Stalled) -> Result<Wake, Errno> {
        let now = self.read()?;
        let grown = now.since(self.last, self.thresholds);
        let stalled = Stalled {
            some: claimed.some && grown.some,
            full: claimed.full && grown.full,
        };
        if stalled == Stalled::default() {
            return Ok(Wake::Quiet);
        }
        self.last = now;
        Ok(Wake::Pressure(stalled))
    }
}

/// [`poll`], gone on with when a signal interrupts it.
fn wait_for(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<usize, Errno> {
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    loop {
        match poll(fds, timeout.as_ref()) {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

fn trigger(file: &Path, kind: &str, threshold: Duration) -> io::Result<OwnedFd> {
    let mut file = File::options().read(true).write(true).open(file)?;
    // The kernel takes the last byte for the end, whatever it is.
    let text = format!("{kind} {} {}\0", threshold.as_micros(), WINDOW.as_micros());
    file.write_all(text.as_bytes())?;
    Ok(file.into())
}

impl Totals {
    fn read(file: &File) -> Result<Self, Errno> {
        let mut buffer = [0; FILE_BYTES_MAX];
        let length = pread(file.as_fd(), &mut buffer, 0)?;
        let text = std::str::from_utf8(&buffer[..length]).map_err(|_| Errno::INVAL)?;
        Self::parse(text).ok_or(Errno::INVAL)
    }

    /// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, the second line `full …`.
    fn parse(text: &str) -> Option<Self> {
        let total = |kind: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
            let mut fields = line.split_ascii_whitespace();
            fields
                .find_map(|field| field.strip_prefix("total="))?
                .parse()
                .ok()
        };
        Some(Self {
            some_us: total("some ")?,
            full_us: total("full ")?,
        })
    }

    fn since(self, last: Self, thresholds: Thresholds) -> Stalled {
        let reached = |now: u64, last: u64, threshold: Duration| {
            u128::from(now.saturating_sub(last)) >= threshold.as_micros()
        };
        Stalled {
            some: reached(self.some_us, last.some_us, thresholds.some),
            full: reached(self.full_us, last.full_us, thresholds.full),
        }
    }
}

#[cfg(test)]
mod tests;
