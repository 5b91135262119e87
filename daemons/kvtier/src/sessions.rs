//! What is done with whole conversations: the catalogue's names over the tier's records.

use std::{
    io,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use tokio::{sync::oneshot, task::JoinError};

use crate::{
    catalogue::{BlockList, Catalogue, EntryError, SessionEntry},
    record::RecordName,
    tier::{Destroyed, Tier},
};

/// Records destroyed by one job of the mirror.
const NAMES_PER_ERASE: usize = 4096;

/// The conversations of a tier.
#[derive(Clone, Debug)]
pub struct Sessions {
    tier: Arc<Tier>,
    catalogue: Arc<Catalogue>,
}

/// Why nothing is done.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Entry(#[from] EntryError),
    #[error("there is no session '{0}'; 'vitriol session list' has all")]
    Unknown(String),
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

/// What came of removing a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub destroyed: u64,
    pub shared: u64,
    pub left: Vec<RecordName>,
    /// Why it is still there.
    pub cause: Option<String>,
}

impl Sessions {
    pub fn new(tier: Arc<Tier>, catalogue: Arc<Catalogue>) -> Self {
        Self { tier, catalogue }
    }

    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// See [`Catalogue::put`].
    pub async fn put(
        &self,
        id: String,
        chain: BlockList,
        tokens: u64,
    ) -> Result<bool, SessionError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let turn = SessionEntry {
            id,
            chain,
            left: Vec::new(),
            tokens,
            last_turn_ms: now.map_or(0, |now| now.as_millis() as u64),
        };
        turn.check()?;
        self.blocking(move |this| this.catalogue.put(turn)).await
    }

    /// Where the records of a conversation are.
    pub async fn find(&self, entry: Arc<SessionEntry>) -> Result<Whereabouts, SessionError> {
        self.blocking(move |this| {
            let names: Vec<_> = entry.chain.needed().collect();
            let presence = this.tier.presence(&names);
            let count = |is_so: fn(bool, bool) -> bool| {
                let found = presence
                    .iter()
                    .filter(|at| is_so(at.in_arena, at.on_mirror));
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

    /// Destroys what only this conversation has, then forgets it. What cannot be destroyed keeps its entry.
    pub async fn remove(&self, id: &str) -> Result<Removed, SessionError> {
        let entry = self.entry(id)?;
        let of_it = Arc::clone(&entry);
        let names = self
            .blocking(move |this| this.catalogue.names_of_it_alone(&of_it))
            .await?;
        let mut removed = Removed {
            shared: (entry.all_names().count() - names.len()) as u64,
            ..Removed::default()
        };
        for names in names.chunks(NAMES_PER_ERASE) {
            let destroyed = self.destroy(names.to_vec()).await;
            let left = names
                .iter()
                .zip(destroyed)
                .filter(|(_, of)| *of == Destroyed::NotYet);
            let left: Vec<_> = left.map(|(name, _)| *name).collect();
            removed.destroyed += (names.len() - left.len()) as u64;
            removed.left.extend(left);
        }
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

    fn entry(&self, id: &str) -> Result<Arc<SessionEntry>, SessionError> {
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
