//! The commands a user types, beside a running house.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its functions too"
)]

use std::{
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
};

use serde_json::{Value, json};
use vitriol_testkit::{House, Setup, places};

/// Exit code for a profile that is wrong.
const CONFIG: i32 = 78;

/// `vitriol ARGUMENTS` in the directories of `house`, with `input` piped in.
fn vitriol(house: &House, arguments: &[&str], input: &str) -> Output {
    let mut child = Setup::vitriol(house.directory())
        .unwrap()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

fn house() -> Arc<House> {
    Arc::new(House::start(&Setup::default().named_port().unwrap()).unwrap())
}

#[test]
fn chat_answers_a_piped_question_and_status_sees_the_daemons() {
    let house = house();
    let address = house.address().to_string();
    let question = "What color is the sky?";
    let asked = json!({
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 24,
        "temperature": 0,
    });
    let reply = house
        .client()
        .post("/v1/chat/completions", &asked)
        .unwrap()
        .ok_json()
        .unwrap();
    let expected = reply["choices"][0]["message"]["content"].as_str().unwrap();

    let flags = [
        "chat",
        "--listen",
        &address,
        "--temperature",
        "0",
        "--max-tokens",
        "24",
    ];
    let chat = vitriol(&house, &flags, &format!("{question}\n/stats\n/exit\n"));
    assert_eq!(chat.status.code(), Some(0), "{}", said(&chat));
    let stdout = String::from_utf8_lossy(&chat.stdout).into_owned();
    assert!(
        stdout.contains(expected),
        "{expected:?} is not in {stdout:?}"
    );

    let status = vitriol(&house, &["status", "--listen", &address, "--json"], "");
    assert_eq!(status.status.code(), Some(0), "{}", said(&status));
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let text = status.to_string();
    for daemon in ["engine", "demiurge", "oom-shield", "persist"] {
        assert!(text.contains(daemon), "{text}");
    }
    assert_eq!(text.matches("\"ready\"").count(), 4, "{text}");
}

#[test]
fn a_model_file_and_a_wrong_profile_are_explained() {
    let house = House::shared().unwrap();
    let model = places::default_model().unwrap();
    let info = vitriol(&house, &["model", "info", model.to_str().unwrap()], "");
    assert_eq!(info.status.code(), Some(0), "{}", said(&info));
    let text = said(&info);
    assert!(text.contains("llama") && text.contains("q4_1"), "{text}");

    let profile = house.directory().join("wrong.toml");
    fs::write(&profile, "[engine.main]\nkv_byte_max = \"1 GiB\"\n").unwrap();
    let check = vitriol(&house, &["config", "check", profile.to_str().unwrap()], "");
    assert_eq!(check.status.code(), Some(CONFIG), "{}", said(&check));
    assert!(said(&check).contains("kv_bytes_max"), "{}", said(&check));
}

#[test]
fn ops_up_asks_for_python_only_where_something_will_be_fetched() {
    let directory = tempfile::tempdir().unwrap();
    let here = |name: &str| directory.path().join(name);
    let bin = here("bin");
    fs::create_dir(&bin).unwrap();
    for tool in ["awk", "bash", "cat", "dirname"] {
        let path = ["/usr/bin", "/bin"].map(|dir| Path::new(dir).join(tool));
        let path = path.iter().find(|path| path.exists()).unwrap();
        symlink(path, bin.join(tool)).unwrap();
    }
    // What was built is there; no Python is.
    for tool in ["cargo", "cc"] {
        symlink("/bin/true", bin.join(tool)).unwrap();
    }
    let profile = here("profile.toml");
    fs::write(&profile, "[engine.main]\nmodel = '/nowhere.gguf'\n").unwrap();
    let target = places::binary("vitriol").unwrap();
    let target = target.ancestors().nth(2).unwrap();
    let up = |args: &[&str]| {
        let output = Command::new(places::checkout().join("ops/up"))
            .env_clear()
            .envs(["HOME", "XDG_RUNTIME_DIR"].map(|name| (name, directory.path())))
            .env("PATH", &bin)
            .env("CARGO_TARGET_DIR", target)
            .args(["--listen", "127.0.0.1:0"])
            .args(args)
            .output()
            .unwrap();
        said(&output)
    };
    let told = up(&[]);
    assert!(told.contains("python3: fetches the model"), "{told}");
    let profile = profile.to_str().unwrap();
    for named in [
        ["--model", "/nowhere.gguf"],
        ["--profile", profile],
        ["--set", "engine.main.model=/nowhere.gguf"],
    ] {
        let told = up(&named);
        assert!(
            told.contains("model file /nowhere.gguf: not found"),
            "{named:?}: {told}"
        );
        assert!(!told.contains("python"), "{named:?}: {told}");
    }
}
