//! What an engine does: attach, store, look, load.

use std::{
    fs::File,
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{io::AsyncWriteExt, net::UnixStream};
use tonic::{Response, Status, Streaming, transport::Channel};
use vitriol_ipc::{connect, receive_descriptor, send_descriptor};
use vitriol_proto::kvtier::v1::{
    AttachRequest, AttachResponse, CopySessionRequest, Event, EventsRequest, ExportSessionRequest,
    ImportSessionRequest, ListSessionsRequest, LoadRequest, LookupRequest, Origin,
    PutSessionRequest, Record, RecordName, ReleaseRequest, RemoveSessionRequest,
    RemoveSessionResponse, ReserveRequest, RestoreSessionRequest, RestoreSessionResponse,
    SealRequest, Sealed, SessionChain, SessionInfo, SessionPart, SyncSessionRequest,
    SyncSessionResponse, Ticket, TransferEvent, Transferred, event, found::Kind as Found,
    kv_tier_client::KvTierClient, reserved::Kind as Reserved, transfer_event::Kind as Told,
};
use vitriol_shm::Memfd;
use xxhash_rust::xxh3::xxh3_64;

pub const DEADLINE: Duration = Duration::from_secs(60);

pub fn name(key: u8) -> RecordName {
    RecordName {
        key: vec![key; 32],
        tag: vec![2; 16],
        group: 0,
    }
}

pub fn reserve(attached: &AttachResponse, keys: &[u8]) -> ReserveRequest {
    let record = |key: &u8| Record {
        name: Some(name(*key)),
        parent: vec![0; 32],
        tokens: 64,
        length: 7,
        xxh3: 0,
        saved_us: 1000,
    };
    ReserveRequest {
        session: attached.session,
        records: keys.iter().map(record).collect(),
        origin: Origin::Session.into(),
    }
}

/// What the arena's socket gives for a token.
pub async fn redeem(socket: &Path, token: &[u8]) -> std::io::Result<Memfd> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(token).await?;
    let received = tokio::time::timeout(DEADLINE, receive_descriptor(&stream)).await;
    let descriptor = received.expect("an answer comes")?;
    Memfd::take_over(descriptor).map_err(std::io::Error::other)
}

pub async fn listen(client: &mut KvTierClient<Channel>) -> Streaming<Event> {
    let events = client.events(EventsRequest {}).await;
    events.expect("anybody may listen").into_inner()
}

/// The next event, which must come.
pub async fn next(events: &mut Streaming<Event>) -> event::Kind {
    let next = tokio::time::timeout(DEADLINE, events.message()).await;
    let event = next.expect("an event comes").expect("kvtier is there");
    event.expect("it goes on").kind.expect("something happened")
}

/// An engine that is attached.
pub struct Engine {
    client: KvTierClient<Channel>,
    arena: PathBuf,
    attached: AttachResponse,
    memory: Memfd,
}

impl Engine {
    pub async fn attach(calls: &Path, arena: &Path) -> Self {
        let mut client = KvTierClient::new(connect(calls));
        let attached = client.attach(AttachRequest::default()).await.unwrap();
        let attached = attached.into_inner();
        let memory = redeem(arena, &attached.token).await.unwrap();
        Self {
            client,
            arena: arena.to_owned(),
            attached,
            memory,
        }
    }

    pub async fn events(&mut self) -> Streaming<Event> {
        listen(&mut self.client).await
    }

    pub fn arena_id(&self) -> &[u8] {
        &self.attached.arena_id
    }

    /// Stores the record `key`, whose payload is [`payload`].
    pub async fn store(&mut self, key: u8) {
        let reserved = self.client.reserve(reserve(&self.attached, &[key])).await;
        let ticket = match reserved.unwrap().into_inner().reserved[0].kind {
            Some(Reserved::Ticket(ticket)) => ticket,
            other => panic!("{other:?}"),
        };
        let payload = payload(key);
        self.memory.copy_in(self.place(ticket), &payload);
        let seal = SealRequest {
            session: self.attached.session,
            sealed: vec![Sealed {
                ticket: Some(ticket),
                length: payload.len() as u64,
                xxh3: xxh3_64(&payload),
            }],
        };
        let sealed = self.client.seal(seal).await.unwrap().into_inner().sealed;
        assert_eq!(sealed, [true]);
    }

    pub async fn look(&mut self, key: u8) -> Found {
        let request = LookupRequest {
            session: self.attached.session,
            names: vec![name(key)],
        };
        let found = self
            .client
            .lookup(request)
            .await
            .unwrap()
            .into_inner()
            .found;
        found[0].kind.unwrap()
    }

    /// Gives the pin of what was found back.
    pub async fn release(&mut self, found: &Found) {
        let Found::Arena(pinned) = found else {
            panic!("only what is in the arena is pinned");
        };
        let request = ReleaseRequest {
            session: self.attached.session,
            pins: pinned.ticket.into_iter().collect(),
            reservations: Vec::new(),
        };
        self.client.release(request).await.unwrap();
    }

    /// Tells that a turn of the conversation `id` ended with the blocks `keys`; whether that changed its entry.
    pub async fn put(&mut self, id: &str, keys: &[u8]) -> bool {
        let put = self.client.put_session(turn(id, keys)).await;
        put.unwrap().into_inner().changed
    }

    pub async fn sessions(&mut self) -> Vec<SessionInfo> {
        sessions(&mut self.client).await
    }

    pub async fn sync(&mut self, id: &str) -> Result<SyncSessionResponse, Status> {
        let request = SyncSessionRequest {
            id: id.to_owned(),
            within_ms: DEADLINE.as_millis() as u32,
        };
        let synced = self.client.sync_session(request).await;
        synced.map(tonic::Response::into_inner)
    }

    /// Its full blocks.
    pub async fn copy(&mut self, id: &str, to: &str) -> Result<u64, Status> {
        let request = CopySessionRequest {
            id: id.to_owned(),
            to: to.to_owned(),
        };
        let copied = self.client.copy_session(request).await;
        copied.map(|copied| copied.into_inner().blocks)
    }

    /// `bytes_max`: 0 = as many as there is room for.
    pub async fn restore(
        &mut self,
        id: &str,
        bytes_max: u64,
    ) -> Result<RestoreSessionResponse, Status> {
        restore(&mut self.client, id, bytes_max, false).await
    }

    pub async fn export(&mut self, id: &str, file: &File) -> Result<Transferred, Status> {
        let id = id.to_owned();
        let events = self
            .client
            .export_session(ExportSessionRequest { id })
            .await;
        self.transfer(events, file).await
    }

    /// `id`: empty = as the file has it.
    pub async fn import(
        &mut self,
        file: &File,
        id: &str,
        replace: bool,
    ) -> Result<Transferred, Status> {
        let id = id.to_owned();
        let request = ImportSessionRequest { id, replace };
        let events = self.client.import_session(request).await;
        self.transfer(events, file).await
    }

    async fn transfer(
        &self,
        events: Result<Response<Streaming<TransferEvent>>, Status>,
        file: &File,
    ) -> Result<Transferred, Status> {
        let mut events = events?.into_inner();
        loop {
            match events.message().await?.and_then(|event| event.kind) {
                Some(Told::Token(token)) => {
                    let mut stream = UnixStream::connect(&self.arena).await.unwrap();
                    stream.write_all(&token).await.unwrap();
                    send_descriptor(&stream, file.as_fd()).await.unwrap();
                }
                Some(Told::Progress(at)) => assert!(at.records <= at.records_all),
                Some(Told::Done(done)) => return Ok(done),
                None => panic!("the last event says how it ended"),
            }
        }
    }

    pub async fn remove(&mut self, id: &str) -> Result<RemoveSessionResponse, Status> {
        let id = id.to_owned();
        let removed = self
            .client
            .remove_session(RemoveSessionRequest { id })
            .await;
        removed.map(tonic::Response::into_inner)
    }

    pub async fn load(&mut self, key: u8) -> Found {
        let request = LoadRequest {
            session: self.attached.session,
            names: vec![name(key)],
        };
        let found = self.client.load(request).await.unwrap().into_inner().found;
        found[0].kind.unwrap()
    }

    /// Whether what was found is in the arena, and the payload of the record `key`.
    pub fn holds(&self, found: &Found, key: u8) -> bool {
        let Found::Arena(pinned) = found else {
            return false;
        };
        let mut bytes = vec![0; pinned.length as usize];
        self.memory
            .copy_out(self.place(pinned.ticket.unwrap()), &mut bytes);
        bytes == payload(key)
    }

    fn place(&self, ticket: Ticket) -> usize {
        let attached = &self.attached;
        (attached.payloads_at + u64::from(ticket.slot) * attached.slot_bytes) as usize
    }
}

/// The conversations that kvtier knows of, as anybody may ask.
pub async fn sessions(client: &mut KvTierClient<Channel>) -> Vec<SessionInfo> {
    let listed = client.list_sessions(ListSessionsRequest {}).await;
    let mut listed = listed.unwrap().into_inner();
    let mut sessions = Vec::new();
    while let Some(session) = listed.message().await.unwrap() {
        sessions.push(session);
    }
    sessions
}

/// Brings a conversation from the disk, as anybody may.
pub async fn restore(
    client: &mut KvTierClient<Channel>,
    id: &str,
    bytes_max: u64,
    only_free: bool,
) -> Result<RestoreSessionResponse, Status> {
    let request = RestoreSessionRequest {
        id: id.to_owned(),
        bytes_max,
        within_ms: DEADLINE.as_millis() as u32,
        only_free,
    };
    let restored = client.restore_session(request).await;
    restored.map(tonic::Response::into_inner)
}

/// The turn of a conversation that has the records of [`name`].
pub fn turn(id: &str, keys: &[u8]) -> PutSessionRequest {
    PutSessionRequest {
        id: id.to_owned(),
        chain: Some(SessionChain {
            tag: vec![2; 16],
            parts: vec![SessionPart::default()],
            keys: keys.iter().flat_map(|&key| [key; 32]).collect(),
        }),
        tokens: 64 * keys.len() as u64,
    }
}

fn payload(key: u8) -> Vec<u8> {
    vec![key; 10_000 + usize::from(key)]
}
