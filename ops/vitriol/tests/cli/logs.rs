//! `vitriol logs` with a journalctl that plays its part, and with files that grow.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Stdio,
};

use super::{text, vitriol};

/// A directory with a `journalctl` that says what it was called with and ends with 3.
fn fake_journal(home: &Path) -> std::path::PathBuf {
    let bin = home.join("bin");
    fs::create_dir(&bin).expect("made");
    let program = bin.join("journalctl");
    // Closed before anything runs it; a copy in another process would make it busy.
    let mut file = File::create(&program).expect("made");
    file.write_all(b"#!/bin/sh\nfor word; do echo \"<$word>\"; done\nexit 3\n")
        .expect("written");
    file.set_permissions(fs::Permissions::from_mode(0o755))
        .expect("set");
    bin
}

#[test]
fn the_journal_is_asked_with_our_fields() {
    let home = tempfile::tempdir().expect("a temp dir");
    let bin = fake_journal(home.path());
    let args = [
        "logs",
        "--from",
        "journal",
        "--unit",
        "demiurge",
        "--session",
        "a b",
        "--since",
        "10m",
        "-n",
        "5",
        "-f",
    ];
    let words = [
        "--no-pager",
        "--unit=vitriol-demiurge.service",
        "--since=-600s",
        "--lines=5",
        "--follow",
        "VITRIOL_SESSION=a b",
    ];
    // "Text file busy" while a child of another test still holds the script open for writing.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let output = loop {
        let output = vitriol(home.path(), &args)
            .env("PATH", &bin)
            .output()
            .expect("runs");
        if output.status.code() == Some(3) || std::time::Instant::now() > deadline {
            break output;
        }
    };
    assert_eq!(
        output.status.code(),
        Some(3),
        "journalctl's own code: {}",
        text(&output.stderr)
    );
    let said = text(&output.stdout);
    assert_eq!(
        said.lines().collect::<Vec<_>>(),
        words.map(|word| format!("<{word}>"))
    );

    // The same line to be typed, with no journalctl at all.
    let args = [&args[..], &["--print-command"]].concat();
    let output = vitriol(home.path(), &args).output().expect("runs");
    assert_eq!(
        text(&output.stdout),
        "journalctl --no-pager --unit=vitriol-demiurge.service --since=-600s --lines=5 --follow \
         'VITRIOL_SESSION=a b'\n"
    );
}

#[test]
fn what_cannot_be_shown_says_why() {
    let home = tempfile::tempdir().expect("a temp dir");
    for (args, code, words) in [
        (
            &["logs", "--from", "journal"][..],
            69,
            "journalctl is not on the PATH",
        ),
        (&["logs", "--from", "files"], 69, "--from journal"),
        (
            &["logs", "--from", "files", "--print-command"],
            64,
            "--from journal",
        ),
        (
            &["logs", "--since", "yesterday"],
            64,
            "2026-11-30T08:00:00Z",
        ),
        (&["logs", "--unit", "ascensus"], 64, "demiurge"),
    ] {
        let output = vitriol(home.path(), args).output().expect("runs");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(
            said.contains(words) && said.lines().count() == 1,
            "{args:?}: {said}"
        );
    }
}

#[test]
fn files_are_shown_and_followed_through_being_put_aside() {
    let home = tempfile::tempdir().expect("a temp dir");
    let logs = home.path().join(".local/state/vitriol/log");
    fs::create_dir_all(&logs).expect("made");
    let (engine, demiurge) = (logs.join("engine.log"), logs.join("demiurge.log"));
    fs::write(&engine, "2026-11-30T08:00:02Z  INFO b\n").expect("written");
    fs::write(
        &demiurge,
        "2026-11-30T08:00:01Z  INFO a\n2026-11-30T08:00:03Z  INFO c\n",
    )
    .expect("written");
    let args = ["logs", "--from", "files", "-n", "2", "-f"];
    let mut child = vitriol(home.path(), &args)
        .stdout(Stdio::piped())
        .spawn()
        .expect("runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut next = || lines.next().expect("a line").expect("UTF-8");
    assert_eq!(next(), "engine     2026-11-30T08:00:02Z  INFO b");
    assert_eq!(next(), "demiurge   2026-11-30T08:00:03Z  INFO c");
    fs::rename(&engine, logs.join("engine.log.1")).expect("renamed");
    fs::write(&engine, "2026-11-30T08:00:04Z  INFO d \u{1b}[2J\n").expect("written");
    assert_eq!(next(), "engine     2026-11-30T08:00:04Z  INFO d [2J");
    child.kill().expect("killed");
    child.wait().expect("ended");
}
