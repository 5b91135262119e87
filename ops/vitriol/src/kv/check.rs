//! `vitriol kv check`: what an engine does, once and with a record that means nothing.

use std::{path::Path, time::Duration};

use tokio::{io::AsyncWriteExt, net::UnixStream};
use tonic::{Status, transport::Channel};
use vitriol_ipc::{HouseDirs, connect, receive_descriptor};
use vitriol_proto::kvtier::v1::{
    AttachRequest, AttachResponse, Declined, LoadRequest, LookupRequest, Origin, Pinned, Record,
    RecordName, ReserveRequest, SealRequest, Sealed, Ticket, found::Kind as Found,
    kv_tier_client::KvTierClient, reserved::Kind as Reserved,
};
use vitriol_shm::Memfd;
use xxhash_rust::xxh3::xxh3_64;

/// A disk may be asked.
const DEADLINE: Duration = Duration::from_secs(10);

/// The record, which no engine names: it has no tag of an encoding.
const PAYLOAD: &[u8] = b"vitriol kv check";
const KEY: [u8; 32] = *b"vitriol kv check: not KV at all.";

/// Where the record was found, in words; a new one is stored first. What is found is what was stored.
///
/// Errors: why it does not work.
pub async fn run(dirs: &HouseDirs) -> Result<String, String> {
    let (calls, arena) = (dirs.kvtier_socket(), dirs.kvtier_arena_socket());
    let checked = check(&calls, &arena);
    match tokio::time::timeout(DEADLINE, checked).await {
        Ok(checked) => checked,
        Err(_) => Err(format!("not done within {} s", DEADLINE.as_secs())),
    }
}

async fn check(calls: &Path, arena: &Path) -> Result<String, String> {
    let mut client = Client::attach(calls, arena).await?;
    let before = client.look().await?;
    let (found, words) = match before {
        Found::Arena(pinned) => (pinned, "the record of an earlier check is in the arena"),
        Found::Mirror(_) => (
            client.load().await?,
            "the record of an earlier check was on the mirror",
        ),
        Found::Nowhere(_) => {
            client.store().await?;
            match client.look().await? {
                Found::Arena(pinned) => {
                    (pinned, "a record was stored and found again in the arena")
                }
                _ => return Err("what was stored is not found".to_owned()),
            }
        }
    };
    match client.reads(&found) {
        true => Ok(words.to_owned()),
        false => Err("what was found is not what was stored".to_owned()),
    }
}

struct Client {
    client: KvTierClient<Channel>,
    attached: AttachResponse,
    memory: Memfd,
}

fn name() -> RecordName {
    RecordName {
        key: KEY.to_vec(),
        tag: vec![0; 16],
        group: 0,
    }
}

fn said(status: Status) -> String {
    status.message().to_owned()
}

impl Client {
    async fn attach(calls: &Path, arena: &Path) -> Result<Self, String> {
        let mut client = KvTierClient::new(connect(calls));
        let attached = client
            .attach(AttachRequest::default())
            .await
            .map_err(said)?;
        let attached = attached.into_inner();
        let handed_out = async {
            let mut stream = UnixStream::connect(arena).await?;
            stream.write_all(&attached.token).await?;
            receive_descriptor(&stream).await
        };
        let failed =
            |error: &dyn std::error::Error| format!("its memory at {}: {error}", arena.display());
        let descriptor = handed_out.await.map_err(|error| failed(&error))?;
        let memory = Memfd::take_over(descriptor).map_err(|error| failed(&error))?;
        Ok(Self {
            client,
            attached,
            memory,
        })
    }

    async fn look(&mut self) -> Result<Found, String> {
        let request = LookupRequest {
            session: self.attached.session,
            names: vec![name()],
        };
        let found = self.client.lookup(request).await.map_err(said)?;
        let found = found.into_inner().found.into_iter().next();
        found
            .and_then(|found| found.kind)
            .ok_or_else(|| "an empty answer".to_owned())
    }

    async fn load(&mut self) -> Result<Pinned, String> {
        let request = LoadRequest {
            session: self.attached.session,
            names: vec![name()],
        };
        let found = self
            .client
            .load(request)
            .await
            .map_err(said)?
            .into_inner()
            .found;
        match found.into_iter().next().and_then(|found| found.kind) {
            Some(Found::Arena(pinned)) => Ok(pinned),
            _ => Err("what is on the mirror does not come from there".to_owned()),
        }
    }

    async fn store(&mut self) -> Result<(), String> {
        let request = ReserveRequest {
            session: self.attached.session,
            records: vec![Record {
                name: Some(name()),
                parent: vec![0; 32],
                tokens: 1,
                length: PAYLOAD.len() as u64,
                xxh3: 0,
                saved_us: 1,
            }],
            origin: Origin::Session.into(),
        };
        let reserved = self
            .client
            .reserve(request)
            .await
            .map_err(said)?
            .into_inner();
        let ticket = match reserved
            .reserved
            .into_iter()
            .next()
            .and_then(|one| one.kind)
        {
            Some(Reserved::Ticket(ticket)) => ticket,
            Some(Reserved::Declined(why)) => {
                let why = Declined::try_from(why).unwrap_or_default();
                return Err(format!("the record gets no slot: {}", why.as_str_name()));
            }
            None => return Err("an empty answer".to_owned()),
        };
        let place = self.place(&ticket, PAYLOAD.len())?;
        self.memory.copy_in(place, PAYLOAD);
        let request = SealRequest {
            session: self.attached.session,
            sealed: vec![Sealed {
                ticket: Some(ticket),
                length: PAYLOAD.len() as u64,
                xxh3: xxh3_64(PAYLOAD),
            }],
        };
        let sealed = self
            .client
            .seal(request)
            .await
            .map_err(said)?
            .into_inner()
            .sealed;
        match sealed[..] {
            [true] => Ok(()),
            _ => Err("the record is not taken".to_owned()),
        }
    }

    fn reads(&self, found: &Pinned) -> bool {
        let mut bytes = vec![0; PAYLOAD.len()];
        let place = found
            .ticket
            .and_then(|ticket| self.place(&ticket, bytes.len()).ok());
        place.is_some_and(|place| {
            self.memory.copy_out(place, &mut bytes);
            found.length == PAYLOAD.len() as u64 && bytes == PAYLOAD
        })
    }

    /// Errors: the slot lies outside of the memory that was handed out.
    fn place(&self, ticket: &Ticket, length: usize) -> Result<usize, String> {
        let attached = &self.attached;
        let offset = u64::from(ticket.slot).checked_mul(attached.slot_bytes);
        let place = offset.and_then(|offset| offset.checked_add(attached.payloads_at));
        let place = place.and_then(|place| usize::try_from(place).ok());
        let is_inside = |place: &usize| {
            let end = place.checked_add(length);
            end.is_some_and(|end| end <= self.memory.len())
        };
        place
            .filter(is_inside)
            .ok_or_else(|| format!("slot {} is not in its memory", ticket.slot))
    }
}
