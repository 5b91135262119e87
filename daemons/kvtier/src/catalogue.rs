//! Which records make up each conversation that names itself, so that it can be listed, saved, brought back and
//! destroyed. The catalogue holds names of records, never their bytes, and knows nothing of where they are.
//!
//! `entry` has what is known of a conversation and what a turn changes of it, `encoding` its bytes, `directory`
//! the files.

mod directory;
mod encoding;
mod entry;

use std::{
    collections::{HashMap, HashSet},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

pub use directory::Directory;
pub use encoding::{DecodeError, VERSION, decode, encode, payload_bytes};
pub use entry::{BLOCKS_MAX, BlockList, EntryError, ID_BYTES_MAX, Part, SessionEntry, plan_put};

use crate::record::RecordName;

/// Most conversations; of more, the one whose last turn is the longest ago is forgotten. Its records stay, as long as
/// they are worth it.
pub const SESSIONS_MAX: usize = 1024;

/// Most blocks of all conversations together, with those that they left: 32 bytes of memory each.
const BLOCKS_OF_ALL_MAX: usize = 1 << 20;

/// What there is of the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CatalogueStats {
    pub sessions: u64,
    /// Files that were no entry.
    pub damaged: u64,
    /// Attempts to write a file that failed.
    pub failures: u64,
    /// Why entries are in memory alone; None while they are not, or where there is no directory.
    pub down: Option<String>,
}

/// The catalogue, in memory and, where it has a directory, in one file a conversation.
///
/// A directory that fails costs nothing but the entries' outliving the process: they are written with the next one that
/// succeeds.
#[derive(Debug)]
pub struct Catalogue {
    /// Taken before `inner` where both are; held while files are written.
    files: Mutex<Files>,
    inner: Mutex<Inner>,
}

/// What came of an entry from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imported {
    /// It is known now, or as much of it was before.
    Kept,
    /// There is one of its name that went another way.
    Refused,
}

#[derive(Debug)]
enum Files {
    None,
    /// It could not be opened yet.
    Closed(PathBuf),
    Open(Directory),
}

#[derive(Debug, Default)]
struct Inner {
    entries: HashMap<String, Kept>,
    stats: CatalogueStats,
}

#[derive(Debug)]
struct Kept {
    entry: Arc<SessionEntry>,
    is_saved: bool,
}

impl Catalogue {
    /// One that ends with the process.
    pub fn in_memory() -> Self {
        Self {
            files: Mutex::new(Files::None),
            inner: Mutex::default(),
        }
    }

    /// The catalogue in `directory`, which is made if it is missing. One that cannot be used is tried again with every
    /// turn.
    pub fn open(directory: PathBuf) -> Self {
        let catalogue = Self {
            files: Mutex::new(Files::Closed(directory)),
            inner: Mutex::default(),
        };
        catalogue.save_all(&mut catalogue.files());
        catalogue
    }

    /// Takes note of how a turn ended; whether that changed the entry, see [`plan_put`].
    ///
    /// Cost: writes and syncs a file of 4 KiB and 32 bytes a block if it did.
    pub fn put(&self, turn: SessionEntry) -> bool {
        self.put_under(&mut self.files(), turn)
    }

    /// The same with an entry from elsewhere.
    pub fn put_imported(&self, entry: SessionEntry, may_replace: bool) -> Imported {
        let mut files = self.files();
        // Nobody else changes entries while the files are held.
        if !may_replace && self.would_replace(&entry) {
            return Imported::Refused;
        }
        self.put_under(&mut files, entry);
        Imported::Kept
    }

    /// Whether there is an entry of this id that went another way.
    pub fn would_replace(&self, entry: &SessionEntry) -> bool {
        let known = self.get(&entry.id);
        known.is_some_and(|known| !known.chain.is_one_way_with(&entry.chain))
    }

    fn put_under(&self, files: &mut Files, turn: SessionEntry) -> bool {
        let mut inner = self.inner();
        let last_turn_ms = turn.last_turn_ms;
        let id = turn.id.clone();
        let before = inner.entries.get_mut(&id);
        match plan_put(before.as_deref().map(|kept| &*kept.entry), turn) {
            None => {
                if let Some(kept) = before {
                    // For the order of age; not worth a write.
                    Arc::make_mut(&mut kept.entry).last_turn_ms = last_turn_ms;
                }
                return false;
            }
            Some(entry) => inner.insert(entry, false),
        }
        let forgotten = inner.forget_oldest(&id);
        drop(inner);
        self.save_all(files);
        if let Files::Open(directory) = files {
            for id in forgotten {
                tracing::info!(
                    vitriol_session = id,
                    "the catalogue is full; the oldest session is forgotten"
                );
                if let Err(error) = directory.remove(&id) {
                    self.failed("cannot remove an entry", &error);
                }
            }
        }
        true
    }

    /// Writes what is not on disk yet.
    ///
    /// Errors: why the entry `id` still is not.
    pub fn save(&self, id: &str) -> Result<(), String> {
        let mut files = self.files();
        if matches!(*files, Files::None) {
            return Err("there is no directory for it".to_owned());
        }
        self.save_all(&mut files);
        let inner = self.inner();
        let is_saved = inner.entries.get(id).is_some_and(|kept| kept.is_saved);
        match (is_saved, &inner.stats.down) {
            (true, _) => Ok(()),
            (false, down) => Err(down.clone().unwrap_or_else(|| "it is gone".to_owned())),
        }
    }

    /// Forgets an entry as it was read; false when it has changed since, and then it stays.
    ///
    /// Errors: its file cannot be removed; it stays.
    pub fn remove(&self, entry: &SessionEntry) -> io::Result<bool> {
        let files = self.files();
        let is_same =
            |kept: &Kept| kept.entry.chain == entry.chain && kept.entry.left == entry.left;
        if !self.inner().entries.get(&entry.id).is_some_and(is_same) {
            return Ok(false);
        }
        if let Files::Open(directory) = &*files {
            directory.remove(&entry.id)?;
        }
        // Nobody else changes entries while the files are held.
        self.inner().entries.remove(&entry.id);
        Ok(true)
    }

    pub fn get(&self, id: &str) -> Option<Arc<SessionEntry>> {
        let inner = self.inner();
        inner.entries.get(id).map(|kept| Arc::clone(&kept.entry))
    }

    /// All entries, the latest turn first.
    pub fn list(&self) -> Vec<Arc<SessionEntry>> {
        let inner = self.inner();
        let mut entries: Vec<_> = inner
            .entries
            .values()
            .map(|kept| Arc::clone(&kept.entry))
            .collect();
        drop(inner);
        entries.sort_by(|a, b| (b.last_turn_ms, &a.id).cmp(&(a.last_turn_ms, &b.id)));
        entries
    }

    /// Names of the records of `entry`, blocks that it left among them, that no other conversation goes on with.
    pub fn names_of_it_alone(&self, entry: &SessionEntry) -> Vec<RecordName> {
        let mut names: HashSet<RecordName> = entry.all_names().collect();
        for other in self.list().iter().filter(|other| other.id != entry.id) {
            for name in other.chain.names() {
                names.remove(&name);
            }
        }
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable();
        names
    }

    pub fn stats(&self) -> CatalogueStats {
        let inner = self.inner();
        CatalogueStats {
            sessions: inner.entries.len() as u64,
            ..inner.stats.clone()
        }
    }

    /// Opens the directory where that is still to be done, and writes what is not on disk, up to the first failure.
    fn save_all(&self, files: &mut Files) {
        if let Files::Closed(path) = files {
            match Directory::open(path) {
                Ok(directory) => {
                    self.take_over(&directory);
                    *files = Files::Open(directory);
                }
                Err(error) => return self.failed("cannot open its directory", &error),
            }
        }
        let Files::Open(directory) = files else {
            return;
        };
        let is_unsaved = |kept: &&Kept| !kept.is_saved;
        let inner = self.inner();
        let unsaved = inner.entries.values().filter(is_unsaved);
        let unsaved: Vec<_> = unsaved.map(|kept| Arc::clone(&kept.entry)).collect();
        drop(inner);
        for entry in unsaved {
            if let Err(error) = directory.write(&entry) {
                return self.failed("cannot write an entry", &error);
            }
            if let Some(kept) = self.inner().entries.get_mut(&entry.id) {
                kept.is_saved = true;
            }
        }
        if self.inner().stats.down.take().is_some() {
            tracing::info!("the catalogue of sessions is on disk again");
        }
    }

    /// What the directory has, beside what is known already.
    fn take_over(&self, directory: &Directory) {
        let found = directory.load();
        let mut inner = self.inner();
        inner.stats.damaged += found.damaged;
        if found.damaged > 0 {
            tracing::warn!(
                files = found.damaged,
                "files of the catalogue are no entries, and are left out"
            );
        }
        for entry in found.entries {
            match inner.entries.remove(&entry.id) {
                None => inner.insert(entry, true),
                Some(known) => {
                    let known = Arc::unwrap_or_clone(known.entry);
                    match plan_put(Some(&entry), known) {
                        Some(changed) => inner.insert(changed, false),
                        None => inner.insert(entry, true),
                    }
                }
            }
        }
    }

    fn failed(&self, what: &str, error: &io::Error) {
        let cause = format!("{what}: {error}");
        let mut inner = self.inner();
        inner.stats.failures += 1;
        if inner.stats.down.replace(cause.clone()).is_none() {
            tracing::warn!(cause, "the catalogue of sessions is in memory alone");
        }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn insert(&mut self, entry: SessionEntry, is_saved: bool) {
        let id = entry.id.clone();
        let entry = Arc::new(entry);
        self.entries.insert(id, Kept { entry, is_saved });
    }

    /// Forgets the oldest entries, never `newest`, until there are no more than may be; their ids.
    fn forget_oldest(&mut self, newest: &str) -> Vec<String> {
        let mut blocks: usize = self.entries.values().map(|kept| kept.entry.blocks()).sum();
        let mut forgotten = Vec::new();
        while self.entries.len() > SESSIONS_MAX || blocks > BLOCKS_OF_ALL_MAX {
            let others = self.entries.values().filter(|kept| kept.entry.id != newest);
            let oldest = others.min_by_key(|kept| kept.entry.last_turn_ms);
            let Some(oldest) = oldest.map(|kept| Arc::clone(&kept.entry)) else {
                break;
            };
            self.entries.remove(&oldest.id);
            blocks -= oldest.blocks();
            forgotten.push(oldest.id.clone());
        }
        forgotten
    }
}

#[cfg(test)]
mod tests;
