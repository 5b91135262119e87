//! Messages ↔ what they mean.

use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tonic::Status;
use vitriol_proto::kvtier::v1 as proto;

use crate::{
    arena::Arena,
    catalogue::{BlockList, CatalogueStats, Part, SessionEntry},
    record::{Record, RecordName},
    sessions::Whereabouts,
    slots::{EngineId, Refused, Session, Stamp, Ticket},
    tier::{Declined, Event, Found, Tier},
    worth::Origin,
};

pub fn ticket(ticket: &proto::Ticket) -> Ticket {
    Ticket {
        slot: ticket.slot,
        stamp: Stamp {
            epoch: ticket.epoch,
            generation: ticket.generation,
        },
    }
}

pub fn from_ticket(ticket: Ticket) -> proto::Ticket {
    proto::Ticket {
        slot: ticket.slot,
        epoch: ticket.stamp.epoch,
        generation: ticket.stamp.generation,
    }
}

/// Errors: there is none.
pub fn session(engine: EngineId, session: Option<proto::Session>) -> Result<Session, Status> {
    let session = session.ok_or_else(|| Status::invalid_argument("no session; attach first"))?;
    Ok(Session {
        engine,
        number: Stamp {
            epoch: session.epoch,
            generation: session.generation,
        },
    })
}

pub fn from_session(session: Session) -> proto::Session {
    proto::Session {
        epoch: session.number.epoch,
        generation: session.number.generation,
    }
}

/// Errors: a key of other than 32 bytes, a tag of other than 16.
pub fn name(name: &proto::RecordName) -> Result<RecordName, Status> {
    Ok(RecordName {
        key: bytes("key", &name.key)?,
        tag: bytes("tag", &name.tag)?,
        group: name.group,
    })
}

/// Errors: as of [`name`]; a parent of other than 32 bytes, no name.
pub fn record(record: &proto::Record) -> Result<Record, Status> {
    let named = record.name.as_ref();
    Ok(Record {
        name: name(named.ok_or_else(|| Status::invalid_argument("a record without a name"))?)?,
        parent: bytes("parent", &record.parent)?,
        tokens: record.tokens,
        saved_us: record.saved_us,
        length: record.length,
        xxh3: record.xxh3,
    })
}

fn bytes<const N: usize>(what: &str, bytes: &[u8]) -> Result<[u8; N], Status> {
    let wrong = |_| Status::invalid_argument(format!("a {what} of {} bytes, not {N}", bytes.len()));
    bytes.try_into().map_err(wrong)
}

pub fn origin(origin: proto::Origin) -> Origin {
    match origin {
        proto::Origin::Session => Origin::Session,
        proto::Origin::Unspecified | proto::Origin::OneShot => Origin::OneShot,
    }
}

/// Errors: what ends the call rather than one record of it.
pub fn from_reserved(given: Result<Ticket, Declined>) -> Result<proto::Reserved, Refused> {
    use proto::{Declined as Wire, reserved::Kind};
    let declined = |declined: Wire| Kind::Declined(declined.into());
    let kind = match given {
        Ok(ticket) => Kind::Ticket(from_ticket(ticket)),
        Err(Declined::NotWorth) => declined(Wire::NotWorth),
        Err(Declined::Refused(Refused::Stored)) => declined(Wire::Stored),
        Err(Declined::Refused(Refused::BeingWritten)) => declined(Wire::BeingWritten),
        Err(Declined::Refused(Refused::Full)) => declined(Wire::Full),
        Err(Declined::Refused(Refused::TooLong { .. })) => declined(Wire::TooLong),
        Err(Declined::Refused(refused)) => return Err(refused),
    };
    Ok(proto::Reserved { kind: Some(kind) })
}

pub fn from_found(found: Found) -> proto::Found {
    use proto::found::Kind;
    let kind = match found {
        Found::Arena(ticket, record) => Kind::Arena(proto::Pinned {
            ticket: Some(from_ticket(ticket)),
            length: record.length,
            xxh3: record.xxh3,
            tokens: record.tokens,
        }),
        Found::Mirror => Kind::Mirror(true),
        Found::Nowhere => Kind::Nowhere(true),
    };
    proto::Found { kind: Some(kind) }
}

fn tell(kind: proto::event::Kind) -> proto::Event {
    proto::Event { kind: Some(kind) }
}

pub fn arena_state(arena: &Arena) -> proto::Event {
    tell(proto::event::Kind::Arena(proto::ArenaState {
        id: arena.id().to_vec(),
        epoch: arena.epoch(),
    }))
}

pub fn mirror_state(down: Option<String>) -> proto::Event {
    let down = down.unwrap_or_default();
    tell(proto::event::Kind::Mirror(proto::MirrorState { down }))
}

pub fn event(happened: Result<Event, BroadcastStreamRecvError>) -> proto::Event {
    use proto::event::Kind;
    tell(match happened {
        Ok(Event::Damaged(name)) => Kind::Damaged(from_name(&name)),
        Ok(Event::Trimmed { bytes }) => Kind::TrimmedBytes(bytes),
        Err(BroadcastStreamRecvError::Lagged(count)) => Kind::Missed(count),
    })
}

pub fn from_name(name: &RecordName) -> proto::RecordName {
    proto::RecordName {
        key: name.key.to_vec(),
        tag: name.tag.to_vec(),
        group: name.group,
    }
}

/// Errors: a tag of other than 16 bytes, keys that are no multiple of 32.
pub fn chain(chain: proto::SessionChain) -> Result<BlockList, Status> {
    if chain.keys.is_empty() {
        return Ok(BlockList::default());
    }
    let (keys, rest) = chain.keys.as_chunks();
    if !rest.is_empty() {
        let message = format!("keys of {} bytes, no multiple of 32", chain.keys.len());
        return Err(Status::invalid_argument(message));
    }
    let part = |part: &proto::SessionPart| Part {
        group: part.group,
        needed_from: part.needed_from,
    };
    Ok(BlockList {
        tag: bytes("tag", &chain.tag)?,
        parts: chain.parts.iter().map(part).collect(),
        keys: keys.to_vec(),
    })
}

pub fn from_session_entry(entry: &SessionEntry, found: Whereabouts) -> proto::SessionInfo {
    proto::SessionInfo {
        id: entry.id.clone(),
        tokens: entry.tokens,
        blocks: entry.chain.keys.len() as u64,
        last_turn_ms: entry.last_turn_ms,
        tag: entry.chain.tag.to_vec(),
        records: found.needed,
        records_in_arena: found.in_arena,
        records_on_mirror: found.on_mirror,
        records_nowhere: found.nowhere,
    }
}

pub fn from_stats(tier: &Tier, catalogue: CatalogueStats) -> proto::StatsResponse {
    let (stats, arena) = (tier.stats(), tier.arena());
    let mirror = stats.mirror.map(|mirror| proto::Mirror {
        down: mirror.down.unwrap_or_default(),
        records: mirror.usage.records,
        bytes: mirror.usage.bytes,
        stored: mirror.stored,
        refused: mirror.refused,
        loaded: mirror.loaded,
        damaged: mirror.usage.records_damaged,
        bytes_today: mirror.bytes_today,
    });
    proto::StatsResponse {
        slots: stats.slots,
        slots_free: stats.slots_free,
        slots_given_back: stats.slots_given_back,
        slots_quarantined: stats.slots_quarantined,
        found_arena: stats.found_arena,
        found_mirror: stats.found_mirror,
        found_nowhere: stats.found_nowhere,
        evicted: stats.evicted,
        not_worth: stats.not_worth,
        damaged: stats.damaged,
        mirror,
        arena_id: arena.id().to_vec(),
        epoch: arena.epoch(),
        slot_bytes: arena.slot_bytes(),
        arena_bytes: arena.bytes(),
        huge_pages: arena.pages().huge,
        locked: arena.pages().locked,
        unmirrored: tier.unmirrored() as u64,
        sessions: catalogue.sessions,
        sessions_down: catalogue.down.unwrap_or_default(),
    }
}
