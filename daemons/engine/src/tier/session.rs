use super::{TierPlace, arena::Arena, desk::SessionNumber};
use std::{io, time::Duration};
use tokio::{io::AsyncWriteExt, time::timeout};
use tonic::{Response, Status, Streaming, transport::Channel};
use vitriol_ipc::{connect, connect_stream, receive_descriptor};
use vitriol_proto::kvtier::v1::{
    AttachRequest, AttachResponse, Event, EventsRequest, Found, LoadRequest, LookupRequest, Origin,
    PutSessionRequest, Record, RecordName, ReleaseRequest, ReserveRequest, Reserved, SealRequest,
    Sealed, Session as SessionName, SessionChain, Ticket, found, kv_tier_client::KvTierClient,
    reserved,
};
use vitriol_shm::{Memfd, MemfdError};
use xxhash_rust::xxh3::xxh3_64;

/// Most names of one call, as the service has it.
pub const NAMES_MAX: usize = 4096;

/// What is stored and read again whenever a session begins.
const SELF_TEST: &[u8; 64] = b"stored and served again, or nothing of what is here is believed.";

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("kvtier: {0}")]
    Call(#[from] Lost),
    #[error("kvtier's arena was not handed over")]
    HandOver(#[source] io::Error),
    #[error(transparent)]
    Memory(#[from] MemfdError),
    #[error("kvtier's arena is smaller than kvtier says")]
    Arena,
    #[error("slots of {slot_bytes} bytes are too small for this model; raise kvtier.slot_bytes")]
    Slots { slot_bytes: usize },
    #[error("kvtier did not give back what was stored; see its log")]
    SelfTest,
}

/// A call failed, or its answer was lost: what the session had is void, and only another Attach tells
/// where things stand.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {cause}")]
pub struct Lost {
    call: &'static str,
    cause: String,
}

/// The one attachment that this process has. Calls are made one after the other, so that no reply of an
/// earlier session can come to a later one; reservations and pins are only ever those of this session:
/// Attach is told of none, and so ends all there were.
#[derive(Debug)]
pub struct Session {
    client: KvTierClient<Channel>,
    name: SessionName,
    /// Which of this process's sessions it is.
    pub number: SessionNumber,
    pub arena: Arena,
    call_max: Duration,
    /// Ends when kvtier does.
    events: Streaming<Event>,
}

impl Session {
    /// Attaches. `before`: the session there was, which nobody uses any more; its mapping is taken over where
    /// the arena is the same. `number`: none that a session had before.
    pub async fn attach(
        place: &TierPlace,
        number: SessionNumber,
        before: Option<Session>,
    ) -> Result<Self, AttachError> {
        let (client, arena) = before.map(|before| (before.client, before.arena)).unzip();
        let mut client = client.unwrap_or_else(|| KvTierClient::new(connect(&place.calls)));
        let attached = answer(
            "Attach",
            place.call_max,
            client.attach(AttachRequest::default()),
        );
        let attached = attached.await?;
        let arena = match arena.filter(|arena| arena.is(&attached)) {
            Some(arena) => arena,
            None => redeem(place, &attached).await?,
        };
        let name = attached.session.unwrap_or_default();
        let events = client.events(EventsRequest {});
        let events = answer("Events", place.call_max, events).await?;
        let mut session = Self {
            client,
            name,
            number,
            arena,
            call_max: place.call_max,
            events,
        };
        session.test_itself().await?;
        Ok(session)
    }

    /// Comes back when kvtier has ended, which is heard of while no call is made, too.
    pub async fn ended(&mut self) -> Lost {
        let cause = loop {
            match self.events.message().await {
                Ok(Some(_)) => {}
                Ok(None) => break "it has ended".to_owned(),
                Err(status) => break format!("{:?}: {}", status.code(), status.message()),
            }
        };
        let call = "Events";
        Lost { call, cause }
    }

    /// Slots for `records`, one or none for each.
    pub async fn reserve(
        &mut self,
        records: Vec<Record>,
        of_session: bool,
    ) -> Result<Vec<Option<reserved::Kind>>, Lost> {
        let count = records.len();
        let origin = match of_session {
            true => Origin::Session,
            false => Origin::OneShot,
        };
        let request = ReserveRequest {
            session: Some(self.name),
            records,
            origin: origin.into(),
        };
        let reserved = answer("Reserve", self.call_max, self.client.reserve(request)).await?;
        let kinds = reserved.reserved.into_iter().map(|Reserved { kind }| kind);
        one_for_each("Reserve", kinds.collect(), count)
    }

    /// Whether each of the records is found from now on.
    pub async fn seal(&mut self, sealed: Vec<Sealed>) -> Result<Vec<bool>, Lost> {
        let count = sealed.len();
        let request = SealRequest {
            session: Some(self.name),
            sealed,
        };
        let answered = answer("Seal", self.call_max, self.client.seal(request)).await?;
        one_for_each("Seal", answered.sealed, count)
    }

    /// Where each of at most [`NAMES_MAX`] records is; those in the arena are pinned.
    pub async fn lookup(
        &mut self,
        names: Vec<RecordName>,
        within: Duration,
    ) -> Result<Vec<Option<found::Kind>>, Lost> {
        let count = names.len();
        let request = LookupRequest {
            session: Some(self.name),
            names,
        };
        let found = answer("Lookup", within, self.client.lookup(request)).await?;
        one_for_each("Lookup", kinds(found.found), count)
    }

    /// Brings records from the mirror.
    pub async fn load(
        &mut self,
        names: Vec<RecordName>,
        within: Duration,
    ) -> Result<Vec<Option<found::Kind>>, Lost> {
        let count = names.len();
        let request = LoadRequest {
            session: Some(self.name),
            names,
        };
        let found = answer("Load", within, self.client.load(request)).await?;
        one_for_each("Load", kinds(found.found), count)
    }

    pub async fn release(&mut self, pins: Vec<Ticket>) -> Result<(), Lost> {
        for pins in pins.chunks(NAMES_MAX) {
            let request = ReleaseRequest {
                session: Some(self.name),
                pins: pins.to_vec(),
                reservations: Vec::new(),
            };
            answer("Release", self.call_max, self.client.release(request)).await?;
        }
        Ok(())
    }

    /// Tells the catalogue how a turn of a conversation ended. The one call that is not about what this session has: when
    /// it fails, the session stands.
    pub async fn put(&mut self, id: String, chain: SessionChain, tokens: u64) -> Result<(), Lost> {
        let chain = Some(chain);
        let request = PutSessionRequest { id, chain, tokens };
        let put = self.client.put_session(request);
        answer("PutSession", self.call_max, put).await.map(drop)
    }

    /// Stores a record, finds it and reads it. What the tier has no room for now is not tested.
    async fn test_itself(&mut self) -> Result<(), AttachError> {
        let name = RecordName {
            key: blake3::hash(SELF_TEST).as_bytes().to_vec(),
            tag: vec![0; 16],
            group: 0,
        };
        let length = SELF_TEST.len() as u64;
        let record = Record {
            name: Some(name.clone()),
            parent: vec![0; 32],
            tokens: 1,
            length,
            xxh3: 0,
            saved_us: 1,
        };
        let reserved = self.reserve(vec![record], false).await?;
        if let [Some(reserved::Kind::Ticket(ticket))] = reserved[..] {
            if !self.arena.write_bytes(&ticket, SELF_TEST) {
                return Err(AttachError::SelfTest);
            }
            let sealed = Sealed {
                ticket: Some(ticket),
                length,
                xxh3: xxh3_64(SELF_TEST),
            };
            if self.seal(vec![sealed]).await? != [true] {
                return Err(AttachError::SelfTest);
            }
        }
        let is_stored = !matches!(reserved[..], [Some(reserved::Kind::Declined(_))]);
        match self.lookup(vec![name], self.call_max).await?[..] {
            [Some(found::Kind::Arena(pinned))] => {
                let is_same = self.arena.has_bytes(&pinned, SELF_TEST);
                self.release(pinned.ticket.into_iter().collect()).await?;
                is_same.then_some(()).ok_or(AttachError::SelfTest)
            }
            _ if is_stored => Err(AttachError::SelfTest),
            _ => Ok(()),
        }
    }
}

fn kinds(found: Vec<Found>) -> Vec<Option<found::Kind>> {
    found.into_iter().map(|Found { kind }| kind).collect()
}

async fn redeem(place: &TierPlace, attached: &AttachResponse) -> Result<Arena, AttachError> {
    let handed = async {
        let mut stream = connect_stream(&place.arena).await?;
        stream.write_all(&attached.token).await?;
        receive_descriptor(&stream).await
    };
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let handed = timeout(place.call_max, handed).await.map_err(late);
    let descriptor = handed.and_then(|it| it).map_err(AttachError::HandOver)?;
    let memory = Memfd::take_over(descriptor)?;
    Arena::new(memory, attached).ok_or(AttachError::Arena)
}

async fn answer<T>(
    call: &'static str,
    within: Duration,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Lost> {
    let lost = |cause| Lost { call, cause };
    match timeout(within, answer).await {
        Ok(Ok(answered)) => Ok(answered.into_inner()),
        Ok(Err(status)) => Err(lost(format!("{:?}: {}", status.code(), status.message()))),
        Err(_) => Err(lost(format!("no answer within {} ms", within.as_millis()))),
    }
}

fn one_for_each<T>(call: &'static str, answers: Vec<T>, count: usize) -> Result<Vec<T>, Lost> {
    match answers.len() == count {
        true => Ok(answers),
        false => Err(Lost {
            call,
            cause: format!("{} answers to {count} questions", answers.len()),
        }),
    }
}
