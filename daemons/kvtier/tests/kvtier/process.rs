//! The process: what it keeps when it ends, and how.

use std::{
    fs,
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::Signal;
use vitriol_ipc::{bequeath, connect, receive_with_descriptor};
use vitriol_proto::{
    kvtier::v1::{
        SessionInfo, StatsRequest, event::Kind as Event, found::Kind as Found,
        kv_tier_client::KvTierClient,
    },
    status::v1::{GetRequest, Health, status_client::StatusClient},
};
use vitriol_testkit::{eventually, process};

use crate::engine::{DEADLINE, Engine, next, restore, sessions};

/// A house of kvtier alone, whose service manager the test plays.
struct House {
    directory: tempfile::TempDir,
}

/// The process while it runs.
struct Running {
    child: Child,
    /// What it says to its service manager.
    notify: UnixDatagram,
    /// What it has its service manager do with descriptors.
    store: Vec<String>,
    /// What it gave its service manager to keep.
    kept: Option<OwnedFd>,
}

/// Four slots.
const SMALL: &str = "enabled = true\narena_bytes = '6 MiB'\nslot_bytes = '1 MiB'\n";

impl House {
    fn new(settings: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let house = Self { directory };
        house.set(settings);
        house
    }

    fn set(&self, settings: &str) {
        fs::write(self.at("profile.toml"), format!("[kvtier]\n{settings}\n")).unwrap();
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vitriol-kvtier"));
        command
            .env_clear()
            .env("HOME", self.directory.path())
            .env("XDG_RUNTIME_DIR", self.at("run"))
            .env("NOTIFY_SOCKET", self.at("notify"))
            .arg("--profile")
            .arg(self.at("profile.toml"))
            .stdin(Stdio::null());
        command
    }

    /// Starts it and waits until it says that it is ready.
    fn start(&self) -> Running {
        self.start_with(&mut self.command())
    }

    /// The same with what the service manager kept.
    fn start_again(&self, kept: &OwnedFd) -> Running {
        let mut command = self.command();
        bequeath(&mut command, "arena", kept.try_clone().unwrap());
        self.start_with(&mut command)
    }

    fn start_with(&self, command: &mut Command) -> Running {
        let address = self.at("notify");
        // Of the run before.
        fs::remove_file(&address).ok();
        let notify = UnixDatagram::bind(address).unwrap();
        notify.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut running = Running {
            child: command.spawn().unwrap(),
            notify,
            store: Vec::new(),
            kept: None,
        };
        while !running.hear().contains("READY=1") {}
        running
    }

    async fn attach(&self) -> Engine {
        let house = self.at("run/vitriol/kvtier");
        Engine::attach(&house.join("kvtier.sock"), &house.join("arena.sock")).await
    }

    async fn metrics(&self) -> String {
        let socket = self.at("run/vitriol/kvtier/kvtier.sock");
        let status = StatusClient::new(connect(&socket)).get(GetRequest {}).await;
        let status = status.unwrap().into_inner();
        assert_eq!(status.health(), Health::Ready);
        status.metrics
    }

    /// Where it keeps records when the profile does not say.
    fn mirror(&self) -> PathBuf {
        self.at(".local/state/vitriol/kvtier/mirror")
    }
}

impl Running {
    /// What it says next.
    fn hear(&mut self) -> String {
        let mut buffer = [0; 4096];
        let heard = receive_with_descriptor(&self.notify, &mut buffer);
        let (length, descriptor) = heard.expect("it says something");
        self.kept = descriptor.or(self.kept.take());
        let said = String::from_utf8(buffer[..length].to_vec()).unwrap();
        if said.contains("FDSTORE") {
            self.store.push(said.clone());
        }
        said
    }

    /// Asks it to end; its exit code.
    fn stop(mut self) -> Option<i32> {
        process::signal(self.child.id(), Signal::TERM).unwrap();
        let ended = || self.child.try_wait().unwrap();
        eventually(DEADLINE, "its end", ended).unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended, as it should.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn segments(directory: &Path) -> usize {
    let is_segment = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|e| e == "seg");
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(is_segment).count()
}

/// Waits until the mirror was read or written, as a lookup of the record shows.
async fn until_mirrored(engine: &mut Engine, key: u8) {
    let start = std::time::Instant::now();
    while !matches!(engine.look(key).await, Found::Mirror(_)) {
        assert!(
            start.elapsed() < DEADLINE,
            "record {key} is not on the mirror"
        );
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn what_was_sealed_is_on_disk_when_it_has_ended() {
    let house = House::new(SMALL);
    let running = house.start();
    let mut engine = house.attach().await;
    for key in 1..=3 {
        engine.store(key).await;
    }
    assert!(house.metrics().await.contains("vitriol_kvtier_slots 4\n"));
    // At once, so that the sync is left to the end.
    assert_eq!(running.stop(), Some(0));
    assert_eq!(segments(&house.mirror()), 1);

    let running = house.start();
    let id = engine.arena_id().to_vec();
    let mut engine = house.attach().await;
    assert_ne!(engine.arena_id(), id, "nobody kept the memory");
    until_mirrored(&mut engine, 3).await;
    for key in 1..=3 {
        let found = engine.load(key).await;
        assert!(engine.holds(&found, key), "{found:?}");
    }
    let metrics = house.metrics().await;
    for line in [
        "mirror_loaded_total 3",
        "mirror_up 1",
        "slots_free 1",
        "records_unmirrored 0",
    ] {
        assert!(
            metrics.contains(&format!("vitriol_kvtier_{line}\n")),
            "{metrics}"
        );
    }
    assert_eq!(running.stop(), Some(0));
}

#[tokio::test]
async fn a_session_is_known_to_the_next_process_until_it_is_removed() {
    let house = House::new(SMALL);
    let running = house.start();
    let mut engine = house.attach().await;
    for key in 1..=2 {
        engine.store(key).await;
    }
    assert!(engine.put("chat", &[1, 2]).await);
    assert_eq!(running.stop(), Some(0));

    let running = house.start();
    let mut engine = house.attach().await;
    until_mirrored(&mut engine, 2).await;
    let [session] = &engine.sessions().await[..] else {
        panic!("there is one session");
    };
    assert_eq!((session.id.as_str(), session.tokens), ("chat", 128));
    assert_eq!(
        (session.records_in_arena, session.records_on_mirror),
        (0, 2)
    );
    assert!(
        house
            .metrics()
            .await
            .contains("vitriol_kvtier_sessions 1\n")
    );
    let removed = engine.remove("chat").await.unwrap();
    assert_eq!((removed.destroyed, removed.cause.as_str()), (2, ""));
    assert!(matches!(engine.look(1).await, Found::Nowhere(_)));
    let sessions = house.mirror().join("sessions");
    assert_eq!(fs::read_dir(sessions).unwrap().count(), 0);
    assert_eq!(running.stop(), Some(0));

    let running = house.start();
    let mut engine = house.attach().await;
    assert_eq!(engine.sessions().await, []);
    assert_eq!(running.stop(), Some(0));
}

#[tokio::test]
async fn a_session_that_was_saved_survives_a_kill_and_comes_back_as_far_as_asked() {
    let house = House::new(SMALL);
    let running = house.start();
    let mut engine = house.attach().await;
    for key in 1..=3 {
        engine.store(key).await;
    }
    engine.put("chat", &[1, 2, 3]).await;
    let synced = engine.sync("chat").await.unwrap();
    assert_eq!(
        (synced.records, synced.on_mirror, synced.cause.as_str()),
        (3, 3, "")
    );
    let payloads = 3 * 10_000 + 1 + 2 + 3;
    assert_eq!(synced.bytes, payloads);
    // One that names what nobody stored says how much of it is not there.
    engine.put("other", &[1, 9]).await;
    let synced = engine.sync("other").await.unwrap();
    assert_eq!(
        (synced.on_mirror, synced.pending, synced.nowhere),
        (1, 0, 1)
    );
    assert!(synced.cause.contains("not stored"), "{synced:?}");
    // By SIGKILL, and with the memory.
    drop((running, engine));

    let running = house.start();
    let mut engine = house.attach().await;
    until_mirrored(&mut engine, 3).await;
    assert_eq!(engine.sync("chat").await.unwrap().bytes, payloads);
    let restored = engine.restore("chat", 1).await.unwrap();
    assert_eq!(
        (restored.brought, restored.in_arena, restored.blocks),
        (1, 1, 1)
    );
    assert!(restored.cause.contains("1 bytes"), "{restored:?}");
    let restored = engine.restore("chat", 0).await.unwrap();
    assert_eq!(
        (restored.brought, restored.in_arena, restored.blocks),
        (2, 3, 3)
    );
    assert_eq!(
        (restored.brought_bytes, restored.cause.as_str()),
        (20_005, "")
    );
    for key in 1..=3 {
        let found = engine.look(key).await;
        assert!(engine.holds(&found, key), "{found:?}");
    }
    assert_eq!(running.stop(), Some(0));
}

#[tokio::test]
async fn what_comes_back_without_an_engine_pushes_nothing_out_where_it_must_not() {
    let house = House::new(SMALL);
    let running = house.start();
    let mut engine = house.attach().await;
    for (id, keys) in [("a", [1, 2, 3]), ("b", [11, 12, 13])] {
        for key in keys {
            engine.store(key).await;
        }
        engine.put(id, &keys).await;
        assert_eq!(engine.sync(id).await.unwrap().on_mirror, 3);
    }
    // By SIGKILL, and with the memory.
    drop((running, engine));

    let running = house.start();
    let socket = house.at("run/vitriol/kvtier/kvtier.sock");
    let mut client = KvTierClient::new(connect(&socket));
    // At once: kvtier has read the disk before it says what is there.
    let found = |of: &[SessionInfo]| -> Vec<(u64, u64)> {
        let of = of.iter();
        of.map(|of| (of.records_in_arena, of.records_on_mirror))
            .collect()
    };
    assert_eq!(found(&sessions(&mut client).await), [(0, 3), (0, 3)]);
    let restored = restore(&mut client, "a", 0, true).await.unwrap();
    assert_eq!((restored.brought, restored.cause.as_str()), (3, ""));
    let restored = restore(&mut client, "b", 0, true).await.unwrap();
    assert_eq!((restored.brought, restored.in_arena), (1, 1));
    assert!(restored.cause.contains("no room"), "{restored:?}");
    let stats = client.stats(StatsRequest {}).await.unwrap().into_inner();
    assert_eq!((stats.slots_free, stats.evicted), (0, 0));
    // Whoever asks for it in so many words gets the room of others.
    let restored = restore(&mut client, "b", 0, false).await.unwrap();
    assert_eq!((restored.in_arena, restored.cause.as_str()), (3, ""));
    assert_eq!(running.stop(), Some(0));
}

#[tokio::test]
async fn what_is_imported_is_on_disk_before_it_is_a_session() {
    let house = House::new(SMALL);
    let running = house.start();
    let mut engine = house.attach().await;
    for key in 1..=3 {
        engine.store(key).await;
    }
    engine.put("chat", &[1, 2, 3]).await;
    let file = tempfile::tempfile().unwrap();
    engine.export("chat", &file).await.unwrap();
    assert_eq!(engine.remove("chat").await.unwrap().destroyed, 3);
    assert_eq!(
        engine.import(&file, "again", false).await.unwrap().records,
        3
    );
    // By SIGKILL, and with the memory.
    drop((running, engine));

    let running = house.start();
    let mut engine = house.attach().await;
    until_mirrored(&mut engine, 3).await;
    let [session] = &engine.sessions().await[..] else {
        panic!("there is one session");
    };
    assert_eq!(
        (session.id.as_str(), session.records_on_mirror),
        ("again", 3)
    );
    let restored = engine.restore("again", 0).await.unwrap();
    assert_eq!((restored.brought, restored.cause.as_str()), (3, ""));
    let found = engine.look(3).await;
    assert!(engine.holds(&found, 3), "{found:?}");
    assert_eq!(running.stop(), Some(0));
}

#[tokio::test]
async fn what_was_sealed_is_in_memory_when_it_was_killed() {
    let house = House::new(&format!("{SMALL}mirror = false"));
    let mut running = house.start();
    assert_eq!(running.store, ["FDSTORE=1\nFDNAME=arena\nFDPOLL=0\n"]);
    let kept = running.kept.take().unwrap();
    let mut engine = house.attach().await;
    for key in 1..=3 {
        engine.store(key).await;
    }
    let id = engine.arena_id().to_vec();
    // By SIGKILL.
    drop((running, engine));

    let running = house.start_again(&kept);
    assert_eq!(running.store, [""; 0], "it is kept already");
    let mut engine = house.attach().await;
    assert_eq!(engine.arena_id(), id);
    for key in 1..=3 {
        let found = engine.look(key).await;
        assert!(engine.holds(&found, key), "{found:?}");
    }
    assert!(
        house
            .metrics()
            .await
            .contains("vitriol_kvtier_slots_free 1\n")
    );
    engine.store(4).await;
    assert_eq!(running.stop(), Some(0));
}

#[tokio::test]
async fn what_was_kept_and_is_not_the_arena_that_is_wanted_is_given_up() {
    let house = House::new(SMALL);
    let mut running = house.start();
    let arena = running.kept.take().unwrap();
    let mut engine = house.attach().await;
    engine.store(1).await;
    let id = engine.arena_id().to_vec();
    assert_eq!(running.stop(), Some(0));
    house.set("enabled = true\narena_bytes = '8 MiB'\nslot_bytes = '1 MiB'");
    let no_arena: OwnedFd = tempfile::tempfile().unwrap().into();
    for kept in [arena, no_arena] {
        let running = house.start_again(&kept);
        let anew = [
            "FDSTOREREMOVE=1\nFDNAME=arena\n",
            "FDSTORE=1\nFDNAME=arena\nFDPOLL=0\n",
        ];
        assert_eq!(running.store, anew);
        let mut engine = house.attach().await;
        assert_ne!(engine.arena_id(), id);
        // The mirror has what the memory had.
        until_mirrored(&mut engine, 1).await;
        assert_eq!(running.stop(), Some(0));
    }
}

#[tokio::test]
async fn without_a_mirror_nothing_is_written() {
    let house = House::new(&format!("{SMALL}mirror = false"));
    let running = house.start();
    let mut engine = house.attach().await;
    engine.store(1).await;
    let found = engine.look(1).await;
    assert!(engine.holds(&found, 1));
    assert!(!house.metrics().await.contains("mirror_up"));
    assert_eq!(running.stop(), Some(0));
    assert!(!house.mirror().exists());
}

#[tokio::test]
async fn a_mirror_that_fails_costs_neither_the_service_nor_the_end() {
    let house = House::new(SMALL);
    // A file is in the way of the directory.
    fs::create_dir_all(house.mirror().parent().unwrap()).unwrap();
    fs::write(house.mirror(), "").unwrap();
    let mut running = house.start();
    let mut engine = house.attach().await;
    let mut events = engine.events().await;
    let Event::Arena(arena) = next(&mut events).await else {
        panic!("the arena is told first");
    };
    assert_eq!((&arena.id[..], arena.epoch), (engine.arena_id(), 1));
    // Up as long as nobody has tried.
    let down = loop {
        match next(&mut events).await {
            Event::Mirror(state) if state.down.is_empty() => {}
            Event::Mirror(state) => break state.down,
            other => panic!("{other:?}"),
        }
    };
    assert!(down.contains("segments"), "{down}");
    engine.store(1).await;
    let found = engine.look(1).await;
    assert!(engine.holds(&found, 1));
    while !running.hear().contains("mirror down: ") {}
    assert_eq!(running.stop(), Some(0));
}

/// What a unit asks first (`ExecCondition=`), so that a house without a tier has no failed unit.
#[test]
fn whether_there_is_a_tier_to_run_is_said_by_the_exit_code() {
    for (settings, exit) in [("enabled = false", 1), (SMALL, 0), ("enable = true", 0)] {
        let house = House::new(settings);
        let ended = house.command().arg("--check-enabled").output().unwrap();
        assert_eq!(ended.status.code(), Some(exit), "{settings}");
        assert!(ended.stderr.is_empty() && !house.at("run").exists());
    }
}

#[test]
fn what_it_cannot_run_with_is_said_and_ends_it() {
    for (settings, exit, cause) in [
        ("", 78, "set enabled = true"),
        ("enabled = true\nmirror_dir = 'kv'", 78, "begins with '/'"),
        (
            "enabled = true\nmirror_bytes_max = 4096",
            78,
            "kvtier.mirror_bytes_max",
        ),
        (
            "enabled = true\narena_bytes = '1024 TiB'",
            78,
            "set kvtier.arena_bytes to at most",
        ),
    ] {
        let ended = House::new(settings).command().output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(exit), "{said}");
        assert!(said.contains(cause), "{said}");
    }
}
