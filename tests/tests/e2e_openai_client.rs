//! The official `openai` client against a real house; the checks are in tests/clients.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its functions too"
)]

use std::process::Command;

use vitriol_testkit::{House, places};

fn run(arguments: &[&str]) -> String {
    let python = places::client_python().unwrap();
    let script = places::checkout().join("tests/clients/openai_client.py");
    let output = Command::new(python)
        .arg(script)
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

macro_rules! checks {
    ($($name:ident)*) => {
        const CHECKS: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            fn $name() {
                let house = House::shared().unwrap();
                run(&["--base-url", &format!("http://{}", house.address()), stringify!($name)]);
            }
        )*
    };
}

checks! {
    models
    chat
    content_parts
    stream
    stop
    seed
    max_tokens
    completions
    errors
    context_overflow
    injection
    cached_turn
}

#[test]
fn every_check_of_the_script_is_run() {
    let listed = run(&["--list"]);
    assert_eq!(listed.lines().collect::<Vec<_>>(), CHECKS);
}
