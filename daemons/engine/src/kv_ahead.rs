//! Memory for KV pages, found while the model is loaded.

use crate::{
    forward::KvStores,
    kv::{PagePlan, Window},
    model::KvGroup,
    step::StartError,
};
use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

/// KV stores for which a thread of its own finds memory until they are wanted. A conversation that comes back
/// from kvtier fills its pages in a fraction of the time that the machine may take to find memory for them, and
/// most of a load waits for other things.
#[derive(Debug)]
pub struct KvAhead {
    is_wanted: Arc<AtomicBool>,
    thread: JoinHandle<KvStores>,
}

impl KvAhead {
    /// Begins, for the pages that are planned for `groups`. Errors: no address space for them, or no thread.
    pub fn begin(groups: &[KvGroup], plan: &PagePlan) -> Result<Self, StartError> {
        let pages = plan.pages(groups);
        let mut stores = KvStores::new(groups, plan.codecs, &pages)?;
        let windows: Vec<Window> = groups.iter().map(KvGroup::window).collect();
        let ahead = pages_ahead(&windows, plan, &pages);
        let is_wanted = Arc::new(AtomicBool::new(false));
        let for_thread = Arc::clone(&is_wanted);
        let thread = thread::Builder::new()
            .name("kv-ahead".to_owned())
            .spawn(move || {
                while !for_thread.load(Ordering::Acquire) && stores.commit_part(&ahead) {}
                stores
            })?;
        Ok(Self { is_wanted, thread })
    }

    /// The stores, with what memory they have by now.
    pub fn finish(self) -> KvStores {
        self.is_wanted.store(true, Ordering::Release);
        self.thread
            .join()
            .unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Pages of each group that get memory before anybody asks for them: those of one conversation as long as the
/// context, which may come back at once, and no more than half of what there is, since none may.
fn pages_ahead(windows: &[Window], plan: &PagePlan, pages: &[usize]) -> Vec<usize> {
    let groups = windows.iter().zip(pages);
    let of_group = |(window, &pages): (&Window, &usize)| {
        let one = window.blocks_max(plan.context_tokens, plan.step_tokens);
        one.min(pages / 2)
    };
    groups.map(of_group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::KvCodecs;

    #[test]
    fn one_conversation_or_half_the_pool_gets_memory_before_it_is_asked_for() {
        let windows = [Window { tokens: None }, Window { tokens: Some(512) }];
        let plan = PagePlan {
            codecs: KvCodecs::F32,
            kv_bytes: 0,
            context_tokens: 8192,
            sequences_max: 16,
            step_tokens: 512,
        };
        assert_eq!(pages_ahead(&windows, &plan, &[1000, 100]), [128, 17]);
        assert_eq!(pages_ahead(&windows, &plan, &[100, 20]), [50, 10]);
        assert_eq!(pages_ahead(&windows, &plan, &[1, 1]), [0, 0]);
    }
}
