//! The service over real sockets, as an engine uses it.

use std::{fs::File, os::unix::fs::FileExt, path::Path, sync::Arc};

use tokio::sync::Notify;
use tonic::{Code, service::Routes, transport::Channel};
use vitriol_chassis::{Notifier, RpcServer, StatusBoard};
use vitriol_ipc::{Listener, connect};
use vitriol_kvtier::{
    arena::Arena,
    catalogue::Catalogue,
    service::{KvTierService, Tokens, serve_arena},
    sessions::Sessions,
    tier::Tier,
};
use vitriol_proto::kvtier::v1::{
    AttachRequest, AttachResponse, Declined, LookupRequest, Pinned, ReleaseRequest, ReserveRequest,
    SealRequest, Sealed, StatsRequest, StatsResponse, Ticket, TrimRequest, event::Kind as Event,
    found::Kind as Found, kv_tier_client::KvTierClient, kv_tier_server::KvTierServer,
    reserved::Kind as Reserved,
};
use vitriol_shm::Memfd;
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::{Engine, listen, name, next, redeem, reserve, turn};

struct Rig {
    directory: tempfile::TempDir,
    client: KvTierClient<Channel>,
    _server: RpcServer,
}

impl Rig {
    /// A tier of four slots of 1 MiB.
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let arena = Arena::create([1; 16], 6 << 20, 1 << 20).expect("memory for an arena");
        let tier = Arc::new(Tier::new(arena, None));
        let tokens = Arc::new(Tokens::default());
        let (calls, memory) = (
            at(directory.path(), "kvtier"),
            at(directory.path(), "arena"),
        );
        let incoming = Listener::bind(&memory).expect("a fresh path").incoming();
        tokio::spawn(serve_arena(
            incoming,
            Arc::clone(&tier),
            Arc::clone(&tokens),
        ));
        let sealed = Arc::new(Notify::new());
        let service = KvTierService::new(
            Arc::clone(&tier),
            Sessions::new(tier, Arc::new(Catalogue::in_memory()), Arc::clone(&sealed)),
            tokens,
            sealed,
        );
        let board = StatusBoard::new("kvtier", "0", Notifier::default());
        let routes = Routes::new(KvTierServer::new(service));
        let server = RpcServer::spawn(Listener::bind(&calls).expect("a fresh path"), routes, board);
        Self {
            client: KvTierClient::new(connect(&calls)),
            directory,
            _server: server,
        }
    }

    /// An engine of its own.
    async fn engine(&self) -> Engine {
        let directory = self.directory.path();
        Engine::attach(&at(directory, "kvtier"), &at(directory, "arena")).await
    }

    async fn stats(&mut self) -> StatsResponse {
        let stats = self.client.stats(StatsRequest {}).await;
        stats.expect("anybody may ask").into_inner()
    }

    async fn attach(&mut self) -> AttachResponse {
        let request = AttachRequest::default();
        let attached = self.client.attach(request).await;
        attached.expect("an engine may attach").into_inner()
    }

    async fn redeem(&self, token: &[u8]) -> std::io::Result<Memfd> {
        redeem(&at(self.directory.path(), "arena"), token).await
    }

    async fn lookup(&mut self, attached: &AttachResponse, keys: &[u8]) -> Vec<Found> {
        let request = LookupRequest {
            session: attached.session,
            names: keys.iter().map(|key| name(*key)).collect(),
        };
        let found = self
            .client
            .lookup(request)
            .await
            .expect("a good lookup")
            .into_inner()
            .found;
        found
            .into_iter()
            .map(|found| found.kind.expect("a kind"))
            .collect()
    }
}

fn at(directory: &Path, name: &str) -> std::path::PathBuf {
    directory.join("house").join(format!("{name}.sock"))
}

#[tokio::test]
async fn an_engine_stores_and_finds_a_record() {
    let mut rig = Rig::new();
    let attached = rig.attach().await;
    let memory = rig.redeem(&attached.token).await.unwrap();
    assert!(
        rig.redeem(&attached.token).await.is_err(),
        "a token is good once"
    );
    assert!(rig.redeem(&[0; 16]).await.is_err());

    let reserved = rig.client.reserve(reserve(&attached, &[1, 1])).await;
    let reserved = reserved.unwrap().into_inner().reserved;
    let [
        Some(Reserved::Ticket(ticket)),
        Some(Reserved::Declined(declined)),
    ] = [reserved[0].kind, reserved[1].kind]
    else {
        panic!("{reserved:?}");
    };
    assert_eq!(declined, i32::from(Declined::BeingWritten));
    assert!(matches!(
        rig.lookup(&attached, &[1]).await[..],
        [Found::Nowhere(_)]
    ));

    let place = attached.payloads_at + u64::from(ticket.slot) * attached.slot_bytes;
    memory.copy_in(place as usize, b"payload");
    let seal = |ticket: Ticket| SealRequest {
        session: attached.session,
        sealed: vec![Sealed {
            ticket: Some(ticket),
            length: 7,
            xxh3: xxh3_64(b"payload"),
        }],
    };
    for expected in [true, false] {
        let sealed = rig.client.seal(seal(ticket)).await.unwrap().into_inner();
        assert_eq!(sealed.sealed, [expected]);
    }
    let found = rig.lookup(&attached, &[1, 2]).await;
    let [Found::Arena(pinned), Found::Nowhere(_)] = &found[..] else {
        panic!("{found:?}");
    };
    let expected = Pinned {
        ticket: Some(ticket),
        length: 7,
        xxh3: xxh3_64(b"payload"),
        tokens: 64,
    };
    assert_eq!(*pinned, expected);

    // What holds nothing goes first. Pinned, a record is not trimmed away; given back, it is.
    let mut events = listen(&mut rig.client).await;
    let trim = TrimRequest {
        bytes: 1,
        hold_ms: 0,
    };
    let free = TrimRequest {
        bytes: 3 << 20,
        ..trim
    };
    let trimmed = rig.client.trim(free).await.unwrap().into_inner();
    assert_eq!(trimmed.bytes, 3 << 20);
    assert_eq!(rig.client.trim(trim).await.unwrap().into_inner().bytes, 0);
    let release = ReleaseRequest {
        session: attached.session,
        pins: vec![ticket],
        reservations: vec![],
    };
    rig.client.release(release.clone()).await.unwrap();
    let again = rig.client.release(release).await.unwrap_err();
    assert_eq!(again.code(), Code::InvalidArgument);
    assert_eq!(
        rig.client.trim(trim).await.unwrap().into_inner().bytes,
        1 << 20
    );
    let told = [next(&mut events).await, next(&mut events).await];
    assert!(matches!(told[0], Event::Arena(_)), "{told:?}");
    assert_eq!(told[1], Event::TrimmedBytes(3 << 20));
    assert_eq!(next(&mut events).await, Event::TrimmedBytes(1 << 20));
    let stats = rig.stats().await;
    assert_eq!((stats.slots, stats.slots_free), (4, 4));
    assert_eq!(
        (stats.found_arena, stats.found_nowhere, stats.evicted),
        (1, 2, 1)
    );
}

#[tokio::test]
async fn a_call_of_an_earlier_session_has_no_effect() {
    let mut rig = Rig::new();
    let first = rig.attach().await;
    let reserved = rig.client.reserve(reserve(&first, &[1])).await.unwrap();
    let ticket = match reserved.into_inner().reserved[0].kind {
        Some(Reserved::Ticket(ticket)) => ticket,
        other => panic!("{other:?}"),
    };
    // The engine lost its connection, and lists what it holds.
    let request = AttachRequest {
        arena_id: first.arena_id.clone(),
        holds: vec![ticket],
    };
    let second = rig.client.attach(request).await.unwrap().into_inner();
    assert_eq!(second.kept, [ticket]);
    let late = rig.client.reserve(reserve(&first, &[2])).await.unwrap_err();
    assert_eq!(late.code(), Code::FailedPrecondition);
    let stats = rig.stats().await;
    assert_eq!(stats.slots_free, 3);
}

#[tokio::test]
async fn malformed_calls_are_refused_with_the_reason() {
    let mut rig = Rig::new();
    let attached = rig.attach().await;
    let mut short = reserve(&attached, &[1]);
    short.records[0].name.as_mut().unwrap().key.pop();
    let mut unnamed = reserve(&attached, &[1]);
    unnamed.records[0].name = None;
    let many = reserve(&attached, &[1; 4097]);
    let no_session = ReserveRequest {
        session: None,
        ..reserve(&attached, &[1])
    };
    for (request, reason) in [
        (short, "a key of 31 bytes, not 32"),
        (unnamed, "a record without a name"),
        (many, "4097 records, 4096 at most"),
        (no_session, "attach first"),
    ] {
        let refused = rig.client.reserve(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(reason), "{refused}");
    }
    let stats = rig.stats().await;
    assert_eq!(stats.slots_free, 4);
}

#[tokio::test]
async fn what_other_sessions_go_on_with_outlives_a_session() {
    let rig = Rig::new();
    let mut engine = rig.engine().await;
    for key in 1..=3 {
        engine.store(key).await;
    }
    assert!(engine.put("a", &[1, 2]).await && engine.put("b", &[1, 3]).await);
    assert!(!engine.put("a", &[1]).await && !engine.put("a", &[]).await);
    let sessions = engine.sessions().await;
    let ids: Vec<_> = sessions.iter().map(|session| session.id.as_str()).collect();
    assert!(ids.contains(&"a") && ids.contains(&"b"), "{ids:?}");
    let counts = sessions
        .iter()
        .map(|of| (of.blocks, of.records, of.records_in_arena));
    assert_eq!(counts.collect::<Vec<_>>(), [(2, 2, 2); 2]);

    let removed = engine.remove("a").await.unwrap();
    assert_eq!(
        (removed.destroyed, removed.shared, removed.cause.as_str()),
        (1, 1, "")
    );
    assert!(matches!(engine.look(2).await, Found::Nowhere(_)));
    let shared = engine.look(1).await;
    assert!(engine.holds(&shared, 1));
    let unknown = engine.remove("a").await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    assert!(
        unknown.message().contains("'vitriol session list'"),
        "{unknown}"
    );

    // What somebody reads cannot be destroyed yet, and keeps its entry.
    let removed = engine.remove("b").await.unwrap();
    assert_eq!((removed.destroyed, removed.left), (1, 1));
    assert_eq!(removed.left_names, [name(1)]);
    assert!(!removed.cause.is_empty());
    let [left] = &engine.sessions().await[..] else {
        panic!("b is left");
    };
    assert_eq!(
        (left.records, left.records_nowhere),
        (2, 2),
        "found no more"
    );
    engine.release(&shared).await;
    let removed = engine.remove("b").await.unwrap();
    assert_eq!(
        (removed.destroyed, removed.left, removed.cause.as_str()),
        (2, 0, "")
    );
    assert_eq!(engine.sessions().await, []);
}

#[tokio::test]
async fn a_copy_outlives_what_it_was_made_of() {
    let rig = Rig::new();
    let mut engine = rig.engine().await;
    for key in 1..=3 {
        engine.store(key).await;
    }
    engine.put("a", &[1, 2]).await;
    assert_eq!(engine.copy("a", "kept").await.unwrap(), 2);
    engine.put("a", &[1, 2, 3]).await;
    let removed = engine.remove("a").await.unwrap();
    assert_eq!(
        (removed.blocks, removed.destroyed, removed.shared),
        (3, 1, 2)
    );
    let [kept] = &engine.sessions().await[..] else {
        panic!("the copy is left");
    };
    assert_eq!(
        (kept.id.as_str(), kept.blocks, kept.tokens),
        ("kept", 2, 128)
    );
    assert_eq!((kept.records, kept.records_in_arena), (2, 2));
    let unknown = engine.copy("a", "b").await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    for to in ["", &"x".repeat(257)] {
        let refused = engine.copy("kept", to).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn a_turn_that_cannot_be_is_refused_with_the_reason() {
    let mut rig = Rig::new();
    let mut short = turn("a", &[1]);
    short.chain.as_mut().unwrap().keys.pop();
    let mut untagged = turn("a", &[1]);
    untagged.chain.as_mut().unwrap().tag.clear();
    let mut partless = turn("a", &[1]);
    partless.chain.as_mut().unwrap().parts.clear();
    for (request, reason) in [
        (turn("", &[1]), "a session id of 0 bytes"),
        (turn(&"x".repeat(257), &[1]), "a session id of 257 bytes"),
        (short, "keys of 31 bytes"),
        (untagged, "a tag of 0 bytes, not 16"),
        (partless, "0 records a block"),
    ] {
        let refused = rig.client.put_session(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(reason), "{refused}");
    }
    assert_eq!(rig.stats().await.sessions, 0);
}

#[tokio::test]
async fn without_a_disk_nothing_is_saved_and_that_is_said() {
    let rig = Rig::new();
    let mut engine = rig.engine().await;
    engine.store(1).await;
    engine.put("a", &[1, 2]).await;
    let refused = engine.sync("a").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("mirror = true"), "{refused}");
    assert_eq!(engine.sync("b").await.unwrap_err().code(), Code::NotFound);
    let restored = engine.restore("a", 0).await.unwrap();
    assert_eq!(
        (restored.records, restored.in_arena, restored.blocks),
        (2, 1, 1)
    );
    assert!(restored.cause.contains("not stored"), "{restored:?}");
}

/// A tier that has the session "a" of blocks 1 and 2, and the file it was exported to.
async fn exported() -> (Rig, Engine, File) {
    let rig = Rig::new();
    let mut engine = rig.engine().await;
    for key in 1..=2 {
        engine.store(key).await;
    }
    engine.put("a", &[1, 2]).await;
    let file = tempfile::tempfile().unwrap();
    let done = engine.export("a", &file).await.unwrap();
    assert_eq!((done.id.as_str(), done.records), ("a", 2));
    // The entry in two blocks, each record in a header and three.
    assert_eq!(
        (done.bytes, file.metadata().unwrap().len()),
        (10 * 4096, 10 * 4096)
    );
    (rig, engine, file)
}

#[tokio::test]
async fn a_session_moves_to_another_tier_by_a_file() {
    let (_rig, mut engine, file) = exported().await;
    let other = Rig::new();
    let mut there = other.engine().await;
    let done = there.import(&file, "", false).await.unwrap();
    assert_eq!((done.id.as_str(), done.records), ("a", 2));
    for key in 1..=2 {
        let found = there.look(key).await;
        assert!(there.holds(&found, key), "{found:?}");
    }
    let [session] = &there.sessions().await[..] else {
        panic!("it is the only one");
    };
    assert_eq!(
        (
            session.id.as_str(),
            session.tokens,
            session.records_in_arena
        ),
        ("a", 128, 2)
    );

    // Where it is known already nothing changes; under another name it shares its blocks.
    assert_eq!(engine.import(&file, "", false).await.unwrap().records, 2);
    assert_eq!(engine.import(&file, "b", false).await.unwrap().id, "b");
    assert_eq!(engine.remove("b").await.unwrap().shared, 2);
    // One that went another way stays, unless it is to be replaced.
    engine.put("a", &[1, 3]).await;
    let refused = engine.import(&file, "", false).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert_eq!(engine.import(&file, "", true).await.unwrap().records, 2);
    let long = engine
        .import(&file, &"x".repeat(257), false)
        .await
        .unwrap_err();
    assert_eq!(long.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn of_a_file_that_is_not_what_was_exported_nothing_is_taken() {
    let (_rig, _engine, file) = exported().await;
    let mut whole = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut whole, 0).unwrap();
    let change = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 3;
        bytes
    };
    let other = Rig::new();
    let mut there = other.engine().await;
    for (bytes, reason) in [
        (Vec::new(), "damaged at its beginning"),
        (change(0), "damaged at its beginning"),
        (change(4096 + 40), "damaged at its beginning"),
        (
            change(8),
            "an entry of version 2; this release reads version 1",
        ),
        (
            change(2 * 4096 + 8),
            "a record of version 2; this release reads version 1",
        ),
        (change(2 * 4096 + 70), "damaged at byte 8192"),
        // The payload of the second record, its padding, and what should not be there.
        (change(7 * 4096 + 5), "damaged at byte 24576"),
        (change(10 * 4096 - 1), "damaged at byte 24576"),
        (whole[..9 * 4096].to_vec(), "damaged at byte 28672"),
        ([&whole[..], &[0]].concat(), "damaged at byte 40960"),
        (
            [&whole[..6 * 4096], &whole[2 * 4096..6 * 4096]].concat(),
            "damaged at byte 24576",
        ),
    ] {
        let damaged = tempfile::tempfile().unwrap();
        damaged.write_all_at(&bytes, 0).unwrap();
        let refused = there.import(&damaged, "", false).await.unwrap_err();
        assert_eq!(refused.code(), Code::DataLoss, "{refused}");
        assert!(refused.message().contains(reason), "{reason}: {refused}");
        assert_eq!(there.sessions().await, []);
        for key in 1..=2 {
            assert!(
                matches!(there.look(key).await, Found::Nowhere(_)),
                "{reason}"
            );
        }
    }
    let no_file = File::open("/dev/null").unwrap();
    let refused = there.import(&no_file, "", false).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    there.import(&file, "", false).await.unwrap();
}

#[tokio::test]
async fn what_is_not_whole_is_not_exported_and_what_takes_no_room_not_imported() {
    let (_rig, mut engine, file) = exported().await;
    engine.put("more", &[1, 9]).await;
    let target = tempfile::tempfile().unwrap();
    let refused = engine.export("more", &target).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    assert!(refused.message().contains("1 of 2 records"), "{refused}");
    assert_eq!(target.metadata().unwrap().len(), 0);
    assert_eq!(
        engine.export("none", &target).await.unwrap_err().code(),
        Code::NotFound
    );
    let read_only = File::open("/proc/self/exe").unwrap();
    let refused = engine.export("a", &read_only).await.unwrap_err();
    assert!(
        refused.message().contains("cannot write the file"),
        "{refused}"
    );

    // Every slot of the other is being read.
    let other = Rig::new();
    let mut there = other.engine().await;
    for key in 11..=14 {
        there.store(key).await;
        there.look(key).await;
    }
    let refused = there.import(&file, "", false).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    assert_eq!(there.sessions().await, []);
}
