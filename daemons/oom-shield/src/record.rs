//! Whose score was raised, on disk: what a killed shield left is given back by the next one.
//!
//! ```text
//! vitriol-oom-shield 1 BOOT_ID
//! PID START_TICKS WAS SET
//! ```
//! A line stands before the score is raised, so that none is raised that nobody would give back; a line
//! whose raise never came is told by the score, which is not `SET`. The file is replaced as a whole and
//! only has to outlive its process: after a power cut the boot is another, and so is every process.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs, io,
    path::{Path, PathBuf},
};

use crate::{decide::Raised, process::ProcessId};

const MAGIC: &str = "vitriol-oom-shield 1";

/// The file, of one boot.
#[derive(Debug)]
pub struct RecordFile {
    path: PathBuf,
    boot_id: String,
}

impl RecordFile {
    pub fn new(directory: &Path, boot_id: String) -> Self {
        Self {
            path: directory.join("raised"),
            boot_id,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was raised in this boot. Nothing, if there is no file or it is of another boot.
    ///
    /// Errors: it cannot be read, or holds something else.
    pub fn load(&self) -> io::Result<BTreeMap<ProcessId, Raised>> {
        match fs::read_to_string(&self.path) {
            Ok(text) => parse(&text, &self.boot_id).ok_or_else(|| {
                let message = "not a record of this version";
                io::Error::new(io::ErrorKind::InvalidData, message)
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(error),
        }
    }

    /// Replaces the record, whole or not at all; an empty one is no file.
    pub fn save(&self, raised: &BTreeMap<ProcessId, Raised>) -> io::Result<()> {
        if raised.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let draft = self.path.with_extension("new");
        fs::write(&draft, format(raised, &self.boot_id))?;
        fs::rename(&draft, &self.path)
    }
}

fn format(raised: &BTreeMap<ProcessId, Raised>, boot_id: &str) -> String {
    let mut text = format!("{MAGIC} {boot_id}\n");
    for (id, Raised { was, set }) in raised {
        let ProcessId { pid, start_ticks } = id;
        let _ = writeln!(text, "{pid} {start_ticks} {was} {set}");
    }
    text
}

/// `None`: something else, or cut off.
fn parse(text: &str, boot_id: &str) -> Option<BTreeMap<ProcessId, Raised>> {
    let (head, lines) = text.split_once('\n')?;
    let written_in = head.strip_prefix(MAGIC)?.strip_prefix(' ')?;
    if written_in != boot_id {
        return Some(BTreeMap::new());
    }
    if !lines.is_empty() && !lines.ends_with('\n') {
        return None;
    }
    lines.lines().map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<(ProcessId, Raised)> {
    let mut fields = line.split(' ');
    let id = ProcessId {
        pid: fields.next()?.parse().ok()?,
        start_ticks: fields.next()?.parse().ok()?,
    };
    let raised = Raised {
        was: fields.next()?.parse().ok()?,
        set: fields.next()?.parse().ok()?,
    };
    fields.next().is_none().then_some((id, raised))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some() -> BTreeMap<ProcessId, Raised> {
        let entry = |pid, start_ticks, was| {
            let id = ProcessId { pid, start_ticks };
            (id, Raised { was, set: 300 })
        };
        BTreeMap::from([entry(7, 100, 0), entry(4_194_303, u64::MAX, 200)])
    }

    #[test]
    fn what_is_saved_is_loaded_and_an_empty_record_is_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = RecordFile::new(directory.path(), "boot-1".to_owned());
        assert_eq!(file.load().unwrap(), BTreeMap::new());
        file.save(&some()).unwrap();
        assert_eq!(file.load().unwrap(), some());
        file.save(&BTreeMap::new()).unwrap();
        file.save(&BTreeMap::new()).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn another_boot_has_other_processes() {
        let directory = tempfile::tempdir().unwrap();
        RecordFile::new(directory.path(), "boot-1".to_owned())
            .save(&some())
            .unwrap();
        let next = RecordFile::new(directory.path(), "boot-2".to_owned());
        assert_eq!(next.load().unwrap(), BTreeMap::new());
    }

    #[test]
    fn torn_tails_bit_flips_and_other_versions_are_told() {
        let text = format(&some(), "b");
        for cut in 1..text.len() {
            let read = parse(&text[..cut], "b");
            // Cut between two lines it is the record of fewer processes, which each still checks.
            let whole_lines = text[..cut].ends_with('\n') && cut > text.find('\n').unwrap();
            assert_eq!(read.is_some(), whole_lines, "{cut}: {read:?}");
        }
        assert_eq!(parse(&text.replace("shield 1 b", "shield 2 b"), "b"), None);
        assert_eq!(parse(&text.replace("7 100", "7 1x0"), "b"), None);
        assert_eq!(parse(&text.replace("7 100", "7 100 9"), "b"), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(vitriol-oom-shield 1 b\n)?[0-9 \n-]{0,40}") {
            let _ = parse(&text, "b");
        }
    }
}
