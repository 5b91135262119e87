use rustix::{
    fs::{self, FileType, Mode, OFlags},
    io::Errno,
    mm::{self, Advice, MapFlags, ProtFlags},
};
use std::{
    ffi::c_void,
    path::{Path, PathBuf},
    ptr::NonNull,
};

/// Why a file could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    #[error("{}: cannot open", path.display())]
    Open {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{}: is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    #[error("{}: is empty", path.display())]
    Empty { path: PathBuf },
    #[error("{}: cannot map {len} bytes", path.display())]
    Map {
        path: PathBuf,
        len: u64,
        source: std::io::Error,
    },
}

/// Which file it is and what state it was in: two that are equal hold the same bytes, unless somebody
/// wrote to the file within a tick of the file system's clock, or set the machine's back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    pub device: u64,
    pub inode: u64,
    pub bytes: u64,
    /// Last change of the content, ns since 1970; anybody who may write to the file can set it.
    pub modified_ns: i128,
    /// Last change of anything, ns since 1970; the kernel sets it.
    pub changed_ns: i128,
}

impl FileIdentity {
    /// Of what lies at `path` now. Errors: nothing that may be looked at
    pub fn at(path: &Path) -> std::io::Result<Self> {
        Ok(Self::of(&fs::stat(path)?))
    }

    fn of(stat: &fs::Stat) -> Self {
        let ns = |s: i128, ns: i128| s * 1_000_000_000 + ns;
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified_ns: ns(stat.st_mtime.into(), stat.st_mtime_nsec.into()),
            changed_ns: ns(stat.st_ctime.into(), stat.st_ctime_nsec.into()),
        }
    }
}

/// A whole regular file, mapped read-only and private.
///
/// The file must not be truncated while it is mapped (reads past its new end would raise SIGBUS):
/// model files are replaced by rename, never rewritten in place.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    identity: FileIdentity,
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: the mapping is read-only for its whole life and owned by this value alone; threads only
// read it.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps `path`. Errors: the file is missing, unreadable, empty, not a regular file, or larger
    /// than the address space.
    pub fn open(path: &Path) -> Result<Self, MapError> {
        let open = |source: Errno| MapError::Open {
            path: path.into(),
            source: source.into(),
        };
        let regular = |stat: fs::Stat| match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(stat),
            _ => Err(MapError::NotAFile { path: path.into() }),
        };
        // Opening a FIFO waits for a writer and opening a device may act on it, so that what is there
        // is looked at first; NONBLOCK for what is put there in between.
        regular(fs::stat(path).map_err(open)?)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = fs::open(path, flags, Mode::empty()).map_err(open)?;
        let stat = regular(fs::fstat(&file).map_err(open)?)?;
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        let map_error = |source: Errno| MapError::Map {
            path: path.into(),
            len: bytes,
            source: source.into(),
        };
        let len = usize::try_from(bytes).map_err(|_| map_error(Errno::OVERFLOW))?;
        if len == 0 {
            return Err(MapError::Empty { path: path.into() });
        }
        // SAFETY: a fresh private read-only mapping chosen by the kernel aliases no Rust object;
        // `file` is open and `len` > 0.
        let start = unsafe {
            mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::PRIVATE,
                &file,
                0,
            )
        }
        .map_err(map_error)?;
        let start = NonNull::new(start).ok_or_else(|| map_error(Errno::NOMEM))?;
        Ok(Self {
            path: path.into(),
            identity: FileIdentity::of(&stat),
            start,
            len,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Of the file that is mapped, as it was when it was opened.
    pub fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start..start+len` is mapped readable until Drop, and the borrow ends before it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<u8>(), self.len) }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lets the kernel take back the pages read so far: used once the weights are repacked, so that
    /// they do not count twice in the resident set. Reading them again reads the file again.
    pub fn advise_dont_need(&self) {
        // SAFETY: the range is ours; on a private read-only file mapping LinuxDontNeed only drops
        // clean pages, so later reads see the same file content. A refusal changes nothing.
        let _ = unsafe { mm::madvise(self.start.as_ptr(), self.len, Advice::LinuxDontNeed) };
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `open` and no borrow of it outlives `self`.
        let unmapped = unsafe { mm::munmap(self.start.as_ptr(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of a model file: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn maps_what_the_file_holds() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"GGUF and more").unwrap();
        let mapped = MappedFile::open(file.path()).unwrap();
        assert_eq!(mapped.bytes(), b"GGUF and more");
        mapped.advise_dont_need();
        assert_eq!(mapped.bytes(), b"GGUF and more");
    }

    #[test]
    fn a_file_that_is_replaced_or_written_has_another_identity() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        let identity = || MappedFile::open(&path).unwrap().identity();
        std::fs::write(&path, b"first").unwrap();
        let first = MappedFile::open(&path).unwrap();
        assert_eq!((first.identity(), first.identity().bytes), (identity(), 5));

        // The same bytes and times, another file.
        let times = std::fs::metadata(&path).unwrap().modified().unwrap();
        let next = dir.path().join("next.gguf");
        std::fs::write(&next, b"other").unwrap();
        let file = std::fs::File::options().write(true).open(&next).unwrap();
        file.set_modified(times).unwrap();
        std::fs::rename(&next, &path).unwrap();
        let second = identity();
        assert_ne!(second.inode, first.identity().inode);
        assert_eq!(second.modified_ns, first.identity().modified_ns);
        // What is mapped is still the first.
        assert_eq!(first.bytes(), b"first");

        file.set_modified(times + std::time::Duration::from_nanos(1_000_000_000))
            .unwrap();
        let third = identity();
        assert_eq!(third.inode, second.inode);
        assert_ne!(third.modified_ns, second.modified_ns);
    }

    #[test]
    fn refuses_what_is_no_model_file() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(
            MappedFile::open(dir.path()),
            Err(MapError::NotAFile { .. })
        ));
        let missing = dir.path().join("missing.gguf");
        assert!(matches!(
            MappedFile::open(&missing),
            Err(MapError::Open { .. })
        ));
        let fifo = dir.path().join("fifo.gguf");
        let mode = Mode::RUSR | Mode::WUSR;
        fs::mknodat(fs::CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        for waits in [fifo.as_path(), "/dev/zero".as_ref()] {
            let refused = MappedFile::open(waits);
            assert!(matches!(refused, Err(MapError::NotAFile { .. })));
        }
        let empty = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(
            MappedFile::open(empty.path()),
            Err(MapError::Empty { .. })
        ));
    }
}
