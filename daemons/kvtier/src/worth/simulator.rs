//! Traces as agents make them, and how many prompt tokens each policy would have reused.
//!
//! Made up, in the proportions of agents' traffic: system prompts and tool lists that sessions share,
//! histories that grow turn by turn, branches that go back and begin anew, and requests without a
//! session that never come again, but for the prompt they begin with.

use std::collections::BTreeMap;

use vitriol_testkit::Seed;

use super::*;

const BLOCK_TOKENS: u64 = 64;
const BLOCK_BYTES: u64 = 1 << 20;

/// A block of some prompt; its place in the trace's list is its name.
#[derive(Clone, Copy)]
struct Block {
    parent: Option<usize>,
    depth: u64,
}

/// A prompt: blocks from the first on.
struct Request {
    origin: Origin,
    chain: Vec<usize>,
}

struct Trace {
    blocks: Vec<Block>,
    requests: Vec<Request>,
}

impl Trace {
    fn agents(seed: u64) -> Self {
        let mut seed = Seed::from(seed);
        let mut trace = Self {
            blocks: Vec::new(),
            requests: Vec::new(),
        };
        let prompts: Vec<Vec<usize>> = (0..5)
            .map(|_| {
                let blocks = 12 + seed.below(60);
                trace.grow(&[], blocks)
            })
            .collect();
        // Requests by the moment they come: (moment, order) → session, or none.
        let mut coming = BTreeMap::new();
        let mut at = 0;
        for order in 0..80 {
            at += seed.below(400);
            coming.insert((at, order), Some(Session::begin(&mut seed, &prompts)));
        }
        let end = at;
        for order in 1000..1440 {
            coming.insert((seed.below(end), order), None);
        }
        while let Some(((now, order), session)) = coming.pop_first() {
            let Some(mut session) = session else {
                let start: &[usize] = match seed.below(4) {
                    0 => seed.choose::<Vec<usize>>(&prompts),
                    _ => &[],
                };
                let blocks = 4 + seed.below(36);
                let chain = trace.grow(start, blocks);
                trace.requests.push(Request {
                    origin: Origin::OneShot,
                    chain,
                });
                continue;
            };
            let blocks = 2 + seed.below(14);
            let chain = trace.grow(&session.history, blocks);
            trace.requests.push(Request {
                origin: Origin::Session,
                chain: chain.clone(),
            });
            session.history = chain;
            session.turns -= 1;
            if seed.below(8) == 0 {
                let kept = session.begins + seed.below(session.history.len() - session.begins);
                session.history.truncate(kept);
            }
            if session.turns > 0 {
                // Tools answer at once, people think.
                let pause = match seed.below(5) {
                    0 => 500 + seed.below(8000),
                    _ => 1 + seed.below(120),
                };
                coming.insert((now + pause, order), Some(session));
            }
        }
        trace
    }

    /// `start` and so many new blocks behind it.
    fn grow(&mut self, start: &[usize], blocks: usize) -> Vec<usize> {
        let mut chain = start.to_vec();
        for _ in 0..blocks {
            self.blocks.push(Block {
                parent: chain.last().copied(),
                depth: chain.len() as u64,
            });
            chain.push(self.blocks.len() - 1);
        }
        chain
    }

    fn tokens(&self) -> u64 {
        let blocks: usize = self
            .requests
            .iter()
            .map(|request| request.chain.len())
            .sum();
        blocks as u64 * BLOCK_TOKENS
    }
}

struct Session {
    history: Vec<usize>,
    /// Blocks of its system prompt.
    begins: usize,
    turns: usize,
}

impl Session {
    fn begin(seed: &mut Seed, prompts: &[Vec<usize>]) -> Self {
        // The first agents are the popular ones.
        let of_two = seed.below(prompts.len()).min(seed.below(prompts.len()));
        let history = prompts[of_two].clone();
        Self {
            begins: history.len(),
            history,
            turns: 1 + seed.below(24),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Policy {
    Lru,
    Worth,
    /// Knows what comes: what is used again last, or never, makes room.
    Belady,
}

/// A block in the cache.
#[derive(Clone, Copy)]
struct Kept {
    of: Use,
    /// The request that uses it next.
    next: usize,
    children: u32,
}

/// Prompt tokens reused by `policy` in a cache of so many blocks.
fn hit_tokens(trace: &Trace, policy: Policy, capacity: usize) -> u64 {
    let next_uses = next_uses(trace);
    let mut model = ReuseModel::default();
    let mut kept: BTreeMap<usize, Kept> = BTreeMap::new();
    let mut hits = 0;
    for (now, request) in trace.requests.iter().enumerate() {
        model.tick();
        let found = request
            .chain
            .iter()
            .take_while(|block| kept.contains_key(block))
            .count();
        hits += found as u64 * BLOCK_TOKENS;
        for (place, block) in request.chain.iter().enumerate() {
            let next = next_uses[now][place];
            if let Some(kept) = kept.get_mut(block) {
                model.reused(&mut kept.of);
                kept.next = next;
                continue;
            }
            let Block { parent, depth, .. } = trace.blocks[*block];
            let new = Kept {
                of: Use {
                    origin: request.origin,
                    hits: 0,
                    last: model.clock(),
                    // A token reads the keys before it.
                    saved_us: BLOCK_TOKENS * (400 + depth * BLOCK_TOKENS / 64),
                    bytes: BLOCK_BYTES,
                },
                next,
                children: 0,
            };
            if kept.len() == capacity && !make_room(&mut kept, trace, policy, &mut model, &new) {
                break;
            }
            if let Some(parent) = parent.and_then(|parent| kept.get_mut(&parent)) {
                parent.children += 1;
            }
            kept.insert(*block, new);
        }
    }
    hits
}

/// False: `new` is not worth anybody's room.
fn make_room(
    kept: &mut BTreeMap<usize, Kept>,
    trace: &Trace,
    policy: Policy,
    model: &mut ReuseModel,
    new: &Kept,
) -> bool {
    // What the same request uses stays.
    let is_leaf = |kept: &Kept| kept.children == 0 && kept.of.last < model.clock();
    let leaves = kept.iter().filter(|(_, kept)| is_leaf(kept));
    let victim = match policy {
        Policy::Lru => leaves
            .min_by_key(|(_, kept)| kept.of.last)
            .map(|(block, _)| *block),
        Policy::Belady => {
            let last = leaves.max_by_key(|(_, kept)| kept.next);
            last.filter(|(_, kept)| kept.next > new.next)
                .map(|(block, _)| *block)
        }
        Policy::Worth => {
            let candidates = kept.iter().map(|(block, kept)| Candidate {
                slot: *block as SlotIndex,
                of: kept.of,
                is_leaf: is_leaf(kept),
            });
            let planned = plan_eviction(model, candidates);
            let least = planned.filter(|(_, least)| model.admits(&new.of, *least));
            least.map(|(slot, _)| slot as usize)
        }
    };
    let Some(victim) = victim else { return false };
    if let Some(gone) = kept.remove(&victim) {
        model.evicted(&gone.of);
    }
    if let Some(parent) = trace.blocks[victim]
        .parent
        .and_then(|parent| kept.get_mut(&parent))
    {
        parent.children -= 1;
    }
    true
}

/// For each block of each request the request that uses it next.
fn next_uses(trace: &Trace) -> Vec<Vec<usize>> {
    let mut next = vec![usize::MAX; trace.blocks.len()];
    let mut all = Vec::new();
    for (now, request) in trace.requests.iter().enumerate().rev() {
        all.push(request.chain.iter().map(|block| next[*block]).collect());
        for block in &request.chain {
            next[*block] = now;
        }
    }
    all.reverse();
    all
}

#[test]
fn worth_reuses_more_than_lru_on_traces_of_agents() {
    println!("hit tokens, % of the prompt tokens\n seed  cache  LRU   worth  Belady");
    for seed in 1..=4 {
        let trace = Trace::agents(seed);
        for part in [40, 20, 10] {
            let capacity = trace.blocks.len() / part;
            let [lru, worth, belady] = [Policy::Lru, Policy::Worth, Policy::Belady]
                .map(|policy| hit_tokens(&trace, policy, capacity));
            let percent = |tokens: u64| 100.0 * tokens as f64 / trace.tokens() as f64;
            println!(
                "{seed:5}  {capacity:5}  {:4.1}  {:5.1}  {:6.1}",
                percent(lru),
                percent(worth),
                percent(belady),
            );
            assert!(worth > lru, "seed {seed}, {capacity} blocks");
            assert!(belady >= worth, "seed {seed}, {capacity} blocks");
        }
    }
}

#[test]
fn a_cache_that_holds_everything_reuses_the_same_by_any_policy() {
    let trace = Trace::agents(9);
    let all = trace.blocks.len();
    let [lru, worth, belady] =
        [Policy::Lru, Policy::Worth, Policy::Belady].map(|policy| hit_tokens(&trace, policy, all));
    assert_eq!((lru, worth), (belady, belady));
    assert!(lru > trace.tokens() / 2, "sessions reuse their histories");
}
