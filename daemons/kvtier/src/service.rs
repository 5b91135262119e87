//! `vitriol.kvtier.v1` over the tier, the socket that hands out the arena, and the watch over engines.

mod arena_socket;
mod engine_watch;
mod wire;

use std::{fs::File, os::fd::OwnedFd, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::timeout,
};
use tokio_stream::{
    StreamExt,
    wrappers::{BroadcastStream, ReceiverStream, WatchStream},
};
use tonic::{Request, Response, Status, codegen::BoxStream, transport::server::UdsConnectInfo};
use vitriol_proto::kvtier::v1::{
    AttachRequest, AttachResponse, CopySessionRequest, CopySessionResponse, DestroyRequest,
    DestroyResponse, Event as WireEvent, EventsRequest, ExportSessionRequest, Found as WireFound,
    ImportSessionRequest, ListSessionsRequest, LoadRequest, LoadResponse, LookupRequest,
    LookupResponse, PutSessionRequest, PutSessionResponse, ReleaseRequest, ReleaseResponse,
    RemoveSessionRequest, RemoveSessionResponse, ReserveRequest, ReserveResponse,
    RestoreSessionRequest, RestoreSessionResponse, SealRequest, SealResponse, SessionInfo,
    StatsRequest, StatsResponse, SyncSessionRequest, SyncSessionResponse, TransferEvent,
    TransferProgress, Transferred, TrimRequest, TrimResponse, kv_tier_server, transfer_event,
};

use crate::{
    sessions::{SessionError, Sessions},
    slots::{EngineId, Refused, Session},
    tier::{Destroyed, Found, Offer, Room, Tier},
    transfer::{Progress, TransferError, export, import},
};
pub use arena_socket::{Tokens, serve_arena};
use engine_watch::EngineWatch;

/// Most names or records of one call.
const NAMES_MAX: usize = 4096;

/// Longest that a call may wait for a disk.
const WITHIN_MAX: Duration = Duration::from_secs(600);

/// Exports and imports at once; each has a payload in memory.
const TRANSFERS_MAX: usize = 4;

/// Conversations of a list that wait for its reader.
const LISTED_IN_FLIGHT: usize = 16;

/// Events of a transfer that wait for their reader.
const EVENTS_IN_FLIGHT: usize = 4;

/// Names of records that are told to who asked to have them destroyed.
const LEFT_NAMES_MAX: usize = 16;

/// Most records of one Load: each is read from a disk while the caller waits.
const LOADS_MAX: usize = 64;

/// The gRPC service.
#[derive(Clone, Debug)]
pub struct KvTierService {
    tier: Arc<Tier>,
    sessions: Sessions,
    tokens: Arc<Tokens>,
    engines: EngineWatch,
    transfers: Arc<Semaphore>,
    sealed: Arc<Notify>,
}

impl KvTierService {
    /// The service of `tier`. Watches engines of an earlier run from now on; must be called inside a
    /// tokio runtime. `sealed` is told when there is something to spill.
    pub fn new(
        tier: Arc<Tier>,
        sessions: Sessions,
        tokens: Arc<Tokens>,
        sealed: Arc<Notify>,
    ) -> Self {
        let engines = EngineWatch::new(Arc::clone(&tier));
        for engine in tier.quarantined() {
            engines.watch_earlier(engine);
        }
        Self {
            tier,
            sessions,
            tokens,
            engines,
            transfers: Arc::new(Semaphore::new(TRANSFERS_MAX)),
            sealed,
        }
    }

    fn begin_transfer(&self) -> Result<OwnedSemaphorePermit, Status> {
        let place = Arc::clone(&self.transfers).try_acquire_owned();
        place.map_err(|_| {
            Status::resource_exhausted(format!(
                "{TRANSFERS_MAX} exports and imports are under way; call again"
            ))
        })
    }

    async fn load_one(
        &self,
        session: Session,
        name: crate::record::RecordName,
    ) -> Option<(crate::slots::Ticket, crate::record::Record)> {
        let (told, brought) = oneshot::channel();
        let brought_here = Box::new(move |found| {
            // Who asked may be gone; its pin goes with its session.
            let _ = told.send(found);
        });
        self.tier
            .load(session, name, crate::worth::Origin::Session, brought_here);
        brought.await.ok().flatten()
    }
}

/// The process at the other end.
fn engine_of<T>(request: &Request<T>) -> Result<EngineId, Status> {
    let info = request.extensions().get::<UdsConnectInfo>();
    let pid = info.and_then(|info| info.peer_cred?.pid());
    pid.and_then(|pid| EngineId::try_from(pid).ok())
        .filter(|&pid| pid > 1)
        .ok_or_else(|| Status::permission_denied("the kernel does not say whose process calls"))
}

fn status(refused: Refused) -> Status {
    match refused {
        Refused::NotAttached => Status::failed_precondition(refused.to_string()),
        Refused::Exhausted => Status::resource_exhausted(refused.to_string()),
        _ => Status::invalid_argument(refused.to_string()),
    }
}

fn within(ms: u32) -> Duration {
    Duration::from_millis(ms.into()).min(WITHIN_MAX)
}

/// Sends a token, waits for the file, and has `work` done with it.
fn transfer<W>(
    token: Vec<u8>,
    file: oneshot::Receiver<OwnedFd>,
    place: OwnedSemaphorePermit,
    work: impl FnOnce(File, Box<dyn Fn(Progress) -> bool + Send + Sync>) -> W + Send + 'static,
) -> BoxStream<TransferEvent>
where
    W: Future<Output = Result<Transferred, TransferError>> + Send,
{
    use transfer_event::Kind;
    let event = |kind| Ok(TransferEvent { kind: Some(kind) });
    let (told, events) = mpsc::channel(EVENTS_IN_FLIGHT);
    tokio::spawn(async move {
        let progress = told.clone();
        let tell = Box::new(
            move |Progress {
                      records,
                      records_all,
                      ..
                  }| {
                let now = TransferProgress {
                    records,
                    records_all,
                };
                // Who reads slowly is not told of every record; who has left is worked for no more.
                let sent = progress.try_send(event(Kind::Progress(now)));
                !matches!(sent, Err(mpsc::error::TrySendError::Closed(_)))
            },
        );
        // Who asked may have left at any time.
        let _ = told.send(event(Kind::Token(token))).await;
        let last = match timeout(arena_socket::TOKEN_TIMEOUT, file).await {
            Ok(Ok(file)) => match work(File::from(file), tell).await {
                Ok(done) => event(Kind::Done(done)),
                Err(error) => Err(transfer_status(error)),
            },
            Ok(Err(_)) | Err(_) => {
                Err(Status::deadline_exceeded("no file was handed over in time"))
            }
        };
        let _ = told.send(last).await;
        drop(place);
    });
    Box::pin(ReceiverStream::new(events))
}

fn transfer_status(error: TransferError) -> Status {
    let message = with_causes(&error);
    match error {
        TransferError::Session(error) => session_status(error),
        TransferError::NoFile => Status::invalid_argument(message),
        TransferError::Exists(_) => Status::already_exists(message),
        TransferError::NoEntry
        | TransferError::Version { .. }
        | TransferError::Damaged { .. }
        | TransferError::TooLong { .. } => Status::data_loss(message),
        TransferError::Missing { .. } | TransferError::NotStored(_) | TransferError::File(..) => {
            Status::aborted(message)
        }
        TransferError::Left => Status::cancelled(message),
        TransferError::Task(_) => Status::internal(message),
    }
}

fn session_status(error: SessionError) -> Status {
    let message = with_causes(&error);
    match error {
        SessionError::Entry(_) => Status::invalid_argument(message),
        SessionError::NoMirror => Status::failed_precondition(message),
        SessionError::Unknown(_) => Status::not_found(message),
        SessionError::Remove { .. } => Status::aborted(message),
        SessionError::Task(_) => Status::internal(message),
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message += &format!(": {error}");
        cause = error.source();
    }
    message
}

fn check_count(what: &str, count: usize, most: usize) -> Result<(), Status> {
    match count <= most {
        true => Ok(()),
        false => Err(Status::invalid_argument(format!(
            "{count} {what}, {most} at most; split the call"
        ))),
    }
}

#[tonic::async_trait]
impl kv_tier_server::KvTier for KvTierService {
    type EventsStream = BoxStream<WireEvent>;
    type ListSessionsStream = BoxStream<SessionInfo>;
    type ExportSessionStream = BoxStream<TransferEvent>;
    type ImportSessionStream = BoxStream<TransferEvent>;

    async fn attach(
        &self,
        request: Request<AttachRequest>,
    ) -> Result<Response<AttachResponse>, Status> {
        let engine = engine_of(&request)?;
        let request = request.into_inner();
        check_count("reservations", request.holds.len(), NAMES_MAX)?;
        let holds: Vec<_> = request.holds.iter().map(wire::ticket).collect();
        let arena = self.tier.arena();
        let asked = <[u8; 16]>::try_from(request.arena_id.as_slice()).unwrap_or_default();
        let attached = self.engines.attach(engine, asked, &holds)?;
        let token = self.tokens.issue()?;
        Ok(Response::new(AttachResponse {
            session: Some(wire::from_session(attached.session)),
            arena_id: arena.id().to_vec(),
            kept: attached.kept.into_iter().map(wire::from_ticket).collect(),
            token: token.to_vec(),
            slots: arena.slots(),
            slot_bytes: arena.slot_bytes(),
            payloads_at: arena.payloads_at(),
        }))
    }

    async fn reserve(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveResponse>, Status> {
        let engine = engine_of(&request)?;
        let request = request.into_inner();
        check_count("records", request.records.len(), NAMES_MAX)?;
        let session = wire::session(engine, request.session)?;
        let origin = wire::origin(request.origin());
        let mut reserved = Vec::with_capacity(request.records.len());
        for record in &request.records {
            let record = wire::record(record)?;
            let given = self.tier.reserve(session, &Offer { record, origin });
            reserved.push(wire::from_reserved(given).map_err(status)?);
        }
        Ok(Response::new(ReserveResponse { reserved }))
    }

    async fn seal(&self, request: Request<SealRequest>) -> Result<Response<SealResponse>, Status> {
        let engine = engine_of(&request)?;
        let request = request.into_inner();
        check_count("seals", request.sealed.len(), NAMES_MAX)?;
        let session = wire::session(engine, request.session)?;
        let mut sealed = Vec::with_capacity(request.sealed.len());
        for seal in &request.sealed {
            let ticket = wire::ticket(&seal.ticket.unwrap_or_default());
            match self.tier.seal(session, ticket, seal.length, seal.xxh3) {
                Err(refused @ Refused::NotAttached) => return Err(status(refused)),
                other => sealed.push(other.is_ok()),
            }
        }
        self.sealed.notify_one();
        Ok(Response::new(SealResponse { sealed }))
    }

    async fn lookup(
        &self,
        request: Request<LookupRequest>,
    ) -> Result<Response<LookupResponse>, Status> {
        let engine = engine_of(&request)?;
        let request = request.into_inner();
        check_count("names", request.names.len(), NAMES_MAX)?;
        let session = wire::session(engine, request.session)?;
        let names: Vec<_> = request
            .names
            .iter()
            .map(wire::name)
            .collect::<Result<_, _>>()?;
        let found = self.tier.lookup(session, &names).map_err(status)?;
        let found = found.into_iter().map(wire::from_found).collect();
        Ok(Response::new(LookupResponse { found }))
    }

    async fn load(&self, request: Request<LoadRequest>) -> Result<Response<LoadResponse>, Status> {
        let engine = engine_of(&request)?;
        let request = request.into_inner();
        check_count("names", request.names.len(), LOADS_MAX)?;
        let session = wire::session(engine, request.session)?;
        let mut found: Vec<WireFound> = Vec::with_capacity(request.names.len());
        for name in &request.names {
            let brought = self.load_one(session, wire::name(name)?).await;
            found.push(wire::from_found(match brought {
                Some((ticket, record)) => Found::Arena(ticket, record),
                None => Found::Nowhere,
            }));
        }
        Ok(Response::new(LoadResponse { found }))
    }

    async fn release(
        &self,
        request: Request<ReleaseRequest>,
    ) -> Result<Response<ReleaseResponse>, Status> {
        let engine = engine_of(&request)?;
        let request = request.into_inner();
        check_count("pins", request.pins.len(), NAMES_MAX)?;
        check_count("reservations", request.reservations.len(), NAMES_MAX)?;
        let session = wire::session(engine, request.session)?;
        for pin in request.pins.iter().map(wire::ticket) {
            self.tier.unpin(session, pin).map_err(status)?;
        }
        for reservation in request.reservations.iter().map(wire::ticket) {
            self.tier.abandon(session, reservation).map_err(status)?;
        }
        Ok(Response::new(ReleaseResponse {}))
    }

    async fn trim(&self, request: Request<TrimRequest>) -> Result<Response<TrimResponse>, Status> {
        let TrimRequest { bytes, hold_ms } = request.into_inner();
        let slot_bytes = self.tier.arena().slot_bytes();
        let wanted = usize::try_from(bytes.div_ceil(slot_bytes)).unwrap_or(usize::MAX);
        let (tier, hold) = (
            Arc::clone(&self.tier),
            Duration::from_millis(hold_ms.into()),
        );
        let trimmed = tokio::task::spawn_blocking(move || tier.trim(wanted, hold));
        let slots = trimmed
            .await
            .map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(TrimResponse {
            bytes: slots as u64 * slot_bytes,
        }))
    }

    async fn destroy(
        &self,
        request: Request<DestroyRequest>,
    ) -> Result<Response<DestroyResponse>, Status> {
        let names = request.into_inner().names;
        check_count("names", names.len(), NAMES_MAX)?;
        let names = names.iter().map(wire::name).collect::<Result<_, _>>()?;
        let (told, destroyed) = oneshot::channel();
        let tell = Box::new(move |outcome| {
            // Who asked may be gone; it is done all the same.
            let _ = told.send(outcome);
        });
        self.tier
            .destroy(names, tell)
            .map_err(|busy| Status::unavailable(busy.to_string()))?;
        let destroyed: Vec<Destroyed> = destroyed
            .await
            .map_err(|_| Status::unavailable("kvtier is ending; call again"))?;
        let is_gone = |outcome| outcome == Destroyed::Gone;
        Ok(Response::new(DestroyResponse {
            gone: destroyed.into_iter().map(is_gone).collect(),
        }))
    }

    async fn events(
        &self,
        _: Request<EventsRequest>,
    ) -> Result<Response<Self::EventsStream>, Status> {
        let arena = tokio_stream::once(wire::arena_state(self.tier.arena()));
        let changes = BroadcastStream::new(self.tier.events()).map(wire::event);
        let changes: BoxStream<WireEvent> = match self.tier.watch_mirror() {
            Some(down) => {
                let mirror = WatchStream::new(down).map(wire::mirror_state);
                Box::pin(mirror.merge(changes).map(Ok))
            }
            None => Box::pin(changes.map(Ok)),
        };
        Ok(Response::new(Box::pin(arena.map(Ok).chain(changes))))
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        let catalogue = self.sessions.catalogue().stats();
        Ok(Response::new(wire::from_stats(&self.tier, catalogue)))
    }

    async fn put_session(
        &self,
        request: Request<PutSessionRequest>,
    ) -> Result<Response<PutSessionResponse>, Status> {
        let PutSessionRequest { id, chain, tokens } = request.into_inner();
        let chain = wire::chain(chain.unwrap_or_default())?;
        let put = self.sessions.put(id, chain, tokens).await;
        let changed = put.map_err(session_status)?;
        Ok(Response::new(PutSessionResponse { changed }))
    }

    async fn list_sessions(
        &self,
        _: Request<ListSessionsRequest>,
    ) -> Result<Response<Self::ListSessionsStream>, Status> {
        let (told, listed) = mpsc::channel(LISTED_IN_FLIGHT);
        let sessions = self.sessions.clone();
        tokio::spawn(async move {
            for entry in sessions.catalogue().list() {
                let found = sessions.find(Arc::clone(&entry)).await;
                let info = found.map(|found| wire::from_session_entry(&entry, found));
                // Who asked may have left.
                if told.send(info.map_err(session_status)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(listed))))
    }

    async fn sync_session(
        &self,
        request: Request<SyncSessionRequest>,
    ) -> Result<Response<SyncSessionResponse>, Status> {
        let SyncSessionRequest { id, within_ms } = request.into_inner();
        let synced = self.sessions.sync(&id, within(within_ms)).await;
        let synced = synced.map_err(session_status)?;
        Ok(Response::new(SyncSessionResponse {
            records: synced.needed,
            on_mirror: synced.on_mirror,
            pending: synced.pending,
            nowhere: synced.nowhere,
            cause: synced.cause.unwrap_or_default(),
            blocks: synced.blocks,
            bytes: synced.mirror_bytes,
        }))
    }

    async fn copy_session(
        &self,
        request: Request<CopySessionRequest>,
    ) -> Result<Response<CopySessionResponse>, Status> {
        let CopySessionRequest { id, to } = request.into_inner();
        let copied = self.sessions.copy(&id, to).await;
        let blocks = copied.map_err(session_status)?;
        Ok(Response::new(CopySessionResponse { blocks }))
    }

    async fn restore_session(
        &self,
        request: Request<RestoreSessionRequest>,
    ) -> Result<Response<RestoreSessionResponse>, Status> {
        let request = request.into_inner();
        let bytes_max = match request.bytes_max {
            0 => self.tier.arena().bytes(),
            bytes => bytes,
        };
        let room = match request.only_free {
            true => Room::Free,
            false => Room::OfOthers,
        };
        let within = within(request.within_ms);
        let restored = self
            .sessions
            .restore(&request.id, bytes_max, room, within)
            .await;
        let restored = restored.map_err(session_status)?;
        Ok(Response::new(RestoreSessionResponse {
            records: restored.needed,
            in_arena: restored.in_arena,
            brought: restored.brought,
            brought_bytes: restored.brought_bytes,
            blocks: restored.blocks,
            cause: restored.cause.unwrap_or_default(),
        }))
    }

    async fn export_session(
        &self,
        request: Request<ExportSessionRequest>,
    ) -> Result<Response<Self::ExportSessionStream>, Status> {
        let id = request.into_inner().id;
        self.sessions.entry(&id).map_err(session_status)?;
        let place = self.begin_transfer()?;
        let (token, file) = self.tokens.issue_for_file()?;
        let sessions = self.sessions.clone();
        let events = transfer(token.to_vec(), file, place, async move |file, tell| {
            let Progress { records, bytes, .. } = export(&sessions, &id, file, tell).await?;
            Ok(Transferred { id, records, bytes })
        });
        Ok(Response::new(events))
    }

    async fn import_session(
        &self,
        request: Request<ImportSessionRequest>,
    ) -> Result<Response<Self::ImportSessionStream>, Status> {
        let ImportSessionRequest { id, replace } = request.into_inner();
        let id = (!id.is_empty()).then_some(id);
        let place = self.begin_transfer()?;
        let (token, file) = self.tokens.issue_for_file()?;
        let sessions = self.sessions.clone();
        let events = transfer(token.to_vec(), file, place, async move |file, tell| {
            let (entry, progress) = import(&sessions, file, id, replace, tell).await?;
            let Progress { records, bytes, .. } = progress;
            let id = entry.id;
            Ok(Transferred { id, records, bytes })
        });
        Ok(Response::new(events))
    }

    async fn remove_session(
        &self,
        request: Request<RemoveSessionRequest>,
    ) -> Result<Response<RemoveSessionResponse>, Status> {
        let id = request.into_inner().id;
        let removed = self.sessions.remove(&id).await.map_err(session_status)?;
        let left_names = removed.left.iter().take(LEFT_NAMES_MAX);
        Ok(Response::new(RemoveSessionResponse {
            destroyed: removed.destroyed,
            shared: removed.shared,
            cause: removed.cause.unwrap_or_default(),
            left: removed.left.len() as u64,
            left_names: left_names.map(wire::from_name).collect(),
            blocks: removed.blocks,
        }))
    }
}
