//! /proc: reading processes, and setting a score.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use rustix::{
    fs::{CWD, Mode, OFlags, fstat, openat},
    io::Errno,
};

use crate::process::{Process, ProcessId};

/// More than any file read here has.
const FILE_BYTES_MAX: u64 = 4096;

/// Why a score was not set.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    #[error("the process has ended")]
    Gone,
    #[error("its score is {found} by now")]
    Changed { found: i32 },
    #[error("the kernel refuses")]
    Refused(#[source] io::Error),
}

/// The kernel's view of processes, at `/proc` or at a directory that holds some of its entries.
#[derive(Clone, Debug)]
pub struct Procfs {
    root: PathBuf,
}

impl Procfs {
    pub fn host() -> Self {
        Self::at("/proc")
    }

    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Tells one boot from another, so that pids and times of an earlier one are not taken for this one's.
    pub fn boot_id(&self) -> io::Result<String> {
        let text = fs::read_to_string(self.root.join("sys/kernel/random/boot_id"))?;
        Ok(text.trim().to_owned())
    }

    /// All processes that have memory. One that ends meanwhile, or that may not be looked at, is left out.
    pub fn processes(&self) -> io::Result<Vec<Process>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let name = entry?.file_name();
            let pid = name.to_str().and_then(|name| name.parse().ok());
            found.extend(pid.and_then(|pid| self.process(pid).ok().flatten()));
        }
        Ok(found)
    }

    /// Process `pid`; `None` when it has no memory (a kernel thread, or what is left of one that ended).
    fn process(&self, pid: u32) -> io::Result<Option<Process>> {
        let directory = self.open(pid)?;
        let Some(stat) = Stat::parse(&read(directory.as_fd(), "stat")?) else {
            return Ok(None);
        };
        if stat.resident_pages == 0 {
            return Ok(None);
        }
        let page_bytes = rustix::param::page_size() as u64;
        Ok(Some(Process {
            id: ProcessId {
                pid,
                start_ticks: stat.start_ticks,
            },
            name: stat.name,
            uid: fstat(&directory)?.st_uid,
            leads_session: stat.session == pid,
            resident_bytes: stat.resident_pages.saturating_mul(page_bytes),
            oom_score: number(&read(directory.as_fd(), "oom_score")?)?,
            oom_score_adj: number(&read(directory.as_fd(), "oom_score_adj")?)?,
        }))
    }

    /// Sets the oom_score_adj of a process that has `expected`.
    ///
    /// Errors: it has ended, also when another has its pid; its score is another; the kernel refuses.
    /// Nothing is changed then.
    pub fn set_score(&self, id: ProcessId, expected: i32, to: i32) -> Result<(), SetError> {
        // The open directory stands for this process: once it has ended, nothing is found in it, even
        // if its pid is taken again.
        let directory = self.open(id.pid).map_err(or_gone)?;
        let stat = read(directory.as_fd(), "stat").map_err(or_gone)?;
        if Stat::parse(&stat).is_none_or(|stat| stat.start_ticks != id.start_ticks) {
            return Err(SetError::Gone);
        }
        let found = read(directory.as_fd(), "oom_score_adj").and_then(|text| number(&text));
        let found: i32 = found.map_err(or_gone)?;
        if found != expected {
            return Err(SetError::Changed { found });
        }
        let write = || -> io::Result<()> {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let file = openat(&directory, "oom_score_adj", flags, Mode::empty())?;
            File::from(file).write_all(format!("{to}\n").as_bytes())
        };
        write().map_err(or_gone)
    }

    fn open(&self, pid: u32) -> io::Result<OwnedFd> {
        let path = self.root.join(pid.to_string());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(CWD, &path, flags, Mode::empty())?)
    }
}

fn or_gone(error: io::Error) -> SetError {
    let gone = [Errno::NOENT, Errno::SRCH].map(|errno| errno.raw_os_error());
    match error.raw_os_error() {
        Some(code) if gone.contains(&code) => SetError::Gone,
        _ => SetError::Refused(error),
    }
}

fn read(directory: BorrowedFd<'_>, name: &str) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = File::from(openat(directory, name, flags, Mode::empty())?);
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    // Names of processes need not be UTF-8.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn number<T: std::str::FromStr>(text: &str) -> io::Result<T> {
    let text = text.trim();
    text.parse()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("'{text}' is no number")))
}

/// What is wanted of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    name: String,
    session: u32,
    start_ticks: u64,
    resident_pages: u64,
}

impl Stat {
    /// `pid (name) state ppid pgrp session …`: the name may hold spaces and brackets. Source: proc(5).
    fn parse(text: &str) -> Option<Self> {
        let (head, rest) = text.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        // From the third field on, the state.
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3);
        Some(Self {
            name: name.to_owned(),
            // -1 stands for none.
            session: field(6)?.parse().unwrap_or(0),
            start_ticks: field(22)?.parse().ok()?,
            resident_pages: field(24)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_have_any_name() {
        let stat = "42 (a) (b c) S 1 42 40 0 -1 4194560 1 0 0 0 2 5 9 9 20 0 3 0 777 12345 88 9\n";
        assert_eq!(
            Stat::parse(stat),
            Some(Stat {
                name: "a) (b c".to_owned(),
                session: 40,
                start_ticks: 777,
                resident_pages: 88,
            })
        );
        for cut in ["", "42", "42 (x", "42 (x) S 1", "42 (x) S 1 2 z"] {
            assert_eq!(Stat::parse(cut), None, "{cut}");
        }
    }

    /// A page is 4, 16 or 64 KiB: whoever counts in MiB of pages counts nothing at all.
    #[test]
    fn resident_memory_is_counted_in_bytes_of_real_pages() {
        let directory = tempfile::tempdir().unwrap();
        let of = directory.path().join("42");
        fs::create_dir(&of).unwrap();
        let stat = "42 (x) S 1 42 42 0 -1 0 1 0 0 0 2 5 9 9 20 0 3 0 777 12345 1000 9\n";
        for (name, text) in [
            ("stat", stat),
            ("oom_score", "666\n"),
            ("oom_score_adj", "-17\n"),
        ] {
            fs::write(of.join(name), text).unwrap();
        }
        let found = Procfs::at(directory.path()).processes().unwrap();
        let expected = 1000 * rustix::param::page_size() as u64;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].resident_bytes, expected);
        assert_eq!((found[0].oom_score, found[0].oom_score_adj), (666, -17));
        assert!(found[0].leads_session);
    }

    #[test]
    fn this_process_is_seen_as_it_is() {
        let found = Procfs::host().processes().unwrap();
        let own = found
            .iter()
            .find(|process| process.id.pid == std::process::id())
            .unwrap();
        assert_eq!(own.uid, rustix::process::geteuid().as_raw());
        assert!(own.resident_bytes > 100_000 && own.id.start_ticks > 0);
        assert!(!Procfs::host().boot_id().unwrap().is_empty());
    }
}
