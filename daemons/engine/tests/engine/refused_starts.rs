//! Starts that no restart would mend end with 78, once, and say what to change.

use std::{fs, process::Command};
use vitriol_testkit::places::zoo_model;

#[test]
fn a_kv_pool_beyond_the_machines_memory_is_a_wrong_configuration() {
    let home = tempfile::tempdir().unwrap();
    let profile = home.path().join("p.toml");
    let model = zoo_model("llama.q8_0").unwrap();
    let text = format!(
        "[engine.main]\nmodel = \"{}\"\nkv_bytes_max = \"1024 TiB\"\nkv_keys = \"f32\"\n\
         kv_values = \"f32\"\n",
        model.display()
    );
    fs::write(&profile, text).unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_vitriol-engine"))
        .args(["serve", "--profile"])
        .arg(&profile)
        .arg("--socket")
        .arg(home.path().join("e.sock"))
        .env("HOME", home.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(78), "{said}");
    assert!(
        said.contains("set engine.main.kv_bytes_max to at most"),
        "{said}"
    );
}
