//! Processes as the shield sees them.

/// A process, told apart from a later one that got its pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start_ticks: u64,
}

/// One process with memory of its own, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub id: ProcessId,
    /// The kernel's name of it: 15 bytes at most.
    pub name: String,
    /// Owner of its files in /proc: the effective user, or root where the process hides its memory from
    /// its own user.
    pub uid: u32,
    /// It is the first process of its session.
    pub leads_session: bool,
    pub resident_bytes: u64,
    /// What the kernel makes of memory and adjustment together; the highest dies first.
    pub oom_score: u32,
    /// From -1000 (never killed) to 1000.
    pub oom_score_adj: i32,
}
