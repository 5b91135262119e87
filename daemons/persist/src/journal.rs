//! The launches of the daemons, in memory and on disk (docs/formats/launches.md).
//!
//! ```text
//!            record, bless                          a write failed
//!   whole ──── append a line, sync ────▶ whole   whole ──────────▶ in doubt
//!     ▲ twice as many lines as are kept: replaced                     │
//!     └──────────────── replaced as a whole, by the next write or save ┘
//! ```
//! What is in memory is what counts; a disk that fails costs what it has, not what is known.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use vitriol_chassis::{Difference, Fingerprint};

/// The first line of a file that this release reads.
const HEAD: &str = "vitriol-launches 1";

/// Launches that are kept, of all units together.
const LAUNCHES_MAX: usize = 256;

/// Bytes of a line at most; more settings than that no daemon has.
const LINE_BYTES_MAX: usize = 32 << 10;

/// Bytes that are read of a file: more than the lines there can be.
const FILE_BYTES_MAX: u64 = (2 * LAUNCHES_MAX * LINE_BYTES_MAX) as u64;

/// One start of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub unit: String,
    pub pid: u32,
    /// Unix milliseconds.
    pub started_at_ms: u64,
    pub fingerprint: Fingerprint,
}

impl Launch {
    fn is_same_process(&self, other: &Launch) -> bool {
        (&self.unit, self.pid, self.started_at_ms) == (&other.unit, other.pid, other.started_at_ms)
    }
}

/// A launch beside those it is compared with; `None`: there is nothing to compare with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared<'a> {
    pub launch: &'a Launch,
    pub since_last: Option<Vec<Difference>>,
    pub since_blessed: Option<Vec<Difference>>,
}

/// All launches that are known.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// The oldest first.
    launches: Vec<Launch>,
    blessed: BTreeMap<String, Fingerprint>,
    /// On disk, the head not counted.
    lines: usize,
    in_doubt: bool,
    damaged: usize,
}

impl Journal {
    /// Reads the file at `path`, or begins one. Damaged lines never existed; a torn last one is cut with the
    /// next write. A file of another version is put aside as `<path>.other`.
    ///
    /// Errors: it cannot be read or put aside; nothing was changed.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        let mut journal = Self {
            path,
            launches: Vec::new(),
            blessed: BTreeMap::new(),
            lines: 0,
            in_doubt: true,
            damaged: 0,
        };
        let bytes = match File::open(&journal.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(journal),
            opened => {
                let mut bytes = Vec::new();
                opened?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
                bytes
            }
        };
        let text = String::from_utf8_lossy(&bytes);
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.split('\n');
        match lines.next() {
            Some(HEAD) => {}
            Some("") | None => return Ok(journal),
            Some(_) => {
                fs::rename(&journal.path, journal.beside("other"))?;
                return Ok(journal);
            }
        }
        for line in lines {
            journal.lines += 1;
            match Line::parse(line) {
                Some(line) => journal.take(line),
                None => journal.damaged += 1,
            }
        }
        // What was damaged stays where it is until the file is replaced anyway: it may tell a person something.
        journal.in_doubt = whole.len() + 1 != text.len();
        Ok(journal)
    }

    /// Lines that were not what had been written.
    pub fn damaged(&self) -> usize {
        self.damaged
    }

    /// Puts a launch on record, unless it is there; whether it was not.
    ///
    /// Errors: it is known from now on and not on disk, where the next write brings it.
    pub fn record(&mut self, launch: Launch) -> io::Result<bool> {
        let known = |other: &Launch| other.is_same_process(&launch);
        if self.launches.iter().any(known) {
            return Ok(false);
        }
        self.write(Line::Launch(launch)).map(|()| true)
    }

    /// Blesses the newest launch of every unit; the units whose blessed launch is another now.
    ///
    /// Errors: as of [`record`](Self::record).
    pub fn bless(&mut self) -> io::Result<Vec<String>> {
        let newest: BTreeMap<&str, &Fingerprint> = self
            .launches
            .iter()
            .map(|launch| (launch.unit.as_str(), &launch.fingerprint))
            .collect();
        let others = newest.into_iter().filter_map(|(unit, fingerprint)| {
            let is_other = self.blessed.get(unit) != Some(fingerprint);
            is_other.then(|| (unit.to_owned(), fingerprint.clone()))
        });
        let others: Vec<(String, Fingerprint)> = others.collect();
        let mut units = Vec::new();
        let mut written = Ok(());
        for (unit, fingerprint) in others {
            units.push(unit.clone());
            written = written.and(self.write(Line::Blessed(unit, fingerprint)));
        }
        written.map(|()| units)
    }

    /// Brings to disk what a write that failed has left out; without such nothing is written.
    pub fn save(&mut self) -> io::Result<()> {
        match self.in_doubt && !self.launches.is_empty() {
            true => self.replace(),
            false => Ok(()),
        }
    }

    /// The newest `limit` launches, the oldest of them first.
    pub fn newest(&self, limit: usize) -> impl Iterator<Item = Compared<'_>> {
        let first = self.launches.len().saturating_sub(limit);
        (first..self.launches.len()).map(|at| self.compare(at))
    }

    /// The newest launch.
    pub fn last(&self) -> Option<Compared<'_>> {
        self.newest(1).next()
    }

    fn compare(&self, at: usize) -> Compared<'_> {
        let launch = &self.launches[at];
        let earlier = self.launches[..at].iter().rev();
        let before = earlier.clone().find(|other| other.unit == launch.unit);
        let from = |base: &Fingerprint| base.changes_to(&launch.fingerprint);
        Compared {
            launch,
            since_last: before.map(|before| from(&before.fingerprint)),
            since_blessed: self.blessed.get(&launch.unit).map(from),
        }
    }

    fn take(&mut self, line: Line) {
        match line {
            Line::Launch(launch) => self.launches.push(launch),
            Line::Blessed(unit, fingerprint) => {
                self.blessed.insert(unit, fingerprint);
            }
        }
        let too_many = self.launches.len().saturating_sub(LAUNCHES_MAX);
        self.launches.drain(..too_many);
    }

    fn write(&mut self, line: Line) -> io::Result<()> {
        let text = line.to_string();
        if text.len() > LINE_BYTES_MAX {
            let message = format!("a fingerprint of {} bytes is not kept", text.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        self.take(line);
        if self.in_doubt || self.lines >= 2 * LAUNCHES_MAX {
            return self.replace();
        }
        self.in_doubt = true;
        let mut file = OpenOptions::new().append(true).open(&self.path)?;
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        self.lines += 1;
        self.in_doubt = false;
        Ok(())
    }

    /// Writes all that is known under another name and puts that in the file's place.
    fn replace(&mut self) -> io::Result<()> {
        self.in_doubt = true;
        let blessed = self.blessed.iter();
        let blessed =
            blessed.map(|(unit, fingerprint)| Line::Blessed(unit.clone(), fingerprint.clone()));
        let launches = self.launches.iter().cloned().map(Line::Launch);
        let mut text = format!("{HEAD}\n");
        let mut lines = 0;
        for line in blessed.chain(launches) {
            // Writing to a String does not fail.
            _ = write!(text, "{line}");
            lines += 1;
        }
        let draft = self.beside("new");
        let mut file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, &self.path)?;
        sync_directory(&self.path)?;
        self.lines = lines;
        self.in_doubt = false;
        Ok(())
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".");
        name.push(suffix);
        name.into()
    }
}

/// So that a rename outlives the machine's being switched off.
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// What a line of the file tells.
enum Line {
    Launch(Launch),
    Blessed(String, Fingerprint),
}

impl Line {
    /// `None`: it is not what was written.
    fn parse(line: &str) -> Option<Self> {
        let (sum, text) = line.split_once(' ')?;
        if u32::from_str_radix(sum, 16).ok()? != crc32c::crc32c(text.as_bytes()) {
            return None;
        }
        let (kind, text) = text.split_once(' ')?;
        let (unit, text) = text.split_once(' ')?;
        match kind {
            "launch" => {
                let (pid, text) = text.split_once(' ')?;
                let (started_at_ms, text) = text.split_once(' ')?;
                Some(Line::Launch(Launch {
                    unit: unit.to_owned(),
                    pid: pid.parse().ok()?,
                    started_at_ms: started_at_ms.parse().ok()?,
                    fingerprint: Fingerprint::parse(text).ok()?,
                }))
            }
            "blessed" => {
                let fingerprint = Fingerprint::parse(text).ok()?;
                Some(Line::Blessed(unit.to_owned(), fingerprint))
            }
            _ => None,
        }
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self {
            Line::Launch(Launch {
                unit,
                pid,
                started_at_ms,
                fingerprint,
            }) => format!("launch {unit} {pid} {started_at_ms} {fingerprint}"),
            Line::Blessed(unit, fingerprint) => format!("blessed {unit} {fingerprint}"),
        };
        writeln!(f, "{:08x} {text}", crc32c::crc32c(text.as_bytes()))
    }
}

#[cfg(test)]
mod tests;
