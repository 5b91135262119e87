//! Completion scripts and manual pages, as the shells and the formatter take them.

use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
};

use super::{run, text, vitriol};
use vitriol_testkit::not_run;

#[test]
fn completions_are_taken_by_the_shells_there_are() {
    for (shell, flags) in [
        ("bash", &["-n"][..]),
        ("zsh", &["-n"]),
        ("fish", &["--no-execute"]),
    ] {
        let output = run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        assert!(text(&output.stdout).contains("vitriol"), "{shell}");
        let child = Command::new(shell)
            .args(flags)
            .arg("/dev/stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            not_run(&format!("completions of {shell}"), "install the shell");
            continue;
        };
        let mut input = child.stdin.take().expect("piped");
        input.write_all(&output.stdout).expect("written");
        drop(input);
        let read = child.wait_with_output().expect("ends");
        assert!(read.status.success(), "{shell}: {}", text(&read.stderr));
        assert_eq!(text(&read.stderr), "", "{shell}");
    }
}

#[test]
fn bash_completes_our_commands() {
    let script = text(&run(&["completions", "bash"]).stdout);
    let ask = "\nCOMP_WORDS=(vitriol config d); COMP_CWORD=2\n_vitriol vitriol d config\n\
               printf '%s\\n' \"${COMPREPLY[@]}\"\n";
    let asked = Command::new("bash")
        .args(["--norc", "-c", &(script + ask)])
        .output()
        .expect("bash runs");
    assert_eq!(text(&asked.stdout), "diff\n", "{}", text(&asked.stderr));
}

#[test]
fn manual_pages_are_formatted_without_a_warning() {
    let home = tempfile::tempdir().expect("a temp dir");
    let dir = home.path().join("man1");
    let output = vitriol(home.path(), &["man", "--dir", dir.to_str().expect("UTF-8")])
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let own = fs::read(dir.join("vitriol.1")).expect("there");
    assert_eq!(run(&["man"]).stdout, own);
    let pages: Vec<_> = fs::read_dir(&dir).expect("there").flatten().collect();
    assert!(pages.len() > 20, "{pages:?}");
    for page in pages {
        let formatted = Command::new("groff")
            // Plain text, without overstriking.
            .args(["-man", "-Tutf8", "-ww", "-P-cbou"])
            .arg(page.path())
            .output();
        let Ok(formatted) = formatted else {
            not_run("manual pages", "install groff");
            return;
        };
        let name = page.file_name();
        assert_eq!(text(&formatted.stderr), "", "{name:?}");
        assert!(text(&formatted.stdout).contains("SYNOPSIS"), "{name:?}");
    }
}
