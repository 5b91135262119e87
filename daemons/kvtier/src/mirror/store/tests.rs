use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::PathBuf,
};

use proptest::prelude::*;

use super::*;
use crate::mirror::{
    disk::LocalDisk,
    fault::{EIO, ENOSPC, Faults, FaultyDisk},
};

const BUDGET: u64 = 8 * SEGMENT;
const SEGMENT: u64 = 64 << 10;

struct Rig {
    directory: tempfile::TempDir,
    faults: Faults,
}

impl Rig {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            faults: Faults::default(),
        }
    }

    /// With these records of 5000 bytes, synced, and nobody who has the store open.
    fn with_records(keys: std::ops::RangeInclusive<u16>) -> Self {
        let rig = Self::new();
        let mut store = rig.open();
        for key in keys {
            put(&mut store, key, 5000).unwrap();
        }
        store.sync().unwrap();
        rig
    }

    fn open(&self) -> SegmentStore<FaultyDisk> {
        let disk = FaultyDisk {
            inner: LocalDisk::open(self.directory.path()).unwrap(),
            faults: self.faults.clone(),
        };
        SegmentStore::open(disk, BUDGET).unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    fn only_file(&self) -> File {
        let files = self.files();
        assert_eq!(files.len(), 1, "{files:?}");
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&files[0])
            .unwrap()
    }
}

fn payload(key: u16, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at as u16).wrapping_mul(31).wrapping_add(key) as u8)
        .collect()
}

fn name(key: u16) -> RecordName {
    let mut name = RecordName {
        key: [0; 32],
        tag: [7; 16],
        group: 1,
    };
    name.key[..2].copy_from_slice(&key.to_le_bytes());
    name
}

fn put<D: Disk>(store: &mut SegmentStore<D>, key: u16, bytes: usize) -> Result<(), StoreError> {
    let payload = payload(key, bytes);
    let record = Record {
        name: name(key),
        parent: [3; 32],
        tokens: 64,
        saved_us: 1000,
        length: payload.len() as u64,
        xxh3: xxh3_64(&payload),
    };
    store.put(&record, &payload)
}

fn holds<D: Disk>(store: &mut SegmentStore<D>, key: u16, bytes: usize) -> bool {
    store
        .get(&name(key))
        .is_some_and(|(_, found)| found == payload(key, bytes))
}

#[test]
fn what_was_synced_is_there_after_a_restart() {
    let rig = Rig::new();
    let mut store = rig.open();
    for (key, bytes) in [(1, 5000), (2, 4096), (3, 0), (4, 1)] {
        put(&mut store, key, bytes).unwrap();
    }
    store.sync().unwrap();
    let written = store.usage();
    assert_eq!(written.bytes_written, 4096 * (3 + 2 + 1 + 2));
    drop(store);
    let mut store = rig.open();
    for (key, bytes) in [(1, 5000), (2, 4096), (3, 0), (4, 1)] {
        assert!(holds(&mut store, key, bytes), "{key}");
    }
    assert!(store.get(&name(5)).is_none());
    assert_eq!(store.usage().bytes, written.bytes);
    // Another tag is another record.
    let other = RecordName {
        tag: [8; 16],
        ..name(1)
    };
    assert!(!store.contains(&other));
}

#[test]
fn a_record_that_is_there_is_not_written_again() {
    let rig = Rig::new();
    let mut store = rig.open();
    put(&mut store, 1, 5000).unwrap();
    let before = store.usage();
    put(&mut store, 1, 5000).unwrap();
    assert_eq!(store.usage(), before);
}

/// The file cut off at any block: records before the cut are there, the one it goes through is not.
#[test]
fn a_torn_tail_never_existed() {
    for blocks in 0..=8 {
        let rig = Rig::new();
        let mut store = rig.open();
        for key in 0..3 {
            // 3, 2 and 3 blocks.
            put(&mut store, key, [5000, 4000, 8192][key as usize]).unwrap();
        }
        store.sync().unwrap();
        drop(store);
        rig.only_file().set_len(blocks * 4096).unwrap();
        let mut store = rig.open();
        for (key, bytes, needs) in [(0, 5000, 3), (1, 4000, 5), (2, 8192, 8)] {
            assert_eq!(
                holds(&mut store, key, bytes),
                blocks >= needs,
                "{key} of {blocks}"
            );
        }
        // The next record goes to a new segment, and nothing to the torn one.
        put(&mut store, 9, 100).unwrap();
        store.sync().unwrap();
        drop(store);
        assert!(holds(&mut rig.open(), 9, 100));
    }
}

/// A tail whose size came to the disk and whose bytes did not.
#[test]
fn a_tail_of_zeroes_never_existed() {
    let rig = Rig::with_records(1..=2);
    rig.only_file().write_all_at(&[0; 4096], 5 * 4096).unwrap();
    let mut store = rig.open();
    assert!(store.contains(&name(2)), "its header is good");
    assert!(holds(&mut store, 1, 5000) && !holds(&mut store, 2, 5000));
    assert!(!store.contains(&name(2)), "and then it is forgotten");
    assert_eq!(store.usage().records_damaged, 1);
}

/// A flipped bit in each class of bytes: that record is gone, those before and after it are not.
#[test]
fn a_flipped_bit_costs_its_record_and_no_other() {
    let classes = [
        ("magic", 0),
        ("version", 8),
        ("group", 12),
        ("segment", 16),
        ("length", 24),
        ("length, high byte", 31),
        ("xxh3", 32),
        ("tokens", 40),
        ("saved_us", 44),
        ("tag", 48),
        ("key", 64),
        ("parent", 96),
        ("crc", 128),
        ("rest of the header block", 2000),
        ("first byte of the payload", 4096),
        ("last byte of the payload", 4096 + 4999),
    ];
    for (class, at) in classes {
        let rig = Rig::with_records(0..=2);
        let file = rig.only_file();
        let mut byte = [0];
        let at = 3 * 4096 + at;
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
        let mut store = rig.open();
        let found = [0, 1, 2].map(|key| holds(&mut store, key, 5000));
        assert_eq!(found, [true, false, true], "{class}");
    }
}

#[test]
fn a_record_of_an_unknown_version_never_existed() {
    let rig = Rig::with_records(1..=2);
    let file = rig.only_file();
    let mut fields = [0; 128];
    file.read_exact_at(&mut fields, 0).unwrap();
    fields[8] = 2;
    file.write_all_at(&fields, 0).unwrap();
    file.write_all_at(&crc32c::crc32c(&fields).to_le_bytes(), 128)
        .unwrap();
    let mut store = rig.open();
    assert!(!store.contains(&name(1)) && holds(&mut store, 2, 5000));
}

/// A header that is good and says more than any file holds.
#[test]
fn a_length_beyond_the_file_never_existed() {
    for length in [5001 + 8192, u64::MAX, u64::MAX - 4095] {
        let rig = Rig::new();
        let mut store = rig.open();
        put(&mut store, 1, 5000).unwrap();
        store.sync().unwrap();
        let mut record = store.get(&name(1)).unwrap().0;
        drop(store);
        record.length = length;
        rig.only_file()
            .write_all_at(&encode_header(0, &record), 0)
            .unwrap();
        assert!(!rig.open().contains(&name(1)), "{length}");
    }
}

/// A segment under another's number, as a careless copy leaves it.
#[test]
fn a_copied_segment_is_none() {
    let rig = Rig::with_records(1..=1);
    let file = rig.files().remove(0);
    fs::rename(&file, file.with_file_name("00000000000000aa.seg")).unwrap();
    assert!(!rig.open().contains(&name(1)));
    assert!(
        rig.files().is_empty(),
        "a segment without records is removed"
    );
}

#[test]
fn a_failed_write_costs_what_was_not_synced_and_heals() {
    let rig = Rig::new();
    let mut store = rig.open();
    put(&mut store, 1, 5000).unwrap();
    store.sync().unwrap();
    put(&mut store, 2, 5000).unwrap();
    rig.faults.write(Some(ENOSPC));
    assert!(put(&mut store, 3, 5000).is_err());
    assert!(put(&mut store, 3, 5000).is_err());
    assert!(holds(&mut store, 1, 5000), "reading goes on");
    assert!(!store.contains(&name(2)) && !store.contains(&name(3)));
    rig.faults.write(None);
    put(&mut store, 3, 5000).unwrap();
    store.sync().unwrap();
    drop(store);
    let mut store = rig.open();
    assert!(holds(&mut store, 1, 5000) && holds(&mut store, 3, 5000));
}

#[test]
fn a_short_write_is_not_followed_by_another() {
    let rig = Rig::new();
    let mut store = rig.open();
    put(&mut store, 1, 5000).unwrap();
    store.sync().unwrap();
    rig.faults.cut_next_write(8192);
    assert!(put(&mut store, 2, 5000).is_err());
    put(&mut store, 3, 5000).unwrap();
    store.sync().unwrap();
    drop(store);
    let mut store = rig.open();
    assert!(holds(&mut store, 1, 5000) && holds(&mut store, 3, 5000));
    assert!(!holds(&mut store, 2, 5000));
}

#[test]
fn a_failed_sync_keeps_nothing_of_its_batch() {
    let rig = Rig::new();
    let mut store = rig.open();
    put(&mut store, 1, 5000).unwrap();
    rig.faults.sync(Some(EIO));
    assert!(store.sync().is_err());
    assert!(!store.contains(&name(1)));
    rig.faults.sync(None);
    put(&mut store, 1, 5000).unwrap();
    store.sync().unwrap();
    assert!(holds(&mut store, 1, 5000));
}

#[test]
fn a_record_that_cannot_be_read_is_a_miss() {
    let rig = Rig::new();
    let mut store = rig.open();
    put(&mut store, 1, 5000).unwrap();
    store.sync().unwrap();
    rig.faults.read(Some(EIO));
    assert!(store.get(&name(1)).is_none());
    assert_eq!(store.usage().records_damaged, 1);
}

#[test]
fn what_is_too_large_is_refused() {
    let rig = Rig::new();
    let mut store = rig.open();
    let refused = put(&mut store, 1, SEGMENT as usize);
    assert!(matches!(refused, Err(StoreError::TooLarge { .. })));
    put(&mut store, 1, SEGMENT as usize - 4096).unwrap();
}

#[test]
fn the_oldest_goes_first_and_what_was_read_stays() {
    let rig = Rig::new();
    let mut store = rig.open();
    // Sixteen blocks a segment, five records of three blocks in each.
    for key in 0..40 {
        put(&mut store, key, 8192).unwrap();
    }
    store.sync().unwrap();
    assert!(holds(&mut store, 1, 8192) && holds(&mut store, 3, 8192));
    for key in 40..60 {
        put(&mut store, key, 8192).unwrap();
        assert!(store.usage().bytes <= BUDGET);
    }
    store.sync().unwrap();
    drop(store);
    let mut store = rig.open();
    assert!(holds(&mut store, 1, 8192) && holds(&mut store, 3, 8192));
    assert!(!store.contains(&name(0)) && !store.contains(&name(2)));
    assert!(holds(&mut store, 59, 8192));
    let on_disk: u64 = rig
        .files()
        .iter()
        .map(|file| file.metadata().unwrap().len())
        .sum();
    assert_eq!(on_disk, store.usage().bytes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any puts, gets, syncs, failures and restarts: what the store gives is what was put, what was
    /// synced and not pushed out by the budget is there, and the budget holds.
    #[test]
    fn nothing_wrong_is_ever_given_out(
        steps in proptest::collection::vec((0u8..12, 0u16..40, 0usize..20_000), 1..120),
    ) {
        let rig = Rig::new();
        let mut store = rig.open();
        for (step, key, bytes) in steps {
            match step {
                0..6 => _ = put(&mut store, key, bytes),
                6..8 => {
                    if let Some((record, found)) = store.get(&name(key)) {
                        prop_assert_eq!(found, payload(key, record.length as usize));
                    }
                }
                8 => {
                    if store.sync().is_ok() {
                        let records = store.records();
                        drop(store);
                        store = rig.open();
                        prop_assert!(records.iter().all(|(name, _)| store.contains(name)));
                    }
                }
                9 => {
                    drop(store);
                    store = rig.open();
                }
                10 => rig.faults.cut_next_write(bytes / 4096 * 4096),
                _ => rig.faults.sync((key % 2 == 0).then_some(EIO)),
            }
            prop_assert!(store.usage().bytes <= BUDGET);
        }
    }
}
