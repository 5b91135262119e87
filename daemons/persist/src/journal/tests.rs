use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::*;

const ENGINE: &str = "vitriol-engine@main.service";
const KVTIER: &str = "vitriol-kvtier.service";

fn launch(unit: &str, pid: u32, speculation: &str) -> Launch {
    Launch {
        unit: unit.to_owned(),
        pid,
        started_at_ms: 1_764_500_000_000 + u64::from(pid),
        fingerprint: Fingerprint::default()
            .with("isa", "avx2")
            .with("alias", "")
            .with("engine.speculation", speculation),
    }
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("launches");
    (directory, path)
}

fn open(path: &Path) -> Journal {
    Journal::open(path.to_owned()).unwrap()
}

fn pids(journal: &Journal) -> Vec<u32> {
    let all = journal.newest(usize::MAX);
    all.map(|compared| compared.launch.pid).collect()
}

fn fields(differences: Option<Vec<Difference>>) -> Option<Vec<String>> {
    differences.map(|all| all.into_iter().map(|one| one.field).collect())
}

#[test]
fn every_launch_is_on_record_once_and_compared_with_the_one_before_and_the_blessed_one() {
    let (_directory, path) = place();
    let mut journal = open(&path);
    assert!(journal.record(launch(ENGINE, 1, "prompt-lookup")).unwrap());
    assert!(journal.record(launch(KVTIER, 2, "")).unwrap());
    assert_eq!(journal.bless().unwrap(), [ENGINE, KVTIER]);
    let stored = fs::read(&path).unwrap();
    assert!(!journal.record(launch(ENGINE, 1, "prompt-lookup")).unwrap());
    assert_eq!(journal.bless().unwrap(), [""; 0]);
    assert_eq!(fs::read(&path).unwrap(), stored, "nothing is written twice");
    assert!(journal.record(launch(ENGINE, 3, "off")).unwrap());
    assert!(journal.record(launch(ENGINE, 4, "off")).unwrap());

    for journal in [journal, open(&path)] {
        assert_eq!(pids(&journal), [1, 2, 3, 4]);
        let all: Vec<_> = journal.newest(usize::MAX).collect();
        assert_eq!(all[0].since_last, None);
        let changed = Some(vec!["engine.speculation".to_owned()]);
        assert_eq!(fields(all[2].since_last.clone()), changed);
        let last = journal.last().unwrap();
        assert_eq!(fields(last.since_last), Some(Vec::new()));
        assert_eq!(fields(last.since_blessed), changed);
    }
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn it_keeps_the_newest_launches_and_what_is_blessed() {
    let (_directory, path) = place();
    let mut journal = open(&path);
    journal.record(launch(ENGINE, 1, "off")).unwrap();
    journal.bless().unwrap();
    // As many lines as there may be, but for three.
    let full = 2 * LAUNCHES_MAX as u32 - 3;
    let mut text = fs::read_to_string(&path).unwrap();
    for pid in 2..full {
        let line = Line::Launch(launch(ENGINE, pid, "prompt-lookup"));
        text += &line.to_string();
    }
    fs::write(&path, text).unwrap();
    let mut journal = open(&path);
    let many = full + 8;
    for pid in full..many {
        let launch = launch(ENGINE, pid, "prompt-lookup");
        journal.record(launch).unwrap();
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 2 * LAUNCHES_MAX + 1, "{lines} lines");
        assert_eq!(lines, journal.lines + 1);
    }
    assert!(journal.lines < LAUNCHES_MAX + 10, "it was written anew");
    let again = open(&path);
    assert_eq!(pids(&again), pids(&journal));
    let kept: Vec<u32> = (many - LAUNCHES_MAX as u32..many).collect();
    assert_eq!(pids(&again), kept);
    let changed = Some(vec!["engine.speculation".to_owned()]);
    assert_eq!(fields(again.last().unwrap().since_blessed), changed);
}

#[test]
fn a_torn_tail_never_existed_and_what_follows_is_whole() {
    let (_directory, path) = place();
    let mut journal = open(&path);
    journal.record(launch(ENGINE, 1, "off")).unwrap();
    let one = fs::read(&path).unwrap().len();
    journal.record(launch(ENGINE, 2, "off")).unwrap();
    let whole = fs::read(&path).unwrap();
    for end in 0..whole.len() {
        fs::write(&path, &whole[..end]).unwrap();
        let mut torn = open(&path);
        assert_eq!(torn.damaged(), 0);
        let before: &[u32] = if end >= one { &[1] } else { &[] };
        assert_eq!(pids(&torn), before, "{end} bytes");
        torn.record(launch(ENGINE, 3, "off")).unwrap();
        assert_eq!(pids(&open(&path)), [before, &[3]].concat(), "{end} bytes");
    }
}

#[test]
fn another_version_is_put_aside() {
    let (_directory, path) = place();
    let later = "vitriol-launches 2\nwhatever that means\n";
    fs::write(&path, later).unwrap();
    let mut journal = open(&path);
    journal.record(launch(ENGINE, 1, "off")).unwrap();
    assert_eq!(pids(&open(&path)), [1]);
    let aside = fs::read_to_string(path.with_extension("other")).unwrap();
    assert_eq!(aside, later);
}

#[test]
fn what_a_disk_did_not_take_is_brought_to_it_later() {
    let (directory, path) = place();
    let mut journal = open(&path);
    journal.record(launch(ENGINE, 1, "off")).unwrap();
    journal.save().unwrap();
    let gone = directory.path().join("gone");
    fs::create_dir(&gone).unwrap();
    fs::rename(&path, gone.join("launches")).unwrap();
    // A directory where the file was: nothing can be appended to it, nothing renamed over it.
    fs::create_dir(&path).unwrap();
    journal.record(launch(ENGINE, 2, "off")).unwrap_err();
    assert_eq!(pids(&journal), [1, 2], "it is known all the same");
    assert!(!journal.record(launch(ENGINE, 2, "off")).unwrap());
    journal.save().unwrap_err();
    fs::remove_dir(&path).unwrap();
    journal.save().unwrap();
    assert_eq!(pids(&open(&path)), [1, 2]);
}

#[test]
fn a_fingerprint_without_bound_is_refused() {
    let (_directory, path) = place();
    let mut journal = open(&path);
    journal.record(launch(ENGINE, 1, "off")).unwrap();
    let refused = journal.record(launch(ENGINE, 2, &"x".repeat(LINE_BYTES_MAX)));
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidData);
    journal.record(launch(ENGINE, 3, "off")).unwrap();
    assert_eq!(pids(&open(&path)), [1, 3]);
}

proptest! {
    #[test]
    fn a_flipped_bit_costs_its_line_alone(at in 0.0..1.0, bit in 0u8..8) {
        let (_directory, path) = place();
        let mut journal = open(&path);
        for pid in 1..5 {
            journal.record(launch(ENGINE, pid, "off")).unwrap();
        }
        let mut bytes = fs::read(&path).unwrap();
        let head = HEAD.len() + 1;
        let at = head + (at * (bytes.len() - head) as f64) as usize;
        bytes[at] ^= 1 << bit;
        fs::write(&path, &bytes).unwrap();
        let left = pids(&open(&path));
        // A newline that is another character joins two lines.
        prop_assert!(left.len() >= 2, "{left:?}");
        prop_assert!(left.iter().all(|pid| (1..5).contains(pid)));
    }
}
