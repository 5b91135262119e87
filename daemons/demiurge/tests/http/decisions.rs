//! decisions.jsonl: one line a request, whole, without content, and never in the way.

use std::fs;

use serde_json::{Value, json};
use vitriol_proto::engine::v1::FinishReason;

use super::demiurge::{Demiurge, House, chat, hello};
use super::scripted_engine::{Act, ScriptedEngine};

/// Words that stand for a user's and a model's own.
const SECRET_PROMPT: &str = "xyzzy-prompt-4711";
const SECRET_ANSWER: &str = "plugh-answer-4712";
const SECRET_STOP: &str = "fnord-stop-4713";

#[test]
fn a_line_says_where_why_and_how() {
    let house = House::greeting();
    let client = house
        .client()
        .with_header("X-Session-Id", "s-9")
        .with_header("X-Request-Id", "r-1");
    client.post("/v1/chat/completions", &chat(false)).unwrap();
    let mut line = house.demiurge.until_decisions(1).remove(0);
    assert!(line["ts"].as_str().unwrap().ends_with('Z'));
    let (ttft, total) = (
        line["ttft_ms"].as_f64().unwrap(),
        line["total_ms"].as_f64().unwrap(),
    );
    assert!(0.0 < ttft && ttft <= total);
    for changing in ["ts", "ttft_ms", "total_ms"] {
        line[changing] = json!("…");
    }
    insta::assert_snapshot!("decision", serde_json::to_string_pretty(&line).unwrap());
}

#[test]
fn refusals_have_their_line_too() {
    let house = House::greeting();
    house
        .client()
        .post("/v1/chat/completions", &json!({}))
        .unwrap();
    house
        .client()
        .request("POST", "/v1/completions", Some(b"{"))
        .unwrap();
    let lines = house.demiurge.until_decisions(2);
    let told = |line: &Value| {
        (
            line["status"].clone(),
            line["finish"].clone(),
            line["error"].clone(),
        )
    };
    assert_eq!(
        told(&lines[0]),
        (
            400.into(),
            "error".into(),
            "missing_required_parameter".into()
        )
    );
    assert_eq!(
        told(&lines[1]),
        (400.into(), "error".into(), "invalid_json".into())
    );
    assert_eq!(lines[1]["route"], "completions");
}

#[test]
fn no_content_leaves_the_request() {
    let house = House::start("", |_| {
        vec![
            Act::Accept,
            Act::Say(SECRET_ANSWER),
            Act::Finish(FinishReason::Stop),
        ]
    });
    let client = house.client();
    for stream in [false, true] {
        let mut body = chat(stream);
        body["messages"][0]["content"] = json!(SECRET_PROMPT);
        body["stop"] = json!([SECRET_STOP]);
        body["user"] = json!(SECRET_PROMPT);
        assert!(
            client
                .post("/v1/chat/completions", &body)
                .unwrap()
                .text()
                .contains(SECRET_ANSWER)
        );
        body["model"] = json!(SECRET_PROMPT);
        assert_eq!(
            client.post("/v1/chat/completions", &body).unwrap().status(),
            404
        );
        body["temperature"] = json!(SECRET_PROMPT);
        assert_eq!(
            client.post("/v1/chat/completions", &body).unwrap().status(),
            400
        );
    }
    let broken = format!("{{\"messages\": \"{SECRET_PROMPT}\" oops}}");
    client
        .request("POST", "/v1/chat/completions", Some(broken.as_bytes()))
        .unwrap();
    client
        .post("/tokenize", &json!({ "content": SECRET_PROMPT }))
        .unwrap();
    client.get(&format!("/{SECRET_PROMPT}")).unwrap();
    house.demiurge.until_decisions(7);
    let decisions = fs::read_to_string(house.dir.path().join("state/decisions.jsonl")).unwrap();
    let metrics = client.get("/metrics").unwrap().text();
    let log = house.demiurge.log();
    assert!(
        log.contains("listening"),
        "the log is looked at where it is"
    );
    for (what, text) in [("decisions", decisions), ("metrics", metrics), ("log", log)] {
        for secret in [SECRET_PROMPT, SECRET_ANSWER, SECRET_STOP] {
            assert!(!text.contains(secret), "{secret} in {what}:\n{text}");
        }
    }
}

#[test]
fn a_full_disk_costs_lines_and_no_request_and_heals() {
    let dir = tempfile::tempdir().unwrap();
    let engine = ScriptedEngine::start(dir.path(), |_| hello());
    let state = dir.path().join("state");
    fs::create_dir(&state).unwrap();
    // Only the owner's: what others could write to is not used.
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(&state, private).unwrap();
    let file = state.join("decisions.jsonl");
    std::os::unix::fs::symlink("/dev/full", &file).unwrap();
    let demiurge = Demiurge::start(dir.path(), engine.socket(), "");
    demiurge.until_ready();
    let ask = || {
        demiurge
            .client()
            .post("/v1/chat/completions", &chat(false))
            .unwrap()
            .status()
    };
    assert_eq!((ask(), ask()), (200, 200));
    demiurge.until_metric("vitriol_demiurge_decisions_lost_total", 2.0);
    demiurge.until_metric("vitriol_demiurge_decisions_degraded", 1.0);
    assert_eq!(
        demiurge
            .log()
            .matches("decisions cannot be written")
            .count(),
        1
    );
    fs::remove_file(&file).unwrap();
    assert_eq!(ask(), 200);
    demiurge.until_decisions(1);
    demiurge.until_metric("vitriol_demiurge_decisions_degraded", 0.0);
    demiurge.until_metric("vitriol_demiurge_decisions_written_total", 1.0);
}

#[test]
fn the_file_is_bounded() {
    let house = House::start("decisions_bytes_max = \"4 KiB\"", |_| hello());
    for _ in 0..40 {
        house
            .client()
            .post("/v1/chat/completions", &chat(false))
            .unwrap();
    }
    house
        .demiurge
        .until_metric("vitriol_demiurge_decisions_written_total", 40.0);
    let state = house.dir.path().join("state");
    let mut files: Vec<_> = fs::read_dir(&state)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name(), entry.metadata().unwrap().len()))
        .collect();
    files.sort();
    let names: Vec<_> = files
        .iter()
        .map(|(name, _)| name.to_string_lossy())
        .collect();
    assert_eq!(names, ["decisions.jsonl", "decisions.jsonl.1"]);
    assert!(files.iter().all(|(_, bytes)| *bytes <= 4096), "{files:?}");
}
