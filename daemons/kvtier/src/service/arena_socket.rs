//! The socket that hands the arena's descriptor to who has a token.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{io::AsyncReadExt, net::UnixStream, sync::Semaphore};
use tokio_stream::StreamExt;
use tonic::Status;
use vitriol_ipc::{Incoming, send_descriptor};

use crate::tier::Tier;

/// Tokens that may wait to be used; the oldest gives way.
const TOKENS_MAX: usize = 64;

/// Connections that may be open; one more waits.
const CONNECTIONS_MAX: usize = 16;

/// Time a client has to send its token.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(5);

type Token = [u8; 16];

/// Tokens that were given out and not used, each good for one descriptor.
#[derive(Debug, Default)]
pub struct Tokens {
    unused: Mutex<VecDeque<Token>>,
}

impl Tokens {
    pub(super) fn issue(&self) -> Result<Token, Status> {
        let mut token = Token::default();
        getrandom::fill(&mut token)
            .map_err(|error| Status::internal(format!("no random token: {error}")))?;
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        if unused.len() == TOKENS_MAX {
            unused.pop_front();
        }
        unused.push_back(token);
        Ok(token)
    }

    fn redeem(&self, token: &Token) -> bool {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        let place = unused.iter().position(|unused| unused == token);
        place.and_then(|place| unused.remove(place)).is_some()
    }
}

/// Hands out the arena's descriptor until it is dropped.
pub async fn serve_arena(mut incoming: Incoming, tier: Arc<Tier>, tokens: Arc<Tokens>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Some(stream) = incoming.next().await {
        let (Ok(stream), Ok(place)) = (stream, Arc::clone(&places).acquire_owned().await) else {
            continue;
        };
        let (tier, tokens) = (Arc::clone(&tier), Arc::clone(&tokens));
        tokio::spawn(async move {
            let handed = tokio::time::timeout(TOKEN_TIMEOUT, hand_out(stream, &tier, &tokens));
            match handed.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the arena was not handed out"),
                Err(_) => tracing::warn!("the arena was not handed out: no token came"),
            }
            drop(place);
        });
    }
}

async fn hand_out(mut stream: UnixStream, tier: &Tier, tokens: &Tokens) -> std::io::Result<()> {
    let mut token = Token::default();
    stream.read_exact(&mut token).await?;
    if !tokens.redeem(&token) {
        return Err(std::io::Error::other("the token is none, or was used"));
    }
    send_descriptor(&stream, std::os::fd::AsFd::as_fd(tier.arena())).await
}
