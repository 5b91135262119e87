use super::mirror_choice::Source;
use crate::{
    kv::{BlockKey, FullBlock, Lacking},
    metrics::TierMetrics,
    sequence::SequenceId,
};
use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    thread::Thread,
    time::{Duration, Instant},
};
use tokio::sync::Notify;
use vitriol_kernels_cpu::{PageFill, PageRead};
use vitriol_proto::kvtier::v1::{Pinned, Ticket};

/// Pages that are lent to be stored at once; they are held as long.
pub const SPILLS_MAX: usize = 64;

/// Conversations of which a turn may wait to be told; of one more the oldest is not.
pub const TURNS_MAX: usize = 64;

/// Where the step thread and the tier's meet: jobs one way, answers the other. Neither waits for the other:
/// the lock is held to move a job, and no job is dropped under it, since a job that ends answers.
///
/// Every job is answered exactly once, whatever becomes of it or of the tier's thread. There are no more looks
/// and fills than sequences, and the desk takes no jobs while no tier is attached.
#[derive(Debug)]
pub struct Desk {
    inner: Mutex<Inner>,
    /// Wakes the tier's thread.
    pub work: Notify,
    closed: Notify,
    attached: Condvar,
    /// The step thread, once it runs.
    step: OnceLock<Thread>,
    lookup_max: Duration,
    pub conversation_tokens_min: usize,
    pub metrics: TierMetrics,
}

#[derive(Debug, Default)]
struct Inner {
    attached: bool,
    closing: bool,
    spills: VecDeque<Spill>,
    /// Pages lent to be stored, those that the tier's thread works on included.
    spills_lent: usize,
    looks: VecDeque<Look>,
    fills: VecDeque<Fill>,
    releases: Vec<(SessionNumber, Vec<Ticket>)>,
    turns: VecDeque<Turn>,
    /// Whose turn is being told.
    telling: Option<Arc<str>>,
    answers: Vec<Answer>,
    prefill_tokens_per_second: Option<f64>,
}

/// Which attachment pins belong to.
pub type SessionNumber = u64;

/// A full page to be stored.
#[derive(Debug)]
pub struct Spill {
    pub key: BlockKey,
    pub parent: BlockKey,
    pub group: usize,
    pub page: PageRead,
    /// The conversation names itself, so it is likely to go on.
    pub of_session: bool,
    /// It need not be offered again.
    pub is_done: bool,
    desk: Arc<Desk>,
}

/// How a turn of a conversation ended.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Not empty.
    pub session_id: Arc<str>,
    /// Of its full blocks.
    pub keys: Vec<BlockKey>,
    /// Prompt and answer.
    pub tokens: usize,
}

/// What there is of a chain?
#[derive(Debug)]
pub struct Look {
    pub sequence: SequenceId,
    pub chain: Vec<BlockKey>,
    /// By group, whether the engine has each block.
    pub has: Vec<Vec<bool>>,
    pub asked_at: Instant,
    /// Who asks waits so long.
    pub until: Instant,
    pub stored: Option<Stored>,
    desk: Arc<Desk>,
}

/// Pages to be filled.
#[derive(Debug)]
pub struct Fill {
    pub sequence: SequenceId,
    pub pages: VecDeque<FillPage>,
    /// Of the pages that were filled, those that are what they should be.
    pub whole: Vec<Lacking>,
    /// Keeps the slots until all is copied.
    pub pins: Pins,
    desk: Arc<Desk>,
}

#[derive(Debug)]
pub struct FillPage {
    pub place: Lacking,
    pub page: PageFill,
    pub parts: Vec<Pinned>,
}

/// Blocks found for a sequence, kept where they are until this is dropped.
#[derive(Debug)]
pub struct Stored {
    /// By group, of each block of the chain.
    pub blocks: Vec<Vec<Option<StoredPage>>>,
    pub pins: Pins,
    /// How long it took to hear of them.
    pub looked: Duration,
}

/// Where a page's parts are.
#[derive(Clone, Debug)]
pub struct StoredPage {
    pub parts: Vec<Pinned>,
    pub source: Source,
}

impl Stored {
    /// By group, whether each block of the chain is there.
    pub fn has(&self) -> Vec<Vec<bool>> {
        let groups = self.blocks.iter();
        groups
            .map(|blocks| blocks.iter().map(Option::is_some).collect())
            .collect()
    }
}

/// Slots pinned by a lookup, given back on Drop.
#[derive(Debug)]
pub struct Pins {
    pub session: SessionNumber,
    pub tickets: Vec<Ticket>,
    desk: Arc<Desk>,
}

/// What comes of a job.
#[derive(Debug)]
pub enum Answer {
    /// There is something on the disk that is worth more time.
    Loads {
        sequence: SequenceId,
        until: Instant,
    },
    Found {
        sequence: SequenceId,
        stored: Option<Stored>,
    },
    Filled {
        sequence: SequenceId,
        whole: Vec<Lacking>,
    },
    /// A page could not be stored.
    NotStored { group: usize, key: BlockKey },
    /// What had been stored is gone.
    NoneStored,
}

/// What the tier's thread does next, the most urgent first.
#[derive(Debug)]
pub enum Job {
    Release(SessionNumber, Vec<Ticket>),
    Look(Look),
    /// A part of it: the rest is to be put back.
    Fill(Fill),
    Spill(Vec<Spill>),
    Turn(Turn),
    /// Nothing is left, and nothing will come.
    End,
}

impl Desk {
    /// `lookup_max`: how long whoever asks waits at most; `conversation_tokens_min`: see [`super::TierPlace`].
    pub fn new(lookup_max: Duration, conversation_tokens_min: usize, metrics: TierMetrics) -> Self {
        Self {
            inner: Mutex::default(),
            work: Notify::new(),
            closed: Notify::new(),
            attached: Condvar::new(),
            step: OnceLock::new(),
            lookup_max,
            conversation_tokens_min,
            metrics,
        }
    }

    /// The thread that answers are for.
    pub fn set_step_thread(&self, thread: Thread) {
        // One step thread uses a desk.
        let _ = self.step.set(thread);
    }

    /// Whether jobs are taken.
    pub fn is_attached(&self) -> bool {
        self.inner().attached
    }

    /// Waits until jobs are taken, so long at most; whether they are. Blocks.
    pub fn wait_attached(&self, within: Duration) -> bool {
        let waits = |inner: &mut Inner| !inner.attached && !inner.closing;
        let waited = self
            .attached
            .wait_timeout_while(self.inner(), within, waits);
        let (inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
        inner.attached
    }

    /// Asks for the blocks of a chain; until when to wait for the answer. `None`: there is nobody to ask.
    pub fn look(
        self: &Arc<Self>,
        sequence: SequenceId,
        chain: &[BlockKey],
        has: Vec<Vec<bool>>,
        now: Instant,
    ) -> Option<Instant> {
        let until = now + self.lookup_max;
        let mut inner = self.inner();
        if !inner.attached {
            return None;
        }
        inner.looks.push_back(Look {
            sequence,
            chain: chain.to_vec(),
            has,
            asked_at: now,
            until,
            stored: None,
            desk: Arc::clone(self),
        });
        drop(inner);
        self.work.notify_one();
        Some(until)
    }

    /// Has pages filled. `pins`: of what they are filled from. The answer comes in any case.
    pub fn fill(self: &Arc<Self>, sequence: SequenceId, pages: Vec<FillPage>, pins: Pins) {
        let fill = Fill {
            sequence,
            pages: pages.into(),
            whole: Vec::new(),
            pins,
            desk: Arc::clone(self),
        };
        self.put_back(fill);
    }

    /// Takes what is left of a fill; dropped, with an answer, where nobody will do it.
    pub fn put_back(&self, fill: Fill) {
        let mut inner = self.inner();
        if inner.attached {
            inner.fills.push_back(fill);
            drop(inner);
            self.work.notify_one();
        } else {
            drop(inner);
            drop(fill);
        }
    }

    /// How many pages are lent to be stored.
    pub fn spills_lent(&self) -> usize {
        self.inner().spills_lent
    }

    /// How many pages it takes to be stored.
    pub fn room_for_spills(&self) -> usize {
        let inner = self.inner();
        match inner.attached {
            true => SPILLS_MAX.saturating_sub(inner.spills_lent),
            false => 0,
        }
    }

    /// Has the page of a block stored.
    pub fn spill(self: &Arc<Self>, group: usize, block: &FullBlock, page: PageRead) {
        let spill = Spill {
            key: block.key,
            parent: block.parent,
            group,
            page,
            of_session: block.is_named,
            is_done: false,
            desk: Arc::clone(self),
        };
        let mut inner = self.inner();
        inner.spills_lent += 1;
        if inner.attached {
            inner.spills.push_back(spill);
            drop(inner);
            self.work.notify_one();
        } else {
            drop(inner);
            drop(spill);
        }
    }

    /// Gives back the pages that wait to be stored of which `is_wanted` says so.
    pub fn withdraw_spills(&self, is_wanted: impl Fn(&Spill) -> bool) {
        let withdrawn: VecDeque<Spill> = {
            let spills = &mut self.inner().spills;
            let (withdrawn, stay) = mem::take(spills).into_iter().partition(is_wanted);
            *spills = stay;
            withdrawn
        };
        drop(withdrawn);
    }

    /// Has a turn told of, when what it computed is stored. Of each conversation the latest turn waits, unless it ended
    /// before it came as far as the one before; also while nobody is there to be told.
    pub fn turn_ended(&self, turn: Turn) {
        let mut inner = self.inner();
        let of_it = |waiting: &&mut Turn| waiting.session_id == turn.session_id;
        match inner.turns.iter_mut().find(of_it) {
            Some(waiting) if waiting.keys.starts_with(&turn.keys) => {}
            Some(waiting) => *waiting = turn,
            None => {
                if inner.turns.len() == TURNS_MAX {
                    inner.turns.pop_front();
                    self.metrics.turns_dropped.inc();
                }
                inner.turns.push_back(turn);
            }
        }
        drop(inner);
        self.work.notify_one();
    }

    /// The turn that was the last job has been told, or was given up.
    pub fn turn_told(&self) {
        self.inner().telling = None;
    }

    /// Conversations of which a turn waits to be told, or is being told.
    pub fn sessions_untold(&self) -> Vec<Arc<str>> {
        let inner = self.inner();
        let waiting = inner.turns.iter().map(|turn| &turn.session_id);
        inner.telling.iter().chain(waiting).cloned().collect()
    }

    /// What has been answered since the last time.
    pub fn answers(&self) -> Vec<Answer> {
        mem::take(&mut self.inner().answers)
    }

    /// How fast prompts are computed now.
    pub fn set_prefill_speed(&self, tokens_per_second: f64) {
        self.inner().prefill_tokens_per_second = Some(tokens_per_second);
    }

    pub fn prefill_speed(&self) -> Option<f64> {
        self.inner().prefill_tokens_per_second
    }

    /// Takes jobs from now on, or none any more; then those that wait end without effect.
    pub fn set_attached(&self, attached: bool) {
        let (looks, fills) = {
            let mut inner = self.inner();
            inner.attached = attached && !inner.closing;
            if inner.attached {
                self.attached.notify_all();
                return;
            }
            inner.releases.clear();
            (mem::take(&mut inner.looks), mem::take(&mut inner.fills))
        };
        self.withdraw_spills(|_| true);
        drop((looks, fills));
    }

    /// The engine ends: what waits to be stored still is, nothing new comes.
    pub fn close(&self) {
        self.inner().closing = true;
        self.work.notify_one();
        self.closed.notify_one();
    }

    /// Comes back when the desk closes; for one waiter.
    pub async fn closed(&self) {
        self.closed.notified().await;
    }

    pub fn is_closing(&self) -> bool {
        self.inner().closing
    }

    /// The next job; `spills_max`: most pages to store at once. `None`: there is nothing to do now.
    pub fn next(&self, spills_max: usize) -> Option<Job> {
        let mut inner = self.inner();
        if let Some((session, tickets)) = inner.releases.pop() {
            return Some(Job::Release(session, tickets));
        }
        if let Some(look) = inner.looks.pop_front() {
            return Some(Job::Look(look));
        }
        if let Some(fill) = inner.fills.pop_front() {
            return Some(Job::Fill(fill));
        }
        // One call has one origin.
        let first = inner.spills.front().map(|page| page.of_session);
        let alike = inner.spills.iter();
        let alike = alike.take_while(|page| Some(page.of_session) == first);
        match alike.count().min(spills_max) {
            0 => match inner.turns.pop_front() {
                Some(turn) => {
                    inner.telling = Some(Arc::clone(&turn.session_id));
                    Some(Job::Turn(turn))
                }
                None => inner.closing.then_some(Job::End),
            },
            alike => Some(Job::Spill(inner.spills.drain(..alike).collect())),
        }
    }

    pub fn pins(self: &Arc<Self>, session: SessionNumber) -> Pins {
        Pins {
            session,
            tickets: Vec::new(),
            desk: Arc::clone(self),
        }
    }

    pub fn answer(&self, answer: Answer) {
        self.inner().answers.push(answer);
        if let Some(step) = self.step.get() {
            step.unpark();
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        self.desk.inner().spills_lent -= 1;
        if !self.is_done {
            let (group, key) = (self.group, self.key);
            self.desk.answer(Answer::NotStored { group, key });
        }
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.desk.answer(Answer::Found {
            sequence: self.sequence,
            stored: self.stored.take(),
        });
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        // Given back before the answer says so.
        self.pages.clear();
        self.desk.answer(Answer::Filled {
            sequence: self.sequence,
            whole: mem::take(&mut self.whole),
        });
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let tickets = mem::take(&mut self.tickets);
        if tickets.is_empty() {
            return;
        }
        let mut inner = self.desk.inner();
        if inner.attached {
            inner.releases.push((self.session, tickets));
            drop(inner);
            self.desk.work.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::BlockKeys;

    fn chain() -> Vec<BlockKey> {
        BlockKeys::new(&[0; 32], b"").chain(&[7; 128])
    }

    fn look(desk: &Arc<Desk>, sequence: u64) -> bool {
        desk.look(
            SequenceId(sequence),
            &chain(),
            vec![vec![false; 2]],
            Instant::now(),
        )
        .is_some()
    }

    #[test]
    fn nobody_is_asked_while_nobody_is_there() {
        let desk = Arc::new(Desk::new(Duration::from_secs(1), 0, TierMetrics::default()));
        assert!(!look(&desk, 1));
        desk.fill(SequenceId(2), Vec::new(), desk.pins(0));
        let answers = desk.answers();
        assert!(matches!(
            answers[..],
            [Answer::Filled {
                sequence: SequenceId(2),
                ..
            }]
        ));
        assert!(desk.next(1).is_none());
    }

    #[test]
    fn whoever_asks_is_answered_whatever_happens() {
        let desk = Arc::new(Desk::new(Duration::from_secs(1), 0, TierMetrics::default()));
        desk.set_attached(true);
        assert!(look(&desk, 1) && look(&desk, 2));
        let Some(Job::Look(mut first)) = desk.next(1) else {
            panic!("a look is the first job");
        };
        let mut pins = desk.pins(3);
        pins.tickets.push(Ticket::default());
        first.stored = Some(Stored {
            blocks: Vec::new(),
            pins,
            looked: Duration::ZERO,
        });
        drop(first);
        // The other one finds no tier any more.
        desk.set_attached(false);
        let mut answers = desk.answers();
        let Some(Answer::Found {
            sequence: SequenceId(2),
            stored: None,
        }) = answers.pop()
        else {
            panic!("{answers:?}");
        };
        let Some(Answer::Found {
            sequence: SequenceId(1),
            stored: Some(stored),
        }) = answers.pop()
        else {
            panic!("{answers:?}");
        };
        // Pins that nobody wants go back, if there is somebody to give them back to.
        desk.set_attached(true);
        drop(stored);
        assert!(matches!(desk.next(1), Some(Job::Release(3, tickets)) if tickets.len() == 1));
        assert!(desk.next(1).is_none());
        desk.close();
        assert!(matches!(desk.next(1), Some(Job::End)));
    }

    #[test]
    fn the_latest_turn_of_each_conversation_waits_and_none_for_ever() {
        let desk = Arc::new(Desk::new(Duration::from_secs(1), 0, TierMetrics::default()));
        let chain = BlockKeys::new(&[0; 32], b"").chain(&[7; 192]);
        let turn = |session: &str, keys: usize, tokens: usize| Turn {
            session_id: session.into(),
            keys: chain[..keys].to_vec(),
            tokens,
        };
        desk.turn_ended(turn("a", 1, 70));
        desk.turn_ended(turn("b", 1, 80));
        desk.turn_ended(turn("a", 3, 200));
        // It was cancelled.
        desk.turn_ended(turn("a", 2, 150));
        desk.close();
        let untold = |sessions: &[&str]| {
            let of: Vec<Arc<str>> = sessions.iter().map(|&session| session.into()).collect();
            assert_eq!(desk.sessions_untold(), of);
        };
        untold(&["a", "b"]);
        let mut told = Vec::new();
        while let Some(Job::Turn(turn)) = desk.next(1) {
            untold(&["a", "b"][told.len()..]);
            desk.turn_told();
            told.push((turn.session_id.to_string(), turn.keys.len(), turn.tokens));
        }
        untold(&[]);
        assert_eq!(told, [("a".to_owned(), 3, 200), ("b".to_owned(), 1, 80)]);
        for session in 0..=TURNS_MAX {
            desk.turn_ended(turn(&session.to_string(), 1, 70));
        }
        assert_eq!(desk.metrics.turns_dropped.get(), 1);
        let Some(Job::Turn(oldest)) = desk.next(1) else {
            panic!("turns wait");
        };
        assert_eq!(&*oldest.session_id, "1");
    }
}
