//! `vitriol session` beside a kvtier, with a record that `vitriol kv check` stores.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;
use vitriol_ipc::connect;
use vitriol_proto::kvtier::v1::{
    PutSessionRequest, SessionChain, SessionPart, kv_tier_client::KvTierClient,
};
use vitriol_testkit::{eventually, places};

use super::{text, vitriol};

const DEADLINE: Duration = Duration::from_secs(60);

/// What `vitriol kv check` stores.
const KEY: [u8; 32] = *b"vitriol kv check: not KV at all.";

/// A house of kvtier alone.
struct House {
    home: TempDir,
    kvtier: Child,
}

impl House {
    fn start() -> Self {
        let home = tempfile::tempdir().expect("a temp dir");
        let profile = home.path().join("profile.toml");
        let settings = "[kvtier]\nenabled = true\narena_bytes = '6 MiB'\nslot_bytes = '1 MiB'\n";
        fs::write(&profile, settings).expect("written");
        let kvtier = Command::new(places::binary("vitriol-kvtier").expect("it is built"))
            .env_clear()
            .env("HOME", home.path())
            .env("XDG_RUNTIME_DIR", home.path().join("run"))
            .arg("--profile")
            .arg(&profile)
            .stdin(Stdio::null())
            .spawn()
            .expect("kvtier runs");
        let house = Self { home, kvtier };
        eventually(DEADLINE, "kvtier answers", || {
            let ended = vitriol(house.home.path(), &["kv", "check"]).output();
            ended.expect("vitriol runs").status.success().then_some(())
        })
        .expect("the record is stored");
        house
    }

    fn at(&self, name: &str) -> String {
        self.home.path().join(name).display().to_string()
    }

    /// A turn of the conversation `id` ends with the record, and `more` blocks that nobody stored.
    fn put(&self, id: &str, more: u8) {
        let blocks = (0..more).map(|block| [block; 32]);
        let request = PutSessionRequest {
            id: id.to_owned(),
            chain: Some(SessionChain {
                tag: vec![0; 16],
                parts: vec![SessionPart::default()],
                keys: [KEY].into_iter().chain(blocks).flatten().collect(),
            }),
            tokens: 70,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let socket = self.home.path().join("run/vitriol/kvtier/kvtier.sock");
        let put = async {
            KvTierClient::new(connect(&socket))
                .put_session(request)
                .await
        };
        runtime.block_on(put).expect("kvtier takes it");
    }

    /// What `vitriol session ARGS` says to whom, and its exit code.
    fn session(&self, args: &[&str]) -> (Option<i32>, String) {
        let args = [&["session"], args].concat();
        let ended = vitriol(self.home.path(), &args)
            .output()
            .expect("vitriol runs");
        let said = text(&ended.stdout) + &text(&ended.stderr);
        (ended.status.code(), said)
    }

    fn done(&self, args: &[&str]) -> String {
        let (code, said) = self.session(args);
        assert_eq!(code, Some(0), "{args:?}: {said}");
        said
    }

    fn refused(&self, args: &[&str], code: i32, words: &str) {
        let (ended, said) = self.session(args);
        assert_eq!(ended, Some(code), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }

    fn listed(&self) -> Vec<Value> {
        let listed: Value = serde_json::from_str(&self.done(&["list", "--json"])).expect("JSON");
        listed["sessions"].as_array().expect("an array").clone()
    }
}

impl Drop for House {
    fn drop(&mut self) {
        // It may have ended.
        self.kvtier.kill().ok();
        self.kvtier.wait().ok();
    }
}

#[test]
fn a_session_is_saved_carried_in_a_file_destroyed_and_taken_over_again() {
    let house = House::start();
    assert!(house.done(&["list"]).contains("no sessions"));
    house.put("chat", 0);
    let said = house.done(&["save", "chat"]);
    assert!(said.contains("1 blocks are on disk"), "{said}");
    let listed = house.listed();
    assert_eq!(
        (&listed[0]["id"], &listed[0]["records_on_mirror"]),
        (&"chat".into(), &1.into())
    );
    assert!(house.done(&["list"]).contains("100%"));

    let file = house.at("chat.kv");
    house.done(&["export", "chat", &file]);
    let mode = fs::metadata(&file)
        .expect("it is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    house.refused(&["export", "chat", &file], 64, "--force replaces it");
    house.done(&["export", "chat", &file, "--force"]);
    house.refused(&["export", "chat", &house.at("no/such")], 78, "no/such");

    house.refused(&["rm", "chat"], 64, "say --yes");
    let said = house.done(&["rm", "chat", "--yes"]);
    assert!(said.contains("1 records are destroyed"), "{said}");
    house.refused(&["save", "chat"], 64, "there is no session 'chat'");
    assert!(house.listed().is_empty());

    house.done(&["import", &file, "--as", "again"]);
    let said = house.done(&["restore", "again"]);
    assert!(said.contains("1 blocks are in memory"), "{said}");
    assert_eq!(house.listed()[0]["records_in_arena"], 1);
}

#[test]
fn what_is_not_whole_says_so_and_leaves_no_file() {
    let house = House::start();
    house.put("chat", 2);
    house.refused(&["save", "chat"], 69, "2 are nowhere");
    house.refused(&["restore", "chat"], 69, "1 of 3 records");
    let before = files(house.home.path());
    house.refused(
        &["export", "chat", &house.at("chat.kv")],
        69,
        "2 of 3 records",
    );
    assert_eq!(files(house.home.path()), before);

    fs::write(house.at("notes"), "no session").expect("written");
    house.refused(
        &["import", &house.at("notes")],
        78,
        "'vitriol session export'",
    );
    assert_eq!(house.listed().len(), 1);
}

fn files(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = names
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
