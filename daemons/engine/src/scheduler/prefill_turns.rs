use super::{Owner, Ownership, PrefillRun, Priority, StepCost};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Least prompt tokens of one sequence in a step, if it has so many left: smaller chunks cost more a
/// token than they are worth, and prefill moves by one whatever a step costs.
pub const CHUNK_TOKENS_MIN: usize = 16;
/// Share of a step's prefill that newcomers may have while others wait longer.
const NEWCOMERS_SHARE: f64 = 0.75;
/// Share of the time of prefill that background prompts get beside interactive ones.
const BACKGROUND_SHARE: f64 = 0.1;

/// A running sequence's tokens without KV.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    pub ownership: &'a Ownership,
    /// Tokens before the first of them.
    pub depth: usize,
    /// At least one.
    pub tokens_left: usize,
}

/// What a step has left for prefill.
#[derive(Clone, Copy, Debug)]
pub struct StepRoom {
    pub ms: f64,
    pub tokens: usize,
}

/// Deficit round robin over tenants, and within each over its sessions, in units of time.
///
/// Who has the turn spends its deficit, a quantum of ms that each turn adds, on chunks; what a chunk
/// costs beyond it is owed to the next turn. The turn outlasts a step that is too small for it. Who is
/// new begins with a quantum and may spend it at once, as long as newcomers leave those who wait longer
/// their part of the step; then it goes round with them. Who has nothing left to prefill leaves, and
/// its deficit with it. Interactive prompts come first; a tenth of the time stays for background ones.
#[derive(Clone, Debug)]
pub struct PrefillTurns {
    interactive: Round<Round<()>>,
    background: Round<Round<()>>,
    /// Time that background prompts are owed, ms.
    background_owed_ms: f64,
}

impl PrefillTurns {
    /// `quantum_ms`: time that a turn adds to a tenant's deficit.
    pub fn new(quantum_ms: f64) -> Self {
        let round = || Round::new(quantum_ms);
        Self {
            interactive: round(),
            background: round(),
            background_owed_ms: 0.0,
        }
    }

    /// Tokens of each of `prompts` (running sequences, oldest first) that the next step computes.
    ///
    /// Together they cost no more than `room.ms`, unless that does not suffice for the first chunk,
    /// which then is as small as chunks get.
    pub fn share_out(
        &mut self,
        prompts: &[Prompt<'_>],
        room: StepRoom,
        cost: &StepCost,
    ) -> Vec<usize> {
        let interactive = Queues::of(prompts, Priority::Interactive);
        let background = Queues::of(prompts, Priority::Background);
        self.interactive.meet(&interactive);
        self.background.meet(&background);
        let mut step = StepTokens {
            prompts,
            cost,
            left: room,
            given: vec![0; prompts.len()],
        };
        if interactive.0.is_empty() || background.0.is_empty() {
            self.background_owed_ms = 0.0;
        }
        if step.affords(&background, self.background_owed_ms) {
            let owed = self.background_owed_ms;
            self.background_owed_ms -= self.background.serve(&background, owed, &mut step);
        }
        let spent = self
            .interactive
            .serve(&interactive, f64::INFINITY, &mut step);
        if !background.0.is_empty() {
            self.background_owed_ms += BACKGROUND_SHARE * spent;
        }
        self.background.serve(&background, f64::INFINITY, &mut step);
        step.given
    }
}

/// The prompts of one priority by tenant and session, in each the oldest first.
struct Queues<'a>(BTreeMap<&'a Owner, BTreeMap<&'a Owner, Vec<usize>>>);

impl<'a> Queues<'a> {
    fn of(prompts: &[Prompt<'a>], priority: Priority) -> Self {
        let mut queues: BTreeMap<_, BTreeMap<_, Vec<_>>> = BTreeMap::new();
        for (index, prompt) in prompts.iter().enumerate() {
            let Ownership {
                tenant, session, ..
            } = prompt.ownership;
            if prompt.ownership.priority == priority {
                let sessions = queues.entry(tenant).or_default();
                sessions.entry(session).or_default().push(index);
            }
        }
        Self(queues)
    }
}

/// The chunks of the step that is being planned.
struct StepTokens<'a> {
    prompts: &'a [Prompt<'a>],
    cost: &'a StepCost,
    left: StepRoom,
    given: Vec<usize>,
}

impl StepTokens<'_> {
    /// Gives the first of `queue` that wants more a chunk for `ms`, or the smallest there is.
    fn give(&mut self, queue: &[usize], ms: f64) -> Turn {
        let wants_more = |&&index: &&usize| self.given[index] < self.prompts[index].tokens_left;
        let Some(&index) = queue.iter().find(wants_more) else {
            return Turn::Sated;
        };
        let Prompt {
            depth, tokens_left, ..
        } = self.prompts[index];
        let depth = depth + self.given[index];
        let wanted = tokens_left - self.given[index];
        let tokens = self
            .cost
            .tokens_within(depth, ms.min(self.left.ms))
            .max(CHUNK_TOKENS_MIN)
            .min(wanted);
        let fits = self.left.tokens >= tokens.min(CHUNK_TOKENS_MIN);
        let tokens = tokens.min(self.left.tokens);
        let ms = self.cost.prefill_ms(PrefillRun { depth, tokens });
        let is_first = self.given.iter().all(|&tokens| tokens == 0);
        if tokens == 0 || !is_first && (!fits || ms > self.left.ms) {
            return Turn::NoRoom;
        }
        self.given[index] += tokens;
        self.left.tokens -= tokens;
        self.left.ms -= ms;
        Turn::Spent(ms)
    }

    /// What the tokens that are left cost at least, ms.
    fn least_ms(&self) -> f64 {
        let tokens = self.left.tokens;
        let cost = |prompt: &Prompt<'_>| {
            let depth = prompt.depth;
            self.cost.prefill_ms(PrefillRun { depth, tokens })
        };
        self.prompts.iter().map(cost).fold(f64::INFINITY, f64::min)
    }

    /// Whether `ms` buys one of the prompts its next chunk.
    fn affords(&self, queues: &Queues<'_>, ms: f64) -> bool {
        let indices = queues.0.values().flat_map(BTreeMap::values).flatten();
        let least = |&index: &usize| {
            let Prompt {
                depth, tokens_left, ..
            } = self.prompts[index];
            let tokens = tokens_left.min(CHUNK_TOKENS_MIN);
            self.cost.prefill_ms(PrefillRun { depth, tokens })
        };
        indices.map(least).any(|least| least <= ms)
    }
}

/// What somebody made of its turn.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// ms
    Spent(f64),
    /// It wants nothing more in this step.
    Sated,
    /// The step has no room for what it wants.
    NoRoom,
}

/// Those who share, each with what it shares in turn.
#[derive(Clone, Debug)]
struct Round<M> {
    quantum_ms: f64,
    /// In the order they came; each has a quantum to spend.
    newcomers: VecDeque<Member<M>>,
    /// The first has the turn.
    members: VecDeque<Member<M>>,
}

#[derive(Clone, Debug)]
struct Member<M> {
    owner: Owner,
    deficit_ms: f64,
    shares: M,
}

impl<M> Round<M> {
    fn new(quantum_ms: f64) -> Self {
        Self {
            quantum_ms,
            newcomers: VecDeque::new(),
            members: VecDeque::new(),
        }
    }

    /// Forgets who is not `present` and takes in who is new.
    fn meet_owners(&mut self, present: &BTreeSet<&Owner>, shares: impl Fn() -> M) {
        self.newcomers.retain(|m| present.contains(&m.owner));
        self.members.retain(|m| present.contains(&m.owner));
        let known: BTreeSet<Owner> = self.all().map(|m| m.owner.clone()).collect();
        for owner in present.iter().filter(|owner| !known.contains(owner)) {
            self.newcomers.push_back(Member {
                owner: (*owner).clone(),
                deficit_ms: self.quantum_ms,
                shares: shares(),
            });
        }
    }

    fn all(&self) -> impl Iterator<Item = &Member<M>> {
        self.newcomers.iter().chain(&self.members)
    }

    /// Spends up to `ms` by turns. `give(owner, what it shares, ms)` serves one with up to so much, by
    /// no more than a smallest chunk beyond.
    fn spend(&mut self, ms: f64, mut give: impl FnMut(&Owner, &mut M, f64) -> Turn) -> Turn {
        let mut spent = 0.0;
        let for_newcomers = match self.members.is_empty() {
            true => ms,
            false => NEWCOMERS_SHARE * ms,
        };
        while spent < for_newcomers {
            let Some(mut member) = self.newcomers.pop_front() else {
                break;
            };
            let most = member.deficit_ms.min(for_newcomers - spent);
            match give(&member.owner, &mut member.shares, most) {
                Turn::Spent(ms) => {
                    member.deficit_ms -= ms;
                    spent += ms;
                    match member.deficit_ms > 0.0 {
                        true => self.newcomers.push_front(member),
                        false => self.members.push_back(member),
                    }
                }
                Turn::Sated => self.members.push_back(member),
                Turn::NoRoom => {
                    self.newcomers.push_front(member);
                    return Turn::of(spent, Turn::NoRoom);
                }
            }
        }
        let mut sated = 0;
        while spent < ms && sated < self.members.len() {
            let Some(mut member) = self.members.pop_front() else {
                break;
            };
            if member.deficit_ms <= 0.0 {
                member.deficit_ms += self.quantum_ms;
            }
            if member.deficit_ms <= 0.0 {
                // Its last chunk cost more than a turn is worth.
                self.members.push_back(member);
                continue;
            }
            match give(
                &member.owner,
                &mut member.shares,
                member.deficit_ms.min(ms - spent),
            ) {
                Turn::Spent(ms) => {
                    sated = 0;
                    member.deficit_ms -= ms;
                    spent += ms;
                    match member.deficit_ms > 0.0 {
                        true => self.members.push_front(member),
                        false => self.members.push_back(member),
                    }
                }
                Turn::Sated => {
                    sated += 1;
                    self.members.push_back(member);
                }
                Turn::NoRoom => {
                    self.members.push_front(member);
                    return Turn::of(spent, Turn::NoRoom);
                }
            }
        }
        Turn::of(spent, Turn::Sated)
    }
}

impl Round<Round<()>> {
    fn meet(&mut self, queues: &Queues<'_>) {
        let quantum_ms = self.quantum_ms;
        self.meet_owners(&queues.0.keys().copied().collect(), || {
            Round::new(quantum_ms)
        });
        for member in self.newcomers.iter_mut().chain(&mut self.members) {
            if let Some(sessions) = queues.0.get(&member.owner) {
                let present = sessions.keys().copied().collect();
                member.shares.meet_owners(&present, || ());
            }
        }
    }

    /// Serves the prompts of `queues` with up to `ms`; the ms spent.
    fn serve(&mut self, queues: &Queues<'_>, ms: f64, step: &mut StepTokens<'_>) -> f64 {
        let mut spent = 0.0;
        loop {
            // Where tokens run out before time does, they are what newcomers leave others a part of.
            let room = step.left.ms.max(f64::MIN_POSITIVE).min(step.least_ms());
            let turn = self.spend(room.min(ms - spent), |tenant, sessions, ms| {
                let Some(queues) = queues.0.get(tenant) else {
                    return Turn::Sated;
                };
                sessions.spend(ms, |session, (), ms| match queues.get(session) {
                    Some(queue) => step.give(queue, ms),
                    None => Turn::Sated,
                })
            });
            match turn {
                Turn::Spent(ms) => spent += ms,
                Turn::Sated | Turn::NoRoom => return spent,
            }
        }
    }
}

impl Turn {
    fn of(spent: f64, otherwise: Turn) -> Turn {
        match spent > 0.0 {
            true => Turn::Spent(spent),
            false => otherwise,
        }
    }
}

#[cfg(test)]
#[path = "prefill_turns/tests.rs"]
mod tests;
