//! The command line as a user meets it: help, exit codes, one-line errors, pipes.

#[path = "cli/config.rs"]
mod config;
#[path = "cli/install.rs"]
mod install;
#[path = "cli/logs.rs"]
mod logs;
#[path = "cli/pages.rs"]
mod pages;
#[path = "cli/session.rs"]
mod session;

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

/// `vitriol ARGS` with every directory below `home` and nothing inherited.
fn vitriol(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vitriol"));
    command
        .args(args)
        .env_clear()
        .env("HOME", home)
        .env("XDG_RUNTIME_DIR", home.join("run"));
    command.stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    let home = tempfile::tempdir().expect("a temp dir");
    vitriol(home.path(), args).output().expect("vitriol runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[test]
fn help_of_every_command() {
    let commands: [&[&str]; 33] = [
        &[],
        &["up"],
        &["chat"],
        &["status"],
        &["shield"],
        &["shield", "status"],
        &["session"],
        &["session", "list"],
        &["session", "save"],
        &["session", "restore"],
        &["session", "export"],
        &["session", "import"],
        &["session", "rm"],
        &["fingerprint"],
        &["fingerprint", "log"],
        &["fingerprint", "diff"],
        &["fingerprint", "bless"],
        &["doctor"],
        &["model"],
        &["model", "fetch"],
        &["model", "info"],
        &["model", "list"],
        &["config"],
        &["config", "show"],
        &["config", "check"],
        &["config", "diff"],
        &["config", "load"],
        &["config", "save"],
        &["logs"],
        &["bench"],
        &["bench", "soak"],
        &["completions"],
        &["man"],
    ];
    let mut pages = String::new();
    for command in commands {
        let output = run(&[command, &["--help"]].concat());
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        assert_eq!(text(&output.stderr), "", "{command:?}");
        pages += &format!(
            "$ vitriol {} --help\n{}\n",
            command.join(" "),
            text(&output.stdout)
        );
    }
    insta::assert_snapshot!(pages);
}

#[test]
fn errors_are_one_line_with_the_remedy_and_the_houses_codes() {
    let cases: [(&[&str], i32, &str); 20] = [
        (&["fly"], 64, "unrecognized subcommand 'fly'"),
        (&["bench", "--via", "http", "m.gguf"], 64, "no model"),
        (&["bench", "--via", "http"], 69, "start the house"),
        (
            &["bench", "soak", "--minutes", "never"],
            64,
            "number of minutes",
        ),
        (
            &["bench", "--bin-dir", "/nonexistent", "m.gguf"],
            69,
            "/nonexistent/vitriol-engine",
        ),
        (&["up", "--thread", "2"], 64, "'--threads'"),
        (&["up", "--threads", "many"], 64, "'many'"),
        (
            &["up", "--set", "engine.main.thread=1"],
            64,
            "did you mean 'engine.main.threads'?",
        ),
        (
            &["up", "--profile", "/nonexistent.toml"],
            78,
            "/nonexistent.toml",
        ),
        (
            &["up", "--bin-dir", "/nonexistent"],
            69,
            "cargo build --release",
        ),
        (&["up", "--listen", "nowhere"], 64, "127.0.0.1:8265"),
        (&["status"], 69, "start the house with 'vitriol up'"),
        (&["session", "list"], 69, "enabled = true in [kvtier]"),
        (
            &["session", "rm", "a", "--yes"],
            69,
            "enabled = true in [kvtier]",
        ),
        (&["session", "import", "/nonexistent"], 78, "/nonexistent"),
        (
            &["session", "export", "a", "/etc/passwd"],
            64,
            "--force replaces it",
        ),
        (&["model", "fetch", "gpt-9"], 64, "smollm2-135m-instruct"),
        (&["model", "fetch"], 69, "apt install python3"),
        (
            &["model", "info", "/nonexistent.gguf"],
            78,
            "/nonexistent.gguf",
        ),
        (&["chat", "--url", "ftp://x"], 64, "http://127.0.0.1:8265"),
    ];
    for (args, code, words) in cases {
        let output = run(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.starts_with("vitriol: "), "{args:?}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
}

#[test]
fn a_bare_call_shows_the_help_and_is_a_usage_error() {
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(64));
    assert!(text(&output.stderr).contains("Usage: vitriol"));
}

#[test]
fn the_doctor_finds_what_a_bare_machine_lacks() {
    let output = run(&["doctor", "--set", "house.listen=127.0.0.1:0"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("fail  model"), "{said}");
    assert!(said.contains("vitriol model fetch"), "{said}");
    assert!(!said.contains('\x1b'), "no colours in a pipe");
    let output = run(&["doctor", "--json", "--listen", "127.0.0.1:0"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["verdict"], "fail");
}

/// Root writes wherever rights alone are in the way, so the file system itself must refuse.
#[test]
fn the_doctor_notices_a_read_only_state_directory() {
    let home = tempfile::tempdir().expect("a temp dir");
    let state = home.path().join("state");
    fs::create_dir(&state).expect("made");
    // In a mount namespace of its own, which goes with the process.
    let script = "mount -t tmpfs -o ro none \"$XDG_STATE_HOME\" && exec \"$0\" doctor --listen \
                  127.0.0.1:0";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(env!("CARGO_BIN_EXE_vitriol"))
        .env("HOME", home.path())
        .env("XDG_STATE_HOME", &state)
        .output();
    let said = output
        .map(|output| text(&output.stdout))
        .unwrap_or_default();
    if !said.contains("binaries") {
        // Straight to the terminal: what a passing test prints is captured.
        let line = "NOT RUN: the_doctor_notices_a_read_only_state_directory: run it as root where \
                    unshare(1) may mount\n";
        std::io::stderr()
            .write_all(line.as_bytes())
            .expect("written");
        return;
    }
    assert!(said.contains("fail  state"), "{said}");
    assert!(said.contains("XDG_STATE_HOME"), "{said}");
}

#[test]
fn a_profile_is_checked_and_shown_with_its_origins() {
    let home = tempfile::tempdir().expect("a temp dir");
    let profile = home.path().join("p.toml");
    fs::write(&profile, "[engine.main]\nthreads = 3\n").expect("written");
    let path = profile.to_str().expect("UTF-8");
    let checked = vitriol(home.path(), &["config", "check", path])
        .output()
        .expect("runs");
    assert_eq!(checked.status.code(), Some(0));

    let flags = [
        "config",
        "show",
        "--origin",
        "--profile",
        path,
        "--listen",
        "127.0.0.1:9",
    ];
    let shown = text(&vitriol(home.path(), &flags).output().expect("runs").stdout);
    let line = |field: &str| {
        let found = shown.lines().find(|line| line.starts_with(field));
        found
            .unwrap_or_else(|| panic!("no {field} in {shown}"))
            .to_owned()
    };
    assert!(
        line("threads = 3").ends_with(&format!("# {path}:2")),
        "{shown}"
    );
    assert!(line("listen = ").ends_with("# flag --listen"), "{shown}");
    assert!(line("queue_max = ").ends_with("# default"), "{shown}");

    fs::write(&profile, "[engine.main]\n\nthread = 3\n").expect("written");
    let refused = vitriol(home.path(), &["config", "check", path])
        .output()
        .expect("runs");
    assert_eq!(refused.status.code(), Some(78));
    assert!(
        text(&refused.stderr).contains("line 3"),
        "{}",
        text(&refused.stderr)
    );
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let home = tempfile::tempdir().expect("a temp dir");
    let mut child = vitriol(home.path(), &["config", "reference"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn a_piped_chat_answers_commands_and_names_a_house_that_is_not_there() {
    let home = tempfile::tempdir().expect("a temp dir");
    // A port that was free a moment ago; nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port();
    let url = format!("http://127.0.0.1:{port}");
    let mut child = vitriol(home.path(), &["chat", "--url", &url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    let mut input = child.stdin.take().expect("piped");
    input
        .write_all(b"/stats\n/help\n\xff\xfe hello\n")
        .expect("written");
    drop(input);
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(69));
    assert!(
        text(&output.stdout).starts_with("no whole answer yet\n/reset"),
        "{}",
        text(&output.stdout)
    );
    assert!(text(&output.stderr).contains("start the house with 'vitriol up'"));
}
