//! KV that outlives the engine: with a real kvtier, and without it.

mod killed;

use crate::limits::limits;
use rustix::process::Signal;
use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};
use vitriol_chassis::Heartbeat;
use vitriol_engine::{
    engine::{Engine, EngineLimits},
    generate::{Generation, GenerationRequest},
    kv::PAGE_TOKENS,
    load::{Repack, load},
    metrics::{EngineMetrics, TierMetrics},
    sampler::Sampling,
    scheduler::StepBounds,
    sequence::{EndReason, EventKind},
    tier::TierPlace,
};
use vitriol_ipc::connect;
use vitriol_proto::kvtier::v1::{
    ListSessionsRequest, SessionInfo, StatsRequest, kv_tier_client::KvTierClient,
};
use vitriol_testkit::{eventually, places, process};

const DEADLINE: Duration = Duration::from_secs(120);

const CONVERSATION: &str = "a conversation";

/// Two groups of layers, one of them with windows of 16 tokens.
const WINDOWED: &str = "gemma3.f32";
const FULL: &str = "llama.f32";

/// Where the first payload of a small arena lies.
const PAYLOADS_AT: u64 = 2 << 20;
const SLOT_BYTES: u64 = 16 << 10;
const SLOTS: u64 = (14 << 20) / SLOT_BYTES;

const SETTINGS: &str = "[kvtier]\nenabled = true\narena_bytes = '16 MiB'\nslot_bytes = '16 KiB'\n";

/// A kvtier with an arena of 16 MiB, whose slots are shorter than pages are.
struct KvTier {
    directory: tempfile::TempDir,
    child: Child,
}

impl KvTier {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("profile.toml"), SETTINGS).unwrap();
        let child = spawn(&directory);
        let kvtier = Self { directory, child };
        kvtier.wait();
        kvtier
    }

    fn place(&self) -> TierPlace {
        TierPlace {
            calls: self.socket("kvtier"),
            arena: self.socket("arena"),
            call_max: DEADLINE,
            lookup_max: DEADLINE,
            conversation_tokens_min: 0,
        }
    }

    fn socket(&self, name: &str) -> PathBuf {
        let house = self.directory.path().join("run/vitriol/kvtier");
        house.join(format!("{name}.sock"))
    }

    fn wait(&self) {
        let bound = || std::os::unix::net::UnixStream::connect(self.socket("arena")).ok();
        eventually(DEADLINE, "kvtier listens", bound).unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it as a service manager does: what only memory had goes to the disk.
    fn stop(&mut self) {
        process::signal(self.child.id(), Signal::TERM).unwrap();
        let ended = || self.child.try_wait().unwrap();
        let status = eventually(DEADLINE, "the end of kvtier", ended).unwrap();
        assert!(status.success());
    }

    /// Starts it again, with fresh memory.
    fn start_again(&mut self) {
        self.child = spawn(&self.directory);
        self.wait();
    }

    /// Waits until its disk has so many records.
    fn until_mirrored(&self, records: u64) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.unwrap();
        let stats = || {
            runtime.block_on(async {
                let mut client = KvTierClient::new(connect(&self.socket("kvtier")));
                let stats = client.stats(StatsRequest {}).await.unwrap().into_inner();
                (stats.mirror.unwrap().records >= records).then_some(())
            })
        };
        eventually(DEADLINE, "records on the disk", stats).unwrap();
    }

    /// The conversations of its catalogue.
    fn sessions(&self) -> Vec<SessionInfo> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let mut client = KvTierClient::new(connect(&self.socket("kvtier")));
            let listed = client.list_sessions(ListSessionsRequest {}).await;
            let mut listed = listed.unwrap().into_inner();
            let mut sessions = Vec::new();
            while let Some(session) = listed.message().await.unwrap() {
                sessions.push(session);
            }
            sessions
        })
    }

    /// Its arena, as anybody may write to it who has its descriptor.
    fn arena(&self) -> File {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let is_arena = |path: &PathBuf| {
            let target = fs::read_link(path).unwrap_or_default();
            target.to_string_lossy().contains("vitriol-kv-arena")
        };
        let mut paths = descriptors.map(|entry| entry.unwrap().path());
        let path = paths.find(is_arena).expect("it has its arena open");
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap()
    }

    /// Changes a bit of the payload in each of these slots.
    fn damage(&self, slots: impl Iterator<Item = u64>) {
        let arena = self.arena();
        for slot in slots {
            let (at, mut byte) = (PAYLOADS_AT + slot * SLOT_BYTES + 77, [0]);
            arena.read_exact_at(&mut byte, at).unwrap();
            arena.write_all_at(&[byte[0] ^ 4], at).unwrap();
        }
    }
}

impl Drop for KvTier {
    fn drop(&mut self) {
        // It may have ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn spawn(directory: &tempfile::TempDir) -> Child {
    Command::new(places::binary("vitriol-kvtier").unwrap())
        .env_clear()
        .env("HOME", directory.path())
        .env("XDG_RUNTIME_DIR", directory.path().join("run"))
        .arg("--profile")
        .arg(directory.path().join("profile.toml"))
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

fn engine(file: &str, pages: &[usize], tier: Option<TierPlace>) -> Engine {
    let file = places::zoo_model(file).unwrap();
    let loaded = load(&file, 2, None, &Repack::Ram, |_, _| 0, &mut |_| {}).unwrap();
    let defaults = limits(pages);
    let limits = EngineLimits {
        bounds: StepBounds {
            tokens_max: 64,
            ..defaults.bounds
        },
        tier,
        ..defaults
    };
    let (metrics, heartbeat) = (EngineMetrics::default(), Heartbeat::silent());
    Engine::start(loaded.model, None, limits, metrics, heartbeat, None).unwrap()
}

/// An engine that has found kvtier.
fn attached(file: &str, pages: &[usize], kvtier: &KvTier) -> Engine {
    let engine = engine(file, pages, Some(kvtier.place()));
    assert!(engine.wait_for_tier(DEADLINE), "an attachment");
    engine
}

fn until(engine: &Engine, what: &str, is_so: impl Fn(&TierMetrics) -> bool) {
    let seen = || is_so(&engine.metrics.tier).then_some(());
    eventually(DEADLINE, what, seen).unwrap();
}

fn pages_of(file: &str) -> &'static [usize] {
    if file == WINDOWED { &[64, 16] } else { &[64] }
}

fn request(seed: u32, prompt: u32, tokens_max: usize) -> GenerationRequest {
    GenerationRequest {
        session_id: CONVERSATION.into(),
        prompt: (0..prompt).map(|i| 8 + (i * 7 + seed * 31) % 362).collect(),
        tokens_max,
        sampling: Sampling::GREEDY,
        ignore_eog: true,
        may_draft: true,
    }
}

/// The next turn after `answer`.
fn next_turn(mut request: GenerationRequest, answer: &[u32]) -> GenerationRequest {
    request.prompt.extend(answer);
    request.prompt.extend([3, 1, 4, 1, 5]);
    request
}

/// Records that a page of a group takes.
fn parts_of(engine: &Engine, group: usize) -> u64 {
    let page = engine.model.kv_groups[group].shape(engine.limits.codecs, 1);
    (page.bytes_per_page() as u64).div_ceil(SLOT_BYTES)
}

/// Records of the first turn.
fn records_of(engine: &Engine) -> u64 {
    let groups = 0..engine.model.kv_groups.len();
    let parts: u64 = groups.map(|group| parts_of(engine, group)).sum();
    (BLOCKS / PAGE_TOKENS) as u64 * parts
}

#[derive(Debug, Default, PartialEq)]
struct Heard {
    tokens: Vec<u32>,
    cached: usize,
    arena: usize,
    mirror: usize,
}

fn hear(running: Generation) -> Heard {
    let mut heard = Heard::default();
    for event in running {
        match event.kind {
            EventKind::Brought {
                arena_tokens,
                mirror_tokens,
                ..
            } => (heard.arena, heard.mirror) = (arena_tokens, mirror_tokens),
            EventKind::Started { tokens_cached } => heard.cached = tokens_cached,
            EventKind::Token { id } => heard.tokens.push(id),
            EventKind::Ended { reason } => assert_eq!(reason, EndReason::Length),
            EventKind::Prefilled { .. } | EventKind::Drafted { .. } => {}
        }
    }
    heard
}

fn run(engine: &Engine, request: &GenerationRequest) -> Heard {
    hear(engine.generate(request.clone()).unwrap())
}

/// All pages of `tokens` computed tokens are in kvtier.
fn until_stored(engine: &Engine, tokens: usize) {
    let pages = tokens / PAGE_TOKENS * engine.model.kv_groups.len();
    until(engine, "all full pages stored", |tier| {
        tier.pages_spilled.get() >= pages as u64
    });
    assert_eq!(engine.metrics.tier.pages_dropped.get(), 0);
}

fn no_page_is_held(engine: &Engine) {
    eventually(DEADLINE, "all pages given back", || {
        (engine.step.snapshot().pool.held == 0).then_some(())
    })
    .unwrap();
}

const PROMPT: u32 = 400;
const ANSWER: usize = 60;
/// Tokens of full blocks that the first turn computed: its last token never was.
const BLOCKS: usize = (PROMPT as usize + ANSWER - 1) / PAGE_TOKENS * PAGE_TOKENS;

/// The first turn on an engine that stores it and ends; the second, and what an engine answers that
/// computes all of it.
fn first_turn(file: &str, kvtier: &KvTier) -> (GenerationRequest, Vec<u32>) {
    let first = request(5, PROMPT, ANSWER);
    let engine = attached(file, pages_of(file), kvtier);
    let answer = run(&engine, &first);
    assert_eq!((answer.cached, answer.arena), (0, 0));
    until_stored(&engine, BLOCKS);
    let second = next_turn(first, &answer.tokens);
    let fresh = self::engine(file, pages_of(file), None);
    let expected = run(&fresh, &second).tokens;
    (second, expected)
}

#[test]
fn a_conversation_comes_back_when_the_engine_does() {
    for file in [FULL, WINDOWED] {
        let kvtier = KvTier::start();
        let (second, expected) = first_turn(file, &kvtier);
        let engine = attached(file, pages_of(file), &kvtier);
        let heard = run(&engine, &second);
        assert_eq!(
            (heard.cached, heard.arena, heard.mirror),
            (BLOCKS, BLOCKS, 0),
            "{file}"
        );
        assert_eq!(heard.tokens, expected, "{file}");
        let tier = &engine.metrics.tier;
        assert_eq!(tier.pages_refused.get(), 0);
        assert_eq!(tier.tokens_arena.get(), BLOCKS as u64);
        // What is here now is not brought again.
        let again = run(&engine, &second);
        assert_eq!((again.arena, again.tokens), (0, expected));
        no_page_is_held(&engine);
    }
}

#[test]
fn a_conversation_with_a_name_is_in_the_catalogue_with_all_its_records() {
    for file in [FULL, WINDOWED] {
        let kvtier = KvTier::start();
        let engine = attached(file, pages_of(file), &kvtier);
        let nameless = GenerationRequest {
            session_id: "".into(),
            ..request(6, PROMPT, ANSWER)
        };
        run(&engine, &nameless);
        let first = request(5, PROMPT, ANSWER);
        let answer = run(&engine, &first);
        until(&engine, "the turn is told", |tier| {
            tier.turns_told.get() == 1
        });
        // Pages are stored before their turn is told.
        let [session] = &kvtier.sessions()[..] else {
            panic!("one has a name");
        };
        assert_eq!(session.id, CONVERSATION);
        assert_eq!(session.tokens, u64::from(PROMPT) + ANSWER as u64);
        assert_eq!(session.blocks as usize, BLOCKS / PAGE_TOKENS);
        assert!(session.records > 0 && session.records == session.records_in_arena);

        // A turn that ends in the middle of its prompt takes nothing away; the next one goes on.
        run(&engine, &request(5, 128, 1));
        until(&engine, "the second is told", |tier| {
            tier.turns_told.get() == 2
        });
        assert_eq!(kvtier.sessions()[0].blocks, session.blocks);
        let second = next_turn(first, &answer.tokens);
        run(&engine, &second);
        until(&engine, "the third is told", |tier| {
            tier.turns_told.get() == 3
        });
        assert!(kvtier.sessions()[0].blocks > session.blocks);
        assert_eq!(engine.metrics.tier.turns_dropped.get(), 0);
    }
}

#[test]
fn what_only_the_disk_has_comes_back_too() {
    for file in [FULL, WINDOWED] {
        let mut kvtier = KvTier::start();
        let (second, expected) = first_turn(file, &kvtier);
        let engine = attached(file, pages_of(file), &kvtier);
        let records = records_of(&engine);
        drop(engine);
        kvtier.until_mirrored(records);
        kvtier.stop();
        kvtier.start_again();
        // Its index is read in the background.
        kvtier.until_mirrored(records);
        let engine = attached(file, pages_of(file), &kvtier);
        let heard = run(&engine, &second);
        assert_eq!(
            (heard.cached, heard.arena, heard.mirror),
            (BLOCKS, 0, BLOCKS),
            "{file}"
        );
        assert_eq!(heard.tokens, expected, "{file}");
        assert_eq!(engine.metrics.tier.tokens_mirror.get(), BLOCKS as u64);
    }
}

#[test]
fn what_was_damaged_in_the_arena_is_computed() {
    for file in [FULL, WINDOWED] {
        let kvtier = KvTier::start();
        let (second, expected) = first_turn(file, &kvtier);
        let engine = attached(file, pages_of(file), &kvtier);
        // The disk has what it will have: kvtier does not come across the damage itself.
        kvtier.until_mirrored(records_of(&engine));
        kvtier.damage(0..SLOTS);
        let heard = run(&engine, &second);
        assert_eq!((heard.cached, heard.arena), (0, 0), "{file}");
        assert_eq!(heard.tokens, expected, "{file}");
        let refused = engine.metrics.tier.pages_refused.get();
        assert!(
            refused as usize >= BLOCKS / PAGE_TOKENS,
            "{file}: {refused}"
        );
    }
}

#[test]
fn one_damaged_record_costs_what_follows_it() {
    let kvtier = KvTier::start();
    let (second, expected) = first_turn(FULL, &kvtier);
    // The lowest slots hold the test record, then the pages in order, each some parts long.
    let engine = attached(FULL, pages_of(FULL), &kvtier);
    let parts = parts_of(&engine, 0);
    assert!(parts > 1, "a page is split");
    kvtier.until_mirrored(records_of(&engine));
    kvtier.damage([1 + 3 * parts].into_iter());
    let heard = run(&engine, &second);
    assert_eq!(
        (heard.cached, heard.arena),
        (3 * PAGE_TOKENS, 3 * PAGE_TOKENS)
    );
    assert_eq!(heard.tokens, expected);
    assert_eq!(engine.metrics.tier.pages_refused.get(), 1);
}

#[test]
fn kvtier_may_go_and_come_back() {
    let mut kvtier = KvTier::start();
    let engine = attached(FULL, pages_of(FULL), &kvtier);
    let first = request(5, PROMPT, ANSWER);
    let mut running = engine.generate(first.clone()).unwrap();
    while !matches!(running.next().unwrap().kind, EventKind::Token { .. }) {}
    kvtier.kill();
    let answer = hear(running).tokens;
    assert_eq!(answer.len(), ANSWER - 1, "the first one was heard before");
    let other = request(6, PROMPT, ANSWER);
    let expected = run(&self::engine(FULL, pages_of(FULL), None), &other).tokens;
    assert_eq!(run(&engine, &other).tokens, expected);
    until(&engine, "the loss is noticed", |tier| {
        tier.attached.get() == 0
    });

    kvtier.start_again();
    until(&engine, "another attachment", |tier| {
        tier.attached.get() == 1
    });
    let before = engine.metrics.tier.pages_spilled.get();
    let third = request(7, PROMPT, ANSWER);
    let expected = run(&engine, &third).tokens;
    until(&engine, "pages stored again", |tier| {
        tier.pages_spilled.get() >= before + (BLOCKS / PAGE_TOKENS) as u64
    });
    drop(engine);
    let engine = attached(FULL, pages_of(FULL), &kvtier);
    let heard = run(&engine, &third);
    let prompt_blocks = PROMPT as usize / PAGE_TOKENS * PAGE_TOKENS;
    assert_eq!((heard.arena, heard.tokens), (prompt_blocks, expected));
    no_page_is_held(&engine);
}

#[test]
fn what_was_computed_while_kvtier_was_away_is_stored_when_it_comes() {
    let mut kvtier = KvTier::start();
    kvtier.kill();
    let engine = engine(WINDOWED, pages_of(WINDOWED), Some(kvtier.place()));
    assert!(!engine.wait_for_tier(Duration::from_millis(10)));
    let first = request(5, PROMPT, ANSWER);
    let answer = run(&engine, &first).tokens;
    kvtier.start_again();
    assert!(engine.wait_for_tier(DEADLINE));
    until_stored(&engine, BLOCKS);
    drop(engine);
    let engine = attached(WINDOWED, pages_of(WINDOWED), &kvtier);
    let second = next_turn(first, &answer);
    assert_eq!(run(&engine, &second).arena, BLOCKS);
    let computed = second.prompt.len() + ANSWER - 1;
    until_stored(&engine, computed / PAGE_TOKENS * PAGE_TOKENS - BLOCKS);

    // Another arena has nothing of what the one before had; the engine still has.
    let before = engine.metrics.tier.pages_spilled.get();
    kvtier.kill();
    fs::remove_dir_all(kvtier.directory.path().join(".local/state")).unwrap();
    kvtier.start_again();
    until(&engine, "all stored again", |tier| {
        tier.pages_spilled.get() >= 2 * before && tier.pages_waiting.get() == 0
    });
    drop(engine);
    let engine = attached(WINDOWED, pages_of(WINDOWED), &kvtier);
    let heard = run(&engine, &second);
    assert!(heard.arena >= BLOCKS, "{heard:?}");
}

#[test]
fn who_gave_way_gets_its_pages_back_from_the_arena() {
    let kvtier = KvTier::start();
    let plenty = engine(FULL, pages_of(FULL), None);
    // Both can start, and only one can grow to its end.
    let engine = attached(FULL, &[12], &kvtier);
    // One may have ended before the other came: then two others.
    let mut seeds = (1..100).step_by(2);
    while engine.metrics.preemptions.get() == 0 {
        let seed = seeds.next().expect("nobody gives way");
        let requests = [seed, seed + 1].map(|seed| GenerationRequest {
            session_id: seed.to_string().into(),
            ..request(seed, 250, 260)
        });
        let running = requests
            .clone()
            .map(|request| engine.generate(request).unwrap());
        let heard = running.map(|running| hear(running).tokens);
        assert_eq!(heard, requests.map(|request| run(&plenty, &request).tokens));
    }
    let brought = engine.metrics.tier.tokens_arena.get();
    assert!(brought as usize >= PAGE_TOKENS, "{brought} tokens brought");
    no_page_is_held(&engine);
}

#[test]
fn a_kvtier_that_hangs_keeps_nobody() {
    let kvtier = KvTier::start();
    let (second, expected) = first_turn(FULL, &kvtier);
    let place = TierPlace {
        call_max: Duration::from_secs(2),
        lookup_max: Duration::from_millis(50),
        ..kvtier.place()
    };
    let engine = engine(FULL, pages_of(FULL), Some(place));
    until(&engine, "an attachment", |tier| tier.attached.get() == 1);
    process::stop(kvtier.child.id(), DEADLINE).unwrap();
    let heard = run(&engine, &second);
    assert_eq!((heard.arena, heard.tokens), (0, expected));
    assert_eq!(engine.metrics.tier.lookups_late.get(), 1);
    until(&engine, "the loss is noticed", |tier| {
        tier.attached.get() == 0
    });
    process::signal(kvtier.child.id(), Signal::CONT).unwrap();
    until(&engine, "another attachment", |tier| {
        tier.attached.get() == 1
    });
    no_page_is_held(&engine);
}

#[test]
fn where_pages_are_scarce_sequences_come_first() {
    let kvtier = KvTier::start();
    let requests = || (0..12).map(|i| request(i % 3, 70 + 40 * i, 40));
    let alone = engine(WINDOWED, &[64, 16], None);
    let expected: Vec<_> = requests().map(|r| run(&alone, &r).tokens).collect();
    for _ in 0..2 {
        // Fewer pages than they all want: some wait, some give way.
        let engine = attached(WINDOWED, &[24, 16], &kvtier);
        let running: Vec<_> = requests().map(|r| engine.generate(r).unwrap()).collect();
        for (running, expected) in running.into_iter().zip(&expected) {
            assert_eq!(&hear(running).tokens, expected);
        }
        no_page_is_held(&engine);
    }
}

#[test]
fn cancelled_while_pages_come_leaks_nothing() {
    let kvtier = KvTier::start();
    let (second, expected) = first_turn(FULL, &kvtier);
    let engine = attached(FULL, pages_of(FULL), &kvtier);
    for _ in 0..20 {
        drop(engine.generate(second.clone()).unwrap());
        engine.step.wake();
    }
    assert_eq!(run(&engine, &second).tokens, expected);
    no_page_is_held(&engine);
}

#[test]
fn without_kvtier_everything_is_computed() {
    let directory = tempfile::tempdir().unwrap();
    let place = TierPlace {
        calls: directory.path().join("kvtier.sock"),
        arena: directory.path().join("arena.sock"),
        call_max: DEADLINE,
        lookup_max: DEADLINE,
        conversation_tokens_min: 0,
    };
    let first = request(5, PROMPT, ANSWER);
    let expected = run(&engine(FULL, pages_of(FULL), None), &first);
    let engine = engine(FULL, pages_of(FULL), Some(place));
    assert_eq!(run(&engine, &first), expected);
    let tier = &engine.metrics.tier;
    assert_eq!((tier.attached.get(), tier.lookups.get()), (0, 0));
    no_page_is_held(&engine);
}
