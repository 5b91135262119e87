//! A daemon's log file, bounded in size.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Appends lines to a file; when it would outgrow its bound the file becomes `<file>.1`, replacing
/// the one before, and a new one begins. So at most twice the bound is on disk.
#[derive(Debug)]
pub struct BoundedLog {
    path: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
}

impl BoundedLog {
    pub fn open(path: &Path, bytes_max: u64) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self {
            path: path.to_owned(),
            file,
            bytes,
            bytes_max,
        })
    }

    /// Appends `line` and a newline, in one write. A line longer than the bound is cut to it.
    pub fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let room = usize::try_from(self.bytes_max.saturating_sub(1)).unwrap_or(usize::MAX);
        let mut entry = line[..line.len().min(room)].to_vec();
        entry.push(b'\n');
        let length = entry.len() as u64;
        if self.bytes > 0 && self.bytes + length > self.bytes_max {
            self.rotate()?;
        }
        self.file.write_all(&entry)?;
        self.bytes += length;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mut old: OsString = self.path.as_os_str().to_owned();
        old.push(".1");
        match fs::rename(&self.path, &old) {
            // Removed by hand, or put aside before a try that could not begin the new one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
        self.file = File::options().create(true).append(true).open(&self.path)?;
        self.bytes = 0;
        Ok(())
    }
}

/// Whether a daemon's log line is one that the user should see now.
pub fn is_alarming(line: &str) -> bool {
    let logged = line.contains(" ERROR ") || line.contains("\"level\":\"ERROR\"");
    let panicked = line.starts_with("thread '") && line.contains("panicked at");
    logged || panicked
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn errors_and_panics_are_shown_and_the_rest_is_not() {
        assert!(is_alarming(
            "2026-11-29T10:00:00Z ERROR vitriol_engine: disk on fire"
        ));
        assert!(is_alarming(
            "{\"timestamp\":\"x\",\"level\":\"ERROR\",\"message\":\"x\"}"
        ));
        assert!(is_alarming(
            "thread 'step' (12) panicked at src/step.rs:1:2:"
        ));
        assert!(!is_alarming(
            "2026-11-29T10:00:00Z  INFO vitriol_engine: no ERRORs"
        ));
    }

    proptest! {
        #[test]
        fn two_bounds_are_the_most_on_disk_and_no_short_line_is_torn(
            lines in proptest::collection::vec("[a-z]{0,30}", 1..80)
        ) {
            const BOUND: u64 = 64;
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x.log");
            for part in lines.chunks(20) {
                // Reopened now and then, as by a new supervisor.
                let mut log = BoundedLog::open(&path, BOUND).unwrap();
                for line in part {
                    log.append(line.as_bytes()).unwrap();
                    prop_assert!(fs::metadata(&path).unwrap().len() <= BOUND);
                }
            }
            let old = fs::read_to_string(dir.path().join("x.log.1")).unwrap_or_default();
            prop_assert!(old.len() as u64 <= BOUND);
            let kept = old + &fs::read_to_string(&path).unwrap();
            let all = lines.join("\n") + "\n";
            prop_assert!(all.ends_with(&kept), "the newest lines are kept whole, in order");
        }
    }

    #[test]
    fn a_file_that_was_removed_is_begun_anew_at_its_bound() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        let mut log = BoundedLog::open(&path, 8).unwrap();
        log.append(b"0123456").unwrap();
        fs::remove_file(&path).unwrap();
        log.append(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new\n");
    }

    #[test]
    fn a_line_beyond_the_bound_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        BoundedLog::open(&path, 8)
            .unwrap()
            .append(b"0123456789")
            .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"0123456\n");
    }
}
