//! The step thread: plan → batch → forward → sample → emit, until told to stop.
//!
//! ```text
//!  request threads --submit--> inbox --> roster: waiting --admit--> running --step--> events --> sinks
//!                                                 ^--- gives way ---+                (one message per
//!                                                                                     sink and step)
//! ```
//! The thread owns the model's KV, the page pool and every sequence. It takes no lock that another
//! thread holds for long and never waits for a reader: a sink that is full gets its events with a
//! later step, and the sequences behind it pause when their window is used up.

mod outbox;
mod roster;
mod running;
mod snapshot;

pub use running::Taken;
pub use snapshot::{SlotSnapshot, SlotState, Snapshot, SnapshotCell};

use crate::{
    divergence::LastRequests,
    forward::{Activations, Batch, KvStores, forward_tapped},
    kv::{FullBlock, PAGE_TOKENS},
    metrics::EngineMetrics,
    model::{KvGroup, Model, Tap},
    sampler::Sampler,
    scheduler::{Reservations, Share, StepBounds, StepMs, Work},
    sequence::{EventKind, NewSequence},
    speculation::drafter,
    tier::{
        CLOSING,
        desk::{Answer, Desk, FillPage},
    },
};
use outbox::Outbox;
use roster::{Roster, RosterLimits};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};
use vitriol_chassis::{Exit, Heartbeat};
use vitriol_kernels_cpu::KvError;
use vitriol_profile::Speculation;

/// How long an idle step thread sleeps before it goes round once to show that it lives.
const IDLE_ROUND: Duration = Duration::from_millis(500);
/// Without work for so long, memory is found for pages to come: who works in turns with others has none of it
/// in between.
const QUIET_AFTER: Duration = Duration::from_millis(50);
/// After a page could not be stored, nothing is offered for so long.
const SPILL_RETRY: Duration = Duration::from_millis(250);
/// How soon a full sink is tried again when there is nothing else to do.
const SINK_RETRY: Duration = Duration::from_millis(5);

/// What bounds the loop.
#[derive(Clone, Debug)]
pub struct StepLimits {
    /// Sequences that run at once.
    pub sequences_max: usize,
    /// Requests that may wait for a slot.
    pub queue_max: usize,
    pub bounds: StepBounds,
    pub step_ms: StepMs,
    pub reservations: Reservations,
    /// Ids that end a generation.
    pub eog: Vec<u32>,
    pub speculation: Speculation,
    /// Pages of each KV group.
    pub pages: Vec<usize>,
}

/// Why a sequence was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    #[error("{waiting} requests wait already")]
    Busy { waiting: usize },
    #[error("the engine is shutting down")]
    Stopped,
}

/// The other threads' side of the step thread. Dropping it stops the thread and waits for it.
#[derive(Debug)]
pub struct StepThread {
    shared: Arc<Shared>,
    inbox: SyncSender<NewSequence>,
    wake: Thread,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    waiting: AtomicUsize,
    queue_max: usize,
    snapshot: SnapshotCell,
}

impl StepThread {
    /// Starts the thread. `desk`: of the KV tier, if there is to be one; `last_requests`: where the tokens of
    /// requests that end go.
    pub fn start(
        model: Arc<Model>,
        kv: KvStores,
        limits: StepLimits,
        metrics: EngineMetrics,
        heartbeat: Heartbeat,
        desk: Option<Arc<Desk>>,
        last_requests: Arc<LastRequests>,
    ) -> Result<Self, StartError> {
        let (inbox, submitted) = sync_channel(limits.queue_max.max(1));
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            queue_max: limits.queue_max.max(1),
            snapshot: SnapshotCell::new(limits.sequences_max, limits.pages.iter().sum()),
        });
        let for_loop = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("step".to_owned())
            .spawn(move || {
                let windows = model.kv_groups.iter().map(KvGroup::window);
                let groups: Vec<_> = windows.zip(limits.pages.iter().copied()).collect();
                let roster_limits = RosterLimits {
                    sequences_max: limits.sequences_max,
                    bounds: limits.bounds,
                    groups,
                    reservations: limits.reservations,
                    conversation_tokens_min: desk.as_ref().map(|desk| desk.conversation_tokens_min),
                };
                if let Some(desk) = &desk {
                    desk.set_step_thread(thread::current());
                }
                let step_loop = StepLoop {
                    roster: Roster::new(
                        roster_limits,
                        drafter(limits.speculation),
                        metrics.clone(),
                        last_requests,
                    ),
                    decode_stall_ms_max: limits.bounds.decode_stall_ms_max,
                    step_ms: limits.step_ms,
                    act: Activations::new(&model),
                    model,
                    kv,
                    eog: limits.eog,
                    metrics,
                    heartbeat,
                    shared: for_loop,
                    submitted,
                    outbox: Outbox::default(),
                    sampler: Sampler::default(),
                    desk,
                    spills_after: Instant::now(),
                };
                // Requests would wait for ever on a thread that is gone: the process ends as for any
                // internal fault, and the supervisor starts it again.
                if catch_unwind(AssertUnwindSafe(|| step_loop.run())).is_err() {
                    tracing::error!("the step thread panicked; the engine ends");
                    std::process::exit(Exit::Internal.code().into());
                }
            })?;
        Ok(Self {
            shared,
            inbox,
            wake: thread.thread().clone(),
            thread: Some(thread),
        })
    }

    /// Hands over a sequence. Errors: as many wait as may; the thread has stopped. The sequence is
    /// dropped then, without an event.
    pub fn submit(&self, sequence: NewSequence) -> Result<(), SubmitError> {
        let counted = self
            .shared
            .waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                (n < self.shared.queue_max).then_some(n + 1)
            });
        if let Err(waiting) = counted {
            return Err(SubmitError::Busy { waiting });
        }
        // The inbox holds queue_max and `waiting` counts its content too, so it cannot be full.
        self.inbox.try_send(sequence).map_err(|refused| {
            self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
            match refused {
                TrySendError::Full(_) => SubmitError::Busy {
                    waiting: self.shared.queue_max,
                },
                TrySendError::Disconnected(_) => SubmitError::Stopped,
            }
        })?;
        self.wake();
        Ok(())
    }

    /// Something a sequence's control says has changed.
    pub fn wake(&self) {
        self.wake.unpark();
    }

    pub fn snapshot(&self) -> Snapshot {
        // Waiting first: a sequence is shown as running before it stops counting as waiting.
        let waiting = self.shared.waiting.load(Ordering::Acquire);
        Snapshot {
            waiting,
            ..self.shared.snapshot.read()
        }
    }
}

impl Drop for StepThread {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // It does not unwind: a panic in it ends the process.
            let _ = thread.join();
        }
    }
}

/// Why the step thread could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot set up the KV pool; lower kv_bytes_max")]
    Kv(#[from] KvError),
    #[error("cannot start the step thread")]
    Thread(#[from] std::io::Error),
}

struct StepLoop {
    model: Arc<Model>,
    kv: KvStores,
    eog: Vec<u32>,
    decode_stall_ms_max: f64,
    step_ms: StepMs,
    metrics: EngineMetrics,
    heartbeat: Heartbeat,
    shared: Arc<Shared>,
    submitted: Receiver<NewSequence>,
    roster: Roster,
    outbox: Outbox,
    act: Activations,
    sampler: Sampler,
    desk: Option<Arc<Desk>>,
    /// Nothing is offered to be stored before.
    spills_after: Instant,
}

impl StepLoop {
    fn run(mut self) {
        let idle = self.heartbeat.idle_max().min(IDLE_ROUND);
        // Whether nothing has come for a while.
        let mut quiet = false;
        while !self.shared.stop.load(Ordering::Acquire) {
            for new in self.submitted.try_iter() {
                self.roster.submit(new);
                if let Some(desk) = &self.desk {
                    let now = Instant::now();
                    self.roster
                        .look_up(|id, chain, has| desk.look(id, chain, has, now));
                }
            }
            self.hear_of_tier();
            let (dropped, ended) = self.roster.drop_cancelled(&mut self.outbox);
            self.shared.waiting.fetch_sub(dropped, Ordering::AcqRel);
            let kv = &mut self.kv;
            let copy = |group, from, to| kv.copy_page(group, from, to);
            self.roster.end_lookups(Instant::now());
            let ask = |id, chain: &[_], has| {
                let desk = self.desk.as_ref()?;
                desk.look(id, chain, has, Instant::now())
            };
            let admitted = self.roster.admit(&mut self.outbox, ask, copy);
            self.start_fills();
            if dropped + ended + admitted > 0 {
                self.spill();
                self.tell_turns();
                // Shown as running before they stop counting as waiting, so that the engine never
                // looks idle while it is not.
                self.publish();
                self.shared.waiting.fetch_sub(admitted, Ordering::AcqRel);
            }
            let worked = self.step();
            self.spill();
            self.tell_turns();
            // Shown before it is told: who has heard of an end finds the slot free.
            self.publish();
            self.outbox.flush();
            self.heartbeat.beat();
            if worked {
                quiet = false;
            } else if !quiet || !self.kv.commit_ahead(self.roster.pages_in_use()) {
                let round = match (self.outbox.is_empty(), quiet) {
                    (false, _) => SINK_RETRY,
                    (true, false) => QUIET_AFTER.min(idle),
                    (true, true) => idle,
                };
                let now = Instant::now();
                let lookups_until = self.roster.end_lookups(now);
                let left = lookups_until.map(|at| at.saturating_duration_since(now));
                thread::park_timeout(left.map_or(round, |left| round.min(left)));
                quiet = true;
            }
        }
        self.spill_the_rest();
    }

    /// Computes one step; false when there was nothing to compute.
    fn step(&mut self) -> bool {
        let started = Instant::now();
        let kv = &mut self.kv;
        let prepare = |group, page| kv.prepare_page(group, page);
        let (plan, waits_again) = self.roster.plan(started, &mut self.outbox, prepare);
        self.shared.waiting.fetch_add(waits_again, Ordering::AcqRel);
        if plan.is_empty() {
            return waits_again > 0;
        }

        let mut batch = Batch::new(self.model.kv_groups.len());
        for share in &plan {
            let running = &self.roster.running[share.sequence];
            let tokens = running.tokens_to_compute(share);
            batch.push_run(&tokens, running.computed, running.tables.pages());
            batch.want_logits(share.logits);
        }
        let tokens = batch.len();
        let mut pulse = Pulse(&self.heartbeat);
        let logits = forward_tapped(&self.model, &batch, &mut self.kv, &mut self.act, &mut pulse);

        let vocab = self.model.hyper.vocab;
        let mut rest = logits;
        for share in &plan {
            let running = &mut self.roster.running[share.sequence];
            let (rows, after) = rest.split_at(share.logits * vocab);
            rest = after;
            let taken =
                running.take_step(share, &self.eog, Instant::now(), |row, how, position| {
                    self.sampler
                        .sample(&rows[row * vocab..][..vocab], how, position)
                });
            self.metrics.observe_taken(&taken, self.decode_stall_ms_max);
            if share.logits == 0 {
                if let Some(tokens_done) = running.prefill_to_tell() {
                    let event = EventKind::Prefilled { tokens_done };
                    self.outbox.push(&running.sequence.new, event);
                }
                continue;
            }
            let new = &running.sequence.new;
            if taken.drafted > 0 {
                let (tokens, accepted) = (taken.drafted, taken.accepted);
                self.outbox
                    .push(new, EventKind::Drafted { tokens, accepted });
            }
            let tokens = &running.sequence.tokens;
            for &id in &tokens[tokens.len() - taken.tokens..] {
                self.outbox.push(new, EventKind::Token { id });
            }
            if let Some(reason) = running.ended {
                let event = EventKind::Ended { reason };
                self.outbox.push(&running.sequence.new, event);
            }
        }
        let took = started.elapsed();
        self.tell_prefill_speed(&plan, took);
        self.roster.finish_step(&plan, (self.step_ms)(&plan, took));
        self.metrics.observe_step(took, tokens);
        true
    }

    /// Takes what the tier has answered, and pages that it has given back.
    fn hear_of_tier(&mut self) {
        let Some(desk) = &self.desk else { return };
        if self.roster.is_short_of_pages() {
            let roster = &self.roster;
            desk.withdraw_spills(|spill| roster.is_kept_by_loan(spill.group, spill.page.page()));
        }
        for answer in desk.answers() {
            match answer {
                Answer::Loads { sequence, until } => self.roster.extend_lookup(sequence, until),
                Answer::Found { sequence, stored } => self.roster.found(sequence, stored),
                Answer::Filled { sequence, whole } => {
                    let kv = &mut self.kv;
                    let copy = |group, from, to| kv.copy_page(group, from, to);
                    let (now, outbox) = (Instant::now(), &mut self.outbox);
                    self.roster.filled(sequence, &whole, now, outbox, copy);
                }
                Answer::NotStored { group, key } => {
                    self.roster.not_stored(group, &key);
                    self.spills_after = Instant::now() + SPILL_RETRY;
                }
                Answer::NoneStored => self.roster.none_stored(),
            }
        }
        let kv = &self.kv;
        self.roster
            .release_lent(|group, page| kv.is_lent(group, page));
    }

    /// Hands the tier the pages that sequences which have just started have for it to fill.
    fn start_fills(&mut self) {
        let Some(desk) = &self.desk else { return };
        for order in self.roster.take_fills(Instant::now()) {
            let (mut blocks, mut fills) = (order.stored.blocks, Vec::new());
            for group in 0..self.model.kv_groups.len() {
                let of_group = order.pages.iter().filter(|(place, _)| place.group == group);
                if let Some(last) = of_group.map(|&(_, page)| page).max() {
                    // Where there is not so much memory, some pages may still get theirs.
                    let _ = self.kv.commit_on(&self.model.device, group, last);
                }
            }
            for (place, page) in order.pages {
                let found = blocks[place.group][place.block].take();
                // Without memory for it the page is not filled, and whoever computes it hears why.
                if let (Some(found), Ok(page)) = (found, self.kv.lend_to_fill(place.group, page)) {
                    fills.push(FillPage {
                        place,
                        page,
                        parts: found.parts,
                    });
                }
            }
            desk.fill(order.sequence, fills, order.stored.pins);
        }
    }

    /// Lends the tier pages that are to be stored.
    fn spill(&mut self) {
        let Some(desk) = &self.desk else { return };
        if self.roster.unstored() == 0 || Instant::now() < self.spills_after {
            return;
        }
        let kv = &mut self.kv;
        let lend = |group, block: FullBlock, page| desk.spill(group, &block, kv.lend(group, page));
        self.roster.lend_unstored(desk.room_for_spills(), lend);
    }

    /// Has kvtier told of turns that have ended: after their pages were lent, before their slots are shown
    /// as free.
    fn tell_turns(&mut self) {
        let Some(desk) = &self.desk else { return };
        for turn in self.roster.take_turns() {
            desk.turn_ended(turn);
        }
    }

    /// The engine ends: what is not stored yet still is, for a while.
    fn spill_the_rest(&mut self) {
        let until = Instant::now() + CLOSING;
        self.roster.running.clear();
        while Instant::now() < until && self.desk.as_ref().is_some_and(|desk| desk.is_attached()) {
            self.hear_of_tier();
            self.spill();
            if self.roster.unstored() == 0 {
                break;
            }
            self.heartbeat.beat();
            thread::park_timeout(CLOSING / 100);
        }
    }

    /// A step mostly of prompts says how fast these are computed.
    fn tell_prefill_speed(&self, plan: &[Share], took: Duration) {
        let Some(desk) = &self.desk else { return };
        let prefill = plan.iter().filter(|share| share.work == Work::Prefill);
        let tokens: usize = prefill.map(|share| share.tokens).sum();
        if tokens >= PAGE_TOKENS {
            desk.set_prefill_speed(tokens as f64 / took.as_secs_f64().max(1e-6));
        }
    }

    fn publish(&mut self) {
        let usage = self.roster.usage();
        if let Some(desk) = &self.desk {
            let tier = &self.metrics.tier;
            tier.pages_dropped.inc_by(self.roster.take_lost());
            let waiting = self.roster.unstored() + desk.spills_lent();
            tier.pages_waiting.set(waiting as i64);
            tier.restoring.set(self.roster.restoring() as i64);
        }
        self.metrics.observe_pool(usage, self.kv.bytes_committed());
        self.metrics
            .sequences_running
            .set(self.roster.running.len() as i64);
        self.metrics
            .sequences_waiting
            .set(self.shared.waiting.load(Ordering::Acquire) as i64);
        self.shared.snapshot.write(usage, self.roster.snapshots());
    }
}

/// Shows after every layer that the thread lives: a step over a long prompt may take longer than the
/// watchdog waits.
struct Pulse<'a>(&'a Heartbeat);

impl Tap for Pulse<'_> {
    fn layer_output(&mut self, _layer: usize, _hidden: &[f32], _rows: usize) {
        self.0.beat();
    }
}
