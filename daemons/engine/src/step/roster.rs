use super::{
    outbox::Outbox,
    running::{Filling, Lookup, Running, Sequence},
    snapshot::SlotSnapshot,
};
use crate::{
    divergence::LastRequests,
    kv::{
        BlockKey, BlockTables, FullBlock, GroupPool, GroupPools, Lacking, PAGE_TOKENS, PageRef,
        PoolUse, Storing, Window, longest_prefix,
    },
    metrics::EngineMetrics,
    scheduler::{
        AdmissionOrder, Candidate, Fit, Holder, Reservations, Scheduler, SequenceView, Share,
        StepBounds, TenantUse, Work, choose_victim,
    },
    sequence::{EndReason, EventKind, NewSequence, SequenceId},
    speculation::Drafter,
    tier::{
        desk::{Stored, Turn},
        mirror_choice::Source,
    },
};
use std::{
    collections::BTreeSet,
    fmt::Display,
    sync::Arc,
    time::{Duration, Instant},
};

/// What bounds a roster.
#[derive(Clone, Debug)]
pub struct RosterLimits {
    /// Sequences that run at once.
    pub sequences_max: usize,
    pub bounds: StepBounds,
    /// Window and pages of each KV group.
    pub groups: Vec<(Window, usize)>,
    pub reservations: Reservations,
    /// Pages that become full are to be stored, see [`Roster::lend_unstored`], from so many tokens on as those of a
    /// conversation, if it has a name. `None`: they are not.
    pub conversation_tokens_min: Option<usize>,
}

/// Pages that a sequence has for others to fill.
#[derive(Debug)]
pub struct FillOrder {
    pub sequence: SequenceId,
    /// What to fill them from.
    pub stored: Stored,
    /// Each with its page.
    pub pages: Vec<(Lacking, u32)>,
}

/// The sequences of the step thread and their pages: who waits, who runs, who gives way.
///
/// ```text
///   submit --> waiting --admit--> running --ended--> gone, its pages free or cached
///                 ^                  |
///                 +---- gives way ---+   when pages run out: its tokens stay, its KV is computed anew
/// ```
/// A sequence starts when a slot is free and there are pages for the tokens it has and some more; it
/// may grow beyond that, so pages can run out. Whatever gives way goes on with the same tokens: what a
/// step computes does not depend on how often it was computed before (ADR 2).
#[derive(Debug)]
pub struct Roster {
    limits: RosterLimits,
    metrics: EngineMetrics,
    pools: GroupPools,
    scheduler: Scheduler,
    drafter: Option<Box<dyn Drafter>>,
    order: AdmissionOrder,
    arrivals: u64,
    /// In order of arrival.
    waiting: Vec<Sequence>,
    /// In order of arrival.
    pub running: Vec<Running>,
    /// Pages that another thread has, by group: nobody else gets them before they are back.
    lent: Vec<(usize, PageRef)>,
    /// Turns of named conversations that have ended, where there is a tier.
    turns: Vec<Turn>,
    last_requests: Arc<LastRequests>,
}

impl Roster {
    /// `drafter`: `None`, nothing is drafted. `last_requests`: where the tokens of those that end go.
    pub fn new(
        limits: RosterLimits,
        drafter: Option<Box<dyn Drafter>>,
        metrics: EngineMetrics,
        last_requests: Arc<LastRequests>,
    ) -> Self {
        Self {
            pools: GroupPools::new(&limits.groups, limits.bounds.tokens_max),
            scheduler: Scheduler::new(limits.bounds),
            drafter,
            order: AdmissionOrder::default(),
            arrivals: 0,
            waiting: Vec::new(),
            running: Vec::new(),
            lent: Vec::new(),
            turns: Vec::new(),
            last_requests,
            limits,
            metrics,
        }
    }

    pub fn submit(&mut self, new: NewSequence) {
        self.waiting.push(Sequence::new(new, self.arrivals));
        self.arrivals += 1;
    }

    /// Has `ask` ask what is stored of the sequence submitted last, if there is more of it to find than is
    /// here: its chain and what is. It waits for the answer until the time that `ask` says.
    pub fn look_up(
        &mut self,
        ask: impl FnOnce(SequenceId, &[BlockKey], Vec<Vec<bool>>) -> Option<Instant>,
    ) {
        if let Some(last) = self.waiting.len().checked_sub(1) {
            self.look_up_one(last, ask);
        }
    }

    fn look_up_one(
        &mut self,
        index: usize,
        ask: impl FnOnce(SequenceId, &[BlockKey], Vec<Vec<bool>>) -> Option<Instant>,
    ) {
        let sequence = &mut self.waiting[index];
        let chain = &sequence.chain;
        let is_whole = self.pools.longest_prefix(chain) == chain.len();
        sequence.stored = (!is_whole)
            .then(|| ask(sequence.new.id, chain, self.pools.has(chain)))
            .flatten()
            .map_or(Lookup::NotAsked, Lookup::Asked);
    }

    /// A sequence that waits to know what is stored waits until then.
    pub fn extend_lookup(&mut self, id: SequenceId, until: Instant) {
        if let Some(at) = self.lookups().find_map(|(of, at)| (of == id).then_some(at)) {
            *at = until;
        }
    }

    /// Nobody waits any longer to know what is stored than he is to at `now`; until when the next one does.
    pub fn end_lookups(&mut self, now: Instant) -> Option<Instant> {
        for sequence in &mut self.waiting {
            if matches!(sequence.stored, Lookup::Asked(until) if until <= now) {
                sequence.stored = Lookup::NotAsked;
                self.metrics.tier.lookups_late.inc();
            }
        }
        self.lookups().map(|(_, until)| *until).min()
    }

    fn lookups(&mut self) -> impl Iterator<Item = (SequenceId, &mut Instant)> {
        let waiting = self.waiting.iter_mut();
        waiting.filter_map(|sequence| match &mut sequence.stored {
            Lookup::Asked(until) => Some((sequence.new.id, until)),
            Lookup::NotAsked | Lookup::Wanted | Lookup::Found(_) => None,
        })
    }

    /// What is stored of a sequence that waits to know.
    pub fn found(&mut self, id: SequenceId, stored: Option<Stored>) {
        let is_asked =
            |of: &&mut Sequence| of.new.id == id && matches!(of.stored, Lookup::Asked(_));
        if let Some(sequence) = self.waiting.iter_mut().find(is_asked) {
            sequence.stored = stored.map_or(Lookup::NotAsked, Lookup::Found);
        }
    }

    /// The pages of sequences that have just started and are to be filled.
    pub fn take_fills(&mut self, now: Instant) -> Vec<FillOrder> {
        let mut fills = Vec::new();
        for running in &mut self.running {
            let Some(filling) = &mut running.filling else {
                continue;
            };
            let Some(stored) = filling.from.take() else {
                continue;
            };
            filling.began = Some(now);
            let mut pages = Vec::with_capacity(filling.lacking.len());
            for &lacking in &filling.lacking {
                if let Some(page) = running.tables.lacking_page(lacking) {
                    pages.push((lacking, page.page()));
                    self.lent.push((lacking.group, page.keep()));
                }
            }
            fills.push(FillOrder {
                sequence: running.sequence.new.id,
                stored,
                pages,
            });
        }
        fills
    }

    /// Pages were filled, those that are `whole` with what they should be: the sequence goes on behind the
    /// longest prefix that there is now. `copy`: as of [`Self::admit`].
    pub fn filled<E>(
        &mut self,
        id: SequenceId,
        whole: &[Lacking],
        now: Instant,
        outbox: &mut Outbox,
        copy: impl FnMut(usize, u32, u32) -> Result<(), E>,
    ) {
        let mut running = self.running.iter_mut();
        let Some(running) = running.find(|running| running.sequence.new.id == id) else {
            return;
        };
        let Some(filling) = running.filling.take() else {
            return;
        };
        for &lacking in whole {
            running.tables.seal_filled(lacking);
        }
        let chain = &running.sequence.chain;
        let prefix = self.pools.longest_prefix(chain);
        let storing = storing(&self.limits, &running.sequence);
        let (tables, computed) = begin(&self.pools, &running.sequence, prefix, storing, copy);
        // Held until the new ones hold what they share.
        running.tables = tables;
        running.computed = computed;
        let of = |source| {
            let blocks = filling.sources.iter().take(prefix);
            blocks.filter(|&&of| of == source).count() * PAGE_TOKENS
        };
        let (arena_tokens, mirror_tokens) = (of(Source::Arena), of(Source::Mirror));
        let tier = &self.metrics.tier;
        tier.tokens_arena.inc_by(arena_tokens as u64);
        tier.tokens_mirror.inc_by(mirror_tokens as u64);
        let brought = EventKind::Brought {
            arena_tokens,
            mirror_tokens,
            took: filling.looked
                + filling
                    .began
                    .map_or(Duration::ZERO, |at| now.saturating_duration_since(at)),
        };
        // What comes back after it gave way is no news of its prompt.
        if running.sequence.tokens_cached.is_none() {
            outbox.push(&running.sequence.new, brought);
        }
        tell_start(&mut running.sequence, computed, &self.metrics, outbox);
    }

    /// Hands `lend` at most `most` pages that wait to be stored, each with its group. They are held from then
    /// on until [`Self::release_lent`], and are stored unless [`Self::not_stored`] says otherwise.
    ///
    /// While pages are scarce only such as sequences hold anyway.
    pub fn lend_unstored(&mut self, most: usize, mut lend: impl FnMut(usize, FullBlock, u32)) {
        let also_idle = !self.is_short_of_pages();
        let mut left = most;
        for (index, group) in self.pools.groups().iter().enumerate() {
            // A group whose windows pass fills pages as fast as any other.
            let next = || group.pool.next_unstored(also_idle);
            for (block, page) in std::iter::from_fn(next).take(left) {
                lend(index, block, page.page());
                self.lent.push((index, page));
                left -= 1;
            }
        }
    }

    /// The page of a block was not stored: it waits for it again.
    pub fn not_stored(&mut self, group: usize, key: &BlockKey) {
        self.pools.groups()[group].pool.not_stored(key);
    }

    /// Nothing is stored any more of what was.
    pub fn none_stored(&mut self) {
        for group in self.pools.groups() {
            group.pool.none_stored();
        }
    }

    /// How many pages wait to be stored.
    pub fn unstored(&self) -> usize {
        let groups = self.pools.groups().iter();
        groups.map(|group| group.pool.unstored()).sum()
    }

    /// How many sequences wait for what is stored.
    pub fn restoring(&self) -> usize {
        let asked = |sequence: &&Sequence| matches!(sequence.stored, Lookup::Asked(_));
        let is_filled = |running: &&Running| running.filling.is_some();
        self.waiting.iter().filter(asked).count() + self.running.iter().filter(is_filled).count()
    }

    /// How many pages were given up before they were stored, since the last time.
    pub fn take_lost(&self) -> u64 {
        let groups = self.pools.groups().iter();
        groups.map(|group| group.pool.take_lost()).sum()
    }

    /// Whether a page that is lent would be free if it came back.
    pub fn is_kept_by_loan(&self, group: usize, page: u32) -> bool {
        self.pools.groups()[group].pool.has_one_holder(page)
    }

    /// Turns of named conversations that have ended since the last time.
    pub fn take_turns(&mut self) -> Vec<Turn> {
        std::mem::take(&mut self.turns)
    }

    /// Gives back pages that nobody else has any more.
    pub fn release_lent(&mut self, is_lent: impl Fn(usize, u32) -> bool) {
        self.lent
            .retain(|(group, page)| is_lent(*group, page.page()));
    }

    /// Whether pages are so scarce that none should be kept for anything but sequences.
    pub fn is_short_of_pages(&self) -> bool {
        self.pools.is_short()
    }

    /// Pages of all groups together.
    pub fn usage(&self) -> PoolUse {
        self.pools.usage()
    }

    /// Pages of each group that are held or cached.
    pub fn pages_in_use(&self) -> impl Iterator<Item = usize> {
        let used = |group: &GroupPool| {
            let PoolUse { held, cached, .. } = group.pool.usage();
            held + cached
        };
        self.pools.groups().iter().map(used)
    }

    pub fn snapshots(&self) -> impl Iterator<Item = SlotSnapshot> {
        self.running.iter().map(Running::snapshot)
    }

    /// Ends what was cancelled, waiting or running, and what nobody listens to any more; returns how
    /// many waited and how many ran.
    pub fn drop_cancelled(&mut self, outbox: &mut Outbox) -> (usize, usize) {
        let mut stays = |sequence: &Sequence| {
            let new = &sequence.new;
            let gone = new.control.is_cancelled() || new.sink.channel.is_closed();
            if gone {
                let reason = EndReason::Cancelled;
                outbox.push(new, EventKind::Ended { reason });
            }
            !gone
        };
        let before = (self.waiting.len(), self.running.len());
        self.waiting.retain(&mut stays);
        let gone = |running: &mut Running| !stays(&running.sequence);
        for running in self.running.extract_if(.., gone) {
            self.turns.extend(turn_of(&running, &self.limits));
            remember(running, &self.last_requests);
        }
        (before.0 - self.waiting.len(), before.1 - self.running.len())
    }

    /// Starts waiting sequences while slots and pages last; how many. `ask`: as of [`Self::look_up`], for those
    /// that gave way and could start again. `copy` makes a new page of a group usable, the third, with the
    /// content of another, the second.
    pub fn admit<E>(
        &mut self,
        outbox: &mut Outbox,
        mut ask: impl FnMut(SequenceId, &[BlockKey], Vec<Vec<bool>>) -> Option<Instant>,
        mut copy: impl FnMut(usize, u32, u32) -> Result<(), E>,
    ) -> usize {
        let before = self.running.len();
        while self.running.len() < self.limits.sequences_max && !self.waiting.is_empty() {
            let Some((index, prefix)) = self.choose_next() else {
                break;
            };
            if matches!(self.waiting[index].stored, Lookup::Wanted) {
                self.look_up_one(index, &mut ask);
                if matches!(self.waiting[index].stored, Lookup::Asked(_)) {
                    continue;
                }
            }
            let mut sequence = self.waiting.remove(index);
            let stored = std::mem::replace(&mut sequence.stored, Lookup::NotAsked);
            let storing = storing(&self.limits, &sequence);
            let filling = match stored {
                Lookup::Found(stored) => {
                    begin_filling(&self.pools, &sequence, prefix, storing, stored)
                }
                Lookup::NotAsked | Lookup::Wanted | Lookup::Asked(_) => None,
            };
            let (filling, tables, computed) = match filling {
                Some((filling, tables)) => (Some(filling), tables, 0),
                None => {
                    let (tables, computed) =
                        begin(&self.pools, &sequence, prefix, storing, &mut copy);
                    tell_start(&mut sequence, computed, &self.metrics, outbox);
                    (None, tables, computed)
                }
            };
            let slot = free_slot(&self.running);
            let at = self
                .running
                .partition_point(|r| r.sequence.arrival < sequence.arrival);
            let mut running = Running::new(sequence, slot, tables, computed);
            running.filling = filling;
            self.running.insert(at, running);
        }
        self.running.len() - before
    }

    /// The waiting sequence that starts next, and how many of its blocks it can take over.
    fn choose_next(&mut self) -> Option<(usize, usize)> {
        let waiting = self.waiting.iter();
        let candidates: Vec<_> = waiting.map(|sequence| self.candidate(sequence)).collect();
        let mut used = TenantUse::default();
        for running in &self.running {
            let planned = self.pools.pages_max(running.sequence.tokens_planned());
            used.add(&running.sequence.new.ownership.tenant, planned);
        }
        let mut prefix = 0;
        let chosen = self.order.choose(&candidates, |index| {
            let sequence = &self.waiting[index];
            let tenant = &sequence.new.ownership.tenant;
            let planned = sequence.tokens_planned();
            let growth = self.running.iter().map(Running::growth);
            let kept = |group| self.limits.reservations.kept_from(tenant, group, &used);
            match self.pools.admit(&sequence.chain, planned, growth, kept) {
                None => Fit::No,
                Some(blocks) => {
                    prefix = blocks;
                    let mut with = used.clone();
                    with.add(tenant, self.pools.pages_max(planned));
                    match self.limits.reservations.is_within(tenant, &with) {
                        true => Fit::Reserved,
                        false => Fit::Yes,
                    }
                }
            }
        });
        chosen.map(|index| (index, prefix))
    }

    fn candidate<'a>(&self, sequence: &'a Sequence) -> Candidate<'a> {
        let ownership = &sequence.new.ownership;
        Candidate {
            ownership,
            arrival: sequence.arrival,
            preempted: sequence.gave_way > 0,
            paused: sequence.is_paused() || matches!(sequence.stored, Lookup::Asked(_)),
            has_share: self.limits.reservations.has(&ownership.tenant),
        }
    }

    /// Plans a step at `now` and gives every share the pages it needs; `prepare` makes a new page of a
    /// group usable. Who must give way for that has no share and waits again; how many do.
    ///
    /// A sequence ends for which `prepare` has no memory.
    pub fn plan<E: Display>(
        &mut self,
        now: Instant,
        outbox: &mut Outbox,
        mut prepare: impl FnMut(usize, u32) -> Result<(), E>,
    ) -> (Vec<Share>, usize) {
        for running in &mut self.running {
            running.note_phase(now);
            if let Some(drafter) = &mut self.drafter {
                running.make_draft(&mut **drafter);
            }
        }
        let views: Vec<_> = self
            .running
            .iter()
            .map(|running| SequenceView {
                ownership: &running.sequence.new.ownership,
                phase: running.phase(),
                depth: running.computed,
                draft: running.draft(),
            })
            .collect();
        let mut shares = self.scheduler.plan_step(&views);
        self.note_refused_drafts(&shares);
        self.pools.tick();
        let mut end = |running: &mut Running, cause: String| {
            tracing::error!(cause, "no KV memory for a sequence; it ends");
            let reason = EndReason::OutOfMemory;
            running.ended = Some(reason);
            outbox.push(&running.sequence.new, EventKind::Ended { reason });
        };
        for share in &shares {
            if let Err(cause) = self.make_room(*share, &mut prepare) {
                end(&mut self.running[share.sequence], cause);
            }
        }
        // Only when everybody has what is sure to be needed: nobody gives way for a draft.
        for share in shares.iter_mut().filter(|share| share.drafted() > 0) {
            if let Err(cause) = self.make_room_for_draft(share, &mut prepare) {
                end(&mut self.running[share.sequence], cause);
            }
        }
        shares.retain(|share| {
            let running = &self.running[share.sequence];
            running.ended.is_none() && !running.gives_way
        });
        let waits_again = self.remove_those_who_leave(&mut shares);
        (shares, waits_again)
    }

    /// Tells those whose drafts are not worth verifying. Beside prefill nobody's are, which says nothing
    /// of them.
    fn note_refused_drafts(&mut self, shares: &[Share]) {
        if shares.iter().any(|share| share.work == Work::Prefill) {
            return;
        }
        for share in shares.iter().filter(|share| share.drafted() == 0) {
            let running = &mut self.running[share.sequence];
            if running.draft().tokens > 0 {
                running.sequence.pace.refused();
            }
        }
    }

    /// Gives the sequence the pages its share needs but for its drafted tokens, if need be from others, unless it must give way
    /// itself. Errors: why the machine or the pool has no page at all.
    fn make_room<E: Display>(
        &mut self,
        share: Share,
        prepare: &mut impl FnMut(usize, u32) -> Result<(), E>,
    ) -> Result<(), String> {
        let sure = share.tokens - share.drafted();
        let needed = (share.depth + sure).div_ceil(PAGE_TOKENS);
        loop {
            let running = &self.running[share.sequence];
            if running.gives_way || running.tables.blocks() >= needed {
                return Ok(());
            }
            if !self.has_page_for(share.sequence) {
                let victim = self.choose_victim(share.sequence);
                // Pages that others have come back by themselves.
                let victim = victim.or((!self.lent.is_empty()).then_some(share.sequence));
                let victim = victim.ok_or_else(|| "every page is held".to_owned())?;
                self.running[victim].gives_way = true;
                self.running[victim].tables.give_back();
                continue;
            }
            self.grow(share.sequence, prepare)?;
        }
    }

    /// Gives the sequence the page that its drafted tokens need, if there is one to spare; else drafts
    /// are cut to what has room. Errors: as [`Self::make_room`].
    fn make_room_for_draft<E: Display>(
        &mut self,
        share: &mut Share,
        prepare: &mut impl FnMut(usize, u32) -> Result<(), E>,
    ) -> Result<(), String> {
        loop {
            let running = &self.running[share.sequence];
            if running.gives_way || running.ended.is_some() {
                return Ok(());
            }
            let room = running.tables.blocks() * PAGE_TOKENS - share.depth;
            if room >= share.tokens {
                return Ok(());
            }
            if !self.has_page_for(share.sequence) {
                share.shorten_draft(room - 1);
                return Ok(());
            }
            self.grow(share.sequence, prepare)?;
        }
    }

    /// Adds a page of each group. Errors: why there is none.
    fn grow<E: Display>(
        &mut self,
        sequence: usize,
        prepare: &mut impl FnMut(usize, u32) -> Result<(), E>,
    ) -> Result<(), String> {
        let tables = &mut self.running[sequence].tables;
        tables
            .grow(&self.pools, prepare)
            .map_err(|refusal| match refusal {
                Some(error) => error.to_string(),
                None => "every page is held".to_owned(),
            })
    }

    /// Whether each group has a page that is not kept for others.
    fn has_page_for(&self, sequence: usize) -> bool {
        let used = self.pages_used();
        let tenant = &self.running[sequence].sequence.new.ownership.tenant;
        let mut groups = self.pools.groups().iter().enumerate();
        groups.all(|(index, group)| {
            group.pool.available() > self.limits.reservations.kept_from(tenant, index, &used)
        })
    }

    fn choose_victim(&self, grower: usize) -> Option<usize> {
        let used = self.pages_used();
        // Those who give way already hold nothing; they stay where they are until the step is planned.
        let stay: Vec<usize> = (0..self.running.len())
            .filter(|&index| !self.running[index].gives_way)
            .collect();
        let holders: Vec<_> = stay
            .iter()
            .map(|&index| {
                let sequence = &self.running[index].sequence;
                let ownership = &sequence.new.ownership;
                Holder {
                    ownership,
                    arrival: sequence.arrival,
                    gave_way: sequence.gave_way,
                    protected: self.limits.reservations.is_within(&ownership.tenant, &used),
                }
            })
            .collect();
        let grower = stay.iter().position(|&index| index == grower)?;
        choose_victim(&holders, grower).map(|victim| stay[victim])
    }

    fn pages_used(&self) -> TenantUse<'_> {
        let mut used = TenantUse::default();
        for running in &self.running {
            used.add(
                &running.sequence.new.ownership.tenant,
                running.tables.held(),
            );
        }
        used
    }

    /// Takes out who has ended or gives way and mends the indices of `shares`, which have none of
    /// them; how many wait again.
    fn remove_those_who_leave(&mut self, shares: &mut [Share]) -> usize {
        let leaves = |running: &Running| running.ended.is_some() || running.gives_way;
        let gone: BTreeSet<usize> = (0..self.running.len())
            .filter(|&index| leaves(&self.running[index]))
            .collect();
        if gone.is_empty() {
            return 0;
        }
        for share in shares {
            share.sequence -= gone.range(..share.sequence).count();
        }
        let mut waits_again = 0;
        for running in self.running.extract_if(.., |running| leaves(running)) {
            if running.ended.is_some() {
                self.turns.extend(turn_of(&running, &self.limits));
                remember(running, &self.last_requests);
            } else {
                let sequence = running.give_way();
                let at = self
                    .waiting
                    .partition_point(|w| w.arrival < sequence.arrival);
                self.waiting.insert(at, sequence);
                self.metrics.preemptions.inc();
                waits_again += 1;
            }
        }
        waits_again
    }

    /// A planned step of these shares has been computed, sampled and told in `took_ms`.
    pub fn finish_step(&mut self, shares: &[Share], took_ms: f64) {
        self.scheduler.observe_step(shares, took_ms);
        let ended = |running: &mut Running| running.ended.is_some();
        for running in self.running.extract_if(.., ended) {
            self.turns.extend(turn_of(&running, &self.limits));
            remember(running, &self.last_requests);
        }
    }
}

/// What becomes of the full pages of a sequence.
fn storing(limits: &RosterLimits, sequence: &Sequence) -> Storing {
    let is_named = !sequence.new.session_id.is_empty();
    limits
        .conversation_tokens_min
        .map_or(Storing::Never, |min| Storing::Each {
            named: is_named && sequence.tokens.len() >= min,
        })
}

/// What is to be told of a sequence that ends.
fn turn_of(running: &Running, limits: &RosterLimits) -> Option<Turn> {
    let sequence = &running.sequence;
    let session_id = &sequence.new.session_id;
    let is_told = limits.conversation_tokens_min.is_some() && !session_id.is_empty();
    is_told.then(|| Turn {
        session_id: Arc::clone(session_id),
        keys: running.tables.sealed().to_vec(),
        tokens: sequence.tokens.len(),
    })
}

/// Keeps what a sequence that ends had computed, for the next one of its conversation to be compared with.
fn remember(running: Running, last_requests: &LastRequests) {
    let Sequence {
        new, mut tokens, ..
    } = running.sequence;
    tokens.truncate(running.computed);
    last_requests.put(&new.ownership.tenant, &new.session_id, tokens);
}

/// Tables for a sequence that go on behind the first `prefix` blocks of its chain, and how many of its tokens
/// need no computing.
fn begin<E>(
    pools: &GroupPools,
    sequence: &Sequence,
    prefix: usize,
    storing: Storing,
    copy: impl FnMut(usize, u32, u32) -> Result<(), E>,
) -> (BlockTables, usize) {
    let (keys, prefix) = (sequence.new.blocks.keys, &sequence.chain[..prefix]);
    let (mut tables, blocks) = BlockTables::with_prefix(pools, keys, prefix, storing);
    // At least one token is left: the logits after it are wanted.
    let wanted = &sequence.tokens[blocks..sequence.tokens.len() - 1];
    let computed = blocks + tables.begin_as(pools, wanted, copy);
    (tables, computed)
}

/// Tables with pages to fill from what is stored, if that makes the prefix longer and there are pages.
fn begin_filling(
    pools: &GroupPools,
    sequence: &Sequence,
    prefix: usize,
    storing: Storing,
    stored: Stored,
) -> Option<(Filling, BlockTables)> {
    let chain = &sequence.chain;
    let mut has = pools.has(chain);
    for (has, stored) in has.iter_mut().zip(stored.has()) {
        has.iter_mut()
            .zip(stored)
            .for_each(|(has, stored)| *has |= stored);
    }
    let blocks = longest_prefix(&pools.windows(), &has);
    if blocks <= prefix {
        return None;
    }
    let keys = sequence.new.blocks.keys;
    let (tables, lacking) = BlockTables::to_fill(pools, keys, &chain[..blocks], storing)?;
    let mut sources = vec![Source::Engine; blocks];
    for &Lacking { group, block } in &lacking {
        let page = stored.blocks[group][block].as_ref()?;
        if sources[block] != Source::Mirror {
            sources[block] = page.source;
        }
    }
    let filling = Filling {
        looked: stored.looked,
        began: None,
        from: Some(stored),
        sources,
        lacking,
    };
    Some((filling, tables))
}

/// Tells a sequence, the first time, that it has started and how many tokens of its prompt stand.
fn tell_start(
    sequence: &mut Sequence,
    computed: usize,
    metrics: &EngineMetrics,
    outbox: &mut Outbox,
) {
    if sequence.tokens_cached.is_none() {
        sequence.tokens_cached = Some(computed);
        metrics.prompt_tokens_cached.inc_by(computed as u64);
        let tokens_cached = computed;
        outbox.push(&sequence.new, EventKind::Started { tokens_cached });
    }
}

fn free_slot(running: &[Running]) -> u32 {
    (0..)
        .find(|slot| running.iter().all(|r| r.slot != *slot))
        .unwrap_or(u32::MAX)
}

#[cfg(test)]
mod simulator;
