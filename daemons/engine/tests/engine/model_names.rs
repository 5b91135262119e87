//! What the commands of the engine take for a model.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};
use vitriol_testkit::places::zoo_model;

/// A command of the engine with `home` as its only place.
fn engine(arguments: &[&str], home: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vitriol-engine"))
        .args(arguments)
        .env_remove("XDG_CACHE_HOME")
        .env("HOME", home)
        .output()
        .unwrap()
}

#[test]
fn commands_take_names_of_the_catalog_and_home() {
    let home = tempfile::tempdir().unwrap();
    let models = home.path().join(".cache/vitriol/models");
    fs::create_dir_all(&models).unwrap();
    let cached = models.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    fs::copy(zoo_model("llama.q8_0").unwrap(), &cached).unwrap();
    let text = home.path().join("text");
    fs::write(&text, "all that is solid melts into air, ".repeat(20)).unwrap();
    for name in [
        "smollm2-135m",
        "SmolLM2-135M-Instruct",
        "~/.cache/vitriol/models/SmolLM2-135M-Instruct.Q4_1.gguf",
    ] {
        for arguments in [
            &["check", name][..],
            &["run", name, "hello", "--max-tokens", "1"],
            &[
                "bench",
                name,
                "--rows",
                "tg0",
                "--tokens",
                "2",
                "--repeat",
                "1",
                "--retries",
                "0",
            ],
            &[
                "perplexity",
                name,
                text.to_str().unwrap(),
                "-c",
                "16",
                "--chunks",
                "1",
            ],
        ] {
            let ended = engine(arguments, home.path());
            let said = String::from_utf8_lossy(&ended.stderr);
            assert_eq!(ended.status.code(), Some(0), "{arguments:?}: {said}");
        }
    }
    let refused = engine(&["check", "~other/m.gguf"], home.path());
    assert_eq!(refused.status.code(), Some(78));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("write the whole path"), "{said}");
}

#[test]
fn serve_takes_a_relative_model_from_beside_its_profile() {
    let home = tempfile::tempdir().unwrap();
    let beside = home.path().join("settings");
    fs::create_dir(&beside).unwrap();
    let profile = beside.join("p.toml");
    fs::write(&profile, "[engine.main]\nmodel = \"m.gguf\"\n").unwrap();
    let profile = profile.to_str().unwrap();
    let serve = |profile: &str| engine(&["serve", "--profile", profile], home.path());
    let said = String::from_utf8(serve(profile).stderr).unwrap();
    let expected = beside.join("m.gguf");
    assert!(said.contains(expected.to_str().unwrap()), "{said}");

    // What is no regular file is refused before it is opened: a FIFO would be waited for.
    let made = Command::new("mkfifo").arg(&expected).status().unwrap();
    assert!(made.success());
    let refused = serve(profile);
    assert_eq!(refused.status.code(), Some(78));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("is not a regular file"), "{said}");
    let checked = engine(&["check", expected.to_str().unwrap()], home.path());
    assert_eq!(checked.status.code(), Some(78));
}
