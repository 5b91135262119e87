//! The tier as a whole: slots, their memory and the mirror, behind one lock that is held for bookkeeping
//! and for copies of one payload, never for a disk.
//!
//! ```text
//! engine ── reserve ──▶ writes the slot ── seal ──▶ arena ──── spill ────▶ mirror
//!        ◀───────────── lookup: pinned ──────────────┘  ▲                    │
//!        ◀───────────── load:   pinned ─────────────────└────────────────────┘
//! ```
//! Changed slot headers are written before the lock is given back, so nobody hears of a change that a
//! crash would forget.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::{broadcast, watch};

use crate::{
    arena::{Arena, layout::ArenaId},
    mirror::writer::{Busy, Loaded, Mirror, MirrorStats, Stored},
    record::{Record, RecordName},
    slots::{Attached, Caller, EngineId, Refused, Session, SlotIndex, SlotTable, State, Ticket},
    worth::{Candidate, Origin, ReuseModel, Use, plan_eviction},
};

/// A record that an engine wants to store.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    pub record: Record,
    pub origin: Origin,
}

/// Whose room a record may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Nobody's: slots that hold nothing, and whose memory was not given back to the machine.
    Free,
    /// Also that of what is worth less.
    OfOthers,
}

/// Where a lookup found a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// In the arena, and pinned.
    Arena(Ticket, Record),
    /// On the mirror; [`Tier::load`] brings it.
    Mirror,
    Nowhere,
}

/// Why a record gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("the record is not worth the room of any that is stored")]
    NotWorth,
}

/// What there is of the tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    pub slots: u64,
    pub slots_free: u64,
    /// Free ones without memory.
    pub slots_given_back: u64,
    /// Slots of engines from before that have not come back.
    pub slots_quarantined: u64,
    /// Records found in the arena, on the mirror, and not at all.
    pub found_arena: u64,
    pub found_mirror: u64,
    pub found_nowhere: u64,
    pub evicted: u64,
    pub not_worth: u64,
    /// Payloads that were not what had been sealed.
    pub damaged: u64,
    pub mirror: Option<MirrorStats>,
}

/// What became of a record that was to be destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destroyed {
    /// Nothing of it is left, in memory or on disk, whether there was any or not.
    Gone,
    /// Somebody writes it, or reads it, or the mirror could not be written: call again.
    NotYet,
}

/// Where a record is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// In the arena, to be found.
    pub in_arena: bool,
    /// An engine, or a load, is writing it to the arena.
    pub is_being_written: bool,
    /// Bytes of its payload, where the mirror has it.
    pub on_mirror: Option<u64>,
}

/// Names that are looked for under one lock.
const NAMES_PER_LOCK: usize = 4096;

/// Events that may wait for who listens; of more the oldest are lost.
const EVENTS_MAX: usize = 64;

/// Something that happened to what is stored, worth telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// What a slot held was not what had been sealed; it was discarded.
    Damaged(RecordName),
    /// Memory that was given back to the machine.
    Trimmed { bytes: u64 },
}

/// Told once: what became of each record, in the order of the call.
pub type Told = Box<dyn FnOnce(Vec<Destroyed>) + Send>;

/// Told once: the record, which is in the arena now, or why it is not.
pub type Restored = Box<dyn FnOnce(Result<Record, NotRestored>) + Send>;

/// Why a record is not brought from the mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRestored {
    #[error("the disk does not have it, or not as it was written")]
    Damaged,
    #[error("memory has no room for it")]
    NoRoom(#[source] Declined),
}

/// What becomes of a record that is handed to the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// On its way to the mirror, which tells when it is durable.
    Queued,
    /// In the arena; the mirror, where there is one, is down.
    InArena,
    /// As much waits for the mirror as may; try again.
    Busy,
    Declined(Declined),
}

/// Told once: the record's slot, pinned; None when the record could not be brought.
pub type Brought = Box<dyn FnOnce(Option<(Ticket, Record)>) + Send>;

/// The KV tier. Every call answers at once.
#[derive(Debug)]
pub struct Tier {
    arena: Arena,
    mirror: Option<Mirror>,
    books: Mutex<Books>,
    events: broadcast::Sender<Event>,
}

#[derive(Debug)]
struct Books {
    table: SlotTable,
    model: ReuseModel,
    /// Of each slot that holds something.
    kept: HashMap<SlotIndex, Kept>,
    /// How many stored records build upon a block.
    children: HashMap<[u8; 32], u32>,
    /// Slots set aside, whose memory the machine has.
    given_back: BTreeSet<SlotIndex>,
    /// Slots whose payload must be overwritten before anything else becomes of them.
    to_wipe: BTreeSet<SlotIndex>,
    /// Until when it keeps that.
    held_until: Option<Instant>,
    stats: TierStats,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    of: Use,
    parent: [u8; 32],
}

impl Tier {
    /// The tier over `arena`, new or found again: what is sealed in it is there.
    pub fn new(arena: Arena, mirror: Option<Mirror>) -> Self {
        let is_mirrored =
            |name: &RecordName| mirror.as_ref().is_some_and(|mirror| mirror.holds(name));
        let headers = arena.headers();
        // Perhaps because it was to be destroyed when its last reader was done.
        for (slot, header) in (0..).zip(&headers) {
            if header.is_some_and(|header| header.state == State::Dropped) {
                arena.wipe(slot);
            }
        }
        let table = SlotTable::recover(arena.slot_bytes(), arena.epoch(), headers, is_mirrored);
        let mut books = Books {
            table,
            model: ReuseModel::default(),
            kept: HashMap::new(),
            children: HashMap::new(),
            given_back: BTreeSet::new(),
            to_wipe: BTreeSet::new(),
            held_until: None,
            stats: TierStats::default(),
        };
        for slot in 0..arena.slots() {
            let header = *books.table.header(slot);
            if header.state == State::Free {
                if arena.is_given_back(slot) && books.table.set_aside(slot) {
                    books.given_back.insert(slot);
                }
            } else {
                // Where it came from is not written down; it was worth keeping.
                let offer = Offer {
                    record: header.record,
                    origin: Origin::Session,
                };
                books.enter(slot, &offer, arena.slot_bytes());
            }
        }
        let tier = Self {
            arena,
            mirror,
            books: Mutex::new(books),
            events: broadcast::Sender::new(EVENTS_MAX),
        };
        tier.write_changed(&mut tier.books());
        tier
    }

    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// What happens from now on.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// See [`Mirror::watch_down`]; None without a mirror.
    pub fn watch_mirror(&self) -> Option<watch::Receiver<Option<String>>> {
        self.mirror.as_ref().map(Mirror::watch_down)
    }

    fn tell(&self, event: Event) {
        // Nobody need listen.
        let _ = self.events.send(event);
    }

    /// Engines of an earlier run whose end must be watched; see [`SlotTable::quarantined`].
    pub fn quarantined(&self) -> Vec<EngineId> {
        self.books().table.quarantined().into_iter().collect()
    }

    /// See [`SlotTable::attach`]; what an engine holds of another arena counts for nothing.
    pub fn attach(
        &self,
        engine: EngineId,
        arena: ArenaId,
        holds: &[Ticket],
    ) -> Result<Attached, Refused> {
        let holds = if arena == self.arena.id() { holds } else { &[] };
        self.change(|books| books.table.attach(engine, holds))
    }

    /// See [`SlotTable::engine_dead`].
    pub fn engine_dead(&self, engine: EngineId, session: Option<Session>) {
        self.change(|books| books.table.engine_dead(engine, session));
    }

    /// A slot to write a record to, taken from what is worth less where none is free.
    pub fn reserve(&self, session: Session, offer: &Offer) -> Result<Ticket, Declined> {
        let mirrors = self.mirrors();
        let room = Room::OfOthers;
        self.change(|books| {
            books.place(Caller::Session(session), offer, room, &self.arena, mirrors)
        })
    }

    /// See [`SlotTable::seal`].
    pub fn seal(
        &self,
        session: Session,
        ticket: Ticket,
        length: u64,
        xxh3: u64,
    ) -> Result<(), Refused> {
        self.change(|books| {
            books
                .table
                .seal(Caller::Session(session), ticket, length, xxh3)
        })
    }

    /// See [`SlotTable::abandon`].
    pub fn abandon(&self, session: Session, ticket: Ticket) -> Result<(), Refused> {
        self.change(|books| books.table.abandon(Caller::Session(session), ticket))
    }

    /// Finds the records of a request, in its order, and pins those in the arena.
    ///
    /// Errors: the session has ended.
    pub fn lookup(&self, session: Session, names: &[RecordName]) -> Result<Vec<Found>, Refused> {
        self.change(|books| {
            books.table.check_session(session)?;
            books.model.tick();
            names
                .iter()
                .map(|name| self.look(books, session, name))
                .collect()
        })
    }

    fn look(
        &self,
        books: &mut Books,
        session: Session,
        name: &RecordName,
    ) -> Result<Found, Refused> {
        if let Some(ticket) = books.table.pin(session, name)? {
            books.stats.found_arena += 1;
            books.reuse(ticket.slot);
            return Ok(Found::Arena(ticket, books.table.header(ticket.slot).record));
        }
        let is_mirrored = self
            .mirror
            .as_ref()
            .is_some_and(|mirror| mirror.holds(name));
        let (count, found) = match is_mirrored {
            true => (&mut books.stats.found_mirror, Found::Mirror),
            false => (&mut books.stats.found_nowhere, Found::Nowhere),
        };
        *count += 1;
        Ok(found)
    }

    /// See [`SlotTable::unpin`].
    pub fn unpin(&self, session: Session, ticket: Ticket) -> Result<(), Refused> {
        self.change(|books| books.table.unpin(session, ticket))
    }

    /// Brings a record from the mirror into the arena and pins it. `brought` is called by another
    /// thread, or by this one when nothing comes of it.
    pub fn load(
        self: &Arc<Self>,
        session: Session,
        name: RecordName,
        origin: Origin,
        brought: Brought,
    ) {
        let (Some(mirror), tier) = (&self.mirror, Arc::clone(self)) else {
            return brought(None);
        };
        // Held by both ways that it may be told: the mirror's thread, or here when that has no room.
        let told = Arc::new(Mutex::new(Some(brought)));
        let tell = Arc::clone(&told);
        let loaded = Box::new(move |found: Option<(Record, &[u8])>| {
            let placed = found.and_then(|(record, payload)| {
                let offer = Offer { record, origin };
                let room = Room::OfOthers;
                let pinned = tier.place_loaded(&offer, room, payload, State::Spilled, |books| {
                    let ticket = books.table.pin(session, &record.name).ok()??;
                    books.reuse(ticket.slot);
                    Some((ticket, record))
                });
                pinned.ok().flatten()
            });
            if let Some(brought) = lock(&tell).take() {
                brought(placed);
            }
        });
        if mirror.get(name, loaded).is_err()
            && let Some(brought) = lock(&told).take()
        {
            brought(None);
        }
    }

    /// The same without a pin. `restored` is called by another thread.
    ///
    /// Errors: [`Busy`]: as much waits for the mirror as may, or there is none.
    pub fn restore(
        self: &Arc<Self>,
        name: RecordName,
        room: Room,
        restored: Restored,
    ) -> Result<(), Busy> {
        let (mirror, tier) = (self.mirror.as_ref().ok_or(Busy)?, Arc::clone(self));
        let loaded = Box::new(move |found: Option<(Record, &[u8])>| {
            let placed = found
                .ok_or(NotRestored::Damaged)
                .and_then(|(record, payload)| {
                    let origin = Origin::Session;
                    let placed = tier.place_loaded(
                        &Offer { record, origin },
                        room,
                        payload,
                        State::Spilled,
                        |_| record,
                    );
                    placed.map_err(NotRestored::NoRoom)
                });
            restored(placed);
        });
        mirror.get(name, loaded)
    }

    /// Puts what was loaded into a slot, Sealed or [`State::Spilled`] as `becomes` says, unless it is in one, and does `then` before anybody can take it away.
    ///
    /// Errors: it gets no slot.
    fn place_loaded<R>(
        &self,
        offer: &Offer,
        room: Room,
        payload: &[u8],
        becomes: State,
        then: impl FnOnce(&mut Books) -> R,
    ) -> Result<R, Declined> {
        let (record, mirrors) = (offer.record, self.mirrors());
        self.change(|books| {
            match books.place(Caller::Tier, offer, room, &self.arena, mirrors) {
                Ok(ticket) => {
                    // The header says Reserved before the first byte is written.
                    self.write_changed(books);
                    self.arena.write_payload(ticket.slot, payload);
                    let sealed = books
                        .table
                        .seal(Caller::Tier, ticket, record.length, record.xxh3);
                    sealed?;
                    if becomes == State::Spilled && books.table.begin_spill(ticket) {
                        books.table.end_spill(ticket, true);
                    }
                }
                // Another load was faster.
                Err(Declined::Refused(Refused::Stored)) => {}
                Err(declined) => return Err(declined),
            }
            Ok(then(books))
        })
    }

    /// Reads a record, wherever it is, proven; it is no use of it. `read` is called by another thread, or by this one:
    /// None when it is gone.
    ///
    /// Errors: [`Busy`]; `read` is not called then.
    pub fn read(&self, name: RecordName, read: Loaded) -> Result<(), Busy> {
        let found = {
            let books = self.books();
            let ticket = books.table.find(&name);
            ticket.map(|ticket| (ticket.slot, *books.table.header(ticket.slot)))
        };
        if let Some((slot, header)) = found
            && let Some(payload) = self.arena.read_payload(slot, &header)
        {
            read(Some((header.record, &payload)));
            return Ok(());
        }
        match &self.mirror {
            Some(mirror) => mirror.get(name, read),
            None => {
                read(None);
                Ok(())
            }
        }
    }

    /// Takes a record from elsewhere, whose payload the caller has proven: to the mirror, or into the arena where that takes
    /// nothing. `stored` is called only if it is [`Taken::Queued`].
    pub fn take(&self, record: Record, payload: &[u8], stored: Stored) -> Taken {
        if let Some(mirror) = self.mirror.as_ref().filter(|mirror| !mirror.is_down()) {
            return match mirror.put(record, payload.to_vec(), stored) {
                Ok(()) => Taken::Queued,
                Err(Busy) => Taken::Busy,
            };
        }
        let origin = Origin::Session;
        let offer = Offer { record, origin };
        match self.place_loaded(&offer, Room::OfOthers, payload, State::Sealed, |_| ()) {
            Ok(()) => Taken::InArena,
            Err(declined) => Taken::Declined(declined),
        }
    }

    /// Hands sealed records to the mirror, the ones worth most first, until its queue is full; how many.
    /// A mirror that is down gets one, to try its disk with.
    pub fn spill(self: &Arc<Self>) -> usize {
        let Some(mirror) = &self.mirror else { return 0 };
        let mut spilled = 0;
        // Listed once: what a mirror that is down gives back at once is not tried again in this round.
        let sealed = self.books().sealed();
        for ticket in sealed {
            let Some((record, payload)) = self.begin_spill(ticket) else {
                continue;
            };
            let tier = Arc::clone(self);
            let stored = Box::new(move |stored| {
                tier.change(|books| books.table.end_spill(ticket, stored));
            });
            // Queued under the lock: what was to be destroyed meanwhile must not follow its destruction.
            let is_queued = self.change(|books| {
                let header = books.table.header(ticket.slot);
                let is_wanted = header.stamp == ticket.stamp && header.state == State::Spilling;
                let is_queued = is_wanted && mirror.put(record, payload, stored).is_ok();
                if !is_queued {
                    books.table.end_spill(ticket, false);
                }
                is_queued
            });
            if !is_queued {
                break;
            }
            spilled += 1;
            if mirror.is_down() {
                break;
            }
        }
        spilled
    }

    /// A record and its payload for the mirror, proven; a damaged one is discarded. None also when it
    /// is not sealed any more.
    fn begin_spill(&self, ticket: Ticket) -> Option<(Record, Vec<u8>)> {
        let header = self.change(|books| {
            let begun = books.table.begin_spill(ticket);
            begun.then(|| *books.table.header(ticket.slot))
        })?;
        let payload = self.arena.read_payload(ticket.slot, &header);
        if payload.is_none() {
            self.change(|books| {
                books.stats.damaged += 1;
                books.table.discard(ticket);
                books.table.end_spill(ticket, false);
            });
            self.tell(Event::Damaged(header.record.name));
        }
        Some((header.record, payload?))
    }

    /// Destroys records: what memory and mirror have of them is overwritten, and no restart finds it again. A slot
    /// that is being read is found no more at once and overwritten when its last reader is done. `told` is called
    /// by another thread, or by this one.
    ///
    /// Errors: [`Busy`]: as much waits for the mirror as may; call again.
    pub fn destroy(self: &Arc<Self>, names: Vec<RecordName>, told: Told) -> Result<(), Busy> {
        // First, so that nothing more of it goes to the mirror.
        self.drop_records(&names);
        let Some(mirror) = &self.mirror else {
            told(self.destroyed(&names, true));
            return Ok(());
        };
        let (tier, all) = (Arc::clone(self), names.clone());
        let erased = Box::new(move |is_erased| {
            // Again, for what was on its way from the mirror when the call came.
            tier.drop_records(&all);
            told(tier.destroyed(&all, is_erased));
        });
        mirror.erase(names, erased)
    }

    fn drop_records(&self, names: &[RecordName]) {
        self.change(|books| {
            for name in names {
                if let Some(ticket) = books.table.find(name) {
                    books.to_wipe.insert(ticket.slot);
                    books.table.discard(ticket);
                }
            }
        });
    }

    fn destroyed(&self, names: &[RecordName], is_erased: bool) -> Vec<Destroyed> {
        let books = self.books();
        let is_left = |name: &RecordName| {
            let of_name = |&slot: &SlotIndex| books.table.header(slot).record.name == *name;
            books.table.is_being_written(name) || books.to_wipe.iter().any(of_name)
        };
        let outcome = |name: &RecordName| match is_erased && !is_left(name) {
            true => Destroyed::Gone,
            false => Destroyed::NotYet,
        };
        names.iter().map(outcome).collect()
    }

    /// Records that are to be on the mirror and are not yet; 0 where there is none.
    pub fn unmirrored(&self) -> usize {
        let books = self.books();
        let is_unmirrored =
            |(slot, kept): &(&SlotIndex, &Kept)| match books.table.header(**slot).state {
                State::Sealed => books.model.is_worth_writing(&kept.of),
                state => state == State::Spilling,
            };
        match &self.mirror {
            Some(_) => books.kept.iter().filter(is_unmirrored).count(),
            None => 0,
        }
    }

    /// Whether there is a mirror that takes records.
    fn mirrors(&self) -> bool {
        self.mirror.as_ref().is_some_and(|mirror| !mirror.is_down())
    }

    /// Where each of these records is, in their order. Nothing is pinned, and it is no use of them.
    pub fn presence(&self, names: &[RecordName]) -> Vec<Presence> {
        let of = |books: &Books, name: &RecordName| Presence {
            in_arena: books.table.find(name).is_some(),
            is_being_written: books.table.is_being_written(name),
            on_mirror: self
                .mirror
                .as_ref()
                .and_then(|mirror| mirror.payload_bytes(name)),
        };
        let mut presence = Vec::with_capacity(names.len());
        for names in names.chunks(NAMES_PER_LOCK) {
            let books = self.books();
            presence.extend(names.iter().map(|name| of(&books, name)));
        }
        presence
    }

    /// See [`Mirror::watch_read`]; None without a mirror.
    pub fn watch_mirror_read(&self) -> Option<watch::Receiver<bool>> {
        self.mirror.as_ref().map(Mirror::watch_read)
    }

    /// Whether there is a mirror, up or down.
    pub fn has_mirror(&self) -> bool {
        self.mirror.is_some()
    }

    /// Whether there is a mirror that takes no records for now.
    pub fn is_mirror_down(&self) -> bool {
        self.mirror.as_ref().is_some_and(Mirror::is_down)
    }

    /// Gives the memory of up to so many slots back to the machine; how many. Slots that hold nothing go first, then
    /// records that the mirror has, then others, of what is worth least. For `hold` none of it is taken again, then
    /// as far as it is wanted.
    ///
    /// Cost: locks the books once a slot, so that engines go on meanwhile.
    pub fn trim(&self, slots: usize, hold: Duration) -> usize {
        // The machine has no other use for its reserve of huge pages.
        if self.arena.pages().huge {
            return 0;
        }
        self.books().held_until = Instant::now().checked_add(hold);
        let given = (0..slots).take_while(|_| self.give_back_one()).count();
        if given > 0 {
            let bytes = given as u64 * self.arena.slot_bytes();
            tracing::info!(bytes, "memory of the arena was given back");
            self.tell(Event::Trimmed { bytes });
        }
        given
    }

    fn give_back_one(&self) -> bool {
        self.change(|books| {
            if books.table.last_free().is_none() {
                let mirrored = books.evict(None, |state, _| state == State::Spilled);
                if mirrored
                    .or_else(|_| books.evict(None, |_, _| true))
                    .is_err()
                {
                    return false;
                }
                // The header says Free before the payload is gone.
                self.write_changed(books);
            }
            let Some(slot) = books.table.last_free() else {
                return false;
            };
            match self.arena.give_back(slot) {
                Ok(()) => books.table.set_aside(slot) && books.given_back.insert(slot),
                Err(error) => {
                    tracing::warn!(%error, "memory of the arena is not given back");
                    false
                }
            }
        })
    }

    pub fn stats(&self) -> TierStats {
        let books = self.books();
        let quarantined = books.table.quarantined();
        let of_quarantine = |slot: &SlotIndex| match books.table.header(*slot).state {
            State::Reserved(crate::slots::Writer::Engine(engine)) => quarantined.contains(&engine),
            _ => false,
        };
        TierStats {
            slots: books.table.len() as u64,
            slots_free: (books.table.free_slots() + books.given_back.len()) as u64,
            slots_given_back: books.given_back.len() as u64,
            slots_quarantined: (0..self.arena.slots()).filter(of_quarantine).count() as u64,
            mirror: self.mirror.as_ref().map(Mirror::stats),
            ..books.stats.clone()
        }
    }

    /// Does `change` and writes the headers that it changed before anybody else sees it.
    fn change<R>(&self, change: impl FnOnce(&mut Books) -> R) -> R {
        let mut books = self.books();
        let outcome = change(&mut books);
        self.write_changed(&mut books);
        outcome
    }

    fn write_changed(&self, books: &mut Books) {
        for slot in books.table.take_changed() {
            if books.table.header(slot).state == State::Free && books.to_wipe.remove(&slot) {
                self.arena.wipe(slot);
            }
            self.arena.write_header(slot, books.table.header(slot));
            if books.table.header(slot).state == State::Free {
                books.leave(slot);
            }
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.books)
    }
}

impl Books {
    /// Reserves a slot; where none is free and `room` lets it, one whose memory was given back, or that of a
    /// record worth less.
    ///
    /// `mirrors`: there is a mirror to write to. Then no conversation loses a record on its way there, however slow
    /// the disk: who comes too fast for it comes again.
    fn place(
        &mut self,
        caller: Caller,
        offer: &Offer,
        room: Room,
        arena: &Arena,
        mirrors: bool,
    ) -> Result<Ticket, Declined> {
        let slot_bytes = arena.slot_bytes();
        let ticket = match self.table.reserve(caller, offer.record) {
            Err(Refused::Full) if room == Room::OfOthers => {
                if !self.take_again(arena) {
                    let new = self.use_of(offer, slot_bytes);
                    let may_go = |state, of: &Use| {
                        !mirrors || state == State::Spilled || of.origin == Origin::OneShot
                    };
                    self.evict(Some((&new, &offer.record.parent)), may_go)?;
                }
                self.table.reserve(caller, offer.record)?
            }
            Err(Refused::Stored) if offer.origin == Origin::Session => {
                self.name_chain(offer.record.name);
                return Err(Refused::Stored.into());
            }
            other => other?,
        };
        self.enter(ticket.slot, offer, slot_bytes);
        Ok(ticket)
    }

    /// Has one more slot by taking memory that was given back, where that may be.
    fn take_again(&mut self, arena: &Arena) -> bool {
        if self.held_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        let Some(&slot) = self.given_back.first() else {
            return false;
        };
        match arena.take_again(slot) {
            Ok(()) => {
                self.given_back.remove(&slot);
                self.table.bring_back(slot);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the machine has no memory for a slot");
                false
            }
        }
    }

    /// Discards the record that is worth least of those that `may_go`: for `new`, if there is one, which must be
    /// worth more and does not build upon it.
    fn evict(
        &mut self,
        new: Option<(&Use, &[u8; 32])>,
        may_go: impl Fn(State, &Use) -> bool,
    ) -> Result<(), Declined> {
        let candidates = self.kept.iter().filter_map(|(&slot, kept)| {
            let header = self.table.header(slot);
            let key = header.record.name.key;
            let is_wanted = new.is_some_and(|(_, parent)| *parent == key);
            let may_go = header.state.is_readable() && may_go(header.state, &kept.of);
            (may_go && self.table.is_unread(slot)).then_some(Candidate {
                slot,
                of: kept.of,
                is_leaf: !is_wanted && !self.children.contains_key(&key),
            })
        });
        let (slot, least) = plan_eviction(&self.model, candidates).ok_or(Refused::Full)?;
        if let Some((new, _)) = new
            && !self.model.admits(new, least)
        {
            self.stats.not_worth += 1;
            return Err(Declined::NotWorth);
        }
        if let Some(kept) = self.kept.get(&slot) {
            self.model.evicted(&kept.of);
        }
        let stamp = self.table.header(slot).stamp;
        self.table.discard(Ticket { slot, stamp });
        self.leave(slot);
        self.stats.evicted += 1;
        Ok(())
    }

    /// Records that are to be spilled, by what they are worth.
    fn sealed(&self) -> Vec<Ticket> {
        let is_meant = |(slot, kept): &(&SlotIndex, &Kept)| {
            let is_sealed = self.table.header(**slot).state == State::Sealed;
            is_sealed && self.model.is_worth_writing(&kept.of)
        };
        let sealed = self.kept.iter().filter(is_meant);
        let mut worths: Vec<(f64, SlotIndex)> = sealed
            .map(|(&slot, kept)| (self.model.worth(&kept.of), slot))
            .collect();
        worths.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let ticket = |(_, slot): (f64, SlotIndex)| Ticket {
            slot,
            stamp: self.table.header(slot).stamp,
        };
        worths.into_iter().map(ticket).collect()
    }

    fn reuse(&mut self, slot: SlotIndex) {
        if let Some(kept) = self.kept.get_mut(&slot) {
            self.model.reused(&mut kept.of);
        }
    }

    fn use_of(&self, offer: &Offer, slot_bytes: u64) -> Use {
        Use {
            origin: offer.origin,
            hits: 0,
            last: self.model.clock(),
            saved_us: offer.record.saved_us.into(),
            bytes: slot_bytes,
        }
    }

    fn enter(&mut self, slot: SlotIndex, offer: &Offer, slot_bytes: u64) {
        let kept = Kept {
            of: self.use_of(offer, slot_bytes),
            parent: offer.record.parent,
        };
        self.kept.insert(slot, kept);
        *self.children.entry(kept.parent).or_default() += 1;
        if offer.origin == Origin::Session {
            let name = offer.record.name;
            let key = kept.parent;
            self.name_chain(RecordName { key, ..name });
        }
    }

    /// A record and all that it builds upon are a conversation's from now on, wherever they came from: without its
    /// beginning none of it is of use.
    fn name_chain(&mut self, mut name: RecordName) {
        while let Some(ticket) = self.table.find(&name)
            && let Some(kept) = self.kept.get_mut(&ticket.slot)
            && kept.of.origin == Origin::OneShot
        {
            kept.of.origin = Origin::Session;
            name.key = kept.parent;
        }
    }

    fn leave(&mut self, slot: SlotIndex) {
        let Some(kept) = self.kept.remove(&slot) else {
            return;
        };
        if let Some(count) = self.children.get_mut(&kept.parent) {
            *count -= 1;
            if *count == 0 {
                self.children.remove(&kept.parent);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
