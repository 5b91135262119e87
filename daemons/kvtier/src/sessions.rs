//! What is done with whole conversations: the catalogue's names over the tier's records.

use std::{
    io,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::{Notify, oneshot},
    task::JoinError,
    time::{Duration, Instant, sleep, timeout_at},
};

use crate::{
    catalogue::{BlockList, Catalogue, EntryError, Imported, SessionEntry},
    record::RecordName,
    tier::{Destroyed, NotRestored, Presence, Room, Tier},
};

/// Records destroyed by one job of the mirror.
const NAMES_PER_ERASE: usize = 4096;

/// Time between two looks at what is on its way to the mirror, and two tries of one that is busy.
const PAUSE: Duration = Duration::from_millis(20);

/// The conversations of a tier.
#[derive(Clone, Debug)]
pub struct Sessions {
    tier: Arc<Tier>,
    catalogue: Arc<Catalogue>,
    sealed: Arc<Notify>,
}

/// Why nothing is done.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Entry(#[from] EntryError),
    #[error("there is no session '{0}'; 'vitriol session list' has all")]
    Unknown(String),
    #[error("there is no disk for KV; set mirror = true in [kvtier]")]
    NoMirror,
    #[error("the records of session '{id}' are destroyed, its entry cannot be removed; call again")]
    Remove { id: String, source: io::Error },
    #[error("a task of kvtier failed")]
    Task(#[from] JoinError),
}

/// Where the records are that a conversation needs to go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whereabouts {
    pub needed: u64,
    pub in_arena: u64,
    pub on_mirror: u64,
    pub nowhere: u64,
}

/// What of a conversation is on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    pub blocks: u64,
    pub needed: u64,
    pub on_mirror: u64,
    pub pending: u64,
    pub nowhere: u64,
    /// Bytes of the payloads that the mirror has.
    pub mirror_bytes: u64,
    /// Why it is not whole.
    pub cause: Option<String>,
}

/// What of a conversation is in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoredSession {
    pub needed: u64,
    pub in_arena: u64,
    pub brought: u64,
    pub brought_bytes: u64,
    /// From the first on, with all that is needed of them.
    pub blocks: u64,
    /// Why it is not whole.
    pub cause: Option<String>,
}

/// What came of removing a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Full blocks that it had.
    pub blocks: u64,
    pub destroyed: u64,
    pub shared: u64,
    pub left: Vec<RecordName>,
    /// Why it is still there.
    pub cause: Option<String>,
}

impl Sessions {
    /// `sealed`: told when something is to be spilled.
    pub fn new(tier: Arc<Tier>, catalogue: Arc<Catalogue>, sealed: Arc<Notify>) -> Self {
        Self {
            tier,
            catalogue,
            sealed,
        }
    }

    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    pub fn tier(&self) -> &Arc<Tier> {
        &self.tier
    }

    /// See [`Catalogue::put_imported`].
    pub async fn put_imported(
        &self,
        mut entry: SessionEntry,
        may_replace: bool,
    ) -> Result<Imported, SessionError> {
        entry.last_turn_ms = now_ms();
        self.blocking(move |this| this.catalogue.put_imported(entry, may_replace))
            .await
    }

    /// See [`Catalogue::put`].
    pub async fn put(
        &self,
        id: String,
        chain: BlockList,
        tokens: u64,
    ) -> Result<bool, SessionError> {
        let turn = SessionEntry {
            id,
            chain,
            left: Vec::new(),
            tokens,
            last_turn_ms: now_ms(),
        };
        turn.check()?;
        self.blocking(move |this| this.catalogue.put(turn)).await
    }

    /// Gives what a conversation is now another name besides, so that it outlives what becomes of the
    /// conversation. One of that name is replaced as by a turn. Returns the full blocks.
    pub async fn copy(&self, id: &str, to: String) -> Result<u64, SessionError> {
        let entry = self.entry(id)?;
        let copy = SessionEntry {
            id: to,
            left: Vec::new(),
            last_turn_ms: now_ms(),
            ..(*entry).clone()
        };
        copy.check()?;
        self.blocking(move |this| this.catalogue.put(copy)).await?;
        Ok(entry.chain.keys.len() as u64)
    }

    /// Where the records of a conversation are.
    pub async fn find(&self, entry: Arc<SessionEntry>) -> Result<Whereabouts, SessionError> {
        self.mirror_is_read().await;
        self.blocking(move |this| {
            let names: Vec<_> = entry.chain.needed().collect();
            let presence = this.tier.presence(&names);
            let count = |is_so: fn(bool, bool) -> bool| {
                let found = presence
                    .iter()
                    .filter(|at| is_so(at.in_arena, at.on_mirror.is_some()));
                found.count() as u64
            };
            Whereabouts {
                needed: names.len() as u64,
                in_arena: count(|arena, _| arena),
                on_mirror: count(|_, mirror| mirror),
                nowhere: count(|arena, mirror| !arena && !mirror),
            }
        })
        .await
    }

    /// Waits, at most so long, until the disk has all that a conversation needs, and its entry.
    pub async fn sync(&self, id: &str, within: Duration) -> Result<Synced, SessionError> {
        let entry = self.entry(id)?;
        if !self.tier.has_mirror() {
            return Err(SessionError::NoMirror);
        }
        self.mirror_is_read().await;
        let until = Instant::now() + within;
        let mut synced = loop {
            let synced = self.look_at_mirror(&entry).await?;
            if synced.pending == 0 || self.tier.is_mirror_down() || Instant::now() >= until {
                break synced;
            }
            self.sealed.notify_one();
            sleep(PAUSE).await;
        };
        let of_it = id.to_owned();
        let saved = self
            .blocking(move |this| this.catalogue.save(&of_it))
            .await?;
        let down = self.tier.stats().mirror.and_then(|mirror| mirror.down);
        synced.cause = match (&synced, saved) {
            (Synced { pending: 1.., .. }, _) => {
                Some(down.unwrap_or_else(|| "they are being written".to_owned()))
            }
            (Synced { nowhere: 1.., .. }, _) => {
                Some("they were not stored, or made room for others".to_owned())
            }
            (_, Err(cause)) => Some(format!("the catalogue: {cause}")),
            (_, Ok(())) => None,
        };
        Ok(synced)
    }

    async fn look_at_mirror(&self, entry: &Arc<SessionEntry>) -> Result<Synced, SessionError> {
        let entry = Arc::clone(entry);
        self.blocking(move |this| {
            let mut synced = Synced {
                blocks: entry.chain.keys.len() as u64,
                ..Synced::default()
            };
            let names: Vec<_> = entry.chain.needed().collect();
            for presence in this.tier.presence(&names) {
                synced.needed += 1;
                synced.mirror_bytes += presence.on_mirror.unwrap_or(0);
                *match presence {
                    Presence {
                        on_mirror: Some(_), ..
                    } => &mut synced.on_mirror,
                    Presence { in_arena: true, .. } => &mut synced.pending,
                    Presence {
                        is_being_written: true,
                        ..
                    } => &mut synced.pending,
                    _ => &mut synced.nowhere,
                } += 1;
            }
            synced
        })
        .await
    }

    /// Brings what a conversation needs from the disk into memory, from its beginning on, as long as there are
    /// bytes, time and room; what is behind a record that cannot be had is of no use.
    pub async fn restore(
        &self,
        id: &str,
        bytes_max: u64,
        room: Room,
        within: Duration,
    ) -> Result<RestoredSession, SessionError> {
        let entry = self.entry(id)?;
        self.mirror_is_read().await;
        let until = Instant::now() + within;
        let names: Vec<_> = entry.chain.needed().collect();
        let of_it = names.clone();
        let presence = self
            .blocking(move |this| this.tier.presence(&of_it))
            .await?;
        let mut restored = RestoredSession {
            needed: names.len() as u64,
            ..RestoredSession::default()
        };
        for (name, presence) in names.iter().zip(presence) {
            if presence.in_arena {
                restored.in_arena += 1;
                continue;
            }
            if presence.on_mirror.is_none() {
                restored.cause =
                    Some("the rest was not stored, or made room for others".to_owned());
                break;
            }
            if restored.brought_bytes >= bytes_max {
                restored.cause = Some(format!("{bytes_max} bytes were to be brought at most"));
                break;
            }
            match timeout_at(until, self.bring(*name, room)).await {
                Ok(Ok(bytes)) => {
                    restored.in_arena += 1;
                    restored.brought += 1;
                    restored.brought_bytes += bytes;
                }
                Ok(Err(error)) => {
                    restored.cause = Some(with_cause(&error));
                    break;
                }
                Err(_) => {
                    restored.cause = Some(format!("{} ms are over", within.as_millis()));
                    break;
                }
            }
        }
        let ready = restored.in_arena as usize;
        let last = names.get(ready).map(|name| name.key);
        let first_lacking = last.and_then(|key| entry.chain.keys.iter().position(|of| *of == key));
        restored.blocks = first_lacking.unwrap_or(entry.chain.keys.len()) as u64;
        Ok(restored)
    }

    /// Bytes of a record that is in memory now.
    async fn bring(&self, name: RecordName, room: Room) -> Result<u64, NotRestored> {
        loop {
            let (told, restored) = oneshot::channel();
            let tell = Box::new(move |outcome| {
                // Who asked may have no more time for it.
                let _ = told.send(outcome);
            });
            match self.tier.restore(name, room, tell) {
                Ok(()) => {
                    let restored = restored.await.unwrap_or(Err(NotRestored::Damaged));
                    return restored.map(|record| record.length);
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    /// Destroys what only this conversation has, then forgets it. What cannot be destroyed keeps its entry.
    pub async fn remove(&self, id: &str) -> Result<Removed, SessionError> {
        let entry = self.entry(id)?;
        let of_it = Arc::clone(&entry);
        let names = self
            .blocking(move |this| this.catalogue.names_of_it_alone(&of_it))
            .await?;
        let mut removed = Removed {
            blocks: entry.chain.keys.len() as u64,
            shared: (entry.all_names().count() - names.len()) as u64,
            ..Removed::default()
        };
        removed.left = self.destroy_all(&names).await;
        removed.destroyed = (names.len() - removed.left.len()) as u64;
        if !removed.left.is_empty() {
            let down = self.tier.stats().mirror.and_then(|mirror| mirror.down);
            let cause = down.unwrap_or_else(|| {
                "records are being written or read, or the disk is busy".to_owned()
            });
            removed.cause = Some(cause);
            return Ok(removed);
        }
        let of_it = Arc::clone(&entry);
        let is_gone = self
            .blocking(move |this| this.catalogue.remove(&of_it))
            .await?;
        let failed = |source| SessionError::Remove {
            id: id.to_owned(),
            source,
        };
        if !is_gone.map_err(failed)? {
            removed.cause = Some("a turn ended meanwhile".to_owned());
        }
        Ok(removed)
    }

    /// Destroys records; those of which something may be left.
    pub async fn destroy_all(&self, names: &[RecordName]) -> Vec<RecordName> {
        let mut left = Vec::new();
        for names in names.chunks(NAMES_PER_ERASE) {
            let destroyed = self.destroy(names.to_vec()).await;
            let of_them = names.iter().zip(destroyed);
            let of_them = of_them.filter(|(_, of)| *of == Destroyed::NotYet);
            left.extend(of_them.map(|(name, _)| *name));
        }
        left
    }

    /// As of [`Tier::destroy`]; where the mirror has no room for the job, nothing of it is gone.
    async fn destroy(&self, names: Vec<RecordName>) -> Vec<Destroyed> {
        let count = names.len();
        let (told, destroyed) = oneshot::channel();
        let tell = Box::new(move |outcome| {
            // Who asked may be gone; it is done all the same.
            let _ = told.send(outcome);
        });
        let not_yet = vec![Destroyed::NotYet; count];
        match self.tier.destroy(names, tell) {
            Ok(()) => destroyed.await.unwrap_or(not_yet),
            Err(_) => not_yet,
        }
    }

    /// Comes back once it is known what the mirror has: kvtier serves before it has read it.
    async fn mirror_is_read(&self) {
        if let Some(mut is_read) = self.tier.watch_mirror_read() {
            // It ends with the mirror, and with it the process.
            let _ = is_read.wait_for(|is_read| *is_read).await;
        }
    }

    /// Errors: there is none.
    pub fn entry(&self, id: &str) -> Result<Arc<SessionEntry>, SessionError> {
        let entry = self.catalogue.get(id);
        entry.ok_or_else(|| SessionError::Unknown(id.to_owned()))
    }

    /// What waits for a lock or a disk, where it keeps nobody else.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, SessionError> {
        let this = self.clone();
        Ok(tokio::task::spawn_blocking(move || work(&this)).await?)
    }
}

fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}
