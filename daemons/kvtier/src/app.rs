//! The process: from settings to a tier that serves, and down again with what it has on disk.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use tokio::{sync::Notify, time::MissedTickBehavior};
use tonic::service::Routes;
use vitriol_chassis::{
    Daemon, Drained, Exit, Failure, Fingerprint, Health, OrExit, RpcServer, blocking,
};
use vitriol_ipc::{Inherited, Listener};
use vitriol_proto::kvtier::v1::kv_tier_server::KvTierServer;
use vitriol_sysfs::Sysfs;
use vitriol_units::Bytes;

use crate::{
    arena::{Arena, layout},
    catalogue::Catalogue,
    config::{Config, MirrorConfig},
    metrics::{CatalogueCollector, TierCollector},
    mirror::{
        BlockStore, StoreError,
        disk::LocalDisk,
        endurance::Ledger,
        segment,
        store::SegmentStore,
        writer::{Mirror, WriterConfig},
    },
    service::{KvTierService, Tokens, serve_arena},
    sessions::Sessions,
    spill::{spill_all, spill_when_sealed},
    tier::{Tier, TierStats},
};

/// Under what name the service manager keeps the arena.
const ARENA: &str = "arena";

/// Where the mirror keeps the catalogue.
const SESSIONS: &str = "sessions";

/// Where the mirror keeps what it wrote, day by day.
const LEDGER: &str = "endurance.tsv";

/// Runs the tier until it is told to stop: bind, take memory, announce, spill, flush. An arena among
/// `inherited` is taken over; a new one is given to the service manager to keep.
///
/// Errors: a socket is held by another, less memory is available than the arena takes (exit 69),
/// directories that cannot be used (78).
pub async fn run(config: Config, inherited: Inherited, daemon: Daemon) -> Result<(), Failure> {
    let calls = Listener::bind(&config.socket)?;
    let arena_socket = Listener::bind(&config.arena_socket)?;
    daemon.board.loading("taking memory", 0, config.arena_bytes);
    let kept = inherited.take_kept(ARENA).or_exit(Exit::Dependency)?;
    let arena = open_arena(kept, config.arena_bytes, config.slot_bytes, &daemon).await?;
    let fingerprint = fingerprint(&arena, config.mirror.as_ref()).and(config.asked);
    let writing = WriterConfig::default();
    let sessions = config
        .mirror
        .as_ref()
        .map(|mirror| mirror.directory.join(SESSIONS));
    let catalogue = blocking(|| sessions.map_or_else(Catalogue::in_memory, Catalogue::open));
    let catalogue = Arc::new(catalogue.await?);
    let mirror = config.mirror.map(|mirror| start_mirror(mirror, writing));
    let tier = Arc::new(Tier::new(arena, mirror.transpose()?));

    let (tokens, sealed) = (Arc::new(Tokens::default()), Arc::new(Notify::new()));
    let service = KvTierService::new(
        Arc::clone(&tier),
        Sessions::new(
            Arc::clone(&tier),
            Arc::clone(&catalogue),
            Arc::clone(&sealed),
        ),
        Arc::clone(&tokens),
        Arc::clone(&sealed),
    );
    let routes = Routes::new(KvTierServer::new(service));
    let mut server = RpcServer::spawn(calls, routes, daemon.board.clone());
    let handing_out = serve_arena(arena_socket.incoming(), Arc::clone(&tier), tokens);
    let handing_out = tokio::spawn(handing_out);
    let spilling = spill_when_sealed(Arc::clone(&tier), sealed, writing.retry_after);
    let spilling = tokio::spawn(spilling);
    let metrics = TierCollector(Arc::downgrade(&tier));
    let sessions = CatalogueCollector(Arc::downgrade(&catalogue));
    daemon.board.register(|registry| {
        registry.register_collector(Box::new(metrics));
        registry.register_collector(Box::new(sessions));
    });
    daemon.board.fingerprint(&fingerprint);

    let mut beats = tokio::time::interval(daemon.heartbeat.idle_max());
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut said = String::new();
    let ended = loop {
        tokio::select! {
            () = daemon.shutdown.cancelled() => break Ok(()),
            ended = server.ended() => break ended,
            _ = beats.tick() => {}
        }
        // Asks the tier, so that one that hangs is missed.
        let now = describe(&tier.stats());
        if now != said {
            match daemon.board.health() {
                Health::Ready => daemon.board.detail(now.as_str()),
                _ => daemon.board.ready(now.as_str()),
            }
            said = now;
        }
        daemon.heartbeat.beat();
    };
    spilling.abort();
    handing_out.abort();
    ended?;
    let mut stopped = Ok(());
    let flushed = async {
        // First, so that nothing more is sealed.
        stopped = server.stop().await;
        spill_all(&tier).await;
    };
    let drained = daemon.drain(config.drain, flushed).await;
    let left = tier.unmirrored();
    if left > 0 {
        let deadline_passed = drained == Drained::DeadlinePassed;
        tracing::warn!(left, deadline_passed, "records are in memory alone");
    }
    stopped
}

/// What the settings came to: everything that bears on what is found again, and how fast.
fn fingerprint(arena: &Arena, mirror: Option<&MirrorConfig>) -> Fingerprint {
    let pages = arena.pages();
    let directory = mirror.map(|mirror| mirror.directory.display().to_string());
    let bytes_max = mirror.map(|mirror| mirror.bytes_max.to_string());
    Fingerprint::of_process(env!("CARGO_PKG_VERSION"))
        .with("slots", arena.slots())
        .with("slot_bytes", arena.slot_bytes())
        .with("huge_pages", pages.huge)
        .with("locked", pages.locked)
        .with("arena_version", layout::VERSION)
        .with("mirror_dir", directory.unwrap_or_default())
        .with("mirror_bytes_max", bytes_max.unwrap_or_default())
        .with("segment_version", segment::VERSION)
}

/// The arena that the service manager kept, or a new one, which it is to keep.
async fn open_arena(
    kept: Vec<OwnedFd>,
    bytes: u64,
    slot_bytes: u64,
    daemon: &Daemon,
) -> Result<Arena, Failure> {
    let was_kept = !kept.is_empty();
    if let Some(arena) = blocking(move || find_arena(kept, bytes, slot_bytes)).await? {
        return Ok(arena);
    }
    if was_kept {
        // Before there is another: the memory of both may be more than there is.
        daemon.forget(ARENA);
    }
    let arena = blocking(move || new_arena(bytes, slot_bytes)).await??;
    if let Err(error) = daemon.keep(ARENA, arena.as_fd()) {
        tracing::warn!(%error, "the service manager does not keep the arena; a restart loses it");
    }
    Ok(arena)
}

/// The kept arena of the size that is asked for. Others are given up, with what they hold.
fn find_arena(kept: Vec<OwnedFd>, bytes: u64, slot_bytes: u64) -> Option<Arena> {
    kept.into_iter()
        .find_map(|kept| match Arena::take_over(kept) {
            Ok(arena) if arena.is_of(bytes, slot_bytes) => {
                tracing::info!(
                    slots = arena.slots(),
                    epoch = arena.epoch(),
                    "the arena is there again"
                );
                Some(arena)
            }
            Ok(arena) => {
                tracing::info!(
                    slots = arena.slots(),
                    "the arena that was kept has another size"
                );
                None
            }
            Err(error) => {
                tracing::warn!(%error, "what was kept as the arena cannot be taken over");
                None
            }
        })
}

fn new_arena(bytes: u64, slot_bytes: u64) -> Result<Arena, Failure> {
    let available = Sysfs::host()
        .memory()
        .or_exit(Exit::Dependency)?
        .available_bytes;
    if bytes > available {
        let message = format!(
            "kvtier.arena_bytes is {}, and {} of memory are available; lower it or end what is large",
            Bytes(bytes),
            Bytes(available).rounded()
        );
        return Err(Failure::new(Exit::Dependency, message));
    }
    let mut id = [0; 16];
    getrandom::fill(&mut id).or_exit(Exit::Internal)?;
    let arena = Arena::create(id, bytes, slot_bytes).or_exit(Exit::Dependency)?;
    tracing::info!(
        slots = arena.slots(),
        huge_pages = arena.pages().huge,
        locked = arena.pages().locked,
        "the arena is new"
    );
    Ok(arena)
}

/// Errors: no thread can be started (exit 70).
fn start_mirror(config: MirrorConfig, writing: WriterConfig) -> Result<Mirror, Failure> {
    let MirrorConfig {
        directory,
        bytes_max,
    } = config;
    let ledger = Ledger::open(&directory.join(LEDGER))
        .inspect_err(|error| tracing::warn!(%error, "what the mirror writes is not counted by day"))
        .ok();
    let open = move || -> Result<Box<dyn BlockStore>, StoreError> {
        let disk = LocalDisk::open(&directory).map_err(StoreError::List)?;
        Ok(Box::new(SegmentStore::open(disk, bytes_max)?))
    };
    Mirror::start(writing, Box::new(open), ledger).or_exit(Exit::Internal)
}

/// The tier in one line.
fn describe(stats: &TierStats) -> String {
    let mirror = match &stats.mirror {
        None => "no mirror".to_owned(),
        Some(mirror) => match &mirror.down {
            Some(cause) => format!("mirror down: {cause}"),
            None => format!("{} records on the mirror", mirror.usage.records),
        },
    };
    format!(
        "{} of {} slots free, {mirror}",
        stats.slots_free, stats.slots
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::writer::MirrorStats;

    #[test]
    fn the_line_says_what_there_is_and_what_is_not() {
        let mut stats = TierStats {
            slots: 8,
            slots_free: 3,
            ..TierStats::default()
        };
        assert_eq!(describe(&stats), "3 of 8 slots free, no mirror");
        stats.mirror = Some(MirrorStats::default());
        assert_eq!(
            describe(&stats),
            "3 of 8 slots free, 0 records on the mirror"
        );
        stats.mirror = Some(MirrorStats {
            down: Some("no space".to_owned()),
            ..MirrorStats::default()
        });
        assert_eq!(describe(&stats), "3 of 8 slots free, mirror down: no space");
    }
}
