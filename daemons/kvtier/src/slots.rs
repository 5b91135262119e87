//! Who may write, read and reuse a slot of the arena, whatever crashes. Pure: no I/O, no clock.
//!
//! ```text
//!            reserve            seal           begin_spill         end_spill
//!     Free ───────────▶ Reserved ────▶ Sealed ──────────▶ Spilling ─────────▶ Spilled
//!      ▲                   │            ▲ │   end_spill       │ │                 │
//!      │  abandon,         │            │ │   (not stored)    │ │                 │
//!      │  engine_dead,     │            └─│───────────────────┘ │                 │
//!      ├─ attach ◀─────────┘              └─────── discard ─────┴─────────────────┘
//!      │                                             ▼
//!      └───── the last pin and the spill end ───── Dropped
//! ```
//! - Reserved: one writer, the engine it was handed to or kvtier itself; nobody finds it.
//! - Sealed, Spilling, Spilled: readable and never written; Spilled is on the mirror too.
//! - Dropped: found no more, but still being read. A slot that nobody reads goes to Free at once.
//!
//! The engine writes through a mapping that outlives kvtier, so what a crash leaves must be readable
//! from the slot headers alone. Four rules carry that; `model` explores every interleaving of them:
//! 1. The header of a slot is written before anybody hears of its change ([`SlotTable::take_changed`]).
//! 2. The header of a slot that an engine may be writing is not touched, so that it cannot be torn: an
//!    engine that attaches again takes over its reservations as they are.
//! 3. A reservation has a [`Stamp`] that never comes again. A reader looks at it after its copy: pins
//!    keep a slot from being reused while kvtier lives, stamps tell of what happened when it died.
//! 4. An engine that lost a reply or its connection leaves its session before it attaches again: a
//!    reservation that arrives late is not its own.

use std::collections::{BTreeMap, BTreeSet, HashMap, btree_map::Entry};

use crate::record::{Record, RecordName};

#[cfg(test)]
mod model;

/// Place of a slot in the arena, from 0.
pub type SlotIndex = u32;

/// Tells one use of a slot from all others in the life of an arena, also when a header was lost: the
/// epoch counts the starts of kvtier over this arena, the generation counts within an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stamp {
    pub epoch: u32,
    pub generation: u32,
}

/// One use of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    pub slot: SlotIndex,
    pub stamp: Stamp,
}

/// An engine, by its process id. The next process of that number is taken for the same engine, which
/// frees too late what it had, never too early.
pub type EngineId = u32;

/// One attachment of an engine. Calls of an earlier one, still on their way, have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Session {
    pub engine: EngineId,
    pub number: Stamp,
}

/// Who writes a reserved slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    Engine(EngineId),
    /// kvtier, with what it reads from the mirror. Its writes end with its process.
    Tier,
}

/// Who asks to reserve, seal or abandon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    Session(Session),
    Tier,
}

/// Where a slot is in its life; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    Free,
    Reserved(Writer),
    Sealed,
    Spilling,
    Spilled,
    Dropped,
}

impl State {
    /// Whether lookups find it.
    pub fn is_readable(self) -> bool {
        matches!(self, State::Sealed | State::Spilling | State::Spilled)
    }
}

/// A slot as its header has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotHeader {
    pub state: State,
    pub stamp: Stamp,
    pub record: Record,
}

/// Why a call has no effect. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the session has ended; attach again")]
    NotAttached,
    #[error("slot {} is not reserved for the caller under this stamp; reserve again", .0.slot)]
    NotReserved(Ticket),
    #[error("slot {} is not pinned by the caller under this stamp", .0.slot)]
    NotPinned(Ticket),
    #[error("the record is stored already")]
    Stored,
    #[error("the record is being written already")]
    BeingWritten,
    #[error("every slot is taken")]
    Full,
    #[error("payload of {length} bytes, a slot holds {slot_bytes}; split the record")]
    TooLong { length: u64, slot_bytes: u64 },
    #[error("2^32 reservations in this run of kvtier; restart it")]
    Exhausted,
}

/// What an engine has after it attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    pub session: Session,
    /// Of the reservations it listed, those that it still has. The others it must forget.
    pub kept: Vec<Ticket>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    header: SlotHeader,
    /// Of all engines; while there are any, the slot is not reused.
    pins: u32,
    /// The mirror reads it.
    spilling: bool,
}

/// All slots of an arena and the index over them.
///
/// Cost: every call but [`attach`](Self::attach), [`engine_dead`](Self::engine_dead) and
/// [`recover`](Self::recover) is logarithmic in the number of slots.
#[derive(Clone, Debug)]
pub struct SlotTable {
    slot_bytes: u64,
    epoch: u32,
    /// Stamps given in this epoch.
    stamps: u32,
    slots: Vec<Slot>,
    free: BTreeSet<SlotIndex>,
    /// Every slot that is Reserved or readable, by what it holds.
    index: HashMap<RecordName, SlotIndex>,
    /// Attached engines.
    sessions: BTreeMap<EngineId, Stamp>,
    /// How often an attached engine has pinned a slot.
    pins: BTreeMap<(EngineId, SlotIndex), u32>,
    /// Slots whose headers are to be written.
    changed: BTreeSet<SlotIndex>,
}

const NO_RECORD: Record = Record {
    name: RecordName {
        key: [0; 32],
        tag: [0; 16],
        group: 0,
    },
    parent: [0; 32],
    tokens: 0,
    saved_us: 0,
    length: 0,
    xxh3: 0,
};

impl SlotHeader {
    /// Of a slot that holds nothing.
    pub const FREE: SlotHeader = SlotHeader {
        state: State::Free,
        stamp: Stamp {
            epoch: 0,
            generation: 0,
        },
        record: NO_RECORD,
    };
}

impl SlotTable {
    /// The slots of an arena as their headers tell after kvtier started for the `epoch`-th time;
    /// `None` stands for a header that cannot be read. `is_mirrored`: whether the mirror has a record.
    ///
    /// What an engine was writing stays out of everybody's reach (*quarantine*) until that engine
    /// [attaches](Self::attach) or is [dead](Self::engine_dead).
    pub fn recover(
        slot_bytes: u64,
        epoch: u32,
        headers: impl IntoIterator<Item = Option<SlotHeader>>,
        is_mirrored: impl Fn(&RecordName) -> bool,
    ) -> Self {
        let mut table = Self {
            slot_bytes,
            epoch,
            stamps: 0,
            slots: Vec::new(),
            free: BTreeSet::new(),
            index: HashMap::new(),
            sessions: BTreeMap::new(),
            pins: BTreeMap::new(),
            changed: BTreeSet::new(),
        };
        for (slot, found) in (0..).zip(headers) {
            let before = found.unwrap_or(SlotHeader::FREE);
            let state = match before.state {
                State::Free | State::Dropped | State::Reserved(Writer::Tier) => State::Free,
                reserved @ State::Reserved(Writer::Engine(_)) => reserved,
                State::Sealed | State::Spilling | State::Spilled => {
                    match is_mirrored(&before.record.name) {
                        true => State::Spilled,
                        false => State::Sealed,
                    }
                }
            };
            table.slots.push(Slot {
                header: SlotHeader { state, ..before },
                pins: 0,
                spilling: false,
            });
            let name = before.record.name;
            // Only damage makes two of one name; one that may be being written stays as it is.
            let is_double = state.is_readable() && table.index.contains_key(&name);
            if state == State::Free || is_double {
                table.free_slot(slot);
            } else {
                table.index.entry(name).or_insert(slot);
            }
            if found.as_ref() == Some(table.header(slot)) {
                table.changed.remove(&slot);
            } else {
                table.changed.insert(slot);
            }
        }
        table
    }

    /// Slots of an arena that nobody has used.
    pub fn new(slot_bytes: u64, slots: u32) -> Self {
        let headers = (0..slots).map(|_| Some(SlotHeader::FREE));
        Self::recover(slot_bytes, 1, headers, |_| false)
    }

    /// Slots whose headers must be written, lowest first, before the outcome of the last call is told
    /// to anybody.
    pub fn take_changed(&mut self) -> impl Iterator<Item = SlotIndex> + use<> {
        std::mem::take(&mut self.changed).into_iter()
    }

    /// The header of a slot of this table.
    pub fn header(&self, slot: SlotIndex) -> &SlotHeader {
        &self.slots[slot as usize].header
    }

    /// How many slots there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Takes a slot that holds nothing out of use until it is brought back; false when it holds something, or is
    /// out of use.
    pub fn set_aside(&mut self, slot: SlotIndex) -> bool {
        self.free.remove(&slot)
    }

    /// Puts a slot that was [set aside](Self::set_aside) back into use.
    pub fn bring_back(&mut self, slot: SlotIndex) {
        debug_assert_eq!(self.header(slot).state, State::Free);
        self.free.insert(slot);
    }

    /// The slot that holds nothing and would be given out last.
    pub fn last_free(&self) -> Option<SlotIndex> {
        self.free.last().copied()
    }

    /// How many slots hold nothing and are in use.
    pub fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// Engines that have reservations from before and have not attached: each must be watched for its
    /// end, which [`engine_dead`](Self::engine_dead) is told with no session.
    pub fn quarantined(&self) -> BTreeSet<EngineId> {
        let engines = self
            .slots
            .iter()
            .filter_map(|slot| match slot.header.state {
                State::Reserved(Writer::Engine(engine)) => Some(engine),
                _ => None,
            });
        engines
            .filter(|engine| !self.sessions.contains_key(engine))
            .collect()
    }

    /// An engine begins or begins anew, and lists the reservations that it holds. It has those of them
    /// that stand, and loses every other reservation and all its pins; its earlier session ends.
    ///
    /// Errors: [`Refused::Exhausted`].
    pub fn attach(&mut self, engine: EngineId, holds: &[Ticket]) -> Result<Attached, Refused> {
        let number = self.next_stamp()?;
        self.end_session(engine, |ticket| holds.contains(&ticket));
        self.sessions.insert(engine, number);
        let is_kept = |ticket: &&Ticket| {
            let slot = self.slots.get(ticket.slot as usize);
            slot.is_some_and(|slot| {
                slot.header.stamp == ticket.stamp
                    && slot.header.state == State::Reserved(Writer::Engine(engine))
            })
        };
        Ok(Attached {
            session: Session { engine, number },
            kept: holds.iter().filter(is_kept).copied().collect(),
        })
    }

    /// The process that was watched has ended: `session` is the one it attached with, none for an
    /// engine that stood in [`quarantined`](Self::quarantined). What it had is free. Without effect
    /// when the engine has attached since, because then it was another process, or it is watched
    /// under its new session.
    pub fn engine_dead(&mut self, engine: EngineId, session: Option<Session>) {
        if self.sessions.get(&engine).copied() == session.map(|session| session.number) {
            self.end_session(engine, |_| false);
        }
    }

    fn end_session(&mut self, engine: EngineId, keeps: impl Fn(Ticket) -> bool) {
        self.sessions.remove(&engine);
        let pinned = (engine, 0)..=(engine, SlotIndex::MAX);
        let pins: Vec<_> = self.pins.range(pinned).map(|(&at, &n)| (at, n)).collect();
        for ((engine, slot), count) in pins {
            self.pins.remove(&(engine, slot));
            self.release_pins(slot, count);
        }
        for slot in 0..self.slots.len() as SlotIndex {
            let SlotHeader { state, stamp, .. } = *self.header(slot);
            if state == State::Reserved(Writer::Engine(engine)) && !keeps(Ticket { slot, stamp }) {
                self.free_slot(slot);
            }
        }
    }

    /// A slot to write `record` to; the caller is its one writer until it seals or abandons it.
    ///
    /// Errors: [`Refused`] with `NotAttached`, `TooLong`, `Stored`, `BeingWritten`, `Full` (something
    /// must be discarded first), `Exhausted`.
    pub fn reserve(&mut self, caller: Caller, record: Record) -> Result<Ticket, Refused> {
        let writer = self.writer(caller)?;
        self.check_length(record.length)?;
        if let Some(&slot) = self.index.get(&record.name) {
            return Err(match self.header(slot).state.is_readable() {
                true => Refused::Stored,
                false => Refused::BeingWritten,
            });
        }
        let slot = *self.free.first().ok_or(Refused::Full)?;
        let stamp = self.next_stamp()?;
        self.free.remove(&slot);
        self.index.insert(record.name, slot);
        self.slots[slot as usize].header = SlotHeader {
            state: State::Reserved(writer),
            stamp,
            record,
        };
        self.changed.insert(slot);
        Ok(Ticket { slot, stamp })
    }

    /// The payload, of `length` bytes with checksum `xxh3`, is written and will not change: readers
    /// may find it.
    ///
    /// Errors: `NotAttached`, `NotReserved`, `TooLong`; `Stored` when another slot came to hold the
    /// same record, and then this one is free.
    pub fn seal(
        &mut self,
        caller: Caller,
        ticket: Ticket,
        length: u64,
        xxh3: u64,
    ) -> Result<(), Refused> {
        self.check_reserved(caller, ticket)?;
        self.check_length(length)?;
        let slot = ticket.slot;
        if self.index.get(&self.header(slot).record.name) != Some(&slot) {
            self.free_slot(slot);
            return Err(Refused::Stored);
        }
        let header = &mut self.slots[slot as usize].header;
        header.state = State::Sealed;
        header.record.length = length;
        header.record.xxh3 = xxh3;
        self.changed.insert(slot);
        Ok(())
    }

    /// The caller will not write the slot, or not any more; it is free.
    ///
    /// Errors: `NotAttached`, `NotReserved`.
    pub fn abandon(&mut self, caller: Caller, ticket: Ticket) -> Result<(), Refused> {
        self.check_reserved(caller, ticket)?;
        self.free_slot(ticket.slot);
        Ok(())
    }

    /// The slot that readers find a record in.
    pub fn find(&self, name: &RecordName) -> Option<Ticket> {
        let slot = *self.index.get(name)?;
        let header = self.header(slot);
        header.state.is_readable().then_some(Ticket {
            slot,
            stamp: header.stamp,
        })
    }

    /// Whether somebody is writing a record of this name.
    pub fn is_being_written(&self, name: &RecordName) -> bool {
        let slot = self.index.get(name);
        slot.is_some_and(|&slot| !self.header(slot).state.is_readable())
    }

    /// Finds a record and keeps its slot from being reused until as many [`unpin`](Self::unpin)s, or
    /// the session's end. None when nobody stored it.
    ///
    /// Errors: `NotAttached`.
    pub fn pin(&mut self, session: Session, name: &RecordName) -> Result<Option<Ticket>, Refused> {
        self.check_session(session)?;
        let Some(ticket) = self.find(name) else {
            return Ok(None);
        };
        *self.pins.entry((session.engine, ticket.slot)).or_default() += 1;
        self.slots[ticket.slot as usize].pins += 1;
        Ok(Some(ticket))
    }

    /// Takes back one pin.
    ///
    /// Errors: `NotAttached`, `NotPinned`.
    pub fn unpin(&mut self, session: Session, ticket: Ticket) -> Result<(), Refused> {
        self.check_session(session)?;
        if !self.is_current(ticket) {
            return Err(Refused::NotPinned(ticket));
        }
        let Entry::Occupied(mut pins) = self.pins.entry((session.engine, ticket.slot)) else {
            return Err(Refused::NotPinned(ticket));
        };
        *pins.get_mut() -= 1;
        if *pins.get() == 0 {
            pins.remove();
        }
        self.release_pins(ticket.slot, 1);
        Ok(())
    }

    /// The mirror begins to read a sealed slot; false when it is not sealed under this stamp.
    #[must_use]
    pub fn begin_spill(&mut self, ticket: Ticket) -> bool {
        let is_sealed = self.is_current(ticket) && self.header(ticket.slot).state == State::Sealed;
        if is_sealed {
            self.slots[ticket.slot as usize].spilling = true;
            self.set_state(ticket.slot, State::Spilling);
        }
        is_sealed
    }

    /// The mirror reads the slot no more; `stored`: it has the record for good. Without effect on a
    /// slot that it was not reading under this stamp.
    pub fn end_spill(&mut self, ticket: Ticket, stored: bool) {
        if !self.is_current(ticket) || !self.slots[ticket.slot as usize].spilling {
            return;
        }
        self.slots[ticket.slot as usize].spilling = false;
        match (self.header(ticket.slot).state, stored) {
            (State::Spilling, true) => self.set_state(ticket.slot, State::Spilled),
            (State::Spilling, false) => self.set_state(ticket.slot, State::Sealed),
            _ => self.free_if_unread(ticket.slot),
        }
    }

    /// Takes a readable slot away from lookups and frees it, at once or when its last reader is done.
    /// False when there is no readable slot with this stamp.
    pub fn discard(&mut self, ticket: Ticket) -> bool {
        let is_readable = self.is_current(ticket) && self.header(ticket.slot).state.is_readable();
        if is_readable {
            let name = self.header(ticket.slot).record.name;
            self.index.remove(&name);
            self.set_state(ticket.slot, State::Dropped);
            self.free_if_unread(ticket.slot);
        }
        is_readable
    }

    /// Whether nobody reads the slot, so that discarding it frees it at once.
    pub fn is_unread(&self, slot: SlotIndex) -> bool {
        let slot = &self.slots[slot as usize];
        slot.pins == 0 && !slot.spilling
    }

    fn next_stamp(&mut self) -> Result<Stamp, Refused> {
        self.stamps = self.stamps.checked_add(1).ok_or(Refused::Exhausted)?;
        Ok(Stamp {
            epoch: self.epoch,
            generation: self.stamps,
        })
    }

    /// Whether the session is its engine's present one.
    ///
    /// Errors: `NotAttached`.
    pub fn check_session(&self, session: Session) -> Result<(), Refused> {
        match self.sessions.get(&session.engine) == Some(&session.number) {
            true => Ok(()),
            false => Err(Refused::NotAttached),
        }
    }

    fn writer(&self, caller: Caller) -> Result<Writer, Refused> {
        match caller {
            Caller::Tier => Ok(Writer::Tier),
            Caller::Session(session) => {
                self.check_session(session)?;
                Ok(Writer::Engine(session.engine))
            }
        }
    }

    fn check_reserved(&self, caller: Caller, ticket: Ticket) -> Result<(), Refused> {
        let writer = self.writer(caller)?;
        let is_reserved =
            self.is_current(ticket) && self.header(ticket.slot).state == State::Reserved(writer);
        is_reserved
            .then_some(())
            .ok_or(Refused::NotReserved(ticket))
    }

    fn check_length(&self, length: u64) -> Result<(), Refused> {
        let slot_bytes = self.slot_bytes;
        match length <= slot_bytes {
            true => Ok(()),
            false => Err(Refused::TooLong { length, slot_bytes }),
        }
    }

    fn is_current(&self, ticket: Ticket) -> bool {
        let slot = self.slots.get(ticket.slot as usize);
        slot.is_some_and(|slot| slot.header.stamp == ticket.stamp)
    }

    fn set_state(&mut self, slot: SlotIndex, state: State) {
        self.slots[slot as usize].header.state = state;
        self.changed.insert(slot);
    }

    fn release_pins(&mut self, slot: SlotIndex, count: u32) {
        self.slots[slot as usize].pins -= count;
        self.free_if_unread(slot);
    }

    fn free_if_unread(&mut self, slot: SlotIndex) {
        if self.header(slot).state == State::Dropped && self.is_unread(slot) {
            self.free_slot(slot);
        }
    }

    /// Its header becomes that of a slot never used: what it held must not be found again.
    fn free_slot(&mut self, slot: SlotIndex) {
        let name = self.header(slot).record.name;
        if self.index.get(&name) == Some(&slot) {
            self.index.remove(&name);
        }
        self.slots[slot as usize].header = SlotHeader::FREE;
        self.free.insert(slot);
        self.changed.insert(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGINE: EngineId = 7;

    fn record(name: u8) -> Record {
        let mut record = NO_RECORD;
        record.name.key[0] = name;
        record.length = 100;
        record
    }

    /// A table of two slots of 100 bytes with an engine attached.
    fn table() -> (SlotTable, Session) {
        let mut table = SlotTable::new(100, 2);
        let session = table.attach(ENGINE, &[]).unwrap().session;
        (table, session)
    }

    #[test]
    fn what_is_sealed_is_found_with_its_length_and_checksum() {
        let (mut table, session) = table();
        let caller = Caller::Session(session);
        let ticket = table.reserve(caller, record(1)).unwrap();
        assert_eq!(table.find(&record(1).name), None);
        table.seal(caller, ticket, 99, 5).unwrap();
        assert_eq!(table.pin(session, &record(1).name), Ok(Some(ticket)));
        let found = table.header(ticket.slot).record;
        assert_eq!((found.length, found.xxh3), (99, 5));
    }

    #[test]
    fn refusals_say_why_and_change_nothing() {
        let (mut table, session) = table();
        let caller = Caller::Session(session);
        let first = table.reserve(caller, record(1)).unwrap();
        assert_eq!(table.reserve(caller, record(1)), Err(Refused::BeingWritten));
        table.seal(caller, first, 100, 0).unwrap();
        assert_eq!(table.reserve(caller, record(1)), Err(Refused::Stored));
        assert_eq!(
            table.seal(caller, first, 100, 0),
            Err(Refused::NotReserved(first))
        );
        assert_eq!(table.unpin(session, first), Err(Refused::NotPinned(first)));
        let long = Record {
            length: 101,
            ..record(2)
        };
        let too_long = Refused::TooLong {
            length: 101,
            slot_bytes: 100,
        };
        assert_eq!(table.reserve(caller, long), Err(too_long));
        let second = table.reserve(caller, record(2)).unwrap();
        assert_eq!(table.seal(caller, second, 101, 0), Err(too_long));
        assert_eq!(table.reserve(caller, record(3)), Err(Refused::Full));
        let other = table.attach(ENGINE, &[second]).unwrap().session;
        assert_eq!(
            table.seal(caller, second, 100, 0),
            Err(Refused::NotAttached)
        );
        table.seal(Caller::Session(other), second, 100, 0).unwrap();
        // A slot that is not there, as a damaged message may name it.
        let outside = Ticket {
            slot: 9,
            stamp: second.stamp,
        };
        assert!(!table.discard(outside) && !table.begin_spill(outside));
    }

    #[test]
    fn a_pinned_slot_is_discarded_when_its_reader_is_done() {
        let (mut table, session) = table();
        let caller = Caller::Session(session);
        let ticket = table.reserve(caller, record(1)).unwrap();
        table.seal(caller, ticket, 1, 0).unwrap();
        table.pin(session, &record(1).name).unwrap();
        assert!(table.discard(ticket));
        assert_eq!((table.find(&record(1).name), table.free_slots()), (None, 1));
        table.unpin(session, ticket).unwrap();
        assert_eq!(table.free_slots(), 2);
    }
}
