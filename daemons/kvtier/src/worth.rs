//! What a record is worth keeping. Pure: which records make room, and whether a new one gets any.
//!
//! worth = prefill time that a reuse saves × reuses expected per byte and time that the record takes room
//!
//! How likely a reuse is depends on where the record comes from, how often it was reused and how long
//! ago the last time was; [`ReuseModel`] learns it from what happens. A record of which nothing is known
//! is worth the more the younger it is, so that without any experience the order is that of LRU.
//!
//! A block is of use only behind all blocks before it, so only those that nothing stored builds upon
//! make room: chains get shorter from their end.

use crate::slots::SlotIndex;

#[cfg(test)]
mod simulator;

/// Ages are told apart by half octaves; the last holds all beyond.
const AGES: usize = 48;

/// Origins times steps of reuses.
const CLASSES: usize = 2 * HIT_STEPS;
const HIT_STEPS: usize = 4;

/// Events between two looks at what was learnt.
const EVENTS_PER_UPDATE: u32 = 256;

/// What of the experience is kept at each look, so that old habits fade: half in about 9,000 events.
const KEPT_PER_UPDATE: f64 = 0.98;

/// Of the records that are not worth their room, one in so many gets it all the same: what is never
/// kept would never be seen to be reused.
const TRIED_ONE_IN: u64 = 32;

/// Bytes that a disk writes in a microsecond: one that turns.
const DISK_BYTES_PER_US: f64 = 150.0;

/// Where a record comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A conversation that names itself (X-Session-Id), which tends to go on.
    Session,
    /// A request without a name.
    OneShot,
}

/// What the worth of a record follows from.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    pub origin: Origin,
    /// Reuses so far.
    pub hits: u32,
    /// Clock of the model when it was stored or reused last.
    pub last: u64,
    /// Prefill time that one reuse saves, microseconds; the engine's estimate.
    pub saved_us: u64,
    /// Room it takes.
    pub bytes: u64,
}

/// How records of one class and age ended.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    hits: f64,
    evictions: f64,
}

/// Expected reuses, learnt from reuses and evictions. Its clock counts lookups.
///
/// Numerics: f64; the same calls in the same order give the same worths. Cost: a few operations a call,
/// 4 × 384 numbers of memory.
#[derive(Clone, Debug)]
pub struct ReuseModel {
    clock: u64,
    seen: [[Seen; AGES]; CLASSES],
    /// Reuses expected per lookup that goes by, of a record of this class and age.
    density: [[f64; AGES]; CLASSES],
    /// Of such records those that are reused again, 0 to 1.
    likelihood: [[f64; AGES]; CLASSES],
    events: u32,
    refused: u64,
}

impl Default for ReuseModel {
    fn default() -> Self {
        // As many reuses in each half octave of age: the longer it has been, the longer it will be.
        let mut ages = [Seen {
            hits: 1.0,
            evictions: 0.0,
        }; AGES];
        ages[AGES - 1].evictions = 1.0;
        let mut model = Self {
            clock: 0,
            seen: [ages; CLASSES],
            density: [[0.0; AGES]; CLASSES],
            likelihood: [[0.0; AGES]; CLASSES],
            events: 0,
            refused: 0,
        };
        model.update();
        model
    }
}

impl ReuseModel {
    /// Lookups so far.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// A lookup: time goes on by one.
    pub fn tick(&mut self) {
        self.clock += 1;
    }

    /// A record is reused now; it gets one more hit.
    pub fn reused(&mut self, of: &mut Use) {
        self.seen[class(of)][self.age(of)].hits += 1.0;
        self.count_event();
        of.hits = of.hits.saturating_add(1);
        of.last = self.clock;
    }

    /// A record was evicted.
    pub fn evicted(&mut self, of: &Use) {
        self.seen[class(of)][self.age(of)].evictions += 1.0;
        self.count_event();
    }

    /// Microseconds of prefill saved per byte and lookup that goes by.
    pub fn worth(&self, of: &Use) -> f64 {
        self.density[class(of)][self.age(of)] * of.saved_us as f64 / of.bytes.max(1) as f64
    }

    /// Whether a new record may push out one of the worth `least`. That of a conversation may in any case: it is
    /// to be on the disk, and the way there leads through the arena. Worth less than what is there, it is
    /// also the next to go.
    pub fn admits(&mut self, new: &Use, least: f64) -> bool {
        if new.origin == Origin::Session || self.worth(new) >= least {
            return true;
        }
        self.refused += 1;
        self.refused.is_multiple_of(TRIED_ONE_IN)
    }

    /// Whether a record is worth the time of a disk that writes it, which takes from reads and wears the disk out: the
    /// prefill time that one more reuse saves, as likely as that is. Of a conversation every one is.
    pub fn is_worth_writing(&self, of: &Use) -> bool {
        let saved_us = self.likelihood[class(of)][self.age(of)] * of.saved_us as f64;
        of.origin == Origin::Session || saved_us >= of.bytes as f64 / DISK_BYTES_PER_US
    }

    fn age(&self, of: &Use) -> usize {
        age_step(self.clock.saturating_sub(of.last))
    }

    fn count_event(&mut self) {
        self.events += 1;
        if self.events == EVENTS_PER_UPDATE {
            self.events = 0;
            self.update();
        }
    }

    /// From the oldest age down: reuses that are still to come over the time until whatever comes.
    fn update(&mut self) {
        let classes = self.seen.iter_mut().zip(&mut self.density);
        for ((seen, density), likelihood) in classes.zip(&mut self.likelihood) {
            let (mut hits, mut ends, mut time) = (0.0, 0.0, 0.0);
            for age in (0..AGES).rev() {
                hits += seen[age].hits;
                ends += seen[age].hits + seen[age].evictions;
                time += ends * width(age);
                density[age] = if time > 0.0 { hits / time } else { 0.0 };
                likelihood[age] = if ends > 0.0 { hits / ends } else { 0.0 };
                seen[age].hits *= KEPT_PER_UPDATE;
                seen[age].evictions *= KEPT_PER_UPDATE;
            }
        }
    }
}

/// A stored record that may have to make room.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub slot: SlotIndex,
    pub of: Use,
    /// No stored record builds upon it, and nobody reads it.
    pub is_leaf: bool,
}

/// The leaf that is worth least, and its worth; of equals the one in the lowest slot.
pub fn plan_eviction(
    model: &ReuseModel,
    candidates: impl IntoIterator<Item = Candidate>,
) -> Option<(SlotIndex, f64)> {
    let leaves = candidates.into_iter().filter(|candidate| candidate.is_leaf);
    let worths = leaves.map(|candidate| (candidate.slot, model.worth(&candidate.of)));
    worths.min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)))
}

fn class(of: &Use) -> usize {
    let step = match of.hits {
        0 => 0,
        1 => 1,
        2..4 => 2,
        _ => 3,
    };
    match of.origin {
        Origin::Session => step,
        Origin::OneShot => HIT_STEPS + step,
    }
}

/// Half octaves: 1, 2, 3, 4–5, 6–7, 8–11, … of `age` + 1.
fn age_step(age: u64) -> usize {
    let from_one = age.saturating_add(1);
    let octave = from_one.ilog2();
    let upper_half = match octave {
        0 => 0,
        _ => from_one >> (octave - 1) & 1,
    };
    (2 * octave as usize + upper_half as usize).min(AGES - 1)
}

/// Lookups that an age step spans.
fn width(step: usize) -> f64 {
    match step {
        0 => 1.0,
        1 => 0.0,
        _ => 2f64.powi(step as i32 / 2 - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(origin: Origin, last: u64) -> Use {
        Use {
            origin,
            hits: 0,
            last,
            saved_us: 1000,
            bytes: 10,
        }
    }

    #[test]
    fn ages_are_half_octaves() {
        let steps = [0, 1, 2, 3, 4, 5, 6, 7, 10, 11].map(age_step);
        assert_eq!(steps, [0, 2, 3, 4, 4, 5, 5, 6, 6, 7]);
        assert_eq!(age_step(u64::MAX), AGES - 1);
        // Widths are those of the steps.
        for step in (2..AGES - 1).chain([0]) {
            let ages = (0..5000).filter(|&age| age_step(age) == step).count();
            let whole = age_step(4999) > step;
            assert!(!whole || ages as f64 == width(step), "{step}: {ages}");
        }
    }

    #[test]
    fn without_experience_the_younger_is_worth_more() {
        let mut model = ReuseModel::default();
        for _ in 0..1000 {
            model.tick();
        }
        let worths =
            [0, 500, 900, 990, 1000].map(|last| model.worth(&record(Origin::Session, last)));
        assert!(worths.is_sorted_by(|a, b| a < b), "{worths:?}");
    }

    #[test]
    fn time_saved_counts_for_and_bytes_against() {
        let model = ReuseModel::default();
        let plain = record(Origin::Session, 0);
        let deep = Use {
            saved_us: 2000,
            ..plain
        };
        let large = Use { bytes: 20, ..plain };
        assert_eq!(model.worth(&deep), 2.0 * model.worth(&plain));
        assert_eq!(model.worth(&large), 0.5 * model.worth(&plain));
    }

    #[test]
    fn what_is_never_reused_loses_its_room_and_is_tried_again_now_and_then() {
        let mut model = ReuseModel::default();
        for _ in 0..4000 {
            let (mut session, single) = (
                record(Origin::Session, model.clock()),
                record(Origin::OneShot, model.clock()),
            );
            for _ in 0..8 {
                model.tick();
            }
            model.reused(&mut session);
            model.evicted(&single);
        }
        let session = model.worth(&record(Origin::Session, model.clock()));
        let single = record(Origin::OneShot, model.clock());
        assert!(session > 10.0 * model.worth(&single));
        let tried = (0..320).filter(|_| model.admits(&single, session)).count();
        assert_eq!(tried, 10);
        assert!(model.admits(&record(Origin::Session, model.clock()), session));
    }

    #[test]
    fn what_is_never_reused_is_not_written_unless_a_conversation_has_it() {
        let mut model = ReuseModel::default();
        // A block of 1.5 MB that takes 15 ms to compute: writing takes two thirds of that.
        let of = |origin, last| Use {
            saved_us: 15_000,
            bytes: 1_500_000,
            ..record(origin, last)
        };
        assert!(
            model.is_worth_writing(&of(Origin::OneShot, 0)),
            "nothing is known"
        );
        for _ in 0..4000 {
            model.tick();
            model.evicted(&of(Origin::OneShot, model.clock()));
        }
        let [single, session] =
            [Origin::OneShot, Origin::Session].map(|origin| of(origin, model.clock()));
        assert!(!model.is_worth_writing(&single) && model.is_worth_writing(&session));
        // One that was reused is of another kind.
        let reused = Use { hits: 1, ..single };
        assert!(model.is_worth_writing(&reused));
    }

    #[test]
    fn only_leaves_make_room() {
        let model = ReuseModel::default();
        let candidate = |slot, last, is_leaf| Candidate {
            slot,
            of: record(Origin::Session, last),
            is_leaf,
        };
        let all = [
            candidate(0, 0, false),
            candidate(1, 0, true),
            candidate(2, 0, true),
        ];
        assert_eq!(plan_eviction(&model, all).map(|(slot, _)| slot), Some(1));
        assert_eq!(plan_eviction(&model, all[..1].iter().copied()), None);
    }
}
