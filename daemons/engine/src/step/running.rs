use super::snapshot::{SlotSnapshot, SlotState};
use crate::{
    kv::{BlockKey, BlockKeys, BlockTables, Growth, Lacking},
    sampler::{NotFinite, Sampling},
    scheduler::{Draft, Phase, Share},
    sequence::{EndReason, NewSequence},
    speculation::{DRAFTED_MAX, Drafter, Pace},
    tier::{desk::Stored, mirror_choice::Source},
};
use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};
use vitriol_chassis::event;

/// Tokens that a sequence gets room for beyond those it has: with less, one that has just started
/// would soon take pages from another.
const ROOM_TOKENS: usize = 128;

/// A sequence, whether it waits or runs.
#[derive(Debug)]
pub struct Sequence {
    /// Its prompt is in `tokens`.
    pub new: NewSequence,
    /// Rises with each sequence that is submitted.
    pub arrival: u64,
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    pub prompt_tokens: usize,
    /// Keys of the full blocks it can take over; at least one token is left to compute.
    pub chain: Vec<BlockKey>,
    /// Of its prompt, tokens reused when it first started; `None` until then.
    pub tokens_cached: Option<usize>,
    /// How often it gave way to another.
    pub gave_way: u32,
    pub pace: Pace,
    pub stored: Lookup,
    /// Prompt tokens of which its owner knows that they are computed.
    prefill_told: usize,
}

impl Sequence {
    pub fn new(mut new: NewSequence, arrival: u64) -> Self {
        let tokens = mem::take(&mut new.prompt);
        let chain = mem::take(&mut new.blocks.chain);
        Self {
            new,
            arrival,
            prompt_tokens: tokens.len(),
            tokens,
            chain,
            tokens_cached: None,
            gave_way: 0,
            pace: Pace::default(),
            stored: Lookup::NotAsked,
            prefill_told: 0,
        }
    }

    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_tokens
    }

    /// Whether its reader is behind by as much as it may be.
    pub fn is_paused(&self) -> bool {
        self.generated() > 0 && self.tokens_until_pause() == 0
    }

    fn tokens_until_pause(&self) -> u64 {
        let generated = self.generated() as u64;
        let untaken = generated.saturating_sub(self.new.control.tokens_taken());
        self.new.window_tokens.saturating_sub(untaken)
    }

    /// Most tokens that may be drafted to follow the next one: no more than may be generated.
    fn draft_tokens_max(&self) -> usize {
        let left = (self.new.tokens_max - self.generated()) as u64;
        let may_come = left.min(self.tokens_until_pause());
        may_come.saturating_sub(1).min(DRAFTED_MAX as u64) as usize
    }

    /// Tokens it is to have room for before another may start.
    pub fn tokens_planned(&self) -> usize {
        (self.tokens.len() + ROOM_TOKENS).min(self.prompt_tokens + self.new.tokens_max)
    }
}

/// What is known of KV that is stored for a sequence.
#[derive(Debug)]
pub enum Lookup {
    /// Nothing, and nothing will come.
    NotAsked,
    /// It is to be asked before it starts.
    Wanted,
    /// It waits for the answer until then, and does not start before.
    Asked(Instant),
    Found(Stored),
}

/// Pages of a sequence that are being filled; it computes nothing before.
#[derive(Debug)]
pub struct Filling {
    /// What fills them, until that is under way.
    pub from: Option<Stored>,
    /// By block of the prefix, where it comes from.
    pub sources: Vec<Source>,
    pub lacking: Vec<Lacking>,
    /// How long it took to hear what is stored.
    pub looked: Duration,
    /// Since when pages are being filled.
    pub began: Option<Instant>,
}

/// What a step brought a sequence: its last so many `tokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub tokens: usize,
    /// Tokens drafted, and how many of these, the first ones, were accepted.
    pub drafted: usize,
    pub accepted: usize,
    /// How long the first of the tokens was waited for, if nothing but the engine kept it so long.
    pub waited: Option<Duration>,
    /// Why it ended before its time.
    pub error: Option<NotFinite>,
}

/// A sequence with a slot and pages.
#[derive(Debug)]
pub struct Running {
    pub sequence: Sequence,
    pub slot: u32,
    pub tables: BlockTables,
    /// Tokens whose KV stands.
    pub computed: usize,
    /// Tokens that may follow the one that the next step computes.
    draft: Vec<u32>,
    pub ended: Option<EndReason>,
    /// It must make room for another when the step is planned.
    pub gives_way: bool,
    pub filling: Option<Filling>,
    /// Since when it waits for its next token, which nothing but the engine keeps from it.
    ready_since: Option<Instant>,
}

impl Running {
    pub fn new(sequence: Sequence, slot: u32, tables: BlockTables, computed: usize) -> Self {
        Self {
            sequence,
            slot,
            tables,
            computed,
            draft: Vec::new(),
            ended: None,
            gives_way: false,
            filling: None,
            ready_since: None,
        }
    }

    pub fn phase(&self) -> Phase {
        if self.sequence.is_paused() || self.filling.is_some() {
            return Phase::Paused;
        }
        match self.sequence.tokens.len() - self.computed {
            1 if self.sequence.generated() > 0 => Phase::Decode,
            tokens_left => Phase::Prefill { tokens_left },
        }
    }

    /// Takes note at `now` whether it can decode; the time that it cannot is no stall.
    pub fn note_phase(&mut self, now: Instant) {
        match self.phase() {
            Phase::Paused => self.ready_since = None,
            Phase::Decode => self.ready_since = self.ready_since.or(Some(now)),
            Phase::Prefill { .. } => {}
        }
    }

    /// How far it is sure to grow.
    pub fn growth(&self) -> Growth {
        Growth {
            tokens_planned: self.sequence.tokens_planned(),
            blocks: self.tables.blocks(),
        }
    }

    /// Drafts what may come after the next token. Nothing is drafted for who does not decode.
    pub fn make_draft(&mut self, drafter: &mut dyn Drafter) {
        self.draft.clear();
        let sequence = &self.sequence;
        let wanted = sequence.new.may_draft && !sequence.pace.pauses();
        if !wanted || self.phase() != Phase::Decode {
            return;
        }
        let most = sequence.draft_tokens_max();
        if most > 0 {
            drafter.draft(&sequence.tokens, most, &mut self.draft);
            self.draft.truncate(most);
        }
    }

    pub fn draft(&self) -> Draft {
        Draft {
            tokens: self.draft.len(),
            acceptance: self.sequence.pace.acceptance(),
        }
    }

    /// The tokens of its share of a step: those it has, then drafted ones.
    pub fn tokens_to_compute(&self, share: &Share) -> Vec<u32> {
        let known = share.tokens - share.drafted();
        let known = &self.sequence.tokens[self.computed..self.computed + known];
        [known, &self.draft[..share.drafted()]].concat()
    }

    /// Its share has been computed at `now`: KV of the tokens it had stands, and what `sample` makes of
    /// each row that gives logits (from 0 on) is taken as long as the tokens before that row are the
    /// sequence's: the drafted ones that sampling chose as well. KV of the others is void; whoever comes
    /// to these positions writes over it.
    pub fn take_step(
        &mut self,
        share: &Share,
        eog: &[u32],
        now: Instant,
        mut sample: impl FnMut(usize, &Sampling, u64) -> Result<u32, NotFinite>,
    ) -> Taken {
        let drafted = share.drafted();
        self.advance(share.tokens - drafted);
        let mut taken = Taken {
            drafted,
            ..Taken::default()
        };
        for row in 0..share.logits {
            let position = self.sequence.tokens.len() as u64;
            let id = match sample(row, &self.sequence.new.sampling, position) {
                Ok(id) => id,
                Err(error) => {
                    taken.error = Some(error);
                    self.fail(error);
                    break;
                }
            };
            let waited = self.accept(id, eog.contains(&id), now);
            if row == 0 {
                taken.waited = waited;
            }
            taken.tokens += 1;
            if row == drafted || self.draft[row] != id {
                break;
            }
            taken.accepted += 1;
            if self.ended.is_some() {
                break;
            }
            self.advance(1);
        }
        if drafted > 0 {
            self.sequence.pace.verified(drafted, taken.accepted);
        }
        self.sequence.pace.generated(taken.tokens);
        taken
    }

    /// KV of `n` more tokens stands.
    fn advance(&mut self, n: usize) {
        self.computed += n;
        let computed = &self.sequence.tokens[..self.computed];
        self.tables.advance(computed);
    }

    /// Prompt tokens computed, if that is more than its owner has been told.
    pub fn prefill_to_tell(&mut self) -> Option<usize> {
        let done = self.computed.min(self.sequence.prompt_tokens);
        let told = mem::replace(&mut self.sequence.prefill_told, done);
        self.sequence.prefill_told = told.max(done);
        (done > told).then_some(done)
    }

    /// Takes a token sampled at `now` and decides whether it was the last. Returns the time since the
    /// one before, if nothing but the engine kept it so long.
    fn accept(&mut self, id: u32, is_eog: bool, now: Instant) -> Option<Duration> {
        self.sequence.tokens.push(id);
        if is_eog && !self.sequence.new.ignore_eog {
            self.ended = Some(EndReason::Eog);
        } else if self.sequence.generated() >= self.sequence.new.tokens_max {
            self.ended = Some(EndReason::Length);
        }
        let since = self.ready_since.replace(now);
        since.map(|since| now.saturating_duration_since(since))
    }

    /// Gives its pages back, full ones for whoever can reuse them first of all itself, and waits again: those
    /// that others take in the meantime may be stored.
    pub fn give_way(self) -> Sequence {
        let mut sequence = self.sequence;
        let reusable = BlockKeys::reusable(&sequence.tokens).len() / crate::kv::PAGE_TOKENS;
        let sealed = &self.tables.sealed()[..reusable.min(self.tables.sealed().len())];
        if sealed.len() > sequence.chain.len() {
            sequence.chain = sealed.to_vec();
        }
        sequence.gave_way += 1;
        sequence.stored = Lookup::Wanted;
        sequence
    }

    /// Ends it without a token: the step gave nothing to sample from.
    fn fail(&mut self, error: NotFinite) {
        tracing::error!(
            message_id = event::LOGITS_NOT_FINITE,
            vitriol_session = &*self.sequence.new.session_id,
            position = self.sequence.tokens.len(),
            "an answer ends in an error: {error}"
        );
        self.ended = Some(EndReason::NotFinite);
    }

    pub fn snapshot(&self) -> SlotSnapshot {
        let sequence = &self.sequence;
        SlotSnapshot {
            slot: self.slot,
            state: match self.phase() {
                _ if self.filling.is_some() => SlotState::Prefill,
                Phase::Prefill { .. } => SlotState::Prefill,
                Phase::Decode => SlotState::Decode,
                Phase::Paused => SlotState::Paused,
            },
            session_id: Arc::clone(&sequence.new.session_id),
            prompt_tokens: sequence.prompt_tokens,
            prompt_tokens_done: self.computed.min(sequence.prompt_tokens),
            tokens_cached: sequence.tokens_cached.unwrap_or(0),
            tokens_generated: sequence.generated(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kv::{GroupPools, PAGE_TOKENS, PromptBlocks, Storing, Window},
        scheduler::{Ownership, Priority, Work},
        sequence::{EventSink, SequenceControl, SequenceId},
    };
    use std::convert::Infallible;

    const EOG: u32 = 2;

    /// Proposes what it was told.
    #[derive(Debug)]
    struct Says(Vec<u32>);

    impl Drafter for Says {
        fn draft(&mut self, _tokens: &[u32], most: usize, draft: &mut Vec<u32>) {
            draft.extend(self.0.iter().take(most));
        }
    }

    /// A sequence that has generated a token after `prompt_tokens` others, drafted to go on with `draft`.
    fn running(prompt_tokens: usize, tokens_max: usize, window: u64, draft: &[u32]) -> Running {
        let prompt: Vec<u32> = (100..100 + prompt_tokens as u32).collect();
        let pools = GroupPools::new(&[(Window { tokens: None }, 8)], 64);
        let control = Arc::<SequenceControl>::default();
        let new = NewSequence {
            id: SequenceId(0),
            session_id: "".into(),
            ownership: Ownership::new("", "", 0, Priority::Interactive),
            blocks: PromptBlocks::new(&[0; 32], b"", &prompt),
            prompt,
            tokens_max,
            sampling: Sampling::GREEDY,
            ignore_eog: false,
            may_draft: true,
            window_tokens: window,
            control,
            sink: EventSink {
                id: 0,
                channel: tokio::sync::mpsc::channel(1).0,
            },
            submitted_at: Instant::now(),
        };
        let keys = new.blocks.keys;
        let (mut tables, _) = BlockTables::with_prefix(&pools, keys, &[], Storing::Never);
        while tables.blocks() * PAGE_TOKENS < prompt_tokens + 16 {
            tables.grow(&pools, |_, _| Ok::<_, Infallible>(())).unwrap();
        }
        let mut running = Running::new(Sequence::new(new, 0), 0, tables, 0);
        let first = share(0, prompt_tokens, 1);
        running.take_step(&first, &[EOG], Instant::now(), |_, _, _| Ok(50));
        running.make_draft(&mut Says(draft.to_vec()));
        running
    }

    fn share(depth: usize, tokens: usize, logits: usize) -> Share {
        Share {
            sequence: 0,
            work: Work::Decode,
            depth,
            tokens,
            logits,
        }
    }

    /// Verifies the draft with what is sampled; the tokens that are new.
    fn verify(running: &mut Running, sampled: &[u32]) -> (Vec<u32>, Taken) {
        let drafted = running.draft().tokens;
        let share = share(running.computed, 1 + drafted, 1 + drafted);
        let before = running.sequence.tokens.len();
        assert_eq!(running.tokens_to_compute(&share).len(), 1 + drafted);
        let taken = running.take_step(&share, &[EOG], Instant::now(), |row, _, position| {
            assert_eq!(position as usize, before + row, "a draw for its own place");
            sampled.get(row).copied().ok_or(NotFinite)
        });
        let new = running.sequence.tokens[before..].to_vec();
        assert_eq!(new.len(), taken.tokens);
        if taken.error.is_none() {
            assert_eq!(running.computed + 1, running.sequence.tokens.len());
        }
        (new, taken)
    }

    #[test]
    fn a_draft_stands_as_far_as_it_is_what_is_sampled() {
        for (sampled, accepted) in [
            (&[7, 8, 9, 10][..], 3),
            (&[7, 8, 1, 10], 2),
            (&[1, 8, 9, 10], 0),
        ] {
            let mut running = running(5, 100, u64::MAX, &[7, 8, 9]);
            let (new, taken) = verify(&mut running, sampled);
            assert_eq!(new, sampled[..=accepted]);
            assert_eq!((taken.drafted, taken.accepted), (3, accepted));
            assert_eq!(running.ended, None);
        }
    }

    #[test]
    fn an_end_inside_a_draft_is_the_end() {
        let mut ended = running(5, 100, u64::MAX, &[7, EOG, 9, 9]);
        let (new, taken) = verify(&mut ended, &[7, EOG, 9, 9, 9]);
        assert_eq!((new, taken.accepted), (vec![7, EOG], 2));
        assert_eq!(ended.ended, Some(EndReason::Eog));

        let mut damaged = running(5, 100, u64::MAX, &[7, 8, 9]);
        let (new, taken) = verify(&mut damaged, &[7]);
        assert_eq!((new, taken.error), (vec![7], Some(NotFinite)));
        assert_eq!(damaged.ended, Some(EndReason::NotFinite));
    }

    #[test]
    fn no_more_is_drafted_than_may_come() {
        let draft = |tokens_max, window| {
            let running = running(5, tokens_max, window, &[7; 30]);
            running.draft().tokens
        };
        assert_eq!(draft(100, u64::MAX), DRAFTED_MAX);
        // One is generated; of two more the first is sampled without a draft.
        assert_eq!((draft(3, u64::MAX), draft(2, u64::MAX)), (1, 0));
        assert_eq!((draft(100, 4), draft(100, 2), draft(100, 1)), (2, 0, 0));
        let mut last = running(5, 4, u64::MAX, &[7; 30]);
        assert_eq!(verify(&mut last, &[7; 3]).0, [7; 3]);
        assert_eq!(last.ended, Some(EndReason::Length));
    }

    #[test]
    fn only_accepted_tokens_fill_a_block() {
        // The token at 62 is decoded, those drafted would fill the block and begin the next.
        let mut wrong = running(62, 100, u64::MAX, &[7, 8, 9]);
        verify(&mut wrong, &[1, 8, 9, 9]);
        assert_eq!((wrong.computed, wrong.tables.sealed().len()), (63, 0));
        let mut right = running(62, 100, u64::MAX, &[7, 8, 9]);
        verify(&mut right, &[7, 8, 1, 9]);
        assert_eq!((right.computed, right.tables.sealed().len()), (65, 1));
        let block = &right.sequence.tokens[..PAGE_TOKENS];
        let key = right.sequence.new.blocks.keys.next(None, block);
        assert_eq!(right.tables.sealed(), [key]);
    }
}
