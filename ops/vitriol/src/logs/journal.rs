//! The journal, by way of `journalctl` and the fields that the daemons write.

use std::{ffi::OsStr, os::unix::process::CommandExt, process::Command};

use clap::ValueEnum;
use vitriol_chassis::{Exit, Failure};

use super::{Lines, Since, Unit, Wanted};

const PROGRAM: &str = "journalctl";

impl Unit {
    fn service(self) -> &'static str {
        match self {
            Unit::Engine => "vitriol-engine@main.service",
            Unit::Demiurge => "vitriol-demiurge.service",
            Unit::OomShield => "vitriol-oom-shield.service",
            Unit::Kvtier => "vitriol-kvtier.service",
            Unit::Persist => "vitriol-persist.service",
        }
    }
}

/// The arguments of journalctl; `user` for units of the user's own manager.
///
/// Units are alternatives, every field narrows.
pub fn arguments(wanted: &Wanted, user: bool) -> Vec<String> {
    let units = match wanted.unit {
        Some(unit) => vec![unit],
        None => Unit::value_variants().into(),
    };
    // Not --user: without a journal of the user's own the entries lie in the system's.
    let option = if user { "--user-unit" } else { "--unit" };
    let mut arguments = vec!["--no-pager".to_owned()];
    arguments.extend(
        units
            .iter()
            .map(|unit| format!("{option}={}", unit.service())),
    );
    match wanted.since {
        None => {}
        Some(Since::Ago { seconds }) => arguments.push(format!("--since=-{seconds}s")),
        Some(Since::At(time)) => arguments.push(format!("--since=@{}", time.unix_timestamp())),
    }
    arguments.push(match wanted.lines {
        Lines::All => "--lines=all".to_owned(),
        Lines::Last(count) => format!("--lines={count}"),
    });
    if wanted.follow {
        arguments.push("--follow".to_owned());
    }
    let fields = [
        ("VITRIOL_SESSION", &wanted.session),
        ("VITRIOL_LANE", &wanted.lane),
    ];
    for (field, value) in fields {
        arguments.extend(value.as_ref().map(|value| format!("{field}={value}")));
    }
    arguments
}

/// The command as it can be typed into a shell.
pub fn command_line(arguments: &[String]) -> String {
    let words = arguments.iter().map(|argument| quoted(argument));
    [PROGRAM.to_owned()]
        .into_iter()
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=@.:/,+".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Becomes journalctl; returns only when that fails.
pub fn show(arguments: &[String], search_path: Option<&OsStr>) -> Result<(), Failure> {
    let found = search_path
        .into_iter()
        .flat_map(std::env::split_paths)
        .map(|dir| dir.join(PROGRAM))
        .find(|program| program.is_file());
    let Some(program) = found else {
        let message = format!(
            "{PROGRAM} is not on the PATH; install systemd, or read the files of 'vitriol up' with \
             --from files"
        );
        return Err(Failure::new(Exit::Dependency, message));
    };
    let error = Command::new(&program).args(arguments).exec();
    let message = format!("run {}: {error}", program.display());
    Err(Failure::new(Exit::Dependency, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Wanted {
        Wanted {
            unit: None,
            session: None,
            lane: None,
            since: None,
            lines: Lines::Last(100),
            follow: false,
        }
    }

    #[test]
    fn what_is_wanted_becomes_arguments() {
        assert_eq!(
            arguments(&wanted(), false),
            [
                "--no-pager",
                "--unit=vitriol-engine@main.service",
                "--unit=vitriol-demiurge.service",
                "--unit=vitriol-oom-shield.service",
                "--unit=vitriol-kvtier.service",
                "--unit=vitriol-persist.service",
                "--lines=100"
            ]
        );
        let narrow = Wanted {
            unit: Some(Unit::Demiurge),
            session: Some("my session".into()),
            lane: Some("local".into()),
            since: Some("10m".parse().unwrap()),
            lines: Lines::All,
            follow: true,
        };
        assert_eq!(
            arguments(&narrow, true),
            [
                "--no-pager",
                "--user-unit=vitriol-demiurge.service",
                "--since=-600s",
                "--lines=all",
                "--follow",
                "VITRIOL_SESSION=my session",
                "VITRIOL_LANE=local"
            ]
        );
        let at = Wanted {
            since: Some("1970-01-01T00:01:00Z".parse().unwrap()),
            ..wanted()
        };
        assert!(arguments(&at, false).contains(&"--since=@60".to_owned()));
    }

    #[test]
    fn the_command_can_be_typed() {
        let arguments = ["--lines=1", "VITRIOL_SESSION=it's; mine", ""].map(str::to_owned);
        assert_eq!(
            command_line(&arguments),
            "journalctl --lines=1 'VITRIOL_SESSION=it'\\''s; mine' ''"
        );
    }
}
