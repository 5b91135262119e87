use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::{entry::tests::entry, *};

fn at(directory: &Path) -> PathBuf {
    directory.join("mirror/sessions")
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(at(directory)).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn ids(catalogue: &Catalogue) -> Vec<String> {
    catalogue
        .list()
        .iter()
        .map(|entry| entry.id.clone())
        .collect()
}

fn later(mut turn: SessionEntry, last_turn_ms: u64) -> SessionEntry {
    turn.last_turn_ms = last_turn_ms;
    turn
}

#[test]
fn a_conversation_is_there_after_a_restart_and_nobody_elses_to_read() {
    let temp = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(at(temp.path()));
    assert!(catalogue.put(entry("../../a\n", &[1, 2])));
    assert!(catalogue.put(later(entry("b", &[1, 3]), 2_000)));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&at(temp.path())), 0o700);
    let written = files(temp.path());
    assert_eq!(written.len(), 2);
    assert!(written.iter().all(|path| mode(path) == 0o600));
    assert_eq!(
        Directory::open(&at(temp.path())).unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
    drop(catalogue);
    let catalogue = Catalogue::open(at(temp.path()));
    assert_eq!(ids(&catalogue), ["b", "../../a\n"]);
    assert_eq!(
        catalogue.get("b").as_deref(),
        Some(&later(entry("b", &[1, 3]), 2_000))
    );
    assert_eq!(catalogue.stats().damaged, 0);
}

#[test]
fn what_does_not_change_is_not_written() {
    let temp = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(at(temp.path()));
    catalogue.put(entry("a", &[1, 2]));
    let path = files(temp.path()).remove(0);
    fs::remove_file(&path).unwrap();
    for keys in [&[1, 2][..], &[1], &[]] {
        assert!(!catalogue.put(later(entry("a", keys), 9_000)));
    }
    assert!(!path.exists());
    assert_eq!(
        catalogue.list()[0].last_turn_ms,
        9_000,
        "it is not the oldest"
    );
    assert!(catalogue.put(entry("a", &[1, 2, 3])));
    assert!(path.exists());
}

#[test]
fn a_damaged_file_never_was_and_is_counted() {
    let temp = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(at(temp.path()));
    for id in ["torn", "flipped", "newer", "moved", "whole"] {
        catalogue.put(entry(id, &[1]));
    }
    drop(catalogue);
    let file = |id: &str| at(temp.path()).join(blake3::hash(id.as_bytes()).to_hex().as_str());
    let change = |id: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = fs::read(file(id)).unwrap();
        change(&mut bytes);
        fs::write(file(id), bytes).unwrap();
    };
    change("torn", &|bytes| bytes.truncate(4096));
    change("flipped", &|bytes| bytes[4096 + 60] ^= 1);
    change("newer", &|bytes| bytes[8] = 2);
    fs::rename(file("moved"), at(temp.path()).join("elsewhere")).unwrap();
    fs::write(file("half").with_extension("new"), "half").unwrap();

    let catalogue = Catalogue::open(at(temp.path()));
    assert_eq!(ids(&catalogue), ["whole"]);
    assert_eq!(catalogue.stats().damaged, 4);
    let left = files(temp.path());
    assert_eq!(left.len(), 2, "the other version's stays: {left:?}");
    assert!(file("newer").exists());
}

#[test]
fn a_directory_that_fails_costs_nothing_but_what_outlives_the_process() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("mirror"), "in the way").unwrap();
    let catalogue = Catalogue::open(at(temp.path()));
    assert!(catalogue.put(entry("a", &[1])));
    assert_eq!(ids(&catalogue), ["a"]);
    let stats = catalogue.stats();
    assert!(stats.failures >= 2 && stats.down.is_some(), "{stats:?}");
    let refused = catalogue.save("a").unwrap_err();
    assert!(refused.contains("cannot open its directory"), "{refused}");

    fs::remove_file(temp.path().join("mirror")).unwrap();
    catalogue.save("a").unwrap();
    assert_eq!(catalogue.stats().down, None);
    // A file that cannot be written.
    let draft = files(temp.path()).remove(0).with_extension("new");
    fs::create_dir(&draft).unwrap();
    assert!(catalogue.put(entry("a", &[1, 2])));
    let refused = catalogue.save("a").unwrap_err();
    assert!(refused.contains("cannot write an entry"), "{refused}");
    drop(catalogue);
    let catalogue = Catalogue::open(at(temp.path()));
    assert_eq!(
        catalogue.get("a").unwrap().chain.keys.len(),
        1,
        "as it was on disk"
    );
}

#[test]
fn what_was_known_before_the_directory_came_is_put_on_what_it_has() {
    let temp = tempfile::tempdir().unwrap();
    let first = Catalogue::open(at(temp.path()));
    first.put(entry("a", &[1, 2, 3]));
    first.put(entry("b", &[1]));
    // The directory is the first one's.
    let second = Catalogue::open(at(temp.path()));
    assert!(second.stats().down.is_some());
    second.put(entry("a", &[1, 2]));
    second.put(entry("b", &[1, 2]));
    drop(first);
    second.save("b").unwrap();
    assert_eq!(second.get("a").unwrap().chain.keys.len(), 3);
    assert_eq!(second.get("b").unwrap().chain.keys.len(), 2);
}

#[test]
fn the_oldest_goes_when_there_are_too_many() {
    let temp = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::in_memory();
    for at in 0..=SESSIONS_MAX as u64 {
        catalogue.put(later(entry(&at.to_string(), &[1]), at));
    }
    assert_eq!(catalogue.stats().sessions, SESSIONS_MAX as u64);
    assert_eq!(catalogue.get("0"), None);
    assert!(catalogue.save("1").is_err(), "there is no directory");

    // Its file goes too.
    let catalogue = Catalogue::open(at(temp.path()));
    let large = |id: &str, at| {
        let mut large = later(entry(id, &[]), at);
        large.chain.parts = entry("", &[1]).chain.parts;
        let numbers = 0..BLOCKS_MAX as u32;
        let key = |number: u32| *blake3::hash(&number.to_le_bytes()).as_bytes();
        large.chain.keys = numbers.map(key).collect();
        large
    };
    for at in 0..=(BLOCKS_OF_ALL_MAX / BLOCKS_MAX) as u64 {
        catalogue.put(large(&at.to_string(), at));
    }
    assert_eq!(catalogue.get("0"), None);
    assert_eq!(files(temp.path()).len(), BLOCKS_OF_ALL_MAX / BLOCKS_MAX);
}

#[test]
fn records_that_others_go_on_with_are_not_of_it_alone() {
    let catalogue = Catalogue::in_memory();
    catalogue.put(entry("a", &[1, 2, 3]));
    catalogue.put(entry("a", &[1, 4]));
    catalogue.put(entry("b", &[1, 2, 5]));
    let names = catalogue.names_of_it_alone(&catalogue.get("a").unwrap());
    let keys: Vec<u8> = names.iter().map(|name| name.key[0]).collect();
    assert_eq!(keys, [3, 4], "2 was left, and is b's");
}

#[test]
fn an_entry_that_changed_meanwhile_is_not_removed() {
    let temp = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(at(temp.path()));
    catalogue.put(entry("a", &[1]));
    let read = catalogue.get("a").unwrap();
    catalogue.put(entry("a", &[1, 2]));
    assert!(!catalogue.remove(&read).unwrap());
    let read = catalogue.get("a").unwrap();
    assert!(catalogue.remove(&read).unwrap());
    assert_eq!(catalogue.get("a"), None);
    assert!(files(temp.path()).is_empty());
    assert!(!catalogue.remove(&read).unwrap());
}
