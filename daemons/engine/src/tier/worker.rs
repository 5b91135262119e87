use super::{
    CLOSING, TierPlace,
    desk::{Answer, Desk, Fill, Job, Look, SessionNumber, Spill, Stored, StoredPage, Turn},
    mirror_choice::{MirrorPlan, Source, Speeds, plan_mirror},
    records::RecordLayout,
    session::{AttachError, Lost, NAMES_MAX, Session},
};
use crate::{
    kv::{PAGE_TOKENS, Window},
    load::with_causes,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use vitriol_proto::kvtier::v1::{Declined, Pinned, Record, RecordName, Sealed, found, reserved};

/// Pages stored by one call at most: a look that comes meanwhile waits for their copies.
const SPILLS_PER_CALL: usize = 8;
/// Records brought from the mirror by one call at most, of 64 that the service takes: each is read from a
/// disk.
const LOADS_PER_CALL: usize = 16;
/// Least and longest time between two attempts to attach; between these a quarter of what it took so far, so that
/// little is lost however long kvtier takes to come.
const RETRY: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(5)];
/// How often it is looked whether what was stored is ever of use.
const ALARM_EVERY: Duration = Duration::from_secs(3600);
/// Prefill speed before the first measurement, tokens per second: only what records are worth relative to
/// those of others depends on it.
const PREFILL_UNKNOWN: f64 = 100.0;

/// What the tier's thread knows of the engine.
#[derive(Debug)]
pub struct Pages {
    /// By group, what its queries see, and bytes of a page.
    pub windows: Vec<Window>,
    pub page_bytes: Vec<usize>,
    /// Of [`super::encoding`].
    pub encoding: [u8; 32],
}

/// The tier's thread.
#[derive(Debug)]
pub struct Worker {
    place: TierPlace,
    pages: Pages,
    desk: Arc<Desk>,
    sessions: SessionNumber,
    mirror_bytes_per_second: Option<f64>,
    /// Id of the arena that had what was stored.
    arena_id: Vec<u8>,
    alarm: Alarm,
}

/// Whether anything that is stored is ever found.
#[derive(Debug)]
struct Alarm {
    since: Instant,
    spilled: u64,
    looked: u64,
    served: u64,
}

impl Alarm {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            spilled: 0,
            looked: 0,
            served: 0,
        }
    }

    /// Pages stored while nothing was served, once in [`ALARM_EVERY`].
    fn due(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) < ALARM_EVERY {
            return None;
        }
        let seen = std::mem::replace(self, Self::new());
        let is_useless = seen.spilled > 0 && seen.looked > 0 && seen.served == 0;
        is_useless.then_some(seen.spilled)
    }
}

impl Worker {
    pub fn new(place: TierPlace, pages: Pages, desk: Arc<Desk>) -> Self {
        Self {
            place,
            pages,
            desk,
            sessions: 0,
            mirror_bytes_per_second: None,
            arena_id: Vec::new(),
            alarm: Alarm::new(),
        }
    }

    /// Until the desk closes: attaches, works, attaches again.
    pub async fn run(mut self) {
        let desk = Arc::clone(&self.desk);
        let closed = async {
            desk.closed().await;
            if desk.is_attached() {
                tokio::time::sleep(CLOSING).await;
            }
        };
        tokio::select! {
            () = self.live() => {}
            () = closed => {}
        }
    }

    async fn live(&mut self) {
        let [retry_min, retry_max] = RETRY;
        let mut since = Instant::now();
        let mut said = String::new();
        while !self.desk.is_closing() {
            match self.attach(None).await {
                Ok((session, layout)) => {
                    tracing::info!("attached to kvtier: KV of finished blocks outlives the engine");
                    said.clear();
                    self.serve(session, layout).await;
                    since = Instant::now();
                    self.desk.set_attached(false);
                    self.desk.metrics.attached.set(0);
                    continue;
                }
                Err(error) => {
                    let cause = with_causes(&error);
                    if cause != said {
                        tracing::warn!(cause, "no KV tier for now: what is not cached is computed");
                        said = cause;
                    }
                }
            }
            let retry = (since.elapsed() / 4).clamp(retry_min, retry_max);
            tokio::time::sleep(retry).await;
        }
    }

    async fn attach(
        &mut self,
        before: Option<Session>,
    ) -> Result<(Session, RecordLayout), AttachError> {
        self.sessions += 1;
        let session = Session::attach(&self.place, self.sessions, before).await?;
        let slot_bytes = session.arena.slot_bytes();
        let layout = RecordLayout::new(&self.pages.encoding, &self.pages.page_bytes, slot_bytes);
        if !layout.can_be_numbered() {
            return Err(AttachError::Slots { slot_bytes });
        }
        if session.arena.id() != self.arena_id {
            self.arena_id = session.arena.id().to_vec();
            self.desk.answer(Answer::NoneStored);
        }
        Ok((session, layout))
    }

    /// Works until the desk closes, or the session is lost and there is no other.
    async fn serve(&mut self, mut session: Session, mut layout: RecordLayout) {
        self.desk.set_attached(true);
        self.desk.metrics.attached.set(1);
        loop {
            let Some(job) = self.desk.next(SPILLS_PER_CALL) else {
                let lost = tokio::select! {
                    () = self.desk.work.notified() => None,
                    lost = session.ended() => Some(lost),
                };
                if let Some(lost) = lost {
                    let Some(attached) = self.attach_again(session, &lost).await else {
                        return;
                    };
                    (session, layout) = attached;
                }
                continue;
            };
            let done = match job {
                Job::End => return,
                Job::Release(number, pins) if number == session.number => {
                    session.release(pins).await
                }
                // They went with their session.
                Job::Release(..) => Ok(()),
                Job::Fill(fill) => {
                    self.fill(&session, &layout, fill);
                    Ok(())
                }
                Job::Spill(pages) => self.spill(&mut session, &layout, pages).await,
                Job::Turn(turn) => {
                    self.tell_turn(&mut session, &layout, &turn).await;
                    self.desk.turn_told();
                    Ok(())
                }
                Job::Look(mut look) => match self.look(&mut session, &layout, &look).await {
                    // kvtier may have been started anew since it was asked last.
                    Err(lost) => {
                        let Some(attached) = self.attach_again(session, &lost).await else {
                            return;
                        };
                        (session, layout) = attached;
                        let again = self.look(&mut session, &layout, &look).await;
                        again.map(|stored| look.stored = stored)
                    }
                    Ok(stored) => {
                        look.stored = stored;
                        Ok(())
                    }
                },
            };
            if let Err(lost) = done {
                let Some(attached) = self.attach_again(session, &lost).await else {
                    return;
                };
                (session, layout) = attached;
            }
            if let Some(pages) = self.alarm.due(Instant::now()) {
                self.desk.metrics.alarms.inc();
                tracing::warn!(
                    pages,
                    "KV pages were stored and none was served for an hour: prompts never begin as \
                     earlier ones did, or the arena is too small to keep them until they do"
                );
            }
        }
    }

    /// Another session in place of one that is lost; `None`: kvtier is not there.
    async fn attach_again(
        &mut self,
        before: Session,
        lost: &Lost,
    ) -> Option<(Session, RecordLayout)> {
        tracing::debug!(%lost, "attaching to kvtier again");
        match self.attach(Some(before)).await {
            Ok(attached) => Some(attached),
            Err(error) => {
                tracing::warn!(cause = with_causes(&error), "kvtier is gone");
                None
            }
        }
    }

    async fn spill(
        &mut self,
        session: &mut Session,
        layout: &RecordLayout,
        mut pages: Vec<Spill>,
    ) -> Result<(), Lost> {
        let began = Instant::now();
        let speed = self.desk.prefill_speed().unwrap_or(PREFILL_UNKNOWN);
        let block_us = PAGE_TOKENS as f64 / speed * 1e6;
        let of_block: usize = (0..self.pages.page_bytes.len())
            .map(|g| layout.parts(g))
            .sum();
        let parts = pages.iter().enumerate().flat_map(|(index, page)| {
            let parts = 0..layout.parts(page.group);
            parts.map(move |part| (index, part))
        });
        let parts: Vec<(usize, usize)> = parts.collect();
        let record = |&(index, part): &(usize, usize)| {
            let page = &pages[index];
            Record {
                name: Some(layout.name(&page.key, page.group, part)),
                parent: page.parent.as_bytes().to_vec(),
                tokens: PAGE_TOKENS as u32,
                length: layout.range(page.group, part).len() as u64,
                xxh3: 0,
                saved_us: (block_us / of_block as f64) as u32,
            }
        };
        let (mut fates, mut bytes) = (vec![Fate::Stored; pages.len()], 0);
        for parts in parts.chunks(NAMES_MAX) {
            let records = parts.iter().map(record).collect();
            let reserved = session.reserve(records, pages[0].of_session).await?;
            let (mut sealed, mut of) = (Vec::new(), Vec::new());
            for (&(index, part), reserved) in parts.iter().zip(reserved) {
                let page = &pages[index];
                let range = layout.range(page.group, part);
                let length = range.len() as u64;
                let ticket = match reserved {
                    Some(reserved::Kind::Ticket(ticket)) => ticket,
                    Some(reserved::Kind::Declined(why)) => {
                        fates[index] = fates[index].max(Fate::of_declined(why));
                        continue;
                    }
                    None => {
                        fates[index] = Fate::Failed;
                        continue;
                    }
                };
                match session.arena.write(&ticket, &page.page, range) {
                    Some(xxh3) => {
                        sealed.push(Sealed {
                            ticket: Some(ticket),
                            length,
                            xxh3,
                        });
                        of.push((index, length));
                    }
                    None => fates[index] = Fate::Failed,
                }
            }
            for ((index, length), is_sealed) in of.into_iter().zip(session.seal(sealed).await?) {
                match is_sealed {
                    true => {
                        bytes += length;
                        fates[index] = fates[index].max(Fate::Spilled);
                    }
                    false => fates[index] = Fate::Failed,
                }
            }
        }
        for (page, &fate) in pages.iter_mut().zip(&fates) {
            page.is_done = fate != Fate::Failed;
        }
        let count = |fate| fates.iter().filter(|&&of| of == fate).count() as u64;
        let spilled = count(Fate::Spilled);
        let metrics = &self.desk.metrics;
        metrics.pages_spilled.inc_by(spilled);
        metrics.bytes_spilled.inc_by(bytes);
        metrics.pages_dropped.inc_by(count(Fate::Declined));
        metrics.spill_seconds.inc_by(began.elapsed().as_secs_f64());
        self.alarm.spilled += spilled;
        Ok(())
    }

    /// The catalogue has the turn, or waits for the next.
    async fn tell_turn(&self, session: &mut Session, layout: &RecordLayout, turn: &Turn) {
        let chain = layout.chain(&self.pages.windows, &turn.keys);
        let id = turn.session_id.to_string();
        let metrics = &self.desk.metrics;
        match session.put(id, chain, turn.tokens as u64).await {
            Ok(()) => metrics.turns_told.inc(),
            Err(lost) => {
                tracing::debug!(%lost, "a turn is not in the catalogue");
                metrics.turns_dropped.inc()
            }
        };
    }

    /// What there is of a chain; `None`: the time for it has passed.
    async fn look(
        &mut self,
        session: &mut Session,
        layout: &RecordLayout,
        look: &Look,
    ) -> Result<Option<Stored>, Lost> {
        let began = Instant::now();
        let within = look.until.saturating_duration_since(began);
        if within.is_zero() {
            return Ok(None);
        }
        let wanted = look.has.iter().enumerate().flat_map(|(group, has)| {
            let lacking = has.iter().enumerate().filter(|(_, has)| !**has);
            lacking.map(move |(block, _)| (group, block))
        });
        let wanted: Vec<(usize, usize)> = wanted.collect();
        let names = wanted.iter().flat_map(|&(group, block)| {
            let key = &look.chain[block];
            (0..layout.parts(group)).map(move |part| layout.name(key, group, part))
        });
        let names: Vec<RecordName> = names.collect();
        let mut stored = Stored {
            blocks: look.has.iter().map(|has| vec![None; has.len()]).collect(),
            pins: self.desk.pins(session.number),
            looked: Duration::ZERO,
        };
        let mut kinds = Vec::with_capacity(names.len());
        for names in names.chunks(NAMES_MAX) {
            let found = session.lookup(names.to_vec(), within).await?;
            for kind in &found {
                note_pin(&mut stored, kind);
            }
            kinds.extend(found);
        }
        let mut kinds = kinds.into_iter();
        let mut sources: Vec<Vec<Source>> = look
            .has
            .iter()
            .map(|has| {
                let of = |&has: &bool| if has { Source::Engine } else { Source::Nowhere };
                has.iter().map(of).collect()
            })
            .collect();
        for &(group, block) in &wanted {
            let parts: Vec<_> = kinds.by_ref().take(layout.parts(group)).collect();
            let (source, parts) = page_of(layout, group, parts);
            sources[group][block] = source;
            if source == Source::Arena {
                stored.blocks[group][block] = Some(StoredPage { parts, source });
            }
        }
        let speeds = Speeds {
            mirror_bytes_per_second: self.mirror_bytes_per_second,
            prefill_tokens_per_second: self.desk.prefill_speed(),
        };
        let (windows, page_bytes) = (&self.pages.windows, &self.pages.page_bytes);
        if let Some(plan) = plan_mirror(windows, &sources, page_bytes, speeds) {
            self.load(session, layout, look, plan, &mut stored).await?;
        }
        self.alarm.looked += 1;
        let metrics = &self.desk.metrics;
        metrics.lookups.inc();
        metrics.lookup_seconds.inc_by(began.elapsed().as_secs_f64());
        stored.looked = look.asked_at.elapsed();
        Ok(Some(stored))
    }

    /// Brings pages from the mirror, from the first on, as long as that is quicker than to compute them.
    async fn load(
        &mut self,
        session: &mut Session,
        layout: &RecordLayout,
        look: &Look,
        plan: MirrorPlan,
        stored: &mut Stored,
    ) -> Result<(), Lost> {
        let parts_max = (0..self.pages.page_bytes.len())
            .map(|group| layout.parts(group))
            .max();
        let pages_per_call = LOADS_PER_CALL / parts_max.unwrap_or(1).clamp(1, LOADS_PER_CALL);
        let began = Instant::now();
        self.desk.answer(Answer::Loads {
            sequence: look.sequence,
            until: began + plan.within,
        });
        for pages in plan.pages.chunks(pages_per_call) {
            let Some(left) = plan.within.checked_sub(began.elapsed()) else {
                break;
            };
            let called = Instant::now();
            let mut bytes = 0;
            let mut kinds = Vec::new();
            let names: Vec<RecordName> = pages
                .iter()
                .flat_map(|&(group, block)| {
                    let key = &look.chain[block];
                    (0..layout.parts(group)).map(move |part| layout.name(key, group, part))
                })
                .collect();
            for names in names.chunks(LOADS_PER_CALL) {
                let found = session.load(names.to_vec(), left).await?;
                for kind in &found {
                    note_pin(stored, kind);
                }
                kinds.extend(found);
            }
            let mut kinds = kinds.into_iter();
            for &(group, block) in pages {
                let parts: Vec<_> = kinds.by_ref().take(layout.parts(group)).collect();
                let (source, parts) = page_of(layout, group, parts);
                if source != Source::Arena {
                    // What follows it is of no use.
                    return Ok(());
                }
                bytes += self.pages.page_bytes[group];
                let source = Source::Mirror;
                stored.blocks[group][block] = Some(StoredPage { parts, source });
            }
            let speed = bytes as f64 / called.elapsed().as_secs_f64().max(1e-6);
            let before = self.mirror_bytes_per_second.unwrap_or(speed);
            self.mirror_bytes_per_second = Some((3.0 * before + speed) / 4.0);
        }
        Ok(())
    }

    /// Fills one page and puts the rest back: a look that comes meanwhile does not wait for all.
    fn fill(&mut self, session: &Session, layout: &RecordLayout, mut fill: Fill) {
        let began = Instant::now();
        let Some(mut next) = fill.pages.pop_front() else {
            return;
        };
        let group = next.place.group;
        let is_whole = next.parts.iter().enumerate().all(|(part, pinned)| {
            let range = layout.range(group, part);
            session.arena.read(pinned, &mut next.page, range)
        });
        let is_whole = is_whole && next.parts.len() == layout.parts(group);
        let metrics = &self.desk.metrics;
        if is_whole {
            fill.whole.push(next.place);
            self.alarm.served += 1;
            metrics.pages_loaded.inc();
            metrics.bytes_loaded.inc_by(next.page.page_len() as u64);
        } else {
            metrics.pages_refused.inc();
        }
        metrics.fill_seconds.inc_by(began.elapsed().as_secs_f64());
        drop(next);
        if !fill.pages.is_empty() {
            self.desk.put_back(fill);
        }
    }
}

impl Drop for Worker {
    /// Whoever waits for it, or would ask it, need not, however it ends.
    fn drop(&mut self) {
        self.desk.set_attached(false);
    }
}

/// What came of a page that was to be stored; of its parts' the last of these counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// All of it had been before.
    Stored,
    Spilled,
    /// Kvtier does not want it, now or ever.
    Declined,
    /// It may be stored another time.
    Failed,
}

impl Fate {
    fn of_declined(why: i32) -> Self {
        match Declined::try_from(why).unwrap_or_default() {
            Declined::Stored => Self::Stored,
            Declined::NotWorth | Declined::TooLong => Self::Declined,
            Declined::BeingWritten | Declined::Full | Declined::Unspecified => Self::Failed,
        }
    }
}

fn note_pin(stored: &mut Stored, kind: &Option<found::Kind>) {
    if let Some(found::Kind::Arena(Pinned {
        ticket: Some(ticket),
        ..
    })) = kind
    {
        stored.pins.tickets.push(*ticket);
    }
}

/// Where a page can be had whole, and its parts if that is the arena.
fn page_of(
    layout: &RecordLayout,
    group: usize,
    parts: Vec<Option<found::Kind>>,
) -> (Source, Vec<Pinned>) {
    let mut pinned = Vec::with_capacity(parts.len());
    let mut source = Source::Arena;
    for (part, kind) in parts.into_iter().enumerate() {
        match kind {
            Some(found::Kind::Arena(of)) if of.length == layout.range(group, part).len() as u64 => {
                pinned.push(of);
            }
            Some(found::Kind::Mirror(true)) => source = Source::Mirror,
            _ => return (Source::Nowhere, Vec::new()),
        }
    }
    (source, pinned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(length: u64) -> Option<found::Kind> {
        Some(found::Kind::Arena(Pinned {
            length,
            ..Pinned::default()
        }))
    }

    #[test]
    fn a_page_is_where_all_its_parts_are() {
        let layout = RecordLayout::new(&[0; 32], &[5000], 4096);
        let mirror = Some(found::Kind::Mirror(true));
        let source = |parts| page_of(&layout, 0, parts).0;
        assert_eq!(source(vec![found(4096), found(904)]), Source::Arena);
        assert_eq!(source(vec![found(4096), mirror]), Source::Mirror);
        assert_eq!(
            source(vec![mirror, Some(found::Kind::Nowhere(true))]),
            Source::Nowhere
        );
        assert_eq!(source(vec![found(4096), found(905)]), Source::Nowhere);
        assert_eq!(source(vec![found(4096), None]), Source::Nowhere);
    }

    #[test]
    fn what_is_stored_and_never_served_is_told_once_an_hour() {
        let mut alarm = Alarm::new();
        let after = alarm.since + ALARM_EVERY;
        (alarm.spilled, alarm.looked) = (5, 1);
        assert_eq!(alarm.due(after - Duration::from_secs(1)), None);
        assert_eq!(alarm.due(after), Some(5));
        (alarm.spilled, alarm.looked, alarm.served) = (5, 1, 1);
        assert_eq!(alarm.due(alarm.since + ALARM_EVERY), None);
        (alarm.spilled, alarm.looked) = (5, 0);
        assert_eq!(alarm.due(alarm.since + ALARM_EVERY), None, "nobody asked");
    }
}
