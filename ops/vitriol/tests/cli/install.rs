//! `vitriol install` as far as it changes nothing.

use std::fs;

use super::{text, vitriol};

/// What an install would do can be asked anywhere; on a machine with systemd this says nothing new.
#[test]
fn a_dry_run_needs_no_systemd() {
    let home = tempfile::tempdir().expect("a temp dir");
    let bin = home.path().join("bin");
    fs::create_dir(&bin).expect("made");
    for name in [
        "vitriol",
        "vitriol-engine",
        "vitriol-demiurge",
        "vitriol-oom-shield",
        "vitriol-persist",
        "vitriol-kvtier",
    ] {
        fs::write(bin.join(name), "").expect("written");
    }
    let bin = bin.to_str().expect("UTF-8");
    for command in ["install", "uninstall"] {
        for scope in [&["--user"][..], &[]] {
            let place: &[&str] = match command {
                "install" => &["--bin-dir", bin],
                _ => &[],
            };
            let arguments = [&[command, "--dry-run"], scope, place].concat();
            let output = vitriol(home.path(), &arguments).output().expect("runs");
            let (said, complaint) = (text(&output.stdout), text(&output.stderr));
            assert_eq!(output.status.code(), Some(0), "{arguments:?}: {complaint}");
            assert!(
                said.contains("would run systemctl"),
                "{arguments:?}: {said}"
            );
        }
    }
    assert!(!home.path().join(".config").exists(), "nothing was done");
}
