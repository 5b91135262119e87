//! `vitriol config` with real files.

use std::{fs, path::Path};

use super::{text, vitriol};

/// Exit code, standard output and standard error.
fn config(home: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let args = [&["config"], args].concat();
    let output = vitriol(home, &args).output().expect("vitriol runs");
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn a_loaded_profile_is_in_use_and_the_one_before_is_kept() {
    let home = tempfile::tempdir().expect("a temp dir");
    let in_use = home.path().join(".config/vitriol/vitriol.toml");
    let file = home.path().join("mine.toml");
    let path = file.to_str().expect("UTF-8");

    fs::write(&file, "# mine\n[engine.main]\nthreads = 3\n").expect("written");
    let (code, said, _) = config(home.path(), &["load", path]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("engine.main.threads  0 (default) -> 3"),
        "{said}"
    );
    assert!(said.ends_with("to restart: engine\n"), "{said}");
    assert_eq!(
        fs::read(&in_use).expect("there"),
        fs::read(&file).expect("there")
    );
    let (_, shown, _) = config(home.path(), &["show", "--origin"]);
    assert!(
        shown.contains(&format!("# {}:3", in_use.display())),
        "{shown}"
    );
    let (_, differs, _) = config(home.path(), &["diff"]);
    assert!(
        differs.starts_with("engine.main.threads  0 (default) -> 3 ("),
        "{differs}"
    );

    fs::write(&file, "[demiurge]\nrequests_max = 9\n").expect("written");
    let (_, said, _) = config(home.path(), &["load", path]);
    assert!(said.contains("engine.main.threads    3 ("), "{said}");
    assert!(
        said.ends_with("to restart: engine and demiurge\n"),
        "{said}"
    );
    let kept = fs::read_to_string(in_use.with_extension("toml.bak")).expect("kept");
    assert!(kept.starts_with("# mine"), "{kept}");

    // What is wrong, or cannot be run, does not get there.
    for wrong in [
        "[house]\nlisten = '0.0.0.0:1'\n",
        "[engine.big]\n",
        "[engine.main]\nthread = 1\n",
    ] {
        fs::write(&file, wrong).expect("written");
        let (code, _, said) = config(home.path(), &["load", path]);
        assert_eq!(code, Some(78), "{wrong}: {said}");
    }
    assert!(
        fs::read_to_string(&in_use)
            .expect("there")
            .contains("requests_max = 9")
    );
}

#[test]
fn a_profile_that_up_refuses_is_refused_by_the_check() {
    let home = tempfile::tempdir().expect("a temp dir");
    let file = home.path().join("p.toml");
    let path = file.to_str().expect("UTF-8");
    for (wrong, words) in [
        ("[house]\nlisten = '192.168.1.2:1'\n", "from other machines"),
        ("[engine.big]\n", "remove [engine.big]"),
    ] {
        fs::write(&file, wrong).expect("written");
        let (code, _, said) = config(home.path(), &["check", path]);
        assert_eq!(code, Some(78), "{said}");
        let up = vitriol(home.path(), &["up", "--profile", path])
            .output()
            .expect("runs");
        assert_eq!(up.status.code(), Some(78));
        for said in [said, text(&up.stderr)] {
            assert!(said.contains(words) && said.lines().count() == 1, "{said}");
        }
        let (code, report, said) = config(home.path(), &["check", "--json", path]);
        assert_eq!((code, said.as_str()), (Some(78), ""));
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        assert_eq!(report["ok"], false);
        assert!(
            report["error"].as_str().expect("a text").contains(words),
            "{report}"
        );
    }
    fs::write(&file, "").expect("written");
    let (code, report, _) = config(home.path(), &["check", "--json", path]);
    assert_eq!(code, Some(0));
    insta::assert_snapshot!(report.replace(path, "FILE"));
}

#[test]
fn what_is_saved_is_what_is_in_force() {
    let home = tempfile::tempdir().expect("a temp dir");
    let (file, saved) = (home.path().join("p.toml"), home.path().join("all.toml"));
    fs::write(&file, "[engine.main]\nthreads = 3\nalias = 'a \"b\" \\c'\n").expect("written");
    let paths = [&file, &saved].map(|path| path.to_str().expect("UTF-8").to_owned());
    let save = [
        "save",
        &paths[1],
        "--profile",
        &paths[0],
        "--set",
        "house.log_format=json",
    ];
    let (code, said, _) = config(home.path(), &save);
    assert_eq!(code, Some(0), "{said}");
    let flags = ["--profile", &paths[0], "--set", "house.log_format=json"];
    let shown = config(home.path(), &[&["show"], &flags[..]].concat()).1;
    let again = config(home.path(), &["show", "--profile", &paths[1]]).1;
    assert_eq!(shown, again);
    assert!(
        shown.contains("log_format = \"json\"") && shown.contains("threads = 3"),
        "{shown}"
    );

    let (code, _, said) = config(home.path(), &save);
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("--force"), "{said}");
    let (code, ..) = config(home.path(), &[&save[..], &["--force"]].concat());
    assert_eq!(code, Some(0));
}
