//! Threads that share the items of one op at a time.
//!
//! ```text
//!   state = epoch (32 bits) | open (1 bit) | workers inside (31 bits)
//!
//!   caller: write job, epoch + 1 and open ──> claim items ──> close ──> wait until inside = 0
//!   worker: see a new open epoch ──> inside + 1 (only while open) ──> claim items ──> inside − 1
//! ```
//! The caller waits for the workers that came in, not for those that might have: a worker whose
//! core is taken by somebody else delays nobody as long as it holds no item. Each thread has a run of
//! items for its own, which it claims one by one, from the first on; who has none left takes from the
//! others' ends. So a thread streams one stretch of a matrix, and its claims are its own cache's business.
//! Workers spin for [`SPIN`] after a job, then sleep.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a worker stays awake for the next op of a step. Ops follow one another within
/// microseconds; a sleeping thread takes about 20 µs to come back.
const SPIN: Duration = Duration::from_micros(50);

const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;

/// A cache line (and the one that is fetched with it) of its own: others are not slowed by its writes.
#[repr(align(128))]
struct OwnLine<T>(T);

/// First of the items of a thread; those of the next end them.
fn first_item(items: usize, threads: usize, thread: usize) -> usize {
    thread * (items / threads) + thread.min(items % threads)
}

/// The place of an item if the threads' first items came first, then their second ones, and so on.
pub(crate) fn dealt(item: usize, items: usize, threads: usize) -> usize {
    let (each, more) = (items / threads, items % threads);
    // The first `more` threads have one more.
    let in_longer = item < more * (each + 1);
    let (thread, k) = match in_longer {
        true => (item / (each + 1), item % (each + 1)),
        false => ((item - more) / each, (item - more) % each),
    };
    k * threads + thread
}

/// What is left of a thread's items, as (first, end), 32 bits each.
struct Share(AtomicU64);

impl Share {
    fn set(&self, first: usize, end: usize) {
        let packed = (first as u64) << 32 | end as u64;
        self.0.store(packed, Ordering::Relaxed);
    }

    /// The first that is left, or the last.
    fn claim(&self, from_end: bool) -> Option<usize> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let (first, end) = (now >> 32, now & 0xffff_ffff);
            if first >= end {
                return None;
            }
            let (claimed, left) = match from_end {
                true => (end - 1, now - 1),
                false => (first, now + (1 << 32)),
            };
            let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
            match self.0.compare_exchange_weak(now, left, success, failure) {
                Ok(_) => return Some(claimed as usize),
                Err(other) => now = other,
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Job {
    run: *const (dyn Fn(usize, usize) + Sync),
}

/// What a worker reads when it comes in, in one line.
struct Door {
    state: AtomicU64,
    job: UnsafeCell<Job>,
}

struct Shared {
    door: OwnLine<Door>,
    shares: Box<[OwnLine<Share>]>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    asleep: Box<[AtomicBool]>,
    stop: AtomicBool,
}

// SAFETY: the job is written by the dispatching caller only while no worker is inside (closed and
// inside = 0) and read by workers only while inside; its closure is Sync and outlives the time
// workers are inside.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

fn nothing(_: usize, _: usize) {}

/// A fixed set of threads; the calling thread is one of them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held for the length of a dispatch: one op at a time.
    dispatch: Mutex<()>,
}

impl Pool {
    /// Starts `threads` − 1 workers.
    ///
    /// Errors: the system refuses a thread; those already started are stopped again.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let workers = threads.saturating_sub(1);
        let shared = Arc::new(Shared {
            door: OwnLine(Door {
                state: AtomicU64::new(0),
                job: UnsafeCell::new(Job { run: &nothing }),
            }),
            shares: (0..threads)
                .map(|_| OwnLine(Share(AtomicU64::new(0))))
                .collect(),
            panic: Mutex::new(None),
            asleep: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
        });
        let mut pool = Self {
            shared,
            workers: Vec::new(),
            dispatch: Mutex::new(()),
        };
        for index in 0..workers {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("kernel-{}", index + 1));
            pool.workers
                .push(builder.spawn(move || shared.work(index))?);
        }
        Ok(pool)
    }

    /// Threads that share an op, the caller's included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `run(item)` for 0..items, each once, on whichever thread claims it; returns when all
    /// are done.
    ///
    /// A panic in an item ends the op early and comes out here. Must not be called from an item.
    pub(crate) fn for_each(&self, items: usize, run: impl Fn(usize) + Sync) {
        self.for_each_on(items, |_, item| run(item));
    }

    /// As [`Pool::for_each`], with `run(thread, item)`: threads count from 0 (the caller) and run
    /// one item at a time, so that each can have a buffer of its own.
    pub(crate) fn for_each_on(&self, items: usize, run: impl Fn(usize, usize) + Sync) {
        if items <= 1 || self.workers.is_empty() {
            (0..items).for_each(|item| run(0, item));
            return;
        }
        let _one_at_a_time = self.dispatch.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        let run: &(dyn Fn(usize, usize) + Sync) = &run;
        // SAFETY: only the lifetime of the reference is erased; workers use it only while inside,
        // and this function does not return before the last one has left.
        let run: *const (dyn Fn(usize, usize) + Sync) = unsafe { std::mem::transmute(run) };
        let job = Job { run };
        let door = &shared.door.0;
        // SAFETY: the last dispatch closed the job and waited until nobody was inside.
        unsafe { *door.job.get() = job };
        let threads = self.threads();
        for (thread, share) in shared.shares.iter().enumerate() {
            let first = |thread| first_item(items, threads, thread);
            share.0.set(first(thread), first(thread + 1));
        }
        let epoch = door.state.load(Ordering::Relaxed) >> 32;
        let opened = (epoch.wrapping_add(1) << 32) | OPEN;
        door.state.store(opened, Ordering::SeqCst);
        // Pairs with the sleeper: it sets `asleep`, then looks at `state`; here the other way round.
        for (worker, asleep) in self.workers.iter().zip(&shared.asleep).take(items - 1) {
            if asleep.load(Ordering::SeqCst) && asleep.swap(false, Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        shared.claim_items(0, job);
        shared.close();
        let panic = shared
            .panic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its items; its own loop has none to report.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Claims and runs items until none is left. Never unwinds.
    fn claim_items(&self, thread: usize, job: Job) {
        let claimed = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the closure lives until the dispatch that opened this job returns, and that
            // waits for us.
            let run = unsafe { &*job.run };
            let threads = self.shares.len();
            for step in 0..threads {
                let of = (thread + step) % threads;
                while let Some(item) = self.shares[of].0.claim(step > 0) {
                    run(thread, item);
                }
            }
        }));
        if let Err(payload) = claimed {
            // What is left would be thrown away: let everybody finish.
            self.shares.iter().for_each(|share| share.0.set(0, 0));
            self.panic
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(payload);
        }
    }

    /// Lets nobody in any more and waits until the last worker is out.
    fn close(&self) {
        let mut inside = self.door.0.state.fetch_and(!OPEN, Ordering::AcqRel) & INSIDE;
        let mut spins = 0u32;
        while inside > 0 {
            spins += 1;
            if spins < 10_000 {
                std::hint::spin_loop();
            } else {
                // Somebody else's thread has the worker's core: give ours, too, to get it back.
                std::thread::yield_now();
            }
            inside = self.door.0.state.load(Ordering::Acquire) & INSIDE;
        }
    }

    fn work(&self, index: usize) {
        let mut seen = 0;
        while let Some(epoch) = self.wait_for_job(index, seen) {
            seen = epoch;
            // SAFETY: we are inside: the job is not written until we leave.
            let job = unsafe { *self.door.0.job.get() };
            self.claim_items(index + 1, job);
            self.door.0.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for an open job other than `seen` and enters it; `None` when the pool stops.
    fn wait_for_job(&self, index: usize, seen: u64) -> Option<u64> {
        let mut idle_since = Instant::now();
        let mut spins = 0u32;
        loop {
            if let Some(epoch) = self.enter(seen) {
                return Some(epoch);
            }
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            spins += 1;
            if !spins.is_multiple_of(32) || idle_since.elapsed() < SPIN {
                std::hint::spin_loop();
                continue;
            }
            self.asleep[index].store(true, Ordering::SeqCst);
            let state = self.door.0.state.load(Ordering::SeqCst);
            let news = state & OPEN != 0 && state >> 32 != seen;
            if !news && !self.stop.load(Ordering::SeqCst) {
                std::thread::park();
            }
            self.asleep[index].store(false, Ordering::SeqCst);
            idle_since = Instant::now();
        }
    }

    fn enter(&self, seen: u64) -> Option<u64> {
        let state = self.door.0.state.load(Ordering::Acquire);
        if state & OPEN == 0 || state >> 32 == seen {
            return None;
        }
        let entered = self.door.0.state.compare_exchange_weak(
            state,
            state + 1,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        entered.ok().map(|state| state >> 32)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn every_item_runs_once() {
        for threads in [1, 2, 4] {
            let pool = Pool::new(threads).unwrap();
            for items in [0, 1, 2, 3, 64, 1000] {
                let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                pool.for_each(items, |item| {
                    counts[item].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                    "{items} items"
                );
            }
        }
    }

    #[test]
    fn items_are_dealt_to_the_threads_in_turn() {
        for (items, threads) in [(1, 2), (2, 3), (7, 2), (8, 3), (9, 3), (100, 7)] {
            let place = |item| dealt(item, items, threads);
            let mut places: Vec<usize> = (0..items).map(place).collect();
            for thread in 0..threads {
                let share =
                    first_item(items, threads, thread)..first_item(items, threads, thread + 1);
                let expected: Vec<usize> = (thread..items).step_by(threads).collect();
                assert_eq!(
                    places[share], expected,
                    "{items} items, thread {thread} of {threads}"
                );
            }
            places.sort_unstable();
            assert!(places.iter().copied().eq(0..items));
        }
    }

    #[test]
    fn who_is_done_takes_what_others_have_left() {
        let pool = Pool::new(2).unwrap();
        let done = AtomicUsize::new(0);
        pool.for_each(64, |item| {
            let deadline = Instant::now() + Duration::from_secs(10);
            // The first one holds its thread until all the others are done, those of its own share too.
            while item == 0 && done.load(Ordering::Relaxed) < 63 {
                assert!(Instant::now() < deadline, "the others are not done");
                std::thread::yield_now();
            }
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 64);
    }

    #[test]
    fn thousands_of_dispatches_lose_nothing_asleep_or_awake() {
        let pool = Pool::new(3).unwrap();
        let total = AtomicUsize::new(0);
        for round in 0..5000 {
            pool.for_each(4, |item| {
                total.fetch_add(item, Ordering::Relaxed);
            });
            if round % 500 == 0 {
                // Both ways in are taken: awake and asleep.
                wait_until_asleep(&pool);
            }
        }
        assert_eq!(total.load(Ordering::Relaxed), 5000 * 6);
    }

    #[test]
    fn a_panic_comes_out_and_the_pool_lives_on() {
        let pool = Pool::new(2).unwrap();
        for bad in [0, 7, 99] {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.for_each(100, |item| assert!(item != bad, "item {item}"));
            }));
            let payload = outcome.unwrap_err();
            assert_eq!(
                payload.downcast_ref::<String>(),
                Some(&format!("item {bad}"))
            );
            let ran = AtomicUsize::new(0);
            pool.for_each(10, |_| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.load(Ordering::Relaxed), 10);
        }
    }

    #[test]
    fn idle_workers_sleep() {
        let pool = Pool::new(2).unwrap();
        pool.for_each(8, |_| {});
        wait_until_asleep(&pool);
    }

    fn wait_until_asleep(pool: &Pool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !pool
            .shared
            .asleep
            .iter()
            .all(|asleep| asleep.load(Ordering::SeqCst))
        {
            assert!(Instant::now() < deadline, "a worker still spins");
            std::thread::yield_now();
        }
    }
}
