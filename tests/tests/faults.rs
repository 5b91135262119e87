//! A conversation goes on while the disk of its mirror is full, read-only, broken or slow, or the clock jumps. Every
//! answer is byte for byte that of a house without a KV tier; kvtier says once what is wrong, in its log and in a
//! metric; and when the cause is gone all of the conversation comes to the disk without a restart, as the next house
//! shows, which has nothing else.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its functions too"
)]

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::Duration,
};

use rustix::{process::Signal, thread::UnshareFlags};
use serde_json::{Value, json};
use tempfile::TempDir;
use vitriol_testkit::{House, Seed, Setup, eventually, house::KVTIER, not_run, places, process};

const SEED: u64 = 20_261_201;
const WAIT: Duration = Duration::from_secs(60);
/// The first makes a conversation that is kept in any case (1,024 tokens).
const TURN_WORDS: [usize; 6] = [1000, 90, 90, 90, 90, 90];
const ANSWER_TOKENS: u32 = 16;

const WORDS: [&str; 16] = [
    "river", "stone", "lantern", "seven", "quiet", "harbour", "copper", "winter", "letter",
    "engine", "garden", "mirror", "thunder", "paper", "north", "salt",
];

const WITHOUT_TIER: &str = "[kvtier]\nenabled = false";

/// The arena holds the conversation and hardly more; nothing but a request brings anything back from the disk.
const WITH_TIER: &str = "[engine.main]\nkv_bytes_max = '120 MiB'\n\
                         [persist]\nwarmup_ms = 0\n\
                         [kvtier]\nenabled = true\narena_bytes = '48 MiB'\nslot_bytes = '768 KiB'\n\
                         mirror_bytes_max = '256 MiB'\n";

const LOST: &str = "the mirror takes no records";
const RESUMED: &str = "the mirror takes records again";
const BEHIND: &str = "the mirror's disk is slower than KV is computed";

const MIRROR_UP: &str = "vitriol_kvtier_mirror_up";
const UNMIRRORED: &str = "vitriol_kvtier_records_unmirrored";
const WAITING: &str = "vitriol_engine_tier_pages_waiting";
const ATTACHED: &str = "vitriol_engine_tier_attached";

/// What a user says, with all that was said before, and what a house without a tier answers.
struct Turn {
    body: Value,
    answer: Value,
}

/// The conversation of every test here.
fn conversation() -> &'static [Turn] {
    static CONVERSATION: OnceLock<Vec<Turn>> = OnceLock::new();
    CONVERSATION.get_or_init(|| {
        let house = House::start(&Setup::default().profile(WITHOUT_TIER)).unwrap();
        let mut seed = Seed::from(SEED);
        let mut messages = Vec::new();
        let turn = |words| {
            let words: Vec<&str> = (0..words).map(|_| *seed.choose(&WORDS)).collect();
            let text = format!("{} What comes to mind?", words.join(" "));
            messages.push(json!({"role": "user", "content": text}));
            let body = json!({
                "messages": messages,
                "max_tokens": ANSWER_TOKENS,
                "temperature": 0,
            });
            let answer = ask(&house, &body);
            messages.push(json!({"role": "assistant", "content": text_of(&answer)}));
            Turn { body, answer }
        };
        TURN_WORDS.map(turn).into()
    })
}

fn ask(house: &House, body: &Value) -> Value {
    let client = house.client().with_header("X-Session-Id", "faults");
    let answer = client.post("/v1/chat/completions", body);
    answer.unwrap().ok_json().unwrap()
}

fn text_of(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

/// A house with a mirror, and how far its conversation has come.
struct Talk {
    setup: Setup,
    house: House,
    turns: std::slice::Iter<'static, Turn>,
}

impl Talk {
    /// Its mirror is a directory below `disk`.
    fn start(setup: Setup, disk: &Path) -> Self {
        let mirror = format!("mirror_dir = '{}'", disk.join("kv").display());
        let setup = setup.named_port().unwrap();
        let setup = setup.profile(&format!("{WITH_TIER}{mirror}"));
        let turns = conversation().iter();
        let house = House::start(&setup).unwrap();
        let talk = Self {
            setup,
            house,
            turns,
        };
        talk.until(ATTACHED, 1.0);
        talk
    }

    /// As [`Talk::start`], with a first turn that is on the disk.
    fn begun(setup: Setup, disk: &Path) -> Self {
        let mut talk = Self::start(setup, disk);
        talk.turn();
        talk.until_stored();
        talk
    }

    /// The next turn, whose answer is the right one.
    fn turn(&mut self) -> Value {
        let turn = self.turns.next().unwrap();
        let answer = ask(&self.house, &turn.body);
        assert_eq!(text_of(&answer), text_of(&turn.answer));
        answer
    }

    fn metric(&self, name: &str) -> Option<f64> {
        self.house.client().metric(name)
    }

    fn until(&self, name: &str, value: f64) {
        let is_so = || (self.metric(name) == Some(value)).then_some(());
        if let Err(error) = eventually(WAIT, name, is_so) {
            let page = self.house.client().get("/metrics").unwrap().text();
            let of_tier = page.lines().filter(|line| line.contains("tier_"));
            let of_tier: Vec<&str> = of_tier.filter(|line| !line.starts_with('#')).collect();
            panic!("{error}, to be {value}: {of_tier:#?}");
        }
    }

    /// Waits until all that was computed is on the disk.
    fn until_stored(&self) {
        self.until(WAITING, 0.0);
        self.until(UNMIRRORED, 0.0);
    }

    /// What kvtier logged so far.
    fn log(&self) -> String {
        let logs = self.house.files_named("kvtier.log");
        logs.iter()
            .map(|log| fs::read_to_string(log).unwrap())
            .collect()
    }

    /// The lines with `text` that kvtier logged.
    fn said(&self, text: &str) -> Vec<String> {
        let log = self.log();
        let lines = log.lines().filter(|line| line.contains(text));
        lines.map(str::to_owned).collect()
    }

    fn warnings(&self) -> Vec<String> {
        let log = self.log();
        let is_warning = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
        log.lines().filter(is_warning).map(str::to_owned).collect()
    }

    /// Waits until the mirror is said to be there again, once, after it was said to be lost, once and for `cause`.
    fn was_lost_once(&self, cause: &str) {
        let said = || (self.said(RESUMED).len() == 1).then_some(());
        eventually(WAIT, RESUMED, said).unwrap();
        let [lost] = &self.said(LOST)[..] else {
            panic!("{}", self.log());
        };
        assert!(lost.contains(cause), "{lost}");
    }

    /// Goes on while the disk fails with `cause`, and when it does so no more.
    fn endure(&mut self, cause: &str, begin: impl FnOnce(), end: impl FnOnce()) {
        assert_eq!(self.warnings(), [""; 0]);
        begin();
        self.turn();
        self.until(MIRROR_UP, 0.0);
        // More than one write fails, in one turn after another.
        self.turn();
        let refused = self.metric("vitriol_kvtier_mirror_refused_total");
        assert!(refused >= Some(1.0), "{refused:?}");
        assert_eq!(self.metric(MIRROR_UP), Some(0.0));
        end();
        self.until(MIRROR_UP, 1.0);
        self.turn();
        self.until_stored();
        self.was_lost_once(cause);
        // Beside the mirror there are its catalogue and its ledger.
        let warnings = self.warnings();
        assert!(warnings.len() <= 3, "{warnings:#?}");
    }

    /// Everything but the disk is gone, and the next turn computes what is new.
    fn has_all_on_disk(mut self) {
        self.until_stored();
        self.house.restart(&self.setup).unwrap();
        self.until(ATTACHED, 1.0);
        let expected = &self.turns.as_slice()[0].answer["timings"];
        let answer = self.turn();
        let brought = answer["timings"]["cache_mirror_n"].as_u64().unwrap_or(0);
        let reusable = expected["cache_n"].as_u64().unwrap() / 64 * 64;
        assert!(
            brought * 100 >= reusable * 99,
            "{brought} tokens from the disk of {reusable}: {answer}"
        );
    }
}

/// A file system in memory, which this thread and the processes that it starts see, and nobody else.
struct Tmpfs {
    at: TempDir,
}

impl Tmpfs {
    /// None where this user may not mount; what was not tested for it is said.
    fn mount(what: &str, bytes: u64) -> Option<Self> {
        #[expect(
            deprecated,
            reason = "unsafe are other flags, which take a thread's files"
        )]
        let unshared = rustix::thread::unshare(UnshareFlags::NEWNS);
        if unshared.is_err() {
            not_run(&format!("faults: {what}"), "run it as root");
            return None;
        }
        command("mount", &["--make-rprivate", "/"]);
        let at = tempfile::tempdir().unwrap();
        let options = format!("size={bytes},mode=700");
        let place = at.path().to_str().unwrap();
        command("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", place]);
        Some(Self { at })
    }

    fn remount(&self, how: &str) {
        let options = format!("remount,{how}");
        command("mount", &["-o", &options, self.path().to_str().unwrap()]);
    }

    fn path(&self) -> &Path {
        self.at.path()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // So that its directory can be removed.
        command("umount", &["--lazy", self.path().to_str().unwrap()]);
    }
}

fn command(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status();
    assert!(
        status.as_ref().is_ok_and(|status| status.success()),
        "{program} {arguments:?}: {status:?}"
    );
}

/// Takes all room there is.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for size in [1 << 20, 4096] {
        let room = vec![0; size];
        let error = loop {
            if let Err(error) = file.write_all(&room) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }
}

/// What is wrong with the clock and the disk of a house's daemons, by way of faults/fault.c.
struct Fault {
    directory: TempDir,
    file: File,
}

impl Fault {
    fn none() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create(directory.path().join("fault")).unwrap();
        file.set_len(24).unwrap();
        let source = places::checkout().join("tests/tests/faults/fault.c");
        let fault = Self { directory, file };
        let library = fault.library();
        let arguments = ["-shared", "-fPIC", "-O1", "-o"].map(Path::new);
        let arguments = arguments.into_iter().chain([&*library, &*source]);
        let compiled = Command::new("cc").args(arguments).status().unwrap();
        assert!(compiled.success(), "cc: {compiled}");
        fault
    }

    fn library(&self) -> PathBuf {
        self.directory.path().join("fault.so")
    }

    fn setup(&self) -> Setup {
        let file = self.directory.path().join("fault");
        let setup = Setup::default().variable("LD_PRELOAD", &self.library());
        setup.variable("VITRIOL_TEST_FAULT", &file)
    }

    fn set(&self, field: u64, value: i64) {
        let wrote = self.file.write_all_at(&value.to_ne_bytes(), 8 * field);
        wrote.unwrap();
    }

    /// Seconds by which the wall clock is wrong.
    fn clock(&self, seconds: i64) {
        self.set(0, seconds);
    }

    /// Every write and sync fails; 0: none.
    fn writes_fail(&self, errno: i64) {
        self.set(1, errno);
    }

    /// What the disk takes; 0: what it can.
    fn bytes_per_second(&self, bytes: i64) {
        self.set(2, bytes);
    }
}

#[test]
fn a_disk_that_is_full_and_then_is_not() {
    let Some(disk) = Tmpfs::mount("a full disk", 64 << 20) else {
        return;
    };
    let mut talk = Talk::begun(Setup::default(), disk.path());
    let ballast = disk.path().join("ballast");
    talk.endure(
        "No space left on device",
        || fill(&ballast),
        || fs::remove_file(&ballast).unwrap(),
    );
    talk.has_all_on_disk();
}

#[test]
fn a_disk_that_is_read_only_and_then_is_not() {
    let Some(disk) = Tmpfs::mount("a read-only disk", 256 << 20) else {
        return;
    };
    let mut talk = Talk::begun(Setup::default(), disk.path());
    // As long as a segment is open for writing the kernel makes nothing read-only. The next kvtier has none yet.
    let old = talk.house.daemon_pid(KVTIER).unwrap();
    process::signal(old, Signal::KILL).unwrap();
    process::gone(old, WAIT).unwrap();
    talk.until(ATTACHED, 1.0);
    talk.endure(
        "Read-only file system",
        || disk.remount("ro"),
        || disk.remount("rw"),
    );
    talk.has_all_on_disk();
}

/// As when a disk is unplugged and comes back: what has files open on it keeps the old mount.
#[test]
fn a_disk_that_another_takes_the_place_of() {
    let Some(disk) = Tmpfs::mount("a disk that is mounted anew", 256 << 20) else {
        return;
    };
    let mut talk = Talk::begun(Setup::default(), disk.path());
    let copy = tempfile::tempdir().unwrap();
    let [old, new] = [disk.path(), copy.path()].map(|path| path.to_str().unwrap());
    command("cp", &["--archive", &format!("{old}/kv"), new]);
    command("umount", &["--lazy", old]);
    command("mount", &["--bind", new, old]);
    talk.turn();
    talk.was_lost_once("another disk is in its place");
    assert_eq!(talk.metric(MIRROR_UP), Some(1.0));
    talk.turn();
    talk.has_all_on_disk();
}

#[test]
fn a_disk_that_breaks_and_is_mended() {
    let (fault, disk) = (Fault::none(), tempfile::tempdir().unwrap());
    let mut talk = Talk::begun(fault.setup(), disk.path());
    let eio = rustix::io::Errno::IO.raw_os_error();
    talk.endure(
        "Input/output error",
        || fault.writes_fail(eio.into()),
        || fault.writes_fail(0),
    );
    talk.has_all_on_disk();
}

/// With VITRIOL_TEST_FULL also what is said of a disk that stays behind, which is after half a minute.
#[test]
fn a_disk_that_is_slower_than_kv_is_computed_holds_up_nobody() {
    let (fault, disk) = (Fault::none(), tempfile::tempdir().unwrap());
    let mut talk = Talk::start(fault.setup(), disk.path());
    // More than a minute for the first turn, which this model computes in a few seconds.
    fault.bytes_per_second(256 << 10);
    for _ in 0..3 {
        talk.turn();
        let waiting = talk.metric(UNMIRRORED);
        assert!(waiting > Some(0.0), "the disk was waited for: {waiting:?}");
    }
    if places::wants_full_tests() {
        let said = || (talk.said(BEHIND).len() == 1).then_some(());
        eventually(WAIT, BEHIND, said).unwrap();
        talk.turn();
        assert!(talk.metric(UNMIRRORED) > Some(0.0));
    } else {
        let what = "faults: that a slow disk is said to be slow, after 30 s";
        not_run(what, "ops/test --full faults");
    }
    // On a busy machine it is said without being waited for; once, and nothing else.
    let warnings = talk.warnings();
    assert!(warnings.len() <= 1, "{warnings:#?}");
    assert_eq!(warnings, talk.said(BEHIND));
    assert_eq!(talk.metric(MIRROR_UP), Some(1.0));
    // What a disk takes that people call slow is more than enough for this model.
    fault.bytes_per_second(10_000_000);
    talk.until_stored();
    talk.has_all_on_disk();
}

#[test]
fn a_clock_that_jumps_ten_years_and_back() {
    const TEN_YEARS: i64 = 10 * 365 * 86_400;
    let (fault, disk) = (Fault::none(), tempfile::tempdir().unwrap());
    let mut talk = Talk::start(fault.setup(), disk.path());
    let written_on_day_of = |talk: &mut Talk, seconds| {
        fault.clock(seconds);
        talk.turn();
        talk.until_stored();
        assert_eq!(talk.metric(MIRROR_UP), Some(1.0));
        let today = talk.metric("vitriol_kvtier_mirror_written_today_bytes");
        today.unwrap()
    };
    let first = written_on_day_of(&mut talk, 0);
    for elsewhen in [TEN_YEARS, -TEN_YEARS] {
        let there = written_on_day_of(&mut talk, elsewhen);
        assert!(there > 0.0 && there < first, "{there} after {first}");
    }
    let back = written_on_day_of(&mut talk, 0);
    assert!(back > first, "{back} after {first}");
    assert_eq!(talk.warnings(), [""; 0]);
    talk.has_all_on_disk();
}
