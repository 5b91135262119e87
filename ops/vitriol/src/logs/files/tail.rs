//! A file of lines that grows, and is put aside as `<file>.1` now and then.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// A longer line is given in pieces; a file without newlines must not fill the memory.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Reads on where it stopped, through the file's replacement by a new one.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: BufReader<File>,
    inode: u64,
    /// The beginning of a line whose end is not written yet.
    begun: Vec<u8>,
}

impl Tail {
    /// Of a file that need not be there yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the lines of the file that was put aside last; none when there is none.
    pub fn read_aside(&self, line: impl FnMut(&str)) -> io::Result<()> {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".1");
        match Open::new(Path::new(&name))? {
            None => Ok(()),
            Some(mut aside) => aside.read(line),
        }
    }

    /// Gives the whole lines written since the last call.
    pub fn read_new(&mut self, mut line: impl FnMut(&str)) -> io::Result<()> {
        loop {
            if self.open.is_none() {
                self.open = Open::new(&self.path)?;
            }
            let Some(open) = &mut self.open else {
                return Ok(());
            };
            // Looked at before the reading: what was written until it was replaced is then read.
            let is_there = fs::metadata(&self.path).is_ok_and(|found| found.ino() == open.inode);
            open.read(&mut line)?;
            if is_there {
                return Ok(());
            }
            self.open = None;
            if !self.path.exists() {
                return Ok(());
            }
        }
    }
}

impl Open {
    fn new(path: &Path) -> io::Result<Option<Self>> {
        match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(file) => Ok(Some(Self {
                inode: file.metadata()?.ino(),
                file: BufReader::new(file),
                begun: Vec::new(),
            })),
        }
    }

    fn read(&mut self, mut line: impl FnMut(&str)) -> io::Result<()> {
        loop {
            let room = LINE_BYTES_MAX.saturating_sub(self.begun.len() as u64);
            let read = (&mut self.file)
                .take(room)
                .read_until(b'\n', &mut self.begun)?;
            let ended = self.begun.last() == Some(&b'\n');
            if ended || self.begun.len() as u64 == LINE_BYTES_MAX {
                let text = String::from_utf8_lossy(&self.begun);
                line(text.trim_end_matches('\n'));
                self.begun.clear();
            } else if read == 0 {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn append(path: &Path, text: &str) {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn new_lines(tail: &mut Tail) -> Vec<String> {
        let mut lines = Vec::new();
        tail.read_new(|line| lines.push(line.to_owned())).unwrap();
        lines
    }

    #[test]
    fn what_grows_is_read_once_and_in_whole_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        let mut tail = Tail::new(path.clone());
        assert_eq!(new_lines(&mut tail), [""; 0]);
        append(&path, "a\nhal");
        assert_eq!(new_lines(&mut tail), ["a"]);
        append(&path, "f\nb\n");
        assert_eq!(new_lines(&mut tail), ["half", "b"]);
        assert_eq!(new_lines(&mut tail), [""; 0]);
    }

    #[test]
    fn a_file_put_aside_is_read_to_its_end_and_the_new_one_from_its_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        let aside = dir.path().join("x.log.1");
        append(&path, "a\n");
        let mut tail = Tail::new(path.clone());
        assert_eq!(new_lines(&mut tail), ["a"]);
        append(&path, "b\n");
        fs::rename(&path, &aside).unwrap();
        append(&path, "c\n");
        assert_eq!(new_lines(&mut tail), ["b", "c"]);
        fs::remove_file(&path).unwrap();
        assert_eq!(new_lines(&mut tail), [""; 0]);
        append(&path, "d\n");
        assert_eq!(new_lines(&mut tail), ["d"]);
        let mut lines = Vec::new();
        tail.read_aside(|line| lines.push(line.to_owned())).unwrap();
        assert_eq!(lines, ["a", "b"]);
    }

    #[test]
    fn bytes_that_are_no_text_and_endless_lines_are_survived() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        let long = vec![b'x'; LINE_BYTES_MAX as usize + 5];
        fs::write(&path, [b"\xff\xfe\n", long.as_slice(), b"\n"].concat()).unwrap();
        let lines = new_lines(&mut Tail::new(path));
        let lengths: Vec<usize> = lines.iter().map(|line| line.chars().count()).collect();
        assert_eq!(lengths, [2, LINE_BYTES_MAX as usize, 5]);
    }
}
