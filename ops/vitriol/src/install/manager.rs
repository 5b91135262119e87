//! What systemd's own tools do for an install.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use vitriol_chassis::{Exit, Failure};

use super::{layout::Scope, tree::print_line};

/// The target that is the house.
const TARGET: &str = "vitriol.target";

/// The one engine of a new house.
const ENGINE: &str = "vitriol-engine@main.service";

/// The units that an uninstall stops: the file of each, and what systemctl calls it.
const UNITS: [(&str, &str); 7] = [
    (TARGET, TARGET),
    ("vitriol-demiurge.socket", "vitriol-demiurge.socket"),
    ("vitriol-demiurge.service", "vitriol-demiurge.service"),
    ("vitriol-engine@.service", "vitriol-engine@*.service"),
    ("vitriol-oom-shield.service", "vitriol-oom-shield.service"),
    ("vitriol-kvtier.service", "vitriol-kvtier.service"),
    ("vitriol-persist.service", "vitriol-persist.service"),
];

/// Those of them that an install may have enabled.
const ENABLED: [&str; 2] = [TARGET, "vitriol-engine@.service"];

/// The manager of the machine or of the user, by its command-line tools. Every call is said; one
/// that fails is an error with what the tool wrote (69).
#[derive(Debug)]
pub struct Manager {
    scope: Scope,
    dry_run: bool,
}

impl Manager {
    pub fn new(scope: Scope, dry_run: bool) -> Self {
        Self { scope, dry_run }
    }

    /// Makes the users and the group of `file` (sysusers.d).
    pub fn make_users(&self, file: &Path) -> Result<(), Failure> {
        self.run("systemd-sysusers", &[&file.to_string_lossy()])
    }

    /// Makes the directories of `file` (tmpfiles.d).
    pub fn make_directories(&self, file: &Path) -> Result<(), Failure> {
        self.run("systemd-tmpfiles", &["--create", &file.to_string_lossy()])
    }

    /// Has `journalctl -x` know our events.
    pub fn update_catalog(&self) -> Result<(), Failure> {
        self.run("journalctl", &["--update-catalog"])
    }

    pub fn reload(&self) -> Result<(), Failure> {
        self.systemctl(&["daemon-reload"])
    }

    /// Has the house start at boot, or with the user's first session.
    pub fn enable(&self) -> Result<(), Failure> {
        self.systemctl(&["enable", "--quiet", TARGET])
    }

    /// Starts the house and waits until it is ready. The target is reached without an engine too, so
    /// that is asked for apart.
    ///
    /// Errors: as of every call, and an engine that does not run then (69).
    pub fn start(&self) -> Result<(), Failure> {
        // One that failed too often would be refused.
        self.forget_failures()?;
        self.systemctl(&["start", TARGET])?;
        self.systemctl(&["is-active", ENGINE]).map_err(|failure| {
            let user = match self.scope {
                Scope::System => "",
                Scope::User => " --user",
            };
            let message = format!(
                "the house is installed, but its engine does not run: {}. \
                 'journalctl{user} -b -x -u {ENGINE}' says why, the runbook \
                 engine-does-not-start.md what to do",
                failure.message
            );
            Failure::new(failure.exit, message)
        })
    }

    /// Stops and disables, of the units whose file `has`, every one, and waits for it.
    pub fn stop(&self, has: impl Fn(&str) -> bool) -> Result<(), Failure> {
        let stopped = UNITS.iter().filter(|(file, _)| has(file));
        let stopped: Vec<&str> = stopped.map(|(_, name)| *name).collect();
        if !stopped.is_empty() {
            self.systemctl(&[&["stop"], &stopped[..]].concat())?;
        }
        let disabled: Vec<&str> = ENABLED.into_iter().filter(|file| has(file)).collect();
        if !disabled.is_empty() {
            self.systemctl(&[&["disable", "--quiet"], &disabled[..]].concat())?;
        }
        Ok(())
    }

    /// Units that failed are otherwise listed for ever.
    pub fn forget_failures(&self) -> Result<(), Failure> {
        self.systemctl(&["reset-failed", "vitriol*"])
    }

    fn systemctl(&self, args: &[&str]) -> Result<(), Failure> {
        match self.scope {
            Scope::System => self.run("systemctl", args),
            Scope::User => self.run("systemctl", &[&["--user"], args].concat()),
        }
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<(), Failure> {
        let line = format!("{program} {}", args.join(" "));
        if self.dry_run {
            print_line(format_args!("would run {line}"));
            return Ok(());
        }
        let failed = |cause: &str| {
            let message =
                format!("{line}: {cause}; once that is mended run this command again, it goes on");
            Failure::new(Exit::Dependency, message)
        };
        let output = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| failed(&error.to_string()))?;
        if !output.status.success() {
            let said = [output.stderr, output.stdout].concat();
            let said = String::from_utf8_lossy(&said);
            return Err(failed(&said.trim().replace('\n', "; ")));
        }
        print_line(format_args!("ran      {line}"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_fails_is_named_with_its_own_words() {
        let manager = Manager::new(Scope::System, false);
        let failure = manager
            .run("sh", &["-c", "echo 'no such unit' >&2; exit 3"])
            .unwrap_err();
        assert_eq!(failure.exit, Exit::Dependency);
        assert!(failure.message.contains("no such unit"), "{failure}");
        let failure = manager.run("/nonexistent/systemctl", &["x"]).unwrap_err();
        assert!(
            failure.message.starts_with("/nonexistent/systemctl x: "),
            "{failure}"
        );
        Manager::new(Scope::User, true)
            .run("/nonexistent/systemctl", &["x"])
            .unwrap();
    }
}
