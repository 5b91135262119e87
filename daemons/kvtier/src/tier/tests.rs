use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::mpsc::sync_channel,
    time::Duration,
};

use vitriol_testkit::eventually;
use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::mirror::{
    StoreError,
    disk::LocalDisk,
    fault::{EIO, Faults, FaultyDisk},
    store::SegmentStore,
    writer::WriterConfig,
};

const SOON: Duration = Duration::from_secs(60);
const ENGINE: EngineId = 7;
const SLOT_BYTES: u64 = 1 << 20;

/// Four slots.
fn arena() -> Arena {
    Arena::create([1; 16], 6 << 20, SLOT_BYTES).unwrap()
}

fn mirror(directory: &Path, faults: &Faults) -> Mirror {
    let (directory, faults) = (directory.to_owned(), faults.clone());
    let config = WriterConfig {
        jobs_max: 8,
        sync_after: Duration::from_millis(5),
        retry_after: Duration::from_millis(5),
    };
    let open = Box::new(move || {
        let disk = FaultyDisk {
            inner: LocalDisk::open(&directory).map_err(StoreError::List)?,
            faults: faults.clone(),
        };
        let store = SegmentStore::open(disk, 64 << 20)?;
        Ok(Box::new(store) as Box<dyn crate::mirror::BlockStore>)
    });
    Mirror::start(config, open, None).unwrap()
}

fn payload(key: u8) -> Vec<u8> {
    vec![key; 10_000 + usize::from(key)]
}

/// Block `key` of a chain of blocks 1, 2, 3, …
fn offer(key: u8) -> Offer {
    let payload = payload(key);
    let name = RecordName {
        key: [key; 32],
        tag: [5; 16],
        group: 0,
    };
    let record = Record {
        name,
        parent: [key - 1; 32],
        tokens: 64,
        saved_us: 1000,
        length: payload.len() as u64,
        xxh3: xxh3_64(&payload),
    };
    Offer {
        record,
        origin: Origin::Session,
    }
}

fn attach(tier: &Tier) -> Session {
    tier.attach(ENGINE, tier.arena().id(), &[]).unwrap().session
}

/// What an engine does to store block `key`.
fn store(tier: &Tier, session: Session, key: u8) -> Result<Ticket, Declined> {
    let offer = offer(key);
    let ticket = tier.reserve(session, &offer)?;
    tier.arena().write_payload(ticket.slot, &payload(key));
    tier.seal(session, ticket, offer.record.length, offer.record.xxh3)?;
    Ok(ticket)
}

/// Stores the first `keys` records of a tier, on its mirror too.
fn store_mirrored(tier: &Arc<Tier>, session: Session, keys: u8) {
    for key in 1..=keys {
        store(tier, session, key).unwrap();
    }
    assert_eq!(tier.spill(), usize::from(keys));
    let stored = || {
        let mirror = tier.stats().mirror;
        mirror.filter(|mirror| mirror.stored == u64::from(keys))
    };
    eventually(SOON, "all are stored", stored).unwrap();
}

/// Whether block `key` is in the arena and what was stored; its pin is given back.
fn finds(tier: &Tier, session: Session, key: u8) -> bool {
    match tier.lookup(session, &[offer(key).record.name]).unwrap()[0] {
        Found::Arena(ticket, record) => {
            let header = tier.arena().read_header(ticket.slot).unwrap();
            let found = tier.arena().read_payload(ticket.slot, &header);
            tier.unpin(session, ticket).unwrap();
            record == offer(key).record && found == Some(payload(key))
        }
        _ => false,
    }
}

fn load(tier: &Arc<Tier>, session: Session, key: u8) -> Option<Ticket> {
    let (told, answer) = sync_channel(1);
    let brought = Box::new(move |brought| told.send(brought).unwrap());
    tier.load(session, offer(key).record.name, Origin::Session, brought);
    let (ticket, record) = answer.recv_timeout(SOON).unwrap()?;
    assert_eq!(record, offer(key).record);
    Some(ticket)
}

/// The memory as the service manager keeps it.
fn kept(tier: &Tier) -> OwnedFd {
    tier.arena().as_fd().try_clone_to_owned().unwrap()
}

#[test]
fn what_was_sealed_outlives_kvtier_and_what_was_not_waits_for_its_engine() {
    let tier = Tier::new(arena(), None);
    let session = attach(&tier);
    store(&tier, session, 1).unwrap();
    let half = tier.reserve(session, &offer(2)).unwrap();
    let (id, memory) = (tier.arena().id(), kept(&tier));
    drop(tier);

    let tier = Tier::new(Arena::take_over(memory).unwrap(), None);
    assert_eq!(tier.quarantined(), [ENGINE]);
    assert_eq!(tier.stats().slots_quarantined, 1);
    assert_eq!(
        tier.lookup(session, &[]),
        Err(Refused::NotAttached),
        "a session ends with kvtier"
    );
    // Another engine finds the block, and cannot have the slot that the first may be writing.
    let other = tier.attach(ENGINE + 1, id, &[]).unwrap().session;
    assert!(finds(&tier, other, 1));
    assert_eq!(store(&tier, other, 2), Err(Refused::BeingWritten.into()));
    // The first comes back and goes on where it was.
    let attached = tier.attach(ENGINE, id, &[half]).unwrap();
    assert_eq!(attached.kept, [half]);
    let record = offer(2).record;
    tier.arena().write_payload(half.slot, &payload(2));
    tier.seal(attached.session, half, record.length, record.xxh3)
        .unwrap();
    assert!(finds(&tier, other, 2));
}

#[test]
fn what_an_engine_holds_of_another_arena_is_not_its() {
    let tier = Tier::new(arena(), None);
    let session = attach(&tier);
    let ticket = tier.reserve(session, &offer(1)).unwrap();
    let attached = tier.attach(ENGINE, [9; 16], &[ticket]).unwrap();
    assert_eq!(attached.kept, []);
    assert_eq!(tier.stats().slots_free, 4);
}

#[test]
fn what_was_spilled_is_brought_back_to_an_empty_arena() {
    let temp = tempfile::tempdir().unwrap();
    let faults = Faults::default();
    let tier = Arc::new(Tier::new(arena(), Some(mirror(temp.path(), &faults))));
    let session = attach(&tier);
    store_mirrored(&tier, session, 3);
    assert_eq!(tier.spill(), 0, "each is written once");
    // A slow callback may still hold the tier, and so the mirror's directory.
    drop(tier);

    let tier = Arc::new(Tier::new(arena(), Some(mirror(temp.path(), &faults))));
    let session = attach(&tier);
    let names: Vec<_> = [1, 2, 9].map(|key| offer(key).record.name).to_vec();
    let found = || {
        let found = tier.lookup(session, &names).unwrap();
        (found == [Found::Mirror, Found::Mirror, Found::Nowhere]).then_some(())
    };
    eventually(SOON, "the mirror is read", found).unwrap();
    let ticket = load(&tier, session, 2).unwrap();
    tier.unpin(session, ticket).unwrap();
    assert!(finds(&tier, session, 2));
    assert!(load(&tier, session, 9).is_none());
    // Brought twice, it is there once.
    assert_eq!(load(&tier, session, 2), Some(ticket));
    assert_eq!((tier.stats().slots_free, tier.spill()), (3, 0));
}

#[test]
fn a_full_arena_makes_room_at_the_end_of_chains_and_never_of_what_is_read() {
    let tier = Tier::new(arena(), None);
    let session = attach(&tier);
    for key in 1..=4 {
        store(&tier, session, key).unwrap();
    }
    let pinned = match tier.lookup(session, &[offer(4).record.name]).unwrap()[0] {
        Found::Arena(ticket, _) => ticket,
        other => panic!("{other:?}"),
    };
    // 1 to 3 have what builds upon them, and 4 is being read.
    assert_eq!(store(&tier, session, 9), Err(Refused::Full.into()));
    tier.unpin(session, pinned).unwrap();
    tier.lookup(session, &[]).unwrap();
    store(&tier, session, 9).unwrap();
    assert!(!finds(&tier, session, 4) && finds(&tier, session, 3) && finds(&tier, session, 9));
    assert_eq!(tier.stats().evicted, 1);
}

#[test]
fn no_record_of_a_conversation_is_given_up_on_its_way_to_the_disk() {
    let temp = tempfile::tempdir().unwrap();
    let mirror = mirror(temp.path(), &Faults::default());
    let tier = Arc::new(Tier::new(arena(), Some(mirror)));
    let session = attach(&tier);
    for key in 1..=4 {
        store(&tier, session, key).unwrap();
    }
    tier.lookup(session, &[]).unwrap();
    assert_eq!(store(&tier, session, 9), Err(Refused::Full.into()));
    // On the disk it may, however little the new one is worth beside it.
    assert_eq!(tier.spill(), 4);
    let stored = || tier.stats().mirror.filter(|mirror| mirror.stored == 4);
    eventually(SOON, "all are stored", stored).unwrap();
    for _ in 0..100 {
        assert!(finds(&tier, session, 4));
    }
    let worthless = Offer {
        record: Record {
            saved_us: 1,
            ..offer(9).record
        },
        origin: Origin::Session,
    };
    tier.reserve(session, &worthless).unwrap();
    let found = tier.lookup(session, &[offer(4).record.name]).unwrap();
    assert_eq!(found, [Found::Mirror]);

    // Without a disk the arena keeps what is worth most.
    let tier = Arc::new(Tier::new(arena(), None));
    let session = attach(&tier);
    for key in 1..=4 {
        store(&tier, session, key).unwrap();
    }
    tier.lookup(session, &[]).unwrap();
    store(&tier, session, 9).unwrap();
}

#[test]
fn what_a_conversation_goes_on_from_is_written_too() {
    let temp = tempfile::tempdir().unwrap();
    let mirror = mirror(temp.path(), &Faults::default());
    let tier = Arc::new(Tier::new(arena(), Some(mirror)));
    let session = attach(&tier);
    // Saves too little time to be worth a disk's.
    let store = |key, origin| {
        let mut offer = offer(key);
        (offer.record.saved_us, offer.origin) = (1, origin);
        let ticket = match tier.reserve(session, &offer) {
            Err(Declined::Refused(Refused::Stored)) => return,
            ticket => ticket.unwrap(),
        };
        tier.arena().write_payload(ticket.slot, &payload(key));
        let record = offer.record;
        tier.seal(session, ticket, record.length, record.xxh3)
            .unwrap();
    };
    store(1, Origin::OneShot);
    store(2, Origin::OneShot);
    assert_eq!((tier.unmirrored(), tier.spill()), (0, 0));
    store(9, Origin::OneShot);
    store(3, Origin::Session);
    assert_eq!((tier.unmirrored(), tier.spill()), (3, 3));
    let stored = || tier.stats().mirror.filter(|mirror| mirror.stored == 3);
    eventually(SOON, "the conversation is stored", stored).unwrap();
    assert_eq!(tier.unmirrored(), 0);
    // One that is there already, too.
    store(9, Origin::Session);
    assert_eq!((tier.unmirrored(), tier.spill()), (1, 1));
}

const LONG: Duration = Duration::from_secs(3600);

/// Bytes of memory that the arena takes.
fn held_bytes(tier: &Tier) -> u64 {
    let stat = rustix::fs::fstat(tier.arena()).unwrap();
    stat.st_blocks as u64 * 512
}

#[test]
fn what_is_trimmed_is_the_machines_and_comes_back_when_it_is_wanted() {
    let temp = tempfile::tempdir().unwrap();
    let tier = Arc::new(Tier::new(
        arena(),
        Some(mirror(temp.path(), &Faults::default())),
    ));
    let session = attach(&tier);
    store_mirrored(&tier, session, 3);
    let all = held_bytes(&tier);
    if tier.arena().pages().huge {
        assert_eq!(tier.trim(4, Duration::ZERO), 0);
        return;
    }
    // First the one that holds nothing.
    assert_eq!(tier.trim(1, LONG), 1);
    assert!(finds(&tier, session, 3));
    assert_eq!(held_bytes(&tier), all - SLOT_BYTES);
    let (mut stats, memory) = (tier.stats(), kept(&tier));
    assert_eq!((stats.slots_free, stats.slots_given_back), (1, 1));
    // Under pressure the memory stays away: there is room for what is worth more, and for no other.
    tier.lookup(session, &[]).unwrap();
    store(&tier, session, 9).unwrap();
    assert!(!finds(&tier, session, 3) && finds(&tier, session, 9));
    assert_eq!(held_bytes(&tier), all - SLOT_BYTES);
    drop(tier);

    // So it does over a restart; afterwards it is taken as it is wanted.
    let tier = Tier::new(Arena::take_over(memory).unwrap(), None);
    assert_eq!(held_bytes(&tier), all - SLOT_BYTES);
    let session = attach(&tier);
    stats = tier.stats();
    assert_eq!((stats.slots_free, stats.slots_given_back), (1, 1));
    store(&tier, session, 4).unwrap();
    assert!(finds(&tier, session, 4));
    assert_eq!((held_bytes(&tier), tier.stats().slots_given_back), (all, 0));
    // Never what is read.
    let pinned = match tier.lookup(session, &[offer(4).record.name]).unwrap()[0] {
        Found::Arena(ticket, _) => ticket,
        other => panic!("{other:?}"),
    };
    assert_eq!(tier.trim(4, LONG), 3);
    assert!(finds(&tier, session, 4));
    tier.unpin(session, pinned).unwrap();
    assert_eq!(tier.trim(4, LONG), 1);
    assert_eq!(held_bytes(&tier), all - 4 * SLOT_BYTES);
    assert_eq!(store(&tier, session, 5), Err(Refused::Full.into()));
}

#[test]
fn what_the_mirror_has_is_given_back_before_what_it_has_not() {
    let temp = tempfile::tempdir().unwrap();
    let faults = Faults::default();
    let tier = Arc::new(Tier::new(arena(), Some(mirror(temp.path(), &faults))));
    if tier.arena().pages().huge {
        return;
    }
    let session = attach(&tier);
    for key in [1, 5] {
        store(&tier, session, key).unwrap();
    }
    tier.spill();
    let stored = || tier.stats().mirror.filter(|mirror| mirror.stored == 2);
    eventually(SOON, "two are stored", stored).unwrap();
    for key in [9, 13] {
        store(&tier, session, key).unwrap();
    }
    assert_eq!(tier.trim(2, LONG), 2);
    assert!(finds(&tier, session, 9) && finds(&tier, session, 13));
    let names = [1, 5].map(|key| offer(key).record.name);
    let found = tier.lookup(session, &names).unwrap();
    assert_eq!(found, [Found::Mirror, Found::Mirror]);
}

fn destroy(tier: &Arc<Tier>, keys: &[u8]) -> Vec<Destroyed> {
    let (told, answer) = sync_channel(1);
    let names = keys.iter().map(|&key| offer(key).record.name).collect();
    let tell = Box::new(move |outcome| told.send(outcome).unwrap());
    tier.destroy(names, tell).unwrap();
    answer.recv_timeout(SOON).unwrap()
}

/// Whether a run of the payload of block `key` is anywhere in the arena.
fn is_in_memory(tier: &Tier, key: u8) -> bool {
    let mut found = vec![0; 4096];
    (0..tier.arena().slots()).any(|slot| {
        tier.arena().peek(slot, &mut found);
        found == [key; 4096]
    })
}

/// Whether a run of the payload of block `key` is in any file of the mirror.
fn is_on_disk(directory: &Path, key: u8) -> bool {
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    let mut files = entries.map(|entry| std::fs::read(entry.path()).unwrap());
    files.any(|bytes| bytes.windows(4096).any(|run| run == [key; 4096]))
}

#[test]
fn what_is_destroyed_is_nowhere_and_no_restart_finds_it() {
    let temp = tempfile::tempdir().unwrap();
    let faults = Faults::default();
    let tier = Arc::new(Tier::new(arena(), Some(mirror(temp.path(), &faults))));
    let session = attach(&tier);
    store_mirrored(&tier, session, 3);
    assert!(is_in_memory(&tier, 2) && is_on_disk(temp.path(), 2));
    // One that is not there is gone too.
    assert_eq!(destroy(&tier, &[2, 9]), [Destroyed::Gone; 2]);
    assert!(!is_in_memory(&tier, 2) && !is_on_disk(temp.path(), 2));
    let found = tier.lookup(session, &[offer(2).record.name]).unwrap();
    assert_eq!(found, [Found::Nowhere]);
    let memory = kept(&tier);
    drop(tier);

    let found_again = mirror(temp.path(), &faults);
    let read = || (found_again.stats().usage.records == 2).then_some(());
    eventually(SOON, "the mirror is read", read).unwrap();
    assert!(!found_again.holds(&offer(2).record.name));
    let tier = Arc::new(Tier::new(
        Arena::take_over(memory).unwrap(),
        Some(found_again),
    ));
    let session = attach(&tier);
    assert!(finds(&tier, session, 1) && !finds(&tier, session, 2) && finds(&tier, session, 3));
    // Stored anew it is another record.
    store(&tier, session, 2).unwrap();
    assert!(finds(&tier, session, 2));
}

#[test]
fn what_is_written_or_read_is_destroyed_when_that_has_ended() {
    let tier = Arc::new(Tier::new(arena(), None));
    let session = attach(&tier);
    let ticket = tier.reserve(session, &offer(1)).unwrap();
    assert_eq!(destroy(&tier, &[1]), [Destroyed::NotYet]);
    let record = offer(1).record;
    tier.arena().write_payload(ticket.slot, &payload(1));
    tier.seal(session, ticket, record.length, record.xxh3)
        .unwrap();
    let Found::Arena(pinned, _) = tier.lookup(session, &[record.name]).unwrap()[0] else {
        panic!("it is sealed");
    };
    assert_eq!(destroy(&tier, &[1]), [Destroyed::NotYet]);
    let found = tier.lookup(session, &[record.name]).unwrap();
    assert_eq!(found, [Found::Nowhere], "found no more at once");
    assert!(is_in_memory(&tier, 1), "its reader reads on");
    // The reader dies with kvtier.
    let again = Arc::new(Tier::new(Arena::take_over(kept(&tier)).unwrap(), None));
    assert!(!is_in_memory(&again, 1));
    tier.arena().write_payload(ticket.slot, &payload(1));
    tier.unpin(session, pinned).unwrap();
    assert!(!is_in_memory(&tier, 1));
    assert_eq!(destroy(&tier, &[1]), [Destroyed::Gone]);
}

#[test]
fn a_mirror_that_cannot_be_written_says_that_it_is_not_done() {
    let temp = tempfile::tempdir().unwrap();
    let faults = Faults::default();
    let tier = Arc::new(Tier::new(arena(), Some(mirror(temp.path(), &faults))));
    let session = attach(&tier);
    store(&tier, session, 1).unwrap();
    tier.spill();
    let stored = || tier.stats().mirror.filter(|mirror| mirror.stored == 1);
    eventually(SOON, "it is stored", stored).unwrap();
    faults.write(Some(EIO));
    assert_eq!(destroy(&tier, &[1]), [Destroyed::NotYet]);
    faults.write(None);
    assert_eq!(destroy(&tier, &[1]), [Destroyed::Gone]);
    assert!(!is_on_disk(temp.path(), 1));
}

#[test]
fn what_an_engine_overwrote_is_not_mirrored_but_discarded() {
    let temp = tempfile::tempdir().unwrap();
    let faults = Faults::default();
    let tier = Arc::new(Tier::new(arena(), Some(mirror(temp.path(), &faults))));
    let session = attach(&tier);
    let ticket = store(&tier, session, 1).unwrap();
    store(&tier, session, 2).unwrap();
    tier.arena()
        .write_payload(ticket.slot, b"not what was sealed");
    assert_eq!(tier.spill(), 1);
    assert_eq!(tier.stats().damaged, 1);
    assert!(!finds(&tier, session, 1) && finds(&tier, session, 2));
}

#[test]
fn a_failing_mirror_leaves_records_to_be_spilled_later() {
    let temp = tempfile::tempdir().unwrap();
    let faults = Faults::default();
    let tier = Arc::new(Tier::new(arena(), Some(mirror(temp.path(), &faults))));
    let session = attach(&tier);
    store(&tier, session, 1).unwrap();
    faults.write(Some(EIO));
    assert_eq!(tier.spill(), 1);
    let down = || tier.stats().mirror.and_then(|mirror| mirror.down);
    eventually(SOON, "the mirror is down", down).unwrap();
    assert!(finds(&tier, session, 1), "memory goes on");
    faults.write(None);
    let stored = || {
        tier.spill();
        tier.stats().mirror.filter(|mirror| mirror.stored == 1)
    };
    eventually(SOON, "it is stored", stored).unwrap();
    assert_eq!(tier.stats().mirror.unwrap().down, None);
}
