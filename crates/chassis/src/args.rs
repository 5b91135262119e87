//! The command line of a binary.

use std::{ffi::OsString, path::PathBuf};

use clap::{Parser, error::ErrorKind};
use vitriol_ipc::HouseDirs;
use vitriol_profile::{Overrides, Profile};

use crate::{Environment, Exit, Failure};

/// The flags by which a daemon finds the settings and the sockets of its house.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct HouseArgs {
    /// Profile (TOML); without it every setting has its default
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Directory of the house's sockets, this daemon's own among them; without it the default place
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

impl HouseArgs {
    /// The settings. Errors: of the profile (exit 78).
    pub fn profile(&self) -> Result<Profile, Failure> {
        Ok(Profile::load(self.profile.as_deref(), &Overrides::new())?)
    }

    /// The settings and the directories of the house that has them.
    ///
    /// Errors: of the profile or the directories (exit 78).
    pub fn house(&self, environment: &Environment) -> Result<(Profile, HouseDirs), Failure> {
        let profile = self.profile()?;
        let mut dirs = environment.dirs_for(profile.house.listen)?;
        if let Some(runtime) = &self.runtime_dir {
            dirs.runtime.clone_from(runtime);
        }
        Ok((profile, dirs))
    }
}

/// Parses the command line into `A`.
///
/// `--help` and `--version` are printed and end the process well; a mistake becomes one line that
/// names it, with exit code 64.
pub fn parse_args<A: Parser>(args: impl IntoIterator<Item = OsString>) -> Result<A, Failure> {
    A::try_parse_from(args).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // A reader that closed early (`--help | head`) is no failure.
            let _ = error.print();
            Failure::silent(match error.kind() {
                ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Exit::Usage,
                _ => Exit::Ok,
            })
        }
        _ => Failure::new(Exit::Usage, one_line(&error.render().to_string())),
    })
}

/// clap's message without its heading and with its paragraphs in one line.
fn one_line(message: &str) -> String {
    let text = message.split("\n\nUsage:").next().unwrap_or(message);
    let text = text
        .split("\n\nFor more information")
        .next()
        .unwrap_or(text);
    let words: Vec<&str> = text
        .trim_start_matches("error: ")
        .split_whitespace()
        .collect();
    format!("{}; see --help", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Args {
        #[arg(long)]
        threads: Option<u32>,
        #[arg(long)]
        model: Option<String>,
    }

    fn parse(args: &[&str]) -> Result<Args, Failure> {
        parse_args(["x"].iter().chain(args).map(|arg| OsString::from(*arg)))
    }

    #[test]
    fn mistakes_are_one_line_with_code_64() {
        for args in [
            &["--thread", "3"][..],
            &["--threads", "x"],
            &["--model"],
            &["stray"],
        ] {
            let failure = parse(args).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(!failure.message.contains('\n'), "{failure}");
            assert!(
                failure.message.contains(args[0].trim_start_matches('-')),
                "{failure}"
            );
            assert!(failure.message.ends_with("; see --help"), "{failure}");
        }
        let args = parse(&["--threads", "3", "--model", "m"]).unwrap();
        assert_eq!((args.threads, args.model.as_deref()), (Some(3), Some("m")));
    }

    #[derive(Debug, clap::Parser)]
    struct DaemonArgs {
        #[command(flatten)]
        house: HouseArgs,
    }

    #[test]
    fn a_named_directory_has_the_sockets_and_the_state_stays_where_it_is() {
        let mut environment = Environment::default();
        environment.base_dirs.home = Some("/home/u".into());
        let dirs = |args: &[&str]| {
            let args = ["x"].iter().chain(args).map(OsString::from);
            let args: DaemonArgs = parse_args(args).unwrap();
            args.house.house(&environment).unwrap().1
        };
        let default = dirs(&[]);
        assert_eq!(default, environment.dirs().unwrap());
        let named = dirs(&["--runtime-dir", "/run/vitriol"]);
        assert_eq!(named.runtime.to_str(), Some("/run/vitriol"));
        assert_eq!(named.state, default.state);
    }

    #[test]
    fn a_profile_that_is_not_there_is_a_matter_of_configuration() {
        let args: DaemonArgs =
            parse_args(["x", "--profile", "/nowhere/p.toml"].map(OsString::from)).unwrap();
        let failure = args.house.profile().unwrap_err();
        assert_eq!(failure.exit, Exit::Config);
        assert!(failure.message.contains("/nowhere/p.toml"), "{failure}");
    }

    #[test]
    fn help_is_no_failure() {
        let failure = parse(&["--help"]).unwrap_err();
        assert_eq!(failure, Failure::silent(Exit::Ok));
    }
}
