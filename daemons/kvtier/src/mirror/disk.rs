//! Segment files in a directory, or whatever stands in for it in a test.

use std::{
    collections::HashMap,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;
use vitriol_ipc::FileLock;

/// Numbered files that are written at their end and read anywhere. Offsets, lengths and buffers are
/// multiples of [`BLOCK_BYTES`](super::segment::BLOCK_BYTES), buffers lie at one in memory too.
///
/// Errors of all that changes something: `StaleNetworkFileHandle` when others see another disk in its place now, and
/// then it must be opened again.
pub trait Disk: Send {
    /// Numbers of all segments, in no order.
    fn list(&mut self) -> io::Result<Vec<u64>>;

    /// Makes a new, empty segment. Errors: there is one of this number.
    fn create(&mut self, segment: u64) -> io::Result<()>;

    /// Bytes of a segment.
    fn len(&mut self, segment: u64) -> io::Result<u64>;

    fn write(&mut self, segment: u64, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Errors: `UnexpectedEof` when the segment ends before.
    fn read(&mut self, segment: u64, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Makes durable what was written to a segment, and that it is there.
    fn sync(&mut self, segment: u64) -> io::Result<()>;

    /// Writes zeroes over what there is of a range; not durable before [`sync`](Self::sync).
    fn overwrite(&mut self, segment: u64, offset: u64, bytes: u64) -> io::Result<()>;

    fn remove(&mut self, segment: u64) -> io::Result<()>;
}

/// Written at a time where a range is overwritten.
const ZEROES: usize = 1 << 20;

/// A local directory of this user's alone (0700, files 0600), used by one process at a time.
#[derive(Debug)]
pub struct LocalDisk {
    directory: PathBuf,
    open: HashMap<u64, File>,
    /// The page cache would hold KV a second time; file systems that cannot do without it are used
    /// with it.
    direct: bool,
    identity: Identity,
    _lock: FileLock,
}

/// Device and number of a directory.
type Identity = (u64, u64);

fn identity(of: &fs::Metadata) -> Identity {
    (of.dev(), of.ino())
}

impl LocalDisk {
    /// Opens `directory`, which is made if it is missing.
    ///
    /// Errors: it cannot be made or closed to others, or another process uses it (`WouldBlock`).
    pub fn open(directory: &Path) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
        if fs::metadata(directory)?.permissions().mode() & 0o077 != 0 {
            fs::set_permissions(directory, Permissions::from_mode(0o700))?;
        }
        // The directory itself, so that one on a read-only file system can be read.
        let file = File::open(directory)?;
        let identity = identity(&file.metadata()?);
        let lock = FileLock::take(file)?;
        Ok(Self {
            directory: directory.to_owned(),
            open: HashMap::new(),
            direct: true,
            identity,
            _lock: lock,
        })
    }

    /// Files that are open stay on a disk that was unmounted, where nobody finds them again, and paths lead to the one
    /// that was mounted since.
    fn is_in_place(&self) -> io::Result<()> {
        let found = fs::metadata(&self.directory).map(|of| identity(&of));
        match found {
            Ok(found) if found == self.identity => Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Err(io::Error::new(
                io::ErrorKind::StaleNetworkFileHandle,
                "another disk is in its place, or none",
            )),
        }
    }

    fn path(&self, segment: u64) -> PathBuf {
        self.directory.join(format!("{segment:016x}.seg"))
    }

    fn open_file(&self, segment: u64, new: bool) -> io::Result<File> {
        let with = |flags: OFlags, write: bool| {
            OpenOptions::new()
                .read(true)
                .write(write)
                .create_new(new)
                .mode(0o600)
                .custom_flags(flags.bits().cast_signed())
                .open(self.path(segment))
        };
        let direct = if self.direct {
            OFlags::DIRECT
        } else {
            OFlags::empty()
        };
        match with(direct, new) {
            // A refusal comes after the file was made.
            Err(error) if is_invalid(&error) && self.direct => OpenOptions::new()
                .read(true)
                .write(new)
                .create(new)
                .truncate(false)
                .mode(0o600)
                .open(self.path(segment)),
            other => other,
        }
    }

    fn file(&mut self, segment: u64) -> io::Result<&File> {
        if !self.open.contains_key(&segment) {
            let file = self.open_file(segment, false)?;
            self.open.insert(segment, file);
        }
        self.open
            .get(&segment)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Goes on through the page cache after a file system that opened for O_DIRECT and then would not.
    fn reopen_buffered(&mut self, segment: u64) -> io::Result<()> {
        self.direct = false;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.path(segment))?;
        self.open.insert(segment, file);
        Ok(())
    }
}

fn is_invalid(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}

impl Disk for LocalDisk {
    fn list(&mut self) -> io::Result<Vec<u64>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(".seg"));
            found.extend(number.and_then(|number| u64::from_str_radix(number, 16).ok()));
        }
        Ok(found)
    }

    fn create(&mut self, segment: u64) -> io::Result<()> {
        self.is_in_place()?;
        let file = self.open_file(segment, true)?;
        self.open.insert(segment, file);
        Ok(())
    }

    fn len(&mut self, segment: u64) -> io::Result<u64> {
        Ok(self.file(segment)?.metadata()?.len())
    }

    fn write(&mut self, segment: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self.file(segment)?.write_all_at(bytes, offset) {
            Err(error) if is_invalid(&error) && self.direct => {
                self.reopen_buffered(segment)?;
                self.file(segment)?.write_all_at(bytes, offset)
            }
            other => other,
        }
    }

    fn read(&mut self, segment: u64, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file(segment)?.read_exact_at(bytes, offset)
    }

    fn sync(&mut self, segment: u64) -> io::Result<()> {
        self.file(segment)?.sync_data()?;
        self.is_in_place()?;
        File::open(&self.directory)?.sync_all()
    }

    fn overwrite(&mut self, segment: u64, offset: u64, bytes: u64) -> io::Result<()> {
        self.is_in_place()?;
        // Segments of earlier runs are open for reading only, and it need not be quick.
        let file = OpenOptions::new().write(true).open(self.path(segment))?;
        let end = offset.saturating_add(bytes).min(file.metadata()?.len());
        let zeroes = vec![0; ZEROES];
        let mut at = offset;
        while at < end {
            let part = &zeroes[..zeroes.len().min((end - at) as usize)];
            file.write_all_at(part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn remove(&mut self, segment: u64) -> io::Result<()> {
        self.is_in_place()?;
        self.open.remove(&segment);
        fs::remove_file(self.path(segment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::aligned::Aligned;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn files_are_the_users_alone_and_one_process_has_them() {
        let temp = tempfile::tempdir().unwrap();
        let directory = temp.path().join("mirror");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        let mut disk = LocalDisk::open(&directory).unwrap();
        disk.create(0x1f).unwrap();
        assert_eq!(mode(&directory), 0o700);
        assert_eq!(mode(&directory.join("000000000000001f.seg")), 0o600);
        let second = LocalDisk::open(&directory).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::WouldBlock);
        assert!(disk.create(0x1f).is_err());
        fs::write(directory.join("notes.txt"), "").unwrap();
        assert_eq!(disk.list().unwrap(), [0x1f]);
        drop(disk);
        LocalDisk::open(&directory).unwrap();
    }

    #[test]
    fn what_is_written_is_read_by_the_next_process() {
        let temp = tempfile::tempdir().unwrap();
        let mut disk = LocalDisk::open(temp.path()).unwrap();
        let mut block = Aligned::new(8192);
        block.bytes_mut()[5000] = 7;
        disk.create(1).unwrap();
        disk.write(1, 0, block.bytes()).unwrap();
        disk.sync(1).unwrap();
        drop(disk);
        let mut disk = LocalDisk::open(temp.path()).unwrap();
        assert_eq!(disk.len(1).unwrap(), 8192);
        let mut found = Aligned::new(4096);
        disk.read(1, 4096, found.bytes_mut()).unwrap();
        assert_eq!(found.bytes()[5000 - 4096], 7);
        let past = disk.read(1, 8192, found.bytes_mut()).unwrap_err();
        assert_eq!(past.kind(), io::ErrorKind::UnexpectedEof);
        disk.remove(1).unwrap();
        assert!(disk.list().unwrap().is_empty());
    }

    #[test]
    fn nothing_is_changed_on_a_disk_that_took_its_place() {
        let temp = tempfile::tempdir().unwrap();
        let directory = temp.path().join("mirror");
        let mut disk = LocalDisk::open(&directory).unwrap();
        let block = Aligned::new(4096);
        disk.create(1).unwrap();
        disk.write(1, 0, block.bytes()).unwrap();
        disk.sync(1).unwrap();
        fs::rename(&directory, temp.path().join("elsewhere")).unwrap();
        let is_stale = |done: io::Result<()>| {
            let kind = done.unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::StaleNetworkFileHandle);
        };
        is_stale(disk.create(2));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("0000000000000001.seg"), "of another").unwrap();
        is_stale(disk.create(2));
        is_stale(disk.sync(1));
        is_stale(disk.overwrite(1, 0, 4096));
        is_stale(disk.remove(1));
        let there = fs::read(directory.join("0000000000000001.seg")).unwrap();
        assert_eq!(there, b"of another");
    }
}
