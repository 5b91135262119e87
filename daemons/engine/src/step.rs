//! The step thread: plan → batch → forward → sample → emit, until told to stop.
//!
//! ```text
//!  request threads --submit--> inbox --> waiting --admit--> running --step--> events --> sinks
//!                                         (FIFO)            (slots)            (one message per
//!                                                                               sink and step)
//! ```
//! The thread owns the model's KV, the page pool and every sequence. It takes no lock that another
//! thread holds for long and never waits for a reader: a sink that is full gets its events with a
//! later step, and the sequences behind it pause when their window is used up.

mod outbox;
mod running;
mod snapshot;

pub use snapshot::{SlotSnapshot, SlotState, Snapshot, SnapshotCell};

use crate::{
    forward::{Activations, Batch, KvStores, forward_tapped},
    kv::{BlockTables, GroupPools, KvCodecs, PAGE_TOKENS},
    metrics::EngineMetrics,
    model::{KvGroup, Model, Tap},
    sampler::Sampler,
    scheduler::{Share, StepBudget, plan_step},
    sequence::{EndReason, EventKind, NewSequence},
};
use outbox::Outbox;
use running::Running;
use std::{
    collections::VecDeque,
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

/// How long an idle step thread sleeps before it goes round once to show that it lives.
const IDLE_ROUND: Duration = Duration::from_millis(500);
/// How soon a full sink is tried again when there is nothing else to do.
const SINK_RETRY: Duration = Duration::from_millis(5);

/// What bounds the loop.
#[derive(Clone, Debug)]
pub struct StepLimits {
    /// Sequences that run at once.
    pub sequences_max: usize,
    /// Requests that may wait for a slot.
    pub queue_max: usize,
    pub budget: StepBudget,
    pub codecs: KvCodecs,
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
    /// Starts the thread. `eog`: ids that end a generation.
    pub fn start(
        model: Arc<Model>,
        eog: Vec<u32>,
        limits: StepLimits,
        metrics: EngineMetrics,
        heartbeat: Heartbeat,
    ) -> Result<Self, StartError> {
        let kv = KvStores::new(&model, limits.codecs, &limits.pages)?;
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
                let pools = GroupPools::new(&groups, limits.budget.tokens_max);
                let step_loop = StepLoop {
                    act: Activations::new(&model),
                    model,
                    kv,
                    eog,
                    limits,
                    metrics,
                    heartbeat,
                    shared: for_loop,
                    submitted,
                    pools,
                    waiting: VecDeque::new(),
                    running: Vec::new(),
                    outbox: Outbox::default(),
                    sampler: Sampler::default(),
                    turn: 0,
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
    limits: StepLimits,
    metrics: EngineMetrics,
    heartbeat: Heartbeat,
    shared: Arc<Shared>,
    submitted: Receiver<NewSequence>,
    pools: GroupPools,
    waiting: VecDeque<NewSequence>,
    running: Vec<Running>,
    outbox: Outbox,
    act: Activations,
    sampler: Sampler,
    turn: u64,
}

impl StepLoop {
    fn run(mut self) {
        let idle = self
            .heartbeat
            .idle_max()
            .map_or(IDLE_ROUND, |max| max.min(IDLE_ROUND));
        while !self.shared.stop.load(Ordering::Acquire) {
            self.waiting.extend(self.submitted.try_iter());
            let dropped = self.drop_cancelled();
            let admitted = self.admit();
            if dropped + admitted > 0 {
                // Shown as running before they stop counting as waiting, so that the engine never
                // looks idle while it is not.
                self.publish();
                self.shared.waiting.fetch_sub(admitted, Ordering::AcqRel);
            }
            let worked = self.step();
            // Shown before it is told: who has heard of an end finds the slot free.
            self.publish();
            self.outbox.flush();
            self.heartbeat.beat();
            if !worked {
                thread::park_timeout(if self.outbox.is_empty() {
                    idle
                } else {
                    SINK_RETRY
                });
            }
        }
    }

    /// Ends what was cancelled, waiting or running, and what nobody listens to any more; how many.
    fn drop_cancelled(&mut self) -> usize {
        let outbox = &mut self.outbox;
        let mut stays = |new: &NewSequence| {
            let gone = new.control.is_cancelled() || new.sink.channel.is_closed();
            if gone {
                let reason = EndReason::Cancelled;
                outbox.push(new, EventKind::Ended { reason });
            }
            !gone
        };
        let (waiting, running) = (self.waiting.len(), self.running.len());
        self.waiting.retain(&mut stays);
        self.running.retain(|running| stays(&running.new));
        let no_longer_waiting = waiting - self.waiting.len();
        self.shared
            .waiting
            .fetch_sub(no_longer_waiting, Ordering::AcqRel);
        no_longer_waiting + running - self.running.len()
    }

    /// Starts waiting sequences, oldest first, while slots and pages last; how many.
    fn admit(&mut self) -> usize {
        let before = self.running.len();
        while self.running.len() < self.limits.sequences_max {
            let Some(next) = self.waiting.front() else {
                break;
            };
            let tokens_max = next.prompt.len() + next.tokens_max;
            let growth = self.running.iter().map(Running::growth);
            let Some(prefix) = self.pools.admit(&next.blocks.chain, tokens_max, growth) else {
                break;
            };
            let Some(new) = self.waiting.pop_front() else {
                break;
            };
            let (tables, tokens_cached) =
                BlockTables::with_prefix(&self.pools, new.blocks.keys, &new.blocks.chain[..prefix]);
            self.metrics
                .prompt_tokens_cached
                .inc_by(tokens_cached as u64);
            self.outbox.push(&new, EventKind::Started { tokens_cached });
            let slot = free_slot(&self.running);
            self.running
                .push(Running::new(new, slot, tables, tokens_cached));
        }
        self.running.len() - before
    }

    /// Computes one step; false when there was nothing to compute.
    fn step(&mut self) -> bool {
        let phases: Vec<_> = self.running.iter().map(Running::phase).collect();
        let mut plan = plan_step(&phases, self.limits.budget, self.turn);
        self.turn += 1;
        self.pools.tick();
        plan.retain(|share| self.make_room(*share));
        if plan.is_empty() {
            self.running.retain(|r| r.ended.is_none());
            return false;
        }

        let started = Instant::now();
        let mut batch = Batch::new(self.model.kv_groups.len());
        for share in &plan {
            let running = &self.running[share.sequence];
            let tokens = running.tokens_to_compute(share.tokens);
            batch.push_run(tokens, running.computed, running.tables.pages());
            if running.computed + share.tokens == running.tokens.len() {
                batch.want_logits();
            }
        }
        let (tokens, answers) = (batch.len(), batch.logits_rows.len());
        let mut pulse = Pulse(&self.heartbeat);
        let logits = forward_tapped(&self.model, &batch, &mut self.kv, &mut self.act, &mut pulse);

        let mut rows = logits.chunks_exact(self.model.hyper.vocab);
        for share in &plan {
            let running = &mut self.running[share.sequence];
            running.advance(share.tokens);
            if running.computed < running.tokens.len() {
                let tokens_done = running.computed;
                self.outbox
                    .push(&running.new, EventKind::Prefilled { tokens_done });
                continue;
            }
            let Some(row) = rows.next() else { continue };
            let position = running.tokens.len() as u64;
            match self.sampler.sample(row, &running.new.sampling, position) {
                Ok(id) => {
                    running.accept(id, self.eog.contains(&id));
                    self.outbox.push(&running.new, EventKind::Token { id });
                }
                Err(error) => running.fail(error, &self.metrics),
            }
            if let Some(reason) = running.ended {
                self.outbox.push(&running.new, EventKind::Ended { reason });
            }
        }
        self.running.retain(|r| r.ended.is_none());
        self.metrics
            .observe_step(started.elapsed(), tokens, answers);
        true
    }

    /// Gives the sequence the pages its share needs. False, and the sequence ends, when the machine
    /// refuses memory; the pool itself cannot run out, admission saw to that.
    fn make_room(&mut self, share: Share) -> bool {
        let running = &mut self.running[share.sequence];
        let needed = (running.computed + share.tokens).div_ceil(PAGE_TOKENS);
        while running.tables.blocks() < needed {
            let grown = running
                .tables
                .grow(&self.pools, |group, page| self.kv.prepare_page(group, page));
            if let Err(refusal) = grown {
                let cause = match refusal {
                    Some(error) => error.to_string(),
                    None => "every page is held".to_owned(),
                };
                tracing::error!(cause, "no KV memory for a sequence; it ends");
                running.ended = Some(EndReason::OutOfMemory);
                let reason = EndReason::OutOfMemory;
                self.outbox.push(&running.new, EventKind::Ended { reason });
                return false;
            }
        }
        true
    }

    fn publish(&mut self) {
        let usage = self.pools.usage();
        self.metrics.observe_pool(usage, self.kv.bytes_committed());
        self.metrics
            .sequences_running
            .set(self.running.len() as i64);
        self.metrics
            .sequences_waiting
            .set(self.shared.waiting.load(Ordering::Acquire) as i64);
        self.shared
            .snapshot
            .write(usage, self.running.iter().map(Running::snapshot));
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

fn free_slot(running: &[Running]) -> u32 {
    (0..)
        .find(|slot| running.iter().all(|r| r.slot != *slot))
        .unwrap_or(u32::MAX)
}
