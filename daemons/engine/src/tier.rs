//! KV that outlives this process: full pages go to kvtier, and come back from there.
//!
//! ```text
//!  step thread ── full pages, lent ──▶ desk ──▶ tier thread ── reserve, copy, seal ──▶ kvtier
//!              ◀── what is stored ───       ◀──             ── look, load ──────────▶
//!              ── empty pages, lent ─▶      ──▶             ── copy, prove ─────────▶
//! ```
//! [`desk`] is where the two threads meet, [`worker`] what the tier's does, [`session`] the calls it makes,
//! [`arena`] the memory behind them; [`records`] says how pages are cut and called, [`mirror_choice`] what is
//! worth bringing from the disk. Whatever fails is a miss: what is not proven to be there is computed.

pub mod arena;
pub mod desk;
pub mod mirror_choice;
pub mod records;
pub mod session;
pub mod worker;

use crate::{kv::KvCodecs, metrics::TierMetrics, model::Model};
use desk::Desk;
use std::{
    io,
    path::PathBuf,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};
use worker::{Pages, Worker};

/// What is not stored yet when the engine ends has so long.
pub const CLOSING: Duration = Duration::from_secs(2);

/// Where kvtier is, and how long it may keep a request.
#[derive(Clone, Debug)]
pub struct TierPlace {
    /// Socket of its calls.
    pub calls: PathBuf,
    /// Socket that hands out its arena.
    pub arena: PathBuf,
    /// A call that only touches kvtier's books is given up after so long.
    pub call_max: Duration,
    /// Longest that a request waits to hear what is stored of it.
    pub lookup_max: Duration,
    /// A shorter prompt is no conversation to kvtier, whatever its client calls it, until it has become longer.
    pub conversation_tokens_min: usize,
}

/// The tier's thread. Dropping it stores what waits to be stored, for a while, and ends the thread.
#[derive(Debug)]
pub struct Tier {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl Tier {
    /// Starts the thread, which attaches when kvtier is there, and again whenever it comes back.
    pub fn start(
        place: TierPlace,
        model: &Model,
        codecs: KvCodecs,
        metrics: TierMetrics,
    ) -> io::Result<Self> {
        let groups = &model.kv_groups;
        let pages = Pages {
            windows: groups.iter().map(|group| group.window()).collect(),
            page_bytes: groups
                .iter()
                .map(|group| group.shape(codecs, 1).bytes_per_page())
                .collect(),
            encoding: records::encoding(groups, codecs, model.device.isa()),
        };
        let desk = Arc::new(Desk::new(
            place.lookup_max,
            place.conversation_tokens_min,
            metrics,
        ));
        let worker = Worker::new(place, pages, Arc::clone(&desk));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = thread::Builder::new()
            .name("tier".to_owned())
            .spawn(move || runtime.block_on(worker.run()))?;
        Ok(Self {
            desk,
            thread: Some(thread),
        })
    }

    pub fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }
}

impl Drop for Tier {
    fn drop(&mut self) {
        self.desk.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the tier's thread panicked; the engine went on without the tier");
        }
    }
}
