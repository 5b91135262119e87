//! The command line of a binary.

use std::ffi::OsString;

use clap::{Parser, error::ErrorKind};

use crate::{Exit, Failure};

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

    #[test]
    fn help_is_no_failure() {
        let failure = parse(&["--help"]).unwrap_err();
        assert_eq!(failure, Failure::silent(Exit::Ok));
    }
}
