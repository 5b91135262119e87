//! Who is in flight, and what the engine has yet to be told.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use vitriol_proto::engine::v1::{Cancel, Credit, Event, SessionRequest, Submit, session_request};

use super::inbox::{EngineEvent, Inbox};

/// The book of requests in flight. One lock, held for a few map operations at a time.
///
/// A request is in the book from [`Switchboard::submit`] until its end has arrived, its reader has
/// gone, or the session has broken.
#[derive(Default)]
pub struct Switchboard {
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    /// Number of the session that stands; None between sessions.
    session: Option<u64>,
    sessions_begun: u64,
    requests_begun: u64,
    requests: HashMap<u64, Arc<Inbox>>,
    // The outbox. Submits in order; the rest needs none.
    cancels: VecDeque<u64>,
    credits: HashMap<u64, u32>,
    submits: VecDeque<Submit>,
    waker: Option<Waker>,
}

impl Switchboard {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session: from here on requests are taken. Returns its number.
    pub fn open(&self) -> u64 {
        let mut book = self.book();
        book.sessions_begun += 1;
        book.session = Some(book.sessions_begun);
        book.sessions_begun
    }

    /// Ends the session: all its requests are lost, all that was to be said is forgotten.
    pub fn close(&self) -> usize {
        let mut book = self.book();
        book.session = None;
        book.cancels.clear();
        book.credits.clear();
        book.submits.clear();
        let lost = std::mem::take(&mut book.requests);
        wake(book);
        for inbox in lost.values() {
            inbox.put_lost();
        }
        lost.len()
    }

    /// Takes a request in and returns its reader's end; None while no session stands.
    pub fn submit(switchboard: &Arc<Switchboard>, mut submit: Submit) -> Option<EngineRequest> {
        let inbox = Arc::new(Inbox::new(submit.window_tokens));
        let credit_step = (submit.window_tokens / 4).max(1);
        let mut book = switchboard.book();
        book.session?;
        book.requests_begun += 1;
        let id = book.requests_begun;
        submit.request_id = id;
        book.requests.insert(id, Arc::clone(&inbox));
        book.submits.push_back(submit);
        wake(book);
        Some(EngineRequest {
            id,
            inbox,
            switchboard: Arc::clone(switchboard),
            tokens_taken: 0,
            credit_step,
            ended: false,
        })
    }

    /// Requests in flight.
    pub fn len(&self) -> usize {
        self.book().requests.len()
    }

    /// Hands an event to its request. False when nobody waits for it: its reader has gone.
    pub fn dispatch(&self, event: Event) -> bool {
        let Some(kind) = event.kind else { return false };
        let mut book = self.book();
        let Some(inbox) = book.requests.get(&event.request_id).cloned() else {
            return false;
        };
        use vitriol_proto::engine::v1::event::Kind;
        if matches!(kind, Kind::Finished(_) | Kind::Failed(_)) {
            book.forget(event.request_id);
        }
        drop(book);
        if inbox.put(kind).is_err() {
            self.cancel(event.request_id);
        }
        true
    }

    /// What the engine is to be told next in `session`: cancels first, then credits, then submits.
    /// Ready(None) when the session has ended.
    pub fn poll_outbox(
        &self,
        session: u64,
        context: &mut Context<'_>,
    ) -> Poll<Option<SessionRequest>> {
        let mut book = self.book();
        if book.session != Some(session) {
            return Poll::Ready(None);
        }
        match book.next_message() {
            Some(kind) => Poll::Ready(Some(SessionRequest { kind: Some(kind) })),
            None => {
                book.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Tells the engine to stop a request, unless it has ended or was never sent.
    fn cancel(&self, id: u64) {
        let mut book = self.book();
        if book.requests.contains_key(&id) && book.forget(id) {
            book.cancels.push_back(id);
            wake(book);
        }
    }

    /// Gives the engine room for `tokens` more tokens of a request.
    fn credit(&self, id: u64, tokens: u32) {
        let mut book = self.book();
        if book.requests.contains_key(&id) {
            *book.credits.entry(id).or_default() += tokens;
            wake(book);
        }
    }
}

/// Wakes the outgoing half, after the lock is released.
fn wake(mut book: MutexGuard<'_, Book>) {
    let waker = book.waker.take();
    drop(book);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Book {
    /// Takes a request out of the book. True when the engine has been told of it.
    fn forget(&mut self, id: u64) -> bool {
        self.requests.remove(&id);
        self.credits.remove(&id);
        let unsent = self
            .submits
            .iter()
            .position(|submit| submit.request_id == id);
        unsent.and_then(|at| self.submits.remove(at)).is_none()
    }

    fn next_message(&mut self) -> Option<session_request::Kind> {
        if let Some(request_id) = self.cancels.pop_front() {
            return Some(session_request::Kind::Cancel(Cancel { request_id }));
        }
        if let Some(request_id) = self.credits.keys().next().copied()
            && let Some(tokens) = self.credits.remove(&request_id)
        {
            return Some(session_request::Kind::Credit(Credit { request_id, tokens }));
        }
        self.submits.pop_front().map(session_request::Kind::Submit)
    }
}

/// The reader's end of a request. Dropped before the end has been read, it cancels the request at
/// the engine.
pub struct EngineRequest {
    id: u64,
    inbox: Arc<Inbox>,
    switchboard: Arc<Switchboard>,
    /// Tokens read for which no credit was given back yet.
    tokens_taken: u32,
    /// Credit goes back in steps of a quarter window: three quarters always remain for the engine
    /// to run ahead, and a token costs no message of its own.
    credit_step: u32,
    ended: bool,
}

impl EngineRequest {
    /// The next event. Asking for it says that the one before has been passed on, so that its
    /// tokens may be credited. Cancel-safe.
    pub async fn next(&mut self) -> EngineEvent {
        if self.tokens_taken >= self.credit_step {
            self.switchboard.credit(self.id, self.tokens_taken);
            self.tokens_taken = 0;
        }
        let event = self.inbox.take().await;
        if let EngineEvent::Delta { tokens, .. } = &event {
            self.tokens_taken = self.tokens_taken.saturating_add(*tokens);
        }
        self.ended |= event.is_end();
        event
    }
}

impl Drop for EngineRequest {
    fn drop(&mut self) {
        if !self.ended {
            self.switchboard.cancel(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use proptest::prelude::*;
    use vitriol_proto::engine::v1::{Delta, Finished, event};

    use super::*;

    fn next(switchboard: &Switchboard, session: u64) -> Option<session_request::Kind> {
        let mut context = Context::from_waker(Waker::noop());
        match switchboard.poll_outbox(session, &mut context) {
            Poll::Ready(Some(message)) => message.kind,
            Poll::Ready(None) | Poll::Pending => None,
        }
    }

    fn start(switchboard: &Arc<Switchboard>) -> EngineRequest {
        let submit = Submit {
            window_tokens: 8,
            ..Submit::default()
        };
        Switchboard::submit(switchboard, submit).unwrap()
    }

    #[test]
    fn without_a_session_nothing_is_taken() {
        let switchboard = Arc::new(Switchboard::default());
        assert!(Switchboard::submit(&switchboard, Submit::default()).is_none());
        switchboard.open();
        let _request = start(&switchboard);
        switchboard.close();
        assert!(Switchboard::submit(&switchboard, Submit::default()).is_none());
        assert_eq!(switchboard.len(), 0);
    }

    #[test]
    fn a_request_dropped_before_it_was_sent_is_never_sent() {
        let switchboard = Arc::new(Switchboard::default());
        let session = switchboard.open();
        drop(start(&switchboard));
        assert_eq!(next(&switchboard, session), None);
        assert_eq!(switchboard.len(), 0);
    }

    #[test]
    fn a_cancel_overtakes_submits() {
        let switchboard = Arc::new(Switchboard::default());
        let session = switchboard.open();
        let first = start(&switchboard);
        assert!(matches!(
            next(&switchboard, session),
            Some(session_request::Kind::Submit(_))
        ));
        let _second = start(&switchboard);
        let id = first.id;
        drop(first);
        let expected = session_request::Kind::Cancel(Cancel { request_id: id });
        assert_eq!(next(&switchboard, session), Some(expected));
        assert!(matches!(
            next(&switchboard, session),
            Some(session_request::Kind::Submit(_))
        ));
    }

    #[tokio::test]
    async fn credit_goes_back_when_the_next_event_is_asked_for() {
        let switchboard = Arc::new(Switchboard::default());
        let session = switchboard.open();
        let mut request = start(&switchboard);
        next(&switchboard, session);
        let delta = Delta {
            text: "abc".into(),
            tokens: 3,
        };
        let event = |kind| Event {
            request_id: request.id,
            kind: Some(kind),
        };
        assert!(switchboard.dispatch(event(event::Kind::Delta(delta))));
        let finished = event(event::Kind::Finished(Finished::default()));
        assert!(matches!(
            request.next().await,
            EngineEvent::Delta { tokens: 3, .. }
        ));
        assert_eq!(next(&switchboard, session), None);
        // Nothing waits, so asking does not return; what it said has been said all the same.
        let mut context = Context::from_waker(Waker::noop());
        {
            let mut asking = Box::pin(request.next());
            assert!(asking.as_mut().poll(&mut context).is_pending());
        }
        let expected = Credit {
            request_id: request.id,
            tokens: 3,
        };
        assert_eq!(
            next(&switchboard, session),
            Some(session_request::Kind::Credit(expected))
        );
        switchboard.dispatch(finished);
        assert!(matches!(request.next().await, EngineEvent::Finished(_)));
        drop(request);
        assert_eq!(next(&switchboard, session), None);
    }

    #[tokio::test]
    async fn a_broken_session_loses_its_requests_and_its_outbox() {
        let switchboard = Arc::new(Switchboard::default());
        let session = switchboard.open();
        let mut request = start(&switchboard);
        assert_eq!(switchboard.close(), 1);
        assert_eq!(request.next().await, EngineEvent::Lost);
        let later = switchboard.open();
        assert_ne!(session, later);
        assert_eq!(next(&switchboard, later), None);
    }

    #[derive(Clone, Debug)]
    enum Move {
        Start,
        Drop(usize),
        Send,
        Delta(usize, u32),
        Read(usize),
        Finish(usize),
        Break,
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let one = prop_oneof![
            4 => Just(Move::Start),
            2 => any::<usize>().prop_map(Move::Drop),
            6 => Just(Move::Send),
            6 => (any::<usize>(), 0..4u32).prop_map(|(at, tokens)| Move::Delta(at, tokens)),
            6 => any::<usize>().prop_map(Move::Read),
            2 => any::<usize>().prop_map(Move::Finish),
            1 => Just(Move::Break),
        ];
        proptest::collection::vec(one, 0..200)
    }

    proptest! {
        /// Whatever the order of events: the outbox stays within one Submit, one Cancel and one
        /// Credit a request, and when every reader has gone the book is empty.
        #[test]
        fn nothing_leaks_and_the_outbox_is_bounded(moves in moves()) {
            let switchboard = Arc::new(Switchboard::default());
            let mut session = switchboard.open();
            let mut readers: Vec<EngineRequest> = Vec::new();
            for step in moves {
                let id_at = |at: usize, readers: &[EngineRequest]| {
                    (!readers.is_empty()).then(|| readers[at % readers.len()].id)
                };
                match step {
                    Move::Start => readers.push(start(&switchboard)),
                    Move::Drop(at) if !readers.is_empty() => {
                        readers.swap_remove(at % readers.len());
                    }
                    Move::Send => {
                        next(&switchboard, session);
                    }
                    Move::Delta(at, tokens) => {
                        if let Some(request_id) = id_at(at, &readers) {
                            let delta = Delta { text: "x".into(), tokens };
                            let kind = Some(event::Kind::Delta(delta));
                            switchboard.dispatch(Event { request_id, kind });
                        }
                    }
                    Move::Read(at) if !readers.is_empty() => {
                        let at = at % readers.len();
                        let mut context = Context::from_waker(Waker::noop());
                        let mut reading = Box::pin(readers[at].next());
                        let _ = reading.as_mut().poll(&mut context);
                    }
                    Move::Finish(at) => {
                        if let Some(request_id) = id_at(at, &readers) {
                            let kind = Some(event::Kind::Finished(Finished::default()));
                            switchboard.dispatch(Event { request_id, kind });
                        }
                    }
                    Move::Break => {
                        switchboard.close();
                        session = switchboard.open();
                    }
                    Move::Drop(_) | Move::Read(_) => {}
                }
                let book = switchboard.book();
                prop_assert!(book.requests.len() <= readers.len());
                prop_assert!(book.credits.len() <= book.requests.len());
                prop_assert!(book.submits.len() <= book.requests.len());
                prop_assert!(book.cancels.len() as u64 <= book.requests_begun);
            }
            readers.clear();
            let book = switchboard.book();
            prop_assert!(book.requests.is_empty());
            prop_assert!(book.credits.is_empty());
            prop_assert!(book.submits.is_empty());
        }
    }
}
