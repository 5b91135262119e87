//! A conversation as a file: its entry, then every record that it needs to go on; docs/formats/segment.md draws it.
//!
//! The caller opens the file and hands it over, so that kvtier needs to reach no path of the caller's. What is imported
//! is proven record by record, and is a conversation only when it is whole: until then, and if it never comes to
//! that, what was written of it is destroyed.

use std::{collections::HashSet, fs::File, io, os::unix::fs::FileExt, sync::Arc};

use tokio::{
    sync::oneshot,
    task::JoinError,
    time::{Duration, sleep},
};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    catalogue::{DecodeError, Imported, SessionEntry, decode, encode, payload_bytes},
    mirror::segment::{
        BLOCK_BYTES, FOR_EXPORT, decode_header, encode_header, stored_bytes, version,
    },
    record::{Record, RecordName},
    sessions::{SessionError, Sessions},
    tier::Taken,
};

/// Time between two tries of a mirror that is busy.
const PAUSE: Duration = Duration::from_millis(20);

/// How far a transfer is, or that it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub records: u64,
    pub records_all: u64,
    /// Of the file.
    pub bytes: u64,
}

/// Why there is no file, or no conversation out of it.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("what was handed over is no regular file")]
    NoFile,
    #[error("cannot {0} the file")]
    File(&'static str, #[source] io::Error),
    #[error(
        "{missing} of {all} records of the session are nowhere; its next turn computes and stores them again"
    )]
    Missing { missing: u64, all: u64 },
    #[error("the file is none that 'vitriol session export' wrote, or is damaged at its beginning")]
    NoEntry,
    #[error("the file has {what} of version {version}; this release reads version {reads}")]
    Version {
        what: &'static str,
        version: u32,
        reads: u32,
    },
    #[error("the file is damaged at byte {at}; nothing of it was taken")]
    Damaged { at: u64 },
    #[error("a record of {bytes} bytes, and slots hold {slot_bytes}; raise kvtier.slot_bytes")]
    TooLong { bytes: u64, slot_bytes: u64 },
    #[error("the records could not be stored: {0}")]
    NotStored(String),
    #[error(
        "there is a session '{0}' that went another way; import it under another name, or replace it"
    )]
    Exists(String),
    #[error("the caller left")]
    Left,
    #[error("a task of kvtier failed")]
    Task(#[from] JoinError),
}

impl From<DecodeError> for TransferError {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::Damaged => Self::NoEntry,
            DecodeError::Version(version) => Self::Version {
                what: "an entry",
                version,
                reads: crate::catalogue::VERSION,
            },
        }
    }
}

/// Writes the conversation `id` to `file`, from its first byte on. `tell`: false when nobody listens any more.
pub async fn export(
    sessions: &Sessions,
    id: &str,
    file: File,
    tell: impl Fn(Progress) -> bool,
) -> Result<Progress, TransferError> {
    let entry = sessions.entry(id)?;
    let found = sessions.find(Arc::clone(&entry)).await?;
    if found.nowhere > 0 {
        return Err(TransferError::Missing {
            missing: found.nowhere,
            all: found.needed,
        });
    }
    let mut out = Out::new(file)?;
    let alone = SessionEntry {
        left: Vec::new(),
        ..SessionEntry::clone(&entry)
    };
    out.append(encode(&alone)).await?;
    let mut progress = Progress {
        records_all: found.needed,
        ..Progress::default()
    };
    for name in entry.chain.needed() {
        let Some((record, payload)) = fetch(sessions, name).await? else {
            let missing = found.needed - progress.records;
            let all = found.needed;
            return Err(TransferError::Missing { missing, all });
        };
        let mut bytes = encode_header(FOR_EXPORT, &record).to_vec();
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        out.append(bytes).await?;
        progress.records += 1;
        progress.bytes = out.at;
        if !tell(progress) {
            return Err(TransferError::Left);
        }
    }
    out.sync().await?;
    Ok(progress)
}

/// A record, wherever it is; None when it is gone.
async fn fetch(
    sessions: &Sessions,
    name: RecordName,
) -> Result<Option<(Record, Vec<u8>)>, TransferError> {
    loop {
        let (told, read) = oneshot::channel();
        let tier = Arc::clone(sessions.tier());
        let tell = Box::new(move |found: Option<(Record, &[u8])>| {
            // Who asked may have left.
            let _ = told.send(found.map(|(record, payload)| (record, payload.to_vec())));
        });
        // It may copy a payload.
        match tokio::task::spawn_blocking(move || tier.read(name, tell)).await? {
            Ok(()) => return Ok(read.await.ok().flatten()),
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Takes the conversation in `file` over, under the name `id` if there is one. `may_replace`: also in place of one that
/// went another way. `tell`: as of [`export`].
pub async fn import(
    sessions: &Sessions,
    file: File,
    id: Option<String>,
    may_replace: bool,
    tell: impl Fn(Progress) -> bool,
) -> Result<(SessionEntry, Progress), TransferError> {
    let mut file = In::new(file)?;
    let mut entry = file.entry().await?;
    if let Some(id) = id {
        entry.id = id;
        entry.check().map_err(SessionError::from)?;
    }
    let catalogue = sessions.catalogue();
    if !may_replace && catalogue.would_replace(&entry) {
        return Err(TransferError::Exists(entry.id));
    }
    let mut taking = Taking::new(sessions, &entry).await?;
    let taken = take_records(&mut file, &entry, &mut taking, tell).await;
    let kept = match taken {
        Ok(progress) => match sessions.put_imported(entry.clone(), may_replace).await? {
            Imported::Refused => Err(TransferError::Exists(entry.id.clone())),
            Imported::Kept => Ok(progress),
        },
        Err(error) => Err(error),
    };
    match kept {
        Ok(progress) => Ok((entry, progress)),
        Err(error) => {
            taking.undo(&entry).await;
            Err(error)
        }
    }
}

async fn take_records(
    file: &mut In,
    entry: &SessionEntry,
    taking: &mut Taking<'_>,
    tell: impl Fn(Progress) -> bool,
) -> Result<Progress, TransferError> {
    let mut progress = Progress {
        records_all: taking.awaited.len() as u64,
        ..Progress::default()
    };
    let slot_bytes = taking.sessions.tier().arena().slot_bytes();
    while !taking.awaited.is_empty() {
        let (record, payload) = file.record(slot_bytes).await?;
        if !taking.awaited.remove(&record.name) {
            return Err(TransferError::Damaged { at: progress.bytes });
        }
        taking.keep(record, payload).await?;
        progress.records += 1;
        progress.bytes = file.at;
        if !tell(progress) {
            return Err(TransferError::Left);
        }
    }
    if file.at != file.length {
        return Err(TransferError::Damaged { at: file.at });
    }
    taking.finish(entry).await?;
    Ok(progress)
}

/// The records of a conversation on their way into the tier.
struct Taking<'a> {
    sessions: &'a Sessions,
    awaited: HashSet<RecordName>,
    /// Those that were somewhere before.
    known: HashSet<RecordName>,
    written: Vec<RecordName>,
    /// Whether each is durable; told at the next sync.
    stored: Vec<oneshot::Receiver<bool>>,
}

impl<'a> Taking<'a> {
    async fn new(sessions: &'a Sessions, entry: &SessionEntry) -> Result<Self, TransferError> {
        let names: Vec<_> = entry.chain.needed().collect();
        let tier = Arc::clone(sessions.tier());
        let of_it = names.clone();
        let presence = tokio::task::spawn_blocking(move || tier.presence(&of_it)).await?;
        let known = names.iter().zip(presence);
        let known =
            known.filter(|(_, at)| at.in_arena || at.is_being_written || at.on_mirror.is_some());
        Ok(Self {
            sessions,
            known: known.map(|(name, _)| *name).collect(),
            awaited: names.into_iter().collect(),
            written: Vec::new(),
            stored: Vec::new(),
        })
    }

    async fn keep(&mut self, record: Record, payload: Vec<u8>) -> Result<(), TransferError> {
        let payload = Arc::new(payload);
        self.written.push(record.name);
        loop {
            let (told, stored) = oneshot::channel();
            let (tier, payload) = (Arc::clone(self.sessions.tier()), Arc::clone(&payload));
            let tell = Box::new(move |is_stored| {
                // The transfer may have failed already.
                let _ = told.send(is_stored);
            });
            let kept = tokio::task::spawn_blocking(move || tier.take(record, &payload, tell));
            match kept.await? {
                Taken::Queued => {
                    self.stored.push(stored);
                    return Ok(());
                }
                Taken::InArena => return Ok(()),
                Taken::Busy => sleep(PAUSE).await,
                Taken::Declined(why) => return Err(TransferError::NotStored(why.to_string())),
            }
        }
    }

    /// Waits until all is durable, where there is a disk, and sees that all is there.
    async fn finish(&mut self, entry: &SessionEntry) -> Result<(), TransferError> {
        for stored in self.stored.drain(..) {
            if !stored.await.unwrap_or(false) {
                let mirror = self.sessions.tier().stats().mirror;
                let down = mirror.and_then(|mirror| mirror.down);
                let cause = down.unwrap_or_else(|| "the disk refused one".to_owned());
                return Err(TransferError::NotStored(cause));
            }
        }
        // Memory may be too small for all of it, and somebody may have destroyed what was there before.
        let found = self.sessions.find(Arc::new(entry.clone())).await?;
        match found.nowhere {
            0 => Ok(()),
            gone => Err(TransferError::NotStored(format!(
                "{gone} made room for others meanwhile"
            ))),
        }
    }

    /// Destroys what came only with this transfer.
    async fn undo(&self, entry: &SessionEntry) {
        let alone: HashSet<_> = self
            .sessions
            .catalogue()
            .names_of_it_alone(entry)
            .into_iter()
            .collect();
        let is_mine = |name: &&RecordName| alone.contains(*name) && !self.known.contains(*name);
        let names: Vec<_> = self.written.iter().filter(is_mine).copied().collect();
        let left = self.sessions.destroy_all(&names).await;
        if !left.is_empty() {
            let records = left.len();
            tracing::warn!(
                records,
                "records of an import that failed are left until others push them out"
            );
        }
    }
}

/// A file that is written from its beginning on.
struct Out {
    file: Arc<File>,
    at: u64,
}

impl Out {
    fn new(file: File) -> Result<Self, TransferError> {
        check(&file)?;
        let file = Arc::new(file);
        Ok(Self { file, at: 0 })
    }

    async fn append(&mut self, bytes: Vec<u8>) -> Result<(), TransferError> {
        let (file, at, length) = (Arc::clone(&self.file), self.at, bytes.len() as u64);
        let written = tokio::task::spawn_blocking(move || file.write_all_at(&bytes, at)).await?;
        written.map_err(|error| TransferError::File("write", error))?;
        self.at += length;
        Ok(())
    }

    async fn sync(&self) -> Result<(), TransferError> {
        let file = Arc::clone(&self.file);
        let synced = tokio::task::spawn_blocking(move || file.sync_all()).await?;
        synced.map_err(|error| TransferError::File("sync", error))
    }
}

/// A file that is read from its beginning on.
struct In {
    file: Arc<File>,
    at: u64,
    length: u64,
}

impl In {
    fn new(file: File) -> Result<Self, TransferError> {
        let length = check(&file)?;
        let file = Arc::new(file);
        Ok(Self {
            file,
            at: 0,
            length,
        })
    }

    async fn take(&mut self, bytes: usize) -> Result<Vec<u8>, TransferError> {
        let (file, at) = (Arc::clone(&self.file), self.at);
        if self.length.saturating_sub(at) < bytes as u64 {
            return Err(TransferError::Damaged { at });
        }
        let read = tokio::task::spawn_blocking(move || {
            let mut taken = vec![0; bytes];
            file.read_exact_at(&mut taken, at).map(|()| taken)
        });
        let taken = read
            .await?
            .map_err(|error| TransferError::File("read", error))?;
        self.at += bytes as u64;
        Ok(taken)
    }

    async fn block(&mut self) -> Result<[u8; BLOCK_BYTES], TransferError> {
        let at = self.at;
        let block = self.take(BLOCK_BYTES).await?;
        block.try_into().map_err(|_| TransferError::Damaged { at })
    }

    async fn entry(&mut self) -> Result<SessionEntry, TransferError> {
        let not_one = |_| TransferError::NoEntry;
        let block = self.block().await.map_err(not_one)?;
        let (_, padded) = payload_bytes(&block)?;
        let payload = self.take(padded).await.map_err(not_one)?;
        Ok(decode(&[&block[..], &payload].concat())?)
    }

    /// The next record, proven.
    async fn record(&mut self, slot_bytes: u64) -> Result<(Record, Vec<u8>), TransferError> {
        let at = self.at;
        let damaged = || TransferError::Damaged { at };
        let block = self.block().await?;
        let Some(record) = decode_header(FOR_EXPORT, &block) else {
            return Err(match version(&block) {
                Some(version) if version != crate::mirror::segment::VERSION => {
                    TransferError::Version {
                        what: "a record",
                        version,
                        reads: crate::mirror::segment::VERSION,
                    }
                }
                _ => damaged(),
            });
        };
        let bytes = record.length;
        if bytes > slot_bytes {
            return Err(TransferError::TooLong { bytes, slot_bytes });
        }
        let padded = stored_bytes(bytes) as usize - BLOCK_BYTES;
        let mut payload = self.take(padded).await?;
        let padding = payload.split_off(bytes as usize);
        let is_whole = xxh3_64(&payload) == record.xxh3 && padding.iter().all(|&byte| byte == 0);
        is_whole.then_some((record, payload)).ok_or_else(damaged)
    }
}

/// Bytes of the file. Errors: reading it could keep a thread for ever.
fn check(file: &File) -> Result<u64, TransferError> {
    let metadata = file.metadata();
    let metadata = metadata.map_err(|error| TransferError::File("look at", error))?;
    match metadata.is_file() {
        true => Ok(metadata.len()),
        false => Err(TransferError::NoFile),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::Notify;

    use super::*;
    use crate::{
        arena::Arena,
        catalogue::{BlockList, Catalogue, Part},
        tier::{Offer, Tier},
        worth::Origin,
    };

    /// Four slots, no mirror.
    fn sessions() -> Sessions {
        let arena = Arena::create([1; 16], 6 << 20, 1 << 20).unwrap();
        let catalogue = Arc::new(Catalogue::in_memory());
        Sessions::new(
            Arc::new(Tier::new(arena, None)),
            catalogue,
            Arc::new(Notify::new()),
        )
    }

    fn name(key: u8) -> RecordName {
        RecordName {
            key: [key; 32],
            tag: [5; 16],
            group: 0,
        }
    }

    fn store(sessions: &Sessions, key: u8) {
        let tier = sessions.tier();
        let session = tier.attach(7, tier.arena().id(), &[]).unwrap().session;
        let payload = [key; 5000];
        let record = Record {
            name: name(key),
            parent: [0; 32],
            tokens: 64,
            saved_us: 1000,
            length: 5000,
            xxh3: xxh3_64(&payload),
        };
        let origin = Origin::Session;
        let ticket = tier.reserve(session, &Offer { record, origin }).unwrap();
        tier.arena().write_payload(ticket.slot, &payload);
        tier.seal(session, ticket, record.length, record.xxh3)
            .unwrap();
    }

    async fn put(sessions: &Sessions, id: &str, keys: &[u8]) {
        let part = Part {
            group: 0,
            needed_from: 0,
        };
        let chain = BlockList {
            tag: [5; 16],
            parts: vec![part],
            keys: keys.iter().map(|&key| [key; 32]).collect(),
        };
        sessions.put(id.to_owned(), chain, 128).await.unwrap();
    }

    fn has(sessions: &Sessions, key: u8) -> bool {
        sessions.tier().presence(&[name(key)])[0].in_arena
    }

    #[tokio::test]
    async fn who_leaves_in_the_middle_leaves_nothing_and_takes_nothing_of_others() {
        let from = sessions();
        (1..=3).for_each(|key| store(&from, key));
        put(&from, "a", &[1, 2, 3]).await;
        let file = tempfile::tempfile().unwrap();
        let here = || file.try_clone().unwrap();
        export(&from, "a", here(), |_| true).await.unwrap();

        let to = sessions();
        store(&to, 1);
        let told = Cell::new(0);
        let leaves_at_2 = |now: Progress| {
            told.set(now.records);
            now.records < 2
        };
        let left = import(&to, here(), None, false, leaves_at_2)
            .await
            .unwrap_err();
        assert!(matches!(left, TransferError::Left), "{left}");
        assert_eq!(told.get(), 2);
        assert_eq!(
            [1, 2, 3].map(|key| has(&to, key)),
            [true, false, false],
            "1 was there before"
        );
        assert_eq!(to.catalogue().list(), []);
        // A session that came meanwhile goes on with what was written.
        let put_meanwhile = import(&to, here(), None, false, |now| now.records < 2);
        put(&to, "b", &[2]).await;
        put_meanwhile.await.unwrap_err();
        assert_eq!([1, 2, 3].map(|key| has(&to, key)), [true, true, false]);
        import(&to, here(), None, false, |_| true).await.unwrap();
        assert_eq!([1, 2, 3].map(|key| has(&to, key)), [true; 3]);
    }

    #[tokio::test]
    async fn what_memory_has_no_room_for_is_no_session() {
        let arena = Arena::create([1; 16], 10 << 20, 1 << 20).unwrap();
        let tier = Arc::new(Tier::new(arena, None));
        let from = Sessions::new(
            tier,
            Arc::new(Catalogue::in_memory()),
            Arc::new(Notify::new()),
        );
        (1..=6).for_each(|key| store(&from, key));
        put(&from, "a", &[1, 2, 3, 4, 5, 6]).await;
        let file = tempfile::tempfile().unwrap();
        export(&from, "a", file.try_clone().unwrap(), |_| true)
            .await
            .unwrap();
        let to = sessions();
        let refused = import(&to, file, None, false, |_| true).await.unwrap_err();
        assert!(matches!(refused, TransferError::NotStored(_)), "{refused}");
        assert_eq!(to.catalogue().list(), []);
        assert!((1..=6).all(|key| !has(&to, key)));
    }

    #[tokio::test]
    async fn records_longer_than_slots_are_refused_with_the_setting() {
        let from = sessions();
        store(&from, 1);
        put(&from, "a", &[1]).await;
        let file = tempfile::tempfile().unwrap();
        export(&from, "a", file.try_clone().unwrap(), |_| true)
            .await
            .unwrap();
        let small = Arena::create([2; 16], 4 << 20, 4096).unwrap();
        let tier = Arc::new(Tier::new(small, None));
        let to = Sessions::new(
            tier,
            Arc::new(Catalogue::in_memory()),
            Arc::new(Notify::new()),
        );
        let refused = import(&to, file, None, false, |_| true).await.unwrap_err();
        assert!(
            refused.to_string().contains("raise kvtier.slot_bytes"),
            "{refused}"
        );
    }
}
