//! The half of the session that speaks: a stream that asks the switchboard what to say next.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use vitriol_proto::engine::v1::SessionRequest;

use super::switchboard::Switchboard;

/// Messages to the engine, pulled as the transport has room for them. Ends with its session.
pub struct Outgoing {
    switchboard: Arc<Switchboard>,
    session: u64,
}

impl Outgoing {
    /// The outgoing half of a session.
    pub fn new(switchboard: Arc<Switchboard>, session: u64) -> Outgoing {
        Outgoing {
            switchboard,
            session,
        }
    }
}

impl Stream for Outgoing {
    type Item = SessionRequest;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<SessionRequest>> {
        self.switchboard.poll_outbox(self.session, context)
    }
}
