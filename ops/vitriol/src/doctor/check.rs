//! One finding and how a list of them reads.

use serde_json::{Value, json};

use crate::term::Paint;

/// How a check came out, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Ok,
    /// The house runs, but not as well as it could.
    Warn,
    /// The house will not run.
    Fail,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "fail",
        }
    }
}

/// A finding; the remedy is empty where none is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub level: Level,
    pub found: String,
    pub remedy: String,
}

impl Check {
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            level: Level::Ok,
            found: found.into(),
            remedy: String::new(),
        }
    }

    pub fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            name,
            level: Level::Warn,
            found: found.into(),
            remedy: remedy.into(),
        }
    }

    pub fn fail(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            name,
            level: Level::Fail,
            found: found.into(),
            remedy: remedy.into(),
        }
    }
}

/// The worst of the findings.
pub fn verdict(checks: &[Check]) -> Level {
    checks
        .iter()
        .map(|check| check.level)
        .max()
        .unwrap_or(Level::Ok)
}

/// For people: a line a check, its remedy below it.
pub fn describe(checks: &[Check], paint: Paint) -> String {
    let mut text = String::new();
    for check in checks {
        let level = format!("{:<4}", check.level.name());
        let level = match check.level {
            Level::Ok => paint.green(&level),
            Level::Warn => paint.yellow(&level),
            Level::Fail => paint.red(&level),
        };
        text += &format!("{level}  {:<9} {}\n", check.name, check.found);
        if !check.remedy.is_empty() {
            text += &format!("{:17}{}\n", "", check.remedy);
        }
    }
    text
}

/// For programs.
pub fn to_json(checks: &[Check]) -> Value {
    let list = checks.iter().map(|check| {
        json!({
            "check": check.name,
            "level": check.level.name(),
            "found": check.found,
            "remedy": check.remedy,
        })
    });
    json!({"verdict": verdict(checks).name(), "checks": list.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_is_the_verdict() {
        let ok = Check::ok("cpu", "fine");
        let warn = Check::warn("memory", "little", "buy some");
        let fail = Check::fail("model", "missing", "fetch it");
        assert_eq!(verdict(&[]), Level::Ok);
        assert_eq!(verdict(&[ok.clone(), warn.clone()]), Level::Warn);
        assert_eq!(verdict(&[ok.clone(), fail.clone(), warn]), Level::Fail);
        assert_eq!(
            describe(&[ok, fail.clone()], Paint(false)),
            "ok    cpu       fine\nfail  model     missing\n                 fetch it\n"
        );
        insta::assert_snapshot!(format!("{:#}", to_json(&[Check::ok("cpu", "fine"), fail])));
    }
}
