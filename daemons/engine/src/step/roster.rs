use super::{
    outbox::Outbox,
    running::{Running, Sequence},
    snapshot::SlotSnapshot,
};
use crate::{
    kv::{BlockTables, GroupPool, GroupPools, PAGE_TOKENS, PoolUse, Window},
    metrics::EngineMetrics,
    scheduler::{
        AdmissionOrder, Candidate, Fit, Holder, Reservations, Scheduler, SequenceView, Share,
        StepBounds, TenantUse, Work, choose_victim,
    },
    sequence::{EndReason, EventKind, NewSequence},
    speculation::Drafter,
};
use std::{collections::BTreeSet, fmt::Display, time::Instant};

/// What bounds a roster.
#[derive(Clone, Debug)]
pub struct RosterLimits {
    /// Sequences that run at once.
    pub sequences_max: usize,
    pub bounds: StepBounds,
    /// Window and pages of each KV group.
    pub groups: Vec<(Window, usize)>,
    pub reservations: Reservations,
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
}

impl Roster {
    /// `drafter`: `None`, nothing is drafted.
    pub fn new(
        limits: RosterLimits,
        drafter: Option<Box<dyn Drafter>>,
        metrics: EngineMetrics,
    ) -> Self {
        Self {
            pools: GroupPools::new(&limits.groups, limits.bounds.tokens_max),
            scheduler: Scheduler::new(limits.bounds),
            drafter,
            order: AdmissionOrder::default(),
            arrivals: 0,
            waiting: Vec::new(),
            running: Vec::new(),
            limits,
            metrics,
        }
    }

    pub fn submit(&mut self, new: NewSequence) {
        self.waiting.push(Sequence::new(new, self.arrivals));
        self.arrivals += 1;
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
        self.running.retain(|running| stays(&running.sequence));
        (before.0 - self.waiting.len(), before.1 - self.running.len())
    }

    /// Starts waiting sequences while slots and pages last; how many. `copy` makes a new page of a group
    /// usable, the third, with the content of another, the second.
    pub fn admit<E>(
        &mut self,
        outbox: &mut Outbox,
        mut copy: impl FnMut(usize, u32, u32) -> Result<(), E>,
    ) -> usize {
        let before = self.running.len();
        while self.running.len() < self.limits.sequences_max && !self.waiting.is_empty() {
            let Some((index, prefix)) = self.choose_next() else {
                break;
            };
            let mut sequence = self.waiting.remove(index);
            let (mut tables, blocks) = BlockTables::with_prefix(
                &self.pools,
                sequence.new.blocks.keys,
                &sequence.chain[..prefix],
            );
            // At least one token is left: the logits after it are wanted.
            let wanted = &sequence.tokens[blocks..sequence.tokens.len() - 1];
            let computed = blocks + tables.begin_as(&self.pools, wanted, &mut copy);
            if sequence.tokens_cached.is_none() {
                sequence.tokens_cached = Some(computed);
                self.metrics.prompt_tokens_cached.inc_by(computed as u64);
                let tokens_cached = computed;
                outbox.push(&sequence.new, EventKind::Started { tokens_cached });
            }
            let slot = free_slot(&self.running);
            let at = self
                .running
                .partition_point(|r| r.sequence.arrival < sequence.arrival);
            self.running
                .insert(at, Running::new(sequence, slot, tables, computed));
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
            paused: sequence.is_paused(),
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
            if running.ended.is_none() {
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
        self.running.retain(|running| running.ended.is_none());
    }
}

fn free_slot(running: &[Running]) -> u32 {
    (0..)
        .find(|slot| running.iter().all(|r| r.slot != *slot))
        .unwrap_or(u32::MAX)
}

#[cfg(test)]
mod simulator;
