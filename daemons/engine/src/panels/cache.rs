use super::{LAYOUT_VERSION, ModelDigest, PanelFile, PanelFileError, PanelWriter, digest::digest};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashSet,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use vitriol_gguf::{FileIdentity, Gguf};
use vitriol_ipc::{DirsError, create_private_dir};
use vitriol_sysfs::{SysfsError, free_bytes};

/// A file that changed so short a time ago may change again within one tick of its clock, so that its
/// identity would stay the same: what it holds is not remembered yet.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// Bytes of a model that are digested, and of panels that are written, between two reports of progress.
const REPORT_BYTES: usize = 64 << 20;

const PANELS: &str = "panels";
const RECORD: &str = "json";
const UNFINISHED: &str = "new";

/// Why the cache is of no use now.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error(transparent)]
    Directory(#[from] DirsError),
    #[error(transparent)]
    Space(#[from] SysfsError),
    #[error("{}: {free} bytes are free, and panels of this model take about {needed}", path.display())]
    Full {
        path: PathBuf,
        needed: u64,
        free: u64,
    },
    #[error("{}: cannot {what}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(transparent)]
    File(#[from] PanelFileError),
    #[error("{}: it changed while it was read", path.display())]
    Changing { path: PathBuf },
    #[error("{}: somebody removed panels that were just written", path.display())]
    Lost { path: PathBuf },
}

/// The directory in which panels are kept, this user's alone.
#[derive(Debug)]
pub struct PanelCache {
    directory: PathBuf,
    threads: usize,
}

/// What was found at a model's path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// Of the model's first part.
    path: PathBuf,
    /// Digest of the identities of all parts; none for files that changed a moment before.
    files: Option<String>,
    digest: String,
}

/// The digest of a model's bytes, taken by `threads`, with a report now and then.
pub fn digest_model(gguf: &Gguf, threads: usize, report: &mut dyn FnMut()) -> ModelDigest {
    let mut all = blake3::Hasher::new_derive_key("vitriol 2026 model digest v1");
    for part in gguf.parts() {
        all.update(&(part.bytes().len() as u64).to_le_bytes());
        for piece in part.bytes().chunks(REPORT_BYTES) {
            all.update(&digest(piece, threads));
            report();
        }
    }
    ModelDigest(*all.finalize().as_bytes())
}

impl PanelCache {
    /// The cache in `directory`, which is made where it is missing. Digests are taken by `threads`.
    ///
    /// Errors: it cannot be made; others may write to it
    pub fn open(directory: &Path, threads: usize) -> Result<Self, CacheError> {
        create_private_dir(directory)?;
        Ok(Self {
            directory: directory.to_owned(),
            threads,
        })
    }

    /// The model's digest: taken now, with a report now and then, or known because its files are those of
    /// the last time. `now` is the time of day.
    ///
    /// Errors: a file whose identity is not known or is another by the end
    pub fn digest(
        &self,
        gguf: &Gguf,
        now: SystemTime,
        report: &mut dyn FnMut(),
    ) -> Result<ModelDigest, CacheError> {
        let path = gguf.path();
        let path = fs::canonicalize(path).map_err(|source| failed("look at", path, source))?;
        let identities: Option<Vec<FileIdentity>> =
            gguf.parts().iter().map(|part| part.identity()).collect();
        let identities = identities.ok_or_else(|| CacheError::Changing { path: path.clone() })?;
        let files = digest_of(&identities);
        let record_path = self.record_path(&path);
        if let Some(digest) = known(&record_path, &files) {
            return Ok(digest);
        }

        let digest = digest_model(gguf, self.threads, report);
        // The digest must be that of the files with these identities.
        Self::check_unchanged(gguf)?;
        let now_ns = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let settled = now_ns.saturating_sub(SETTLED_AFTER).as_nanos() as i128;
        let is_settled = identities
            .iter()
            .all(|of| of.changed_ns.max(of.modified_ns) < settled);
        let record = Record {
            path,
            files: is_settled.then_some(files),
            digest: digest.to_string(),
        };
        let text = serde_json::to_string(&record).map_err(io::Error::from);
        text.and_then(|text| self.write_record(&record_path, &text))
            .map_err(|source| failed("write", &record_path, source))?;
        Ok(digest)
    }

    /// That the files at the model's paths are still those that are read.
    pub fn check_unchanged(gguf: &Gguf) -> Result<(), CacheError> {
        match gguf.parts().iter().find(|part| !part.is_unchanged()) {
            None => Ok(()),
            Some(part) => Err(CacheError::Changing {
                path: part.path().to_owned(),
            }),
        }
    }

    /// The panels of a model; `None` where none were kept yet.
    ///
    /// Errors: there is a file, but it cannot be read or is not what it should be
    pub fn find(&self, model: ModelDigest) -> Result<Option<PanelFile>, PanelFileError> {
        match PanelFile::open(&self.panels_path(model), model, self.threads) {
            Ok(file) => Ok(Some(file)),
            Err(PanelFileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Keeps the panels that `write` adds, in place of what was kept for this model, and clears away what
    /// no model needs any more. `bytes`: about what they take.
    ///
    /// Errors: of `write`; no room or no permission. Nothing is left of what was begun.
    pub fn keep<E: From<CacheError>>(
        &self,
        model: ModelDigest,
        bytes: u64,
        write: impl FnOnce(&mut PanelWriter) -> Result<(), E>,
    ) -> Result<(), E> {
        self.clear();
        let free = free_bytes(&self.directory).map_err(CacheError::from)?;
        if free < bytes {
            return Err(E::from(CacheError::Full {
                path: self.directory.clone(),
                needed: bytes,
                free,
            }));
        }
        let unfinished = Unfinished::create(&self.directory)
            .map_err(|source| failed("write in", &self.directory, source))?;
        let file = unfinished.file.try_clone();
        let out = Box::new(Synced {
            file: file.map_err(|source| failed("write", &unfinished.path, source))?,
            unsynced: 0,
        });
        let begun = PanelWriter::begin(&unfinished.path, out, model, self.threads);
        let mut writer = begun.map_err(CacheError::from)?;
        write(&mut writer)?;
        writer.finish().map_err(CacheError::from)?;
        let to = self.panels_path(model);
        let kept = unfinished.rename(&to).and_then(|()| self.sync());
        kept.map_err(|source| failed("write", &to, source))?;
        Ok(())
    }

    /// Removes panels of another layout and of models that are at none of their paths any more, and what
    /// writers that ended left. Whatever cannot be removed stays: it only takes room.
    fn clear(&self) {
        let Ok(found) = fs::read_dir(&self.directory) else {
            return;
        };
        let paths: Vec<PathBuf> = found.flatten().map(|entry| entry.path()).collect();
        let with = |extension: &'static str| {
            let has = move |path: &&PathBuf| path.extension().is_some_and(|of| of == extension);
            paths.iter().filter(has)
        };
        let mut needed = HashSet::new();
        for path in with(RECORD) {
            match read_record(path) {
                Some(record) if record.path.try_exists().unwrap_or(true) => {
                    needed.insert(self.panels_file_name(&record.digest));
                }
                _ => remove(path),
            }
        }
        for path in with(PANELS) {
            let name = path.file_name().and_then(|name| name.to_str());
            if !name.is_some_and(|name| needed.contains(name)) {
                remove(path);
            }
        }
        for path in with(UNFINISHED) {
            // Its writer holds the lock as long as it lives.
            if File::open(path).is_ok_and(|file| file.try_lock().is_ok()) {
                remove(path);
            }
        }
    }

    fn write_record(&self, to: &Path, text: &str) -> io::Result<()> {
        let unfinished = Unfinished::create(&self.directory)?;
        (&unfinished.file).write_all(text.as_bytes())?;
        unfinished.rename(to)
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }

    fn record_path(&self, model: &Path) -> PathBuf {
        let name = blake3::hash(model.as_os_str().as_encoded_bytes()).to_hex();
        self.directory.join(format!("{}.{RECORD}", &name[..32]))
    }

    fn panels_path(&self, model: ModelDigest) -> PathBuf {
        self.directory
            .join(self.panels_file_name(&model.to_string()))
    }

    fn panels_file_name(&self, digest: &str) -> String {
        let digest = digest.get(..32).unwrap_or(digest);
        format!("{digest}-v{LAYOUT_VERSION}.{PANELS}")
    }
}

fn failed(what: &'static str, path: &Path, source: io::Error) -> CacheError {
    CacheError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

fn digest_of(identities: &[FileIdentity]) -> String {
    let mut all = blake3::Hasher::new();
    for of in identities {
        for number in [of.device, of.inode, of.bytes] {
            all.update(&number.to_le_bytes());
        }
        for time in [of.modified_ns, of.changed_ns] {
            all.update(&time.to_le_bytes());
        }
    }
    all.finalize().to_string()
}

/// The digest of the model whose files are `files`, if that was found at its path the last time.
fn known(record: &Path, files: &str) -> Option<ModelDigest> {
    let record = read_record(record)?;
    let digest = blake3::Hash::from_hex(record.digest).ok()?;
    let is_same = record.files.as_deref() == Some(files);
    is_same.then(|| ModelDigest(*digest.as_bytes()))
}

/// `None` where there is none that can be read: it is made anew.
fn read_record(path: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Ok(()) => tracing::info!(file = %path.display(), "a file of old panels is removed"),
        // Another engine was quicker.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "old panels cannot be removed");
        }
    }
}

/// A file that is removed unless it is given its name.
struct Unfinished {
    path: PathBuf,
    file: File,
    is_renamed: bool,
}

impl Unfinished {
    fn create(directory: &Path) -> io::Result<Self> {
        for number in 0.. {
            let path = directory.join(format!("{}-{number}.{UNFINISHED}", std::process::id()));
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600);
            let file = match options.open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            match file.try_lock() {
                Ok(()) => {}
                // Whoever clears the directory was quicker, and removes it.
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => {
                    remove(&path);
                    return Err(error);
                }
            }
            if file.metadata()?.nlink() == 0 {
                continue;
            }
            return Ok(Self {
                path,
                file,
                is_renamed: false,
            });
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Makes sure that all of it is on disk, then moves it to `path`.
    fn rename(mut self, path: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, path)?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_renamed {
            // Where that fails, the next writer clears it away.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Has the disk keep up, so that no sync lasts longer than a service manager waits for a report.
struct Synced {
    file: File,
    unsynced: usize,
}

impl Write for Synced {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.unsynced >= REPORT_BYTES {
            self.flush()?;
        }
        let written = self.file.write(&bytes[..bytes.len().min(REPORT_BYTES)])?;
        self.unsynced += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unsynced = 0;
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests;
