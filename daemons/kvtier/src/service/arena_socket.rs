//! The socket for descriptors: who has a token gets the arena's, or hands over that of a file.

use std::{
    collections::VecDeque,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::AsyncReadExt,
    net::UnixStream,
    sync::{Semaphore, oneshot},
};
use tokio_stream::StreamExt;
use tonic::Status;
use vitriol_ipc::{Incoming, receive_descriptor, send_descriptor};

use crate::tier::Tier;

/// Tokens that may wait to be used; the oldest gives way.
const TOKENS_MAX: usize = 64;

/// Connections that may be open; one more waits.
const CONNECTIONS_MAX: usize = 16;

/// Time a client has to send its token.
pub(super) const TOKEN_TIMEOUT: Duration = Duration::from_secs(5);

type Token = [u8; 16];

/// What a token is good for.
#[derive(Debug)]
enum Wanted {
    /// To get the arena.
    Arena,
    /// To hand a file over to who waits for it.
    File(oneshot::Sender<OwnedFd>),
}

/// Tokens that were given out and not used, each good for one descriptor.
#[derive(Debug, Default)]
pub struct Tokens {
    unused: Mutex<VecDeque<(Token, Wanted)>>,
}

impl Tokens {
    pub(super) fn issue(&self) -> Result<Token, Status> {
        self.issue_for(Wanted::Arena)
    }

    /// A token against which a file is handed over, and that file when it is.
    pub(super) fn issue_for_file(&self) -> Result<(Token, oneshot::Receiver<OwnedFd>), Status> {
        let (handed, file) = oneshot::channel();
        Ok((self.issue_for(Wanted::File(handed))?, file))
    }

    fn issue_for(&self, wanted: Wanted) -> Result<Token, Status> {
        let mut token = Token::default();
        getrandom::fill(&mut token)
            .map_err(|error| Status::internal(format!("no random token: {error}")))?;
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        if unused.len() == TOKENS_MAX {
            unused.pop_front();
        }
        unused.push_back((token, wanted));
        Ok(token)
    }

    fn redeem(&self, token: &Token) -> Option<Wanted> {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        let place = unused.iter().position(|(unused, _)| unused == token)?;
        unused.remove(place).map(|(_, wanted)| wanted)
    }
}

/// Hands out the arena's descriptor, and takes files, until it is dropped.
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
                Ok(Err(error)) => tracing::warn!(%error, "no descriptor changed hands"),
                Err(_) => tracing::warn!("no descriptor changed hands: no token, or no file, came"),
            }
            drop(place);
        });
    }
}

async fn hand_out(mut stream: UnixStream, tier: &Tier, tokens: &Tokens) -> std::io::Result<()> {
    let mut token = Token::default();
    stream.read_exact(&mut token).await?;
    match tokens.redeem(&token) {
        None => Err(std::io::Error::other("the token is none, or was used")),
        Some(Wanted::Arena) => {
            send_descriptor(&stream, std::os::fd::AsFd::as_fd(tier.arena())).await
        }
        Some(Wanted::File(waits)) => {
            let file = receive_descriptor(&stream).await?;
            let ended = |_| std::io::Error::other("the call that the file is for has ended");
            waits.send(file).map_err(ended)
        }
    }
}
