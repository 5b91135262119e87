//! kvtier as Demiurge asks it: to save conversations, bring them back and destroy them. Names, never KV.

use std::path::Path;
use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use vitriol_ipc::connect;
use vitriol_proto::kvtier::v1::kv_tier_client::KvTierClient;
use vitriol_proto::kvtier::v1::{
    CopySessionRequest, RemoveSessionRequest, RemoveSessionResponse, RestoreSessionRequest,
    RestoreSessionResponse, SyncSessionRequest, SyncSessionResponse,
};

/// How long the disk may take for a conversation.
const DISK_WITHIN: Duration = Duration::from_secs(60);

/// What an answer may take beyond that.
const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// What a conversation that was saved is called in kvtier's catalogue: this and its file's name, which has
/// no slash.
const SAVED: &str = "slots/";

/// Longest name of a file, bytes; with [`SAVED`] as long as an id may be.
pub const FILE_NAME_BYTES_MAX: usize = 256 - SAVED.len();

/// The tier of this house.
#[derive(Clone, Debug)]
pub struct KvTier {
    client: KvTierClient<Channel>,
}

impl KvTier {
    /// The one behind this socket, reached when it is asked.
    pub fn new(socket: &Path) -> Self {
        let client = KvTierClient::new(connect(socket));
        Self { client }
    }

    /// Waits until the disk has a conversation, and gives what it is now the name `file` besides. Not whole:
    /// the answer has the cause, and `file` is what it was.
    pub async fn save(&self, session: &str, file: &str) -> Result<SyncSessionResponse, Status> {
        let synced = self.sync(session.to_owned()).await?;
        if !synced.cause.is_empty() {
            return Ok(synced);
        }
        let copy = CopySessionRequest {
            id: session.to_owned(),
            to: saved(file),
        };
        let mut client = self.client.clone();
        ask(CALL_DEADLINE, copy, |copy| client.copy_session(copy)).await?;
        self.sync(saved(file)).await
    }

    /// Brings what was saved as `file` into memory, as much as there is room for.
    pub async fn restore(&self, file: &str) -> Result<RestoreSessionResponse, Status> {
        let restore = RestoreSessionRequest {
            id: saved(file),
            bytes_max: 0,
            within_ms: DISK_WITHIN.as_millis() as u32,
            only_free: false,
        };
        let mut client = self.client.clone();
        let deadline = DISK_WITHIN + CALL_DEADLINE;
        ask(deadline, restore, |restore| client.restore_session(restore)).await
    }

    /// Destroys what no other conversation goes on with, those that were saved among them.
    pub async fn erase(&self, session: &str) -> Result<RemoveSessionResponse, Status> {
        let remove = RemoveSessionRequest {
            id: session.to_owned(),
        };
        let mut client = self.client.clone();
        let deadline = DISK_WITHIN + CALL_DEADLINE;
        ask(deadline, remove, |remove| client.remove_session(remove)).await
    }

    async fn sync(&self, id: String) -> Result<SyncSessionResponse, Status> {
        let sync = SyncSessionRequest {
            id,
            within_ms: DISK_WITHIN.as_millis() as u32,
        };
        let mut client = self.client.clone();
        let deadline = DISK_WITHIN + CALL_DEADLINE;
        ask(deadline, sync, |sync| client.sync_session(sync)).await
    }
}

fn saved(file: &str) -> String {
    format!("{SAVED}{file}")
}

/// The answer of a call; DEADLINE_EXCEEDED where none comes.
async fn ask<M, T, F>(
    deadline: Duration,
    message: M,
    call: impl FnOnce(Request<M>) -> F,
) -> Result<T, Status>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let mut request = Request::new(message);
    request.set_timeout(deadline);
    match tokio::time::timeout(deadline, call(request)).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Status::deadline_exceeded("no answer")),
    }
}
