//! What the threads of a process do, as far as the kernel tells it to anybody.

use std::{fmt::Write, fs, io, path::Path};

/// Where the kernel tells of processes.
pub const PROC: &str = "/proc";

/// Threads that are listed.
const MOST: usize = 48;

/// All threads of `pid` below `proc` in one line: name, state, time computed so far, and what it waits in where
/// that may be known, e.g. `step R 812s; kernel-1 S 790s futex_wait_queue`.
///
/// Errors: there is no such process.
pub fn describe_threads(proc: &Path, pid: u32) -> io::Result<String> {
    let tasks = proc.join(pid.to_string()).join("task");
    let mut line = String::new();
    let mut left_out = 0;
    for (place, task) in fs::read_dir(tasks)?.flatten().enumerate() {
        if place >= MOST {
            left_out += 1;
            continue;
        }
        // Threads end meanwhile.
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let Some((name, state, seconds)) = read_stat(&stat) else {
            continue;
        };
        let gap = if line.is_empty() { "" } else { "; " };
        // Writing to a String does not fail.
        _ = write!(line, "{gap}{name} {state} {seconds}s");
        let waits_in = fs::read_to_string(task.path().join("wchan")).unwrap_or_default();
        if !matches!(waits_in.as_str(), "" | "0") {
            _ = write!(line, " {waits_in}");
        }
    }
    if left_out > 0 {
        _ = write!(line, "; {left_out} more");
    }
    Ok(line)
}

/// Whether all of `pid` is stopped (SIGSTOP): it neither works nor hears of signals but SIGKILL and SIGCONT.
pub fn is_stopped(proc: &Path, pid: u32) -> bool {
    let stat = fs::read_to_string(proc.join(format!("{pid}/stat"))).unwrap_or_default();
    read_stat(&stat).is_some_and(|(_, state, _)| state == 'T')
}

/// Name, state and seconds computed (user and kernel) of a line of `stat` (proc_pid_stat(5)).
fn read_stat(stat: &str) -> Option<(&str, char, u64)> {
    let (before, after) = stat.rsplit_once(") ")?;
    let (_, name) = before.split_once('(')?;
    let mut fields = after.split(' ');
    let state = fields.next()?.chars().next()?;
    // Fields 14 and 15 of the line, of which the state is the third.
    let mut ticks = fields.skip(10).map(str::parse::<u64>);
    let (user, system) = (ticks.next()?.ok()?, ticks.next()?.ok()?);
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Some((name, state, (user + system) / per_second))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn names_may_hold_anything() {
        let line = "12 (a) R (b) S 1 2 3 4 5 6 7 8 9 10 150 250 0 0";
        assert_eq!(read_stat(line), Some(("a) R (b", 'S', 4)));
        assert_eq!(read_stat("12 (a) S 1 2"), None);
        assert_eq!(read_stat(""), None);
    }

    #[test]
    fn a_stopped_process_is_known_by_its_state() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("7")).unwrap();
        let is_stopped_in = |state: &str| {
            let line = format!("7 (x) {state} 1 2 3 4 5 6 7 8 9 10 150 250 0 0");
            fs::write(proc.path().join("7/stat"), line).unwrap();
            is_stopped(proc.path(), 7)
        };
        assert!(is_stopped_in("T") && !is_stopped_in("S"));
        assert!(!is_stopped(proc.path(), 8), "it is gone");
    }

    #[test]
    fn every_thread_is_there() {
        let (named, read) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("waits".to_owned());
            let body = || {
                named.wait();
                read.wait();
            };
            thread.spawn_scoped(scope, body).unwrap();
            named.wait();
            let line = describe_threads(Path::new("/proc"), std::process::id());
            read.wait();
            let line = line.unwrap();
            assert!(
                line.contains("waits S 0s") || line.contains("waits R 0s"),
                "{line}"
            );
            assert!(!line.contains('\n'), "{line}");
        });
        assert!(describe_threads(Path::new("/nowhere"), 1).is_err());
    }
}
