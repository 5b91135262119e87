//! The file itself: whole lines only, bounded in size, healing after errors.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How far back a torn last line is looked for; lines are far shorter.
const TORN_TAIL_MAX: u64 = 64 << 10;

/// A file of lines that is put aside as `<path>.1` when it would grow beyond its bound, so that both
/// together never exceed twice the bound.
///
/// ```text
/// Closed ── append: open ──▶ Open, unlocked ◀── the line is written ─┐
///    ▲                        └── append: lock, cut a torn tail ──▶ locked
///    └──────────── an error: cut back what was half written ─────────┘
/// ```
pub struct DecisionFile {
    path: PathBuf,
    bytes_max: u64,
    open: Option<Open>,
}

struct Open {
    file: File,
    inode: u64,
    /// Where our last line ended.
    length: Option<u64>,
}

impl DecisionFile {
    /// A file that is opened with its first line.
    pub fn new(path: PathBuf, bytes_max: u64) -> DecisionFile {
        DecisionFile {
            path,
            bytes_max,
            open: None,
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends `line`, which ends with a newline. Another process may append to the same file: each
    /// locks it for a line, so they wait for each other and never cut or split each other's lines.
    ///
    /// Errors: the file cannot be opened, locked, put aside or written; then nothing of the line
    /// stays, and the next call tries afresh.
    pub fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let mut open = self.lock()?;
        let mut length = open.whole_lines()?;
        if length > 0 && length + line.len() as u64 > self.bytes_max {
            fs::rename(&self.path, aside(&self.path))?;
            open = self.lock()?;
            length = open.whole_lines()?;
        }
        if let Err(error) = open.file.write_all(line) {
            // Part of the line may stand (a full disk writes short). What cannot be cut here is cut
            // before the next line.
            let _ = open.file.set_len(length);
            return Err(error);
        }
        open.length = Some(length + line.len() as u64);
        unlock(&open.file)?;
        self.open = Some(open);
        Ok(())
    }

    /// The file at the path, open and locked; closing it unlocks it.
    fn lock(&mut self) -> io::Result<Open> {
        loop {
            let open = match self.open.take() {
                Some(open) if is_at(&self.path, open.inode) => open,
                _ => Open::new(&self.path)?,
            };
            lock(&open.file)?;
            // Somebody may have put it aside while we waited.
            if is_at(&self.path, open.inode) {
                return Ok(open);
            }
        }
    }
}

/// Where the older lines are.
fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// Whether the file at `path` is still the one that was opened (somebody may have moved it).
fn is_at(path: &Path, inode: u64) -> bool {
    fs::metadata(path).is_ok_and(|found| found.ino() == inode)
}

/// Waits for the lock. A file system without locks is as good as before there were any.
fn lock(file: &File) -> io::Result<()> {
    match file.lock() {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        locked => locked,
    }
}

fn unlock(file: &File) -> io::Result<()> {
    match file.unlock() {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        unlocked => unlocked,
    }
}

impl Open {
    fn new(path: &Path) -> io::Result<Open> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        let inode = file.metadata()?.ino();
        Ok(Open {
            file,
            inode,
            length: None,
        })
    }

    /// Length of the file as it is now. Unless it ends where we left it, a last line that a crash
    /// left torn is cut; the lock is held, so nobody is just writing it.
    fn whole_lines(&mut self) -> io::Result<u64> {
        let metadata = self.file.metadata()?;
        let length = metadata.len();
        if self.length == Some(length) || !metadata.is_file() {
            return Ok(length);
        }
        let whole = whole_lines(&mut self.file, length)?;
        if whole < length {
            self.file.set_len(whole)?;
        }
        Ok(whole)
    }
}

/// Length of the file without a last line that a crash left torn.
fn whole_lines(file: &mut File, length: u64) -> io::Result<u64> {
    let tail_start = length.saturating_sub(TORN_TAIL_MAX);
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(tail_start))?;
    file.take(TORN_TAIL_MAX).read_to_end(&mut tail)?;
    match tail.iter().rposition(|byte| *byte == b'\n') {
        Some(last) => Ok(tail_start + last as u64 + 1),
        // No line end in reach: not our lines, so nothing of it is cut unless it is all torn.
        None if tail_start == 0 => Ok(0),
        None => Ok(length),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn lines_are_appended_across_restarts_and_only_the_owner_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.jsonl");
        DecisionFile::new(path.clone(), 1000)
            .append(b"a\n")
            .unwrap();
        DecisionFile::new(path.clone(), 1000)
            .append(b"b\n")
            .unwrap();
        assert_eq!(read(&path), "a\nb\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_torn_tail_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.jsonl");
        for (torn, whole) in [
            ("a\nhalf", "a\nb\n"),
            ("half", "b\n"),
            ("", "b\n"),
            ("a\n", "a\nb\n"),
        ] {
            fs::write(&path, torn).unwrap();
            DecisionFile::new(path.clone(), 1000)
                .append(b"b\n")
                .unwrap();
            assert_eq!(read(&path), whole, "{torn:?}");
        }
    }

    #[test]
    fn a_full_disk_is_an_error_and_heals() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.jsonl");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let mut file = DecisionFile::new(path.clone(), 1000);
        for _ in 0..3 {
            let error = file.append(b"a\n").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
        fs::remove_file(&path).unwrap();
        file.append(b"b\n").unwrap();
        assert_eq!(read(&path), "b\n");
    }

    #[test]
    fn two_writers_of_one_file_cut_no_line_of_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.jsonl");
        let write = |name: char| {
            let mut file = DecisionFile::new(path.clone(), 1 << 20);
            for number in 0..500 {
                file.append(format!("{name}{number}\n").as_bytes()).unwrap();
            }
        };
        std::thread::scope(|scope| {
            for name in ['a', 'b'] {
                let write = &write;
                scope.spawn(move || write(name));
            }
        });
        let text = read(&path);
        for name in ['a', 'b'] {
            let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(name)).collect();
            let all: Vec<String> = (0..500).map(|number| format!("{name}{number}")).collect();
            assert_eq!(lines, all);
        }
        assert_eq!(text.lines().count(), 1000);
    }

    #[test]
    fn a_tail_that_another_writer_left_torn_is_cut_and_its_lines_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.jsonl");
        let mut first = DecisionFile::new(path.clone(), 1000);
        first.append(b"a\n").unwrap();
        let mut second = DecisionFile::new(path.clone(), 1000);
        second.append(b"b\n").unwrap();
        // The other died half way; its whole lines stay.
        fs::write(&path, "a\nb\nhal").unwrap();
        first.append(b"c\n").unwrap();
        assert_eq!(read(&path), "a\nb\nc\n");
    }

    #[test]
    fn a_file_that_was_moved_away_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.jsonl");
        let mut file = DecisionFile::new(path.clone(), 1000);
        file.append(b"a\n").unwrap();
        fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        file.append(b"b\n").unwrap();
        assert_eq!(read(&path), "b\n");
    }

    proptest! {
        #[test]
        fn size_is_bounded_and_the_newest_lines_are_there(
            lengths in proptest::collection::vec(1..40usize, 1..60),
            bytes_max in 40..200u64,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("d.jsonl");
            let mut file = DecisionFile::new(path.clone(), bytes_max);
            let mut all = String::new();
            for (number, length) in lengths.into_iter().enumerate() {
                let line = format!("{}\n", format!("{number}.").repeat(length).get(..length).unwrap());
                file.append(line.as_bytes()).unwrap();
                all.push_str(&line);
            }
            let (older, newer) = (read(&aside(&path)), read(&path));
            prop_assert!(older.len() as u64 <= bytes_max && newer.len() as u64 <= bytes_max);
            let kept = older.clone() + &newer;
            prop_assert!(all.ends_with(&kept));
            prop_assert!(newer.ends_with('\n'));
        }
    }
}
