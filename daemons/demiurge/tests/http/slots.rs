//! POST /slots/{id}: what is refused, and what a real kvtier makes of the rest.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use vitriol_ipc::connect;
use vitriol_proto::kvtier::v1::kv_tier_client::KvTierClient;
use vitriol_proto::kvtier::v1::{
    CopySessionRequest, ListSessionsRequest, PutSessionRequest, SessionChain, SessionPart,
};
use vitriol_testkit::http::{Client, Response};
use vitriol_testkit::{eventually, places};

use super::demiurge::{House, hello};
use super::scripted_engine::SOON;

const ENABLED: &str = "[kvtier]\nenabled = true\narena_bytes = '16 MiB'\nslot_bytes = '16 KiB'";

/// A kvtier beside the house's Demiurge, and a client of it.
struct KvTier {
    child: Child,
    runtime: Runtime,
    client: KvTierClient<Channel>,
}

impl KvTier {
    fn beside(house: &House) -> Self {
        let dir = house.dir.path();
        let profile = dir.join("kvtier.toml");
        fs::write(&profile, ENABLED).unwrap();
        let child = Command::new(places::binary("vitriol-kvtier").unwrap())
            .env_clear()
            .env("HOME", dir)
            .arg("--profile")
            .arg(&profile)
            .arg("--runtime-dir")
            .arg(dir)
            .arg("--state-dir")
            .arg(dir.join("state"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let socket = dir.join("kvtier/kvtier.sock");
        let client = KvTierClient::new(runtime.block_on(async { connect(&socket) }));
        let mut kvtier = Self {
            child,
            runtime,
            client,
        };
        eventually(SOON, "kvtier answers", || kvtier.sessions()).unwrap();
        kvtier
    }

    /// Names and blocks of its conversations; none while it does not answer.
    fn sessions(&mut self) -> Option<Vec<(String, u64)>> {
        self.runtime.block_on(async {
            let listed = self.client.list_sessions(ListSessionsRequest {}).await;
            let mut listed = listed.ok()?.into_inner();
            let mut sessions = Vec::new();
            while let Some(session) = listed.message().await.ok()? {
                sessions.push((session.id, session.blocks));
            }
            sessions.sort();
            Some(sessions)
        })
    }

    /// Tells of a conversation of so many blocks, of which nothing is stored.
    fn put(&mut self, id: &str, blocks: u8) {
        let part = SessionPart {
            group: 0,
            needed_from: 0,
        };
        let request = PutSessionRequest {
            id: id.to_owned(),
            chain: Some(SessionChain {
                tag: vec![1; 16],
                parts: vec![part],
                keys: (0..blocks).flat_map(|block| [block; 32]).collect(),
            }),
            tokens: 64 * u64::from(blocks),
        };
        let put = self.client.put_session(request);
        assert!(self.runtime.block_on(put).unwrap().into_inner().changed);
    }

    fn copy(&mut self, id: &str, to: &str) {
        let request = CopySessionRequest {
            id: id.to_owned(),
            to: to.to_owned(),
        };
        self.runtime
            .block_on(self.client.copy_session(request))
            .unwrap();
    }
}

impl Drop for KvTier {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn act(client: &Client, slot_and_action: &str, body: &Value) -> Response {
    let path = format!("/slots/{slot_and_action}");
    client.post(&path, body).unwrap()
}

/// Status and message of an error in llama-server's form.
fn refused(response: &Response) -> (u16, String) {
    let error = &response.json().unwrap()["error"];
    assert_eq!(error["code"], response.status(), "{error}");
    assert!(error["type"].is_string(), "{error}");
    let message = error["message"].as_str().unwrap().to_owned();
    (response.status(), message)
}

#[test]
fn without_a_tier_the_setting_is_named() {
    let house = House::greeting();
    let answer = act(
        &house.client(),
        "0?action=save",
        &json!({ "filename": "a" }),
    );
    let (status, message) = refused(&answer);
    assert_eq!(status, 501);
    assert!(message.contains("enabled = true in [kvtier]"), "{message}");
    let error = &answer.json().unwrap()["error"];
    assert_eq!(error["type"], "not_supported_error");
}

#[test]
fn what_cannot_be_done_is_refused_with_the_reason() {
    let house = House::start(ENABLED, |_| hello());
    let client = house.client();
    let file = json!({ "filename": "a.bin" });
    for (path, body, status, reason) in [
        ("0", &file, 400, "save, restore or erase"),
        ("0?action=load", &file, 400, "save, restore or erase"),
        ("x?action=save", &file, 400, "Invalid slot ID"),
        ("-1?action=save", &file, 400, "Invalid slot ID"),
        ("3?action=save", &file, 404, "there are 3"),
        ("1?action=save", &json!({}), 400, "'filename'"),
        ("1?action=restore", &json!({}), 400, "'filename'"),
        (
            "1?action=save",
            &json!({ "filename": "../a" }),
            400,
            "'filename'",
        ),
        (
            "1?action=restore",
            &json!({ "filename": "" }),
            400,
            "'filename'",
        ),
        (
            "1?action=restore",
            &json!({ "filename": 7 }),
            400,
            "a string",
        ),
        ("2?action=save", &file, 400, "X-Session-Id"),
        ("2?action=erase", &json!({}), 400, "X-Session-Id"),
        // There is to be a tier, and it is away.
        ("1?action=save", &file, 503, "kvtier is not there"),
        ("2?action=restore", &file, 503, "kvtier is not there"),
    ] {
        let (found, message) = refused(&act(&client, path, body));
        assert_eq!(found, status, "{path} {body}: {message}");
        assert!(message.contains(reason), "{path} {body}: {message}");
    }
    let answer = client.get("/slots/0").unwrap();
    assert_eq!(refused(&answer).0, 405);
}

#[test]
fn conversations_are_named_by_slot_header_or_body() {
    let house = House::start(ENABLED, |_| hello());
    let client = house.client();
    let mut kvtier = KvTier::beside(&house);
    for (blocks, id) in (1..).zip(["s-0", "of-header", "of-body"]) {
        kvtier.put(id, blocks);
    }
    let with_header = client.with_header("X-Session-Id", "of-header");
    let in_body = json!({ "session_id": "of-body" });
    for (client, body, tokens) in [
        (&client, json!({}), 64),
        (&with_header, json!({}), 128),
        (&with_header, in_body, 192),
    ] {
        let answer = act(client, "1?action=erase", &body).ok_json().unwrap();
        assert_eq!(answer, json!({ "id_slot": 1, "n_erased": tokens }));
    }
    assert_eq!(kvtier.sessions(), Some(Vec::new()));
    let gone = client.post("/slots/1?action=erase", &json!({})).unwrap();
    let (status, message) = refused(&gone);
    assert_eq!(status, 404);
    assert!(
        message.contains("nothing is stored of session 's-0'"),
        "{message}"
    );
}

#[test]
fn what_is_not_whole_is_not_saved_and_what_is_gone_not_restored() {
    let house = House::start(ENABLED, |_| hello());
    let client = house.client();
    let mut kvtier = KvTier::beside(&house);
    kvtier.put("s-0", 3);
    let file = json!({ "filename": "a.bin" });
    let (status, message) = refused(&act(&client, "1?action=save", &file));
    assert_eq!(status, 503);
    assert!(message.contains("0 of 3 records"), "{message}");
    assert_eq!(kvtier.sessions(), Some(vec![("s-0".to_owned(), 3)]));
    let (status, message) = refused(&act(&client, "1?action=restore", &file));
    assert_eq!(status, 404);
    assert!(
        message.contains("nothing was saved as 'a.bin'"),
        "{message}"
    );

    kvtier.copy("s-0", "slots/a.bin");
    let answer = act(&client, "1?action=restore", &file).ok_json().unwrap();
    assert_eq!(
        (&answer["n_restored"], &answer["n_read"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(
        (&answer["id_slot"], &answer["filename"]),
        (&json!(1), &json!("a.bin"))
    );
    assert!(answer["timings"]["restore_ms"].is_number());
    let cause = answer["cause"].as_str().unwrap();
    assert!(cause.contains("was not stored"), "{cause}");
}

#[test]
fn a_turn_that_kvtier_does_not_know_yet_is_waited_for() {
    let house = House::start(ENABLED, |_| hello());
    let mut kvtier = KvTier::beside(&house);
    house.engine.set_untold(&["other", "s-0"]);
    let client = house.client();
    let erasing = thread::spawn(move || act(&client, "1?action=erase", &json!({})));
    house
        .engine
        .until("it is looked again", |record| record.slot_lists > 2);
    kvtier.put("s-0", 2);
    house.engine.set_untold(&["other"]);
    let answer = erasing.join().unwrap().ok_json().unwrap();
    assert_eq!(answer["n_erased"], 128);
}
