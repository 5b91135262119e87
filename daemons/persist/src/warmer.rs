//! Warms up the KV tier when it starts without the memory it had.
//!
//! ```text
//! Events: this is my arena ─▶ is it new? ─▶ ListSessions ─▶ Stats, RestoreSession, repeatedly ─▶ one line
//!    ▲                                                                                          │
//!    └──────────── kvtier ends: the stream breaks, and is asked for again ◀─────────────────────┘
//! ```
//! The records go from kvtier's disk to its memory; none comes here, and no engine need be there.

use std::time::{Duration, Instant};

use tonic::{Code, Status, transport::Channel};
use vitriol_ipc::connect;
use vitriol_proto::kvtier::v1::{
    ArenaState, EventsRequest, ListSessionsRequest, RestoreSessionRequest, SessionInfo,
    StatsRequest, event, kv_tier_client::KvTierClient,
};

use crate::{
    config::Watched,
    deadline::within,
    metrics::Metrics,
    warmup::{Budget, Conversation, Step, Warmup, is_cold},
};

/// Time between two tries to reach a tier that is not there: a connection refused costs next to nothing,
/// and who asks early finds it warm.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// Longest that the list takes: the tier reads the headers of all records on its disk first.
const LISTED_WITHIN: Duration = Duration::from_secs(120);

/// What a call may take beyond the time that it was given to work in.
const GRACE: Duration = Duration::from_secs(5);

/// Settings of the warm-up.
#[derive(Clone, Debug)]
pub struct WarmupConfig {
    /// The tier that is warmed up.
    pub kvtier: Watched,
    pub budget: Budget,
    /// Of the calls that read no disk.
    pub deadline: Duration,
}

/// Waits for a KV tier that starts cold, again and again.
#[derive(Debug)]
pub struct Warmer {
    config: WarmupConfig,
    tier: KvTierClient<Channel>,
    metrics: Metrics,
    /// The arena that was warmed up last.
    warmed: Option<Vec<u8>>,
}

impl Warmer {
    /// Must be called inside a tokio runtime.
    pub fn new(config: WarmupConfig, metrics: Metrics) -> Self {
        Self {
            tier: KvTierClient::new(connect(&config.kvtier.socket)),
            config,
            metrics,
            warmed: None,
        }
    }

    /// Waits and warms up for as long as it is let.
    pub async fn run(mut self) {
        loop {
            if let Err(status) = self.follow().await {
                let code = status.code();
                tracing::debug!(?code, "the KV tier is not there");
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// Follows one run of the tier to its end.
    async fn follow(&mut self) -> Result<(), Status> {
        let mut tier = self.tier.clone();
        let deadline = self.config.deadline;
        let events = within(deadline, tier.events(EventsRequest {})).await?;
        let mut events = events.into_inner();
        // The arena is told first; what else is told is not for us, but that it ends.
        let mut told = within(deadline, events.message()).await?;
        while let Some(event) = told {
            if let Some(event::Kind::Arena(ArenaState { id, epoch })) = event.kind
                && is_cold(&id, epoch, self.warmed.as_deref())
            {
                self.warmed = Some(id);
                if let Err(status) = self.warm_up().await {
                    let (code, cause) = (status.code(), status.message());
                    tracing::warn!(?code, cause, "the KV tier could not be warmed up");
                }
            }
            told = events.message().await?;
        }
        Ok(())
    }

    async fn warm_up(&self) -> Result<(), Status> {
        let conversations = self.conversations().await?;
        tracing::info!(
            sessions = conversations.len(),
            "the memory of the KV tier is new: the latest sessions come back from its disk"
        );
        let began = Instant::now();
        let (mut warmup, mut sessions) = (Warmup::new(self.config.budget, conversations), 0u64);
        let end = loop {
            let step = warmup.next(began.elapsed(), self.slots_free().await?);
            let (id, bytes_max, within) = match step {
                Step::End(end) => break end,
                Step::Restore {
                    id,
                    bytes_max,
                    within,
                } => (id, bytes_max, within),
            };
            let bytes = self.restore(&id, bytes_max, within).await?;
            warmup.brought(bytes);
            self.metrics.warmup_bytes.inc_by(bytes);
            if bytes > 0 {
                sessions += 1;
                self.metrics.warmup_sessions.inc();
            }
        };
        self.metrics.warmups.inc();
        tracing::info!(
            sessions,
            bytes = warmup.brought_bytes(),
            ms = began.elapsed().as_millis() as u64,
            end = end.as_str(),
            "the KV tier is warm"
        );
        Ok(())
    }

    async fn conversations(&self) -> Result<Vec<Conversation>, Status> {
        let listed = async {
            let mut tier = self.tier.clone();
            let mut listed = tier
                .list_sessions(ListSessionsRequest {})
                .await?
                .into_inner();
            let mut conversations = Vec::new();
            while let Some(session) = listed.message().await? {
                conversations.push(read(session));
            }
            Ok(conversations)
        };
        within(LISTED_WITHIN, listed).await
    }

    /// Slots that hold nothing, and whose memory the tier has.
    async fn slots_free(&self) -> Result<u64, Status> {
        let mut tier = self.tier.clone();
        let stats = within(self.config.deadline, tier.stats(StatsRequest {})).await?;
        let stats = stats.into_inner();
        Ok(stats.slots_free.saturating_sub(stats.slots_given_back))
    }

    /// Bytes of a conversation that were brought.
    async fn restore(&self, id: &str, bytes_max: u64, time: Duration) -> Result<u64, Status> {
        let request = RestoreSessionRequest {
            id: id.to_owned(),
            bytes_max,
            within_ms: u32::try_from(time.as_millis()).unwrap_or(u32::MAX),
            only_free: true,
        };
        let mut tier = self.tier.clone();
        let restored = match within(time + GRACE, tier.restore_session(request)).await {
            Ok(restored) => restored.into_inner(),
            // It was removed since it was listed.
            Err(status) if status.code() == Code::NotFound => return Ok(0),
            Err(status) => return Err(status),
        };
        tracing::info!(
            vitriol_session = id,
            bytes = restored.brought_bytes,
            records = restored.records,
            in_arena = restored.in_arena,
            cause = restored.cause,
            "a session came back from disk"
        );
        Ok(restored.brought_bytes)
    }
}

fn read(session: SessionInfo) -> Conversation {
    Conversation {
        id: session.id,
        last_turn_ms: session.last_turn_ms,
        records: session.records,
        in_arena: session.records_in_arena,
        on_mirror: session.records_on_mirror,
    }
}
