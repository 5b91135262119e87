//! Which daemon to start, stop or leave alone: a pure decision over events and the time.
//!
//! ```text
//!            start ┌──────── exited (not asked to) ────────┐
//!   Waiting ───────▼──▶ Running ── stop asked ──▶ Stopping ─┴─ exited ──▶ Ended
//!      ▲  until backoff has passed                (killed past its deadline)
//! ```
//! Daemons are started in order and stopped in reverse, one after the other: Demiurge finishes its
//! answers while the engine still computes them.

use std::time::Duration;

use vitriol_chassis::Exit;

/// Delay before the second restart in a row, the first being made at once; doubles with every further one.
pub const BACKOFF_MIN: Duration = Duration::from_millis(200);
/// Longest delay before a restart.
pub const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A daemon that was ready for this long starts over without a delay.
pub const HEALTHY_AFTER: Duration = Duration::from_secs(3);
/// Starts in a row without becoming ready even once, after which the first start is given up.
pub const FIRST_STARTS_MAX: u32 = 5;

/// Index of a daemon in start order.
pub type DaemonId = usize;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Code(i32),
    Signal(i32),
}

impl Ending {
    /// The code of an ending that a restart alone does not mend: wrong command line or profile,
    /// a missing dependency, a held port.
    fn lasting_cause(self) -> Option<Exit> {
        [Exit::Usage, Exit::Dependency, Exit::Config]
            .into_iter()
            .find(|exit| self == Ending::Code(exit.code().into()))
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time passed.
    Tick,
    /// A daemon says that it can do its job.
    Ready(DaemonId),
    Exited(DaemonId, Ending),
    /// The user or the system wants an end.
    StopAsked,
    /// The user does not want to wait for it.
    KillAsked,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Start(DaemonId),
    /// Ask the daemon to drain.
    Terminate(DaemonId),
    Kill(DaemonId),
    /// All daemons have ended.
    Finish(Exit),
}

/// Where a daemon stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Waiting { until: Duration },
    Running { ready_since: Option<Duration> },
    Stopping { since: Duration, killed: bool },
    Ended,
}

#[derive(Debug)]
struct Record {
    phase: Phase,
    /// Restarts since it was last healthy.
    restarts: u32,
    /// It was ready at least once.
    proven: bool,
    stop_deadline: Duration,
}

/// The supervisor's mind. Times are since the supervisor began.
#[derive(Debug)]
pub struct Supervisor {
    daemons: Vec<Record>,
    /// Set once an end is wanted: the code to end with.
    stopping: Option<Exit>,
    finished: bool,
}

impl Supervisor {
    /// Daemons in start order, each by the time it gets between SIGTERM and SIGKILL.
    pub fn new(stop_deadlines: impl IntoIterator<Item = Duration>) -> Self {
        let record = |stop_deadline| Record {
            phase: Phase::Waiting {
                until: Duration::ZERO,
            },
            restarts: 0,
            proven: false,
            stop_deadline,
        };
        let daemons = stop_deadlines.into_iter().map(record).collect();
        Self {
            daemons,
            stopping: None,
            finished: false,
        }
    }

    /// Where `daemon` stands.
    pub fn phase(&self, daemon: DaemonId) -> Phase {
        self.daemons[daemon].phase
    }

    /// Whether an end is wanted.
    pub fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// Whether it ends because a first start failed, not because anybody asked.
    pub fn is_giving_up(&self) -> bool {
        self.stopping.is_some_and(|exit| exit != Exit::Ok)
    }

    /// Takes in what happened at `now` and decides what to do.
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Tick => {}
            Event::Ready(daemon) => self.note_ready(daemon, now),
            Event::Exited(daemon, ending) => self.note_exit(daemon, ending, now),
            Event::StopAsked => {
                self.stopping.get_or_insert(Exit::Ok);
            }
            Event::KillAsked => {
                self.stopping.get_or_insert(Exit::Ok);
                self.kill_all(now, &mut actions);
            }
        }
        match self.stopping {
            None => self.start_due(now, &mut actions),
            Some(exit) => self.stop_next(exit, now, &mut actions),
        }
        actions
    }

    /// When the next decision is due without any event.
    pub fn next_wake(&self) -> Option<Duration> {
        let wakes = self.daemons.iter().filter_map(|daemon| match daemon.phase {
            Phase::Waiting { until } => Some(until),
            Phase::Stopping {
                since,
                killed: false,
            } => Some(since + daemon.stop_deadline),
            _ => None,
        });
        wakes.min()
    }

    fn note_ready(&mut self, daemon: DaemonId, now: Duration) {
        let record = &mut self.daemons[daemon];
        if let Phase::Running {
            ready_since: ready_since @ None,
        } = &mut record.phase
        {
            *ready_since = Some(now);
            record.proven = true;
        }
    }

    fn note_exit(&mut self, daemon: DaemonId, ending: Ending, now: Duration) {
        let record = &mut self.daemons[daemon];
        let ready_since = match record.phase {
            Phase::Running { ready_since } => ready_since,
            Phase::Stopping { .. } => {
                record.phase = Phase::Ended;
                return;
            }
            // Not running as far as we know; nothing to decide.
            Phase::Waiting { .. } | Phase::Ended => return,
        };
        if ready_since.is_some_and(|since| now.saturating_sub(since) >= HEALTHY_AFTER) {
            record.restarts = 0;
        }
        record.restarts += 1;
        let delay = match (ending.lasting_cause(), record.proven) {
            (Some(exit), false) => return self.give_up(daemon, exit),
            // It worked before, so the cause may pass (a port in use for a moment): slowly.
            (Some(_), true) => BACKOFF_MAX,
            (None, false) if record.restarts >= FIRST_STARTS_MAX => {
                return self.give_up(daemon, Exit::Internal);
            }
            (None, _) => backoff(record.restarts),
        };
        record.phase = Phase::Waiting { until: now + delay };
    }

    fn give_up(&mut self, daemon: DaemonId, exit: Exit) {
        self.daemons[daemon].phase = Phase::Ended;
        self.stopping.get_or_insert(exit);
    }

    fn start_due(&mut self, now: Duration, actions: &mut Vec<Action>) {
        for (id, daemon) in self.daemons.iter_mut().enumerate() {
            if matches!(daemon.phase, Phase::Waiting { until } if until <= now) {
                daemon.phase = Phase::Running { ready_since: None };
                actions.push(Action::Start(id));
            }
        }
    }

    fn stop_next(&mut self, exit: Exit, now: Duration, actions: &mut Vec<Action>) {
        // What waits for its restart will not get one; left waiting it would be due for ever.
        for daemon in &mut self.daemons {
            if matches!(daemon.phase, Phase::Waiting { .. }) {
                daemon.phase = Phase::Ended;
            }
        }
        for (id, daemon) in self.daemons.iter_mut().enumerate().rev() {
            match daemon.phase {
                Phase::Ended | Phase::Waiting { .. } => continue,
                Phase::Running { .. } => {
                    daemon.phase = Phase::Stopping {
                        since: now,
                        killed: false,
                    };
                    actions.push(Action::Terminate(id));
                }
                Phase::Stopping {
                    since,
                    killed: false,
                } if now >= since + daemon.stop_deadline => {
                    daemon.phase = Phase::Stopping {
                        since,
                        killed: true,
                    };
                    actions.push(Action::Kill(id));
                }
                Phase::Stopping { .. } => {}
            }
            return;
        }
        if !self.finished {
            self.finished = true;
            actions.push(Action::Finish(exit));
        }
    }

    fn kill_all(&mut self, now: Duration, actions: &mut Vec<Action>) {
        for (id, daemon) in self.daemons.iter_mut().enumerate().rev() {
            let since = match daemon.phase {
                Phase::Running { .. } => now,
                Phase::Stopping {
                    since,
                    killed: false,
                } => since,
                _ => continue,
            };
            daemon.phase = Phase::Stopping {
                since,
                killed: true,
            };
            actions.push(Action::Kill(id));
        }
    }
}

/// Delay before the `restarts`-th restart in a row.
fn backoff(restarts: u32) -> Duration {
    match restarts.checked_sub(2) {
        None => Duration::ZERO,
        Some(doublings) => {
            let delay = BACKOFF_MIN.saturating_mul(1 << doublings.min(16));
            delay.min(BACKOFF_MAX)
        }
    }
}

#[cfg(test)]
mod tests;
