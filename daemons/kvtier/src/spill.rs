//! When sealed records go to the mirror: soon, and while no engine waits for it.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Notify, time::sleep};

use crate::tier::Tier;

/// Time between two looks at records that are on their way: the mirror's queue empties meanwhile.
const PAUSE: Duration = Duration::from_millis(20);

/// How a round of spilling ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spilled {
    /// Every sealed record is durable.
    All,
    MirrorDown,
}

/// Brings records to the mirror whenever `sealed` tells of some, and what is there already. A mirror that
/// is down is tried again every `retry_after`. It never ends.
pub async fn spill_when_sealed(tier: Arc<Tier>, sealed: Arc<Notify>, retry_after: Duration) {
    loop {
        match spill_all(&tier).await {
            Spilled::All => sealed.notified().await,
            Spilled::MirrorDown => sleep(retry_after).await,
        }
    }
}

/// Brings records to the mirror until it has all of them or is down. Cancel-safe.
pub async fn spill_all(tier: &Arc<Tier>) -> Spilled {
    while tier.unmirrored() > 0 {
        let round = Arc::clone(tier);
        // A panic in it has been reported by the runtime; what it did not spill is sealed still.
        let _ = tokio::task::spawn_blocking(move || round.spill()).await;
        if tier.is_mirror_down() {
            return Spilled::MirrorDown;
        }
        sleep(PAUSE).await;
    }
    Spilled::All
}
