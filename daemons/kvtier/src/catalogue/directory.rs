use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use vitriol_ipc::FileLock;

use super::{
    encoding::{DecodeError, decode, encode},
    entry::SessionEntry,
};

/// Ends the name of a file that is being written.
const DRAFT: &str = "new";

/// One file an entry, in a directory of this user's alone (0700, files 0600), used by one process at a time.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    _lock: FileLock,
}

/// What a directory has.
#[derive(Debug, Default)]
pub struct Loaded {
    pub entries: Vec<SessionEntry>,
    /// Files that are none.
    pub damaged: u64,
}

impl Directory {
    /// Opens `path`, which is made if it is missing.
    ///
    /// Errors: it cannot be made or closed to others, or another process uses it (`WouldBlock`).
    pub fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
            fs::set_permissions(path, Permissions::from_mode(0o700))?;
        }
        let lock = FileLock::take(File::open(path)?)?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Reads all entries. A file that is none is removed, but for one of another version, which stays for the
    /// release that wrote it; what a crash left half written is removed too.
    pub fn load(&self) -> Loaded {
        let mut loaded = Loaded::default();
        for file in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let path = file.path();
            let read = fs::read(&path).map_err(|_| DecodeError::Damaged);
            let entry = read.and_then(|bytes| decode(&bytes));
            match entry {
                Ok(entry) if self.file(&entry.id) == path => loaded.entries.push(entry),
                _ if path.extension().is_some_and(|end| end == DRAFT) => remove(&path),
                Err(DecodeError::Version(_)) => loaded.damaged += 1,
                Ok(_) | Err(DecodeError::Damaged) => {
                    loaded.damaged += 1;
                    remove(&path);
                }
            }
        }
        loaded
    }

    /// Writes an entry, whole or not at all, also when the machine loses its power.
    pub fn write(&self, entry: &SessionEntry) -> io::Result<()> {
        let path = self.file(&entry.id);
        let draft = path.with_extension(DRAFT);
        let written = (|| {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&draft)?;
            file.write_all(&encode(entry))?;
            file.sync_data()?;
            fs::rename(&draft, &path)
        })();
        if written.is_err() {
            // A disk that stays full is tried again and again; each try must not leave a file.
            remove(&draft);
        }
        written?;
        self.sync()
    }

    /// Removes an entry, if there is one.
    pub fn remove(&self, id: &str) -> io::Result<()> {
        match fs::remove_file(self.file(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.and_then(|()| self.sync()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// An id is any text; its hash leads nowhere else.
    fn file(&self, id: &str) -> PathBuf {
        self.path
            .join(blake3::hash(id.as_bytes()).to_hex().as_str())
    }
}

/// What cannot be removed is no entry all the same.
fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}
