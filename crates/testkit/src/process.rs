//! Processes as /proc shows them, and signals to those a test started.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::eventually;

/// One running process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    /// The kernel's name of it: the first 15 bytes of the executable's name.
    pub name: String,
    /// `R`, `S`, `D`, `Z`, …
    pub state: char,
}

/// All processes that /proc shows now.
pub fn all() -> Result<Vec<Process>> {
    let entries = fs::read_dir("/proc").context("list /proc")?;
    Ok(entries
        .filter_map(|entry| read(entry.ok()?.file_name().to_str()?.parse().ok()?))
        .collect())
}

/// Process `pid`; none when it is gone.
pub fn read(pid: u32) -> Option<Process> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Children of `parent` whose executable is called `name`.
pub fn children(parent: u32, name: &str) -> Result<Vec<Process>> {
    let short: String = name.chars().take(15).collect();
    Ok(all()?
        .into_iter()
        .filter(|p| p.parent == parent && p.name == short)
        .collect())
}

/// Whether `pid` runs: a zombie has ended.
pub fn is_running(pid: u32) -> bool {
    read(pid).is_some_and(|p| p.state != 'Z')
}

/// Sends `signal` to process `pid`.
/// Errors: `pid` is none of a single process that a test could own (0, 1), or it is gone.
pub fn signal(pid: u32, signal: Signal) -> Result<()> {
    ensure!(pid > 1, "refusing to signal pid {pid}");
    let target = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .context("pid out of range")?;
    kill_process(target, signal).with_context(|| format!("send {signal:?} to pid {pid}"))
}

/// Stops process `pid` (SIGSTOP), and waits until each of its threads is: one that runs on another core goes on
/// for a moment after the signal was sent.
pub fn stop(pid: u32, within: Duration) -> Result<()> {
    signal(pid, Signal::STOP)?;
    let is_stopped = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // One that has ended meanwhile is gone.
        parse_stat(&stat).is_none_or(|thread| thread.state == 'T')
    };
    eventually(within, &format!("stop of pid {pid}"), || {
        let mut threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
        threads.all(is_stopped).then_some(())
    })
}

/// Waits until `pid` has ended.
pub fn gone(pid: u32, within: Duration) -> Result<()> {
    eventually(within, &format!("end of pid {pid}"), || {
        (!is_running(pid)).then_some(())
    })
}

/// Memory of `pid` that is resident and backed by no file, bytes.
pub fn resident_anonymous_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let kilobytes = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix("kB"))
        .and_then(|number| number.trim().parse::<u64>().ok())
        .with_context(|| format!("no RssAnon in {path}"))?;
    Ok(kilobytes * 1024)
}

/// `pid (name) state parent …`; the name may hold spaces and parentheses.
fn parse_stat(stat: &str) -> Option<Process> {
    let (pid, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some(Process {
        pid: pid.parse().ok()?,
        name: name.to_owned(),
        state: fields.next()?.chars().next()?,
        parent: fields.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_are_read_whole() {
        let process = parse_stat("42 (a (b) c) S 7 42 42 0 -1").unwrap();
        assert_eq!(
            process,
            Process {
                pid: 42,
                parent: 7,
                name: "a (b) c".to_owned(),
                state: 'S'
            }
        );
    }

    #[test]
    fn this_process_is_found_and_measured() {
        let own = read(std::process::id()).unwrap();
        assert!(all().unwrap().iter().any(|p| p.pid == own.pid));
        assert!(is_running(own.pid));
        assert!(resident_anonymous_bytes(own.pid).unwrap() > 0);
    }

    #[test]
    fn init_and_groups_are_never_signalled() {
        assert!(signal(0, Signal::TERM).is_err());
        assert!(signal(1, Signal::TERM).is_err());
    }
}
