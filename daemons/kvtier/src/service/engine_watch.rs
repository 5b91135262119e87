//! Which engines have ended, by their pidfds.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::task::AbortHandle;
use tonic::Status;
use vitriol_ipc::{Process, is_gone};

use super::status;
use crate::{
    arena::layout::ArenaId,
    slots::{Attached, EngineId, Session, Ticket},
    tier::Tier,
};

type Watches = HashMap<EngineId, AbortHandle>;

/// One watch for each engine; the last one counts, because an attachment ends what was before it.
#[derive(Clone, Debug)]
pub struct EngineWatch {
    tier: Arc<Tier>,
    watches: Arc<Mutex<Watches>>,
}

impl EngineWatch {
    pub fn new(tier: Arc<Tier>) -> Self {
        Self {
            tier,
            watches: Arc::default(),
        }
    }

    /// Attaches an engine ([`Tier::attach`]); what it has is freed when its process ends.
    ///
    /// Errors: its process has ended or cannot be watched; no stamps are left.
    pub fn attach(
        &self,
        engine: EngineId,
        arena: ArenaId,
        holds: &[Ticket],
    ) -> Result<Attached, Status> {
        // Held before the session begins, so that no end goes unseen.
        let failed = |error| Status::unavailable(format!("watch process {engine}: {error}"));
        let process = Process::open(engine).map_err(failed)?;
        // Two attachments of one engine are watched in the order in which they were made.
        let mut watches = self.watches();
        let attached = self.tier.attach(engine, arena, holds).map_err(status)?;
        self.start(&mut watches, process, engine, Some(attached.session));
        Ok(attached)
    }

    /// Frees what an engine of an earlier run had when its process ends, which may be long ago.
    pub fn watch_earlier(&self, engine: EngineId) {
        match Process::open(engine) {
            Ok(process) => self.start(&mut self.watches(), process, engine, None),
            Err(error) if is_gone(&error) => {
                self.tier.engine_dead(engine, None);
            }
            // Its slots stay out of reach until it attaches.
            Err(error) => tracing::warn!(engine, %error, "an engine cannot be watched"),
        }
    }

    fn start(
        &self,
        watches: &mut Watches,
        process: Process,
        engine: EngineId,
        session: Option<Session>,
    ) {
        let tier = Arc::clone(&self.tier);
        let task = tokio::spawn(async move {
            match process.ended().await {
                Ok(()) => tier.engine_dead(engine, session),
                Err(error) => tracing::warn!(engine, %error, "an engine is not watched any more"),
            }
        });
        watches.retain(|_, watch| !watch.is_finished());
        if let Some(before) = watches.insert(engine, task.abort_handle()) {
            before.abort();
        }
    }

    fn watches(&self) -> MutexGuard<'_, Watches> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        process::{Child, Command},
        time::Duration,
    };

    use super::*;
    use crate::{
        arena::Arena,
        record::{Record, RecordName},
        tier::Offer,
        worth::Origin,
    };

    fn process() -> Child {
        Command::new("sleep").arg("1000").spawn().unwrap()
    }

    fn end(mut process: Child) {
        process.kill().unwrap();
        process.wait().unwrap();
    }

    fn reserve(tier: &Tier, session: Session) {
        let record = Record {
            name: RecordName {
                key: [1; 32],
                tag: [1; 16],
                group: 0,
            },
            parent: [0; 32],
            tokens: 64,
            saved_us: 1,
            length: 1,
            xxh3: 0,
        };
        let origin = Origin::Session;
        tier.reserve(session, &Offer { record, origin }).unwrap();
    }

    async fn all_free(tier: &Tier) {
        let freed = async {
            while tier.stats().slots_free != 4 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(60), freed).await;
        in_time.expect("the dead engine's slot becomes free");
    }

    #[tokio::test]
    async fn what_an_engine_reserved_is_free_when_its_process_has_ended() {
        let arena = Arena::create([1; 16], 6 << 20, 1 << 20).unwrap();
        let tier = Arc::new(Tier::new(arena, None));
        let engines = EngineWatch::new(Arc::clone(&tier));
        let child = process();
        let attached = engines.attach(child.id(), [0; 16], &[]).unwrap();
        reserve(&tier, attached.session);
        assert_eq!(tier.stats().slots_free, 3);
        end(child);
        all_free(&tier).await;
    }

    #[tokio::test]
    async fn engines_of_an_earlier_run_are_watched_or_known_to_be_dead() {
        for dead_before in [false, true] {
            let arena = Arena::create([1; 16], 6 << 20, 1 << 20).unwrap();
            let memory = std::os::fd::AsFd::as_fd(&arena)
                .try_clone_to_owned()
                .unwrap();
            let earlier = Tier::new(arena, None);
            let child = process();
            let engine = child.id();
            let attached = earlier.attach(engine, [0; 16], &[]).unwrap();
            reserve(&earlier, attached.session);
            drop(earlier);

            let tier = Arc::new(Tier::new(Arena::take_over(memory).unwrap(), None));
            assert_eq!(tier.quarantined(), [engine]);
            let engines = EngineWatch::new(Arc::clone(&tier));
            if dead_before {
                end(child);
                engines.watch_earlier(engine);
            } else {
                engines.watch_earlier(engine);
                assert_eq!(tier.stats().slots_quarantined, 1);
                end(child);
            }
            all_free(&tier).await;
        }
    }
}
