//! Where a conversation parts from what its last request left: a client that changes what it sent before,
//! or whose template does, has the rest computed again, and is told what it changed.
//!
//! The step thread leaves the tokens of each named conversation's last request here, request threads
//! compare the next prompt with them. Token ids alone, in memory alone.

use crate::{kv::PAGE_TOKENS, scheduler::Owner};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Most conversations whose last request is known.
const CONVERSATIONS_MAX: usize = 256;
/// Most token ids of them all, 4 bytes each.
const TOKENS_MAX: usize = 4 << 20;

/// Where a prompt parts from its conversation's last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The first prompt token that is another, from 0.
    pub token: usize,
    /// The message it lies in or follows, from 0; `None` where that cannot be told.
    pub message: Option<usize>,
}

/// What was computed for the last request of each conversation, prompt and answer. Of more than there is
/// room for, the one whose last request is the longest ago is forgotten.
#[derive(Debug, Default)]
pub struct LastRequests(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// The latest last.
    requests: VecDeque<LastRequest>,
    tokens: usize,
}

#[derive(Debug)]
struct LastRequest {
    /// One tenant must not learn by its prompts what another's are.
    tenant: Owner,
    session_id: Arc<str>,
    tokens: Arc<Vec<u32>>,
}

impl LastRequests {
    /// Keeps the tokens whose KV a request computed or reused. One that ended before it came as far as the
    /// one before takes nothing away. A conversation without a name is none.
    pub fn put(&self, tenant: &Owner, session_id: &Arc<str>, mut tokens: Vec<u32>) {
        if session_id.is_empty() || tokens.len() > TOKENS_MAX {
            return;
        }
        let mut kept = self.kept();
        let before = kept.take(tenant, session_id);
        let tokens = match before {
            Some(before) if before.tokens.starts_with(&tokens) => before.tokens,
            _ => {
                tokens.shrink_to_fit();
                Arc::new(tokens)
            }
        };
        kept.tokens += tokens.len();
        kept.requests.push_back(LastRequest {
            tenant: tenant.clone(),
            session_id: Arc::clone(session_id),
            tokens,
        });
        kept.forget_oldest();
    }

    /// The first token of `prompt` that is not as in the conversation's last request, if that had computed
    /// the whole block it lies in. `None`: the prompt goes on with all of its blocks, or is a beginning of
    /// them; or nothing is known of the conversation.
    pub fn first_change(&self, tenant: &Owner, session_id: &str, prompt: &[u32]) -> Option<usize> {
        let last = self.get(tenant, session_id)?;
        let full = last.len() / PAGE_TOKENS * PAGE_TOKENS;
        last[..full]
            .iter()
            .zip(prompt)
            .position(|(before, now)| before != now)
    }

    fn get(&self, tenant: &Owner, session_id: &str) -> Option<Arc<Vec<u32>>> {
        let kept = self.kept();
        let at = kept.position(tenant, session_id)?;
        Some(Arc::clone(&kept.requests[at].tokens))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn position(&self, tenant: &Owner, session_id: &str) -> Option<usize> {
        let of_it = |kept: &LastRequest| &*kept.session_id == session_id && kept.tenant == *tenant;
        self.requests.iter().position(of_it)
    }

    fn take(&mut self, tenant: &Owner, session_id: &str) -> Option<LastRequest> {
        let taken = self.requests.remove(self.position(tenant, session_id)?)?;
        self.tokens -= taken.tokens.len();
        Some(taken)
    }

    fn forget_oldest(&mut self) {
        while self.requests.len() > CONVERSATIONS_MAX || self.tokens > TOKENS_MAX {
            let Some(oldest) = self.requests.pop_front() else {
                return;
            };
            self.tokens -= oldest.tokens.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Owner {
        Owner::Tenant(name.into())
    }

    fn change(requests: &LastRequests, session_id: &str, prompt: &[u32]) -> Option<usize> {
        requests.first_change(&tenant("t"), session_id, prompt)
    }

    fn put(requests: &LastRequests, session_id: &str, tokens: &[u32]) {
        requests.put(&tenant("t"), &session_id.into(), tokens.to_vec());
    }

    /// So many blocks of the same token.
    fn blocks(token: u32, count: usize) -> Vec<u32> {
        vec![token; count * PAGE_TOKENS]
    }

    #[test]
    fn what_was_changed_is_found_where_it_cost_a_full_block() {
        let requests = LastRequests::default();
        let last: Vec<u32> = (0..150).collect();
        assert_eq!(change(&requests, "a", &last), None, "nothing is known");
        put(&requests, "a", &last);
        let goes_on: Vec<u32> = (0..300).collect();
        assert_eq!(change(&requests, "a", &goes_on), None);
        assert_eq!(change(&requests, "a", &last[..70]), None, "a beginning");
        assert_eq!(change(&requests, "a", &[9, 1, 2]), Some(0));
        let changed = |at: usize| {
            let mut prompt = goes_on.clone();
            prompt[at] = 999;
            change(&requests, "a", &prompt)
        };
        assert_eq!((changed(63), changed(127)), (Some(63), Some(127)));
        assert_eq!(changed(128), None, "the last block never was full");
    }

    #[test]
    fn conversations_and_tenants_are_apart() {
        let requests = LastRequests::default();
        put(&requests, "a", &blocks(1, 2));
        put(&requests, "b", &blocks(2, 2));
        put(&requests, "", &blocks(3, 2));
        let prompt = blocks(1, 3);
        assert_eq!(change(&requests, "a", &prompt), None);
        assert_eq!(change(&requests, "b", &prompt), Some(0));
        assert_eq!(change(&requests, "", &prompt), None);
        let other = requests.first_change(&tenant("u"), "b", &prompt);
        assert_eq!(other, None);
    }

    #[test]
    fn the_last_request_counts_unless_it_ended_early() {
        let requests = LastRequests::default();
        put(&requests, "a", &blocks(1, 2));
        put(&requests, "a", &blocks(1, 1));
        let parts = [blocks(1, 1), blocks(2, 1)].concat();
        assert_eq!(change(&requests, "a", &parts), Some(PAGE_TOKENS));
        put(&requests, "a", &blocks(2, 1));
        assert_eq!(change(&requests, "a", &blocks(2, 2)), None);
        assert_eq!(change(&requests, "a", &blocks(1, 2)), Some(0));
    }

    #[test]
    fn the_oldest_is_forgotten_by_number_and_by_size() {
        let requests = LastRequests::default();
        let is_known = |session_id: &str| change(&requests, session_id, &[2]).is_some();
        for number in 0..=CONVERSATIONS_MAX {
            put(&requests, &number.to_string(), &blocks(1, 1));
        }
        assert!(!is_known("0") && is_known("1"));

        let latest = CONVERSATIONS_MAX.to_string();
        put(&requests, "long", &vec![1; TOKENS_MAX - PAGE_TOKENS]);
        assert!(is_known(&latest) && !is_known("2"));
        put(&requests, "another", &blocks(1, 1));
        assert!(is_known("long") && is_known("another") && !is_known(&latest));
        put(&requests, "too long", &vec![1; TOKENS_MAX + 1]);
        assert!(!is_known("too long") && is_known("long"));
        let kept = requests.kept();
        let tokens: usize = kept.requests.iter().map(|of| of.tokens.len()).sum();
        assert_eq!(kept.tokens, tokens);
    }
}
