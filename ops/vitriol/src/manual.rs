//! `vitriol man`: manual pages, made from the command line's own help.

use std::{fs, io, path::Path};

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use vitriol_chassis::{Exit, Failure, OrExit};

use crate::{cli::Cli, term};

/// Prints the page of `vitriol`, or writes the pages of all commands into `dir`.
pub fn run(dir: Option<&Path>) -> Result<(), Failure> {
    let pages = pages().or_exit(Exit::Internal)?;
    let Some(dir) = dir else {
        let own = pages.first().map_or(&[][..], |(_, page)| page);
        return term::print(String::from_utf8_lossy(own));
    };
    fs::create_dir_all(dir)
        .with_context(|| format!("create {}", dir.display()))
        .or_exit(Exit::Dependency)?;
    for (name, page) in &pages {
        let path = dir.join(name);
        fs::write(&path, page)
            .with_context(|| format!("write {}", path.display()))
            .or_exit(Exit::Dependency)?;
    }
    let count = pages.len();
    term::print(format_args!("{count} pages in {}\n", dir.display()))
}

/// File name and source of every page, the program's own first.
fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut pages = Vec::new();
    // The pages refer to each other; 'help' would only say so again.
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    add_pages(&command, "vitriol", &mut pages)?;
    Ok(pages)
}

fn add_pages(command: &Command, name: &str, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    let mut page = Vec::new();
    let titled = command.clone().display_name(name.to_owned());
    Man::new(titled)
        // In the date's place, which must not be empty or the two below would take it; the release is
        // what a page belongs to, and building it again gives the same page.
        .date(concat!("VITRIOL ", env!("CARGO_PKG_VERSION")))
        .source("VITRIOL")
        .manual("VITRIOL commands")
        .render(&mut page)?;
    pages.push((format!("{name}.1"), page));
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        add_pages(sub, &format!("{name}-{}", sub.get_name()), pages)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_that_describes_it() {
        let pages = pages().unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[0], "vitriol.1");
        for name in [
            "vitriol-up.1",
            "vitriol-config-diff.1",
            "vitriol-model-fetch.1",
        ] {
            assert!(names.contains(&name), "{names:?}");
        }
        for (name, page) in &pages {
            let text = String::from_utf8(page.clone()).unwrap();
            let title = name.trim_end_matches(".1");
            let release = env!("CARGO_PKG_VERSION");
            let head = format!(".TH {title} 1 \"VITRIOL {release}\" VITRIOL \"VITRIOL commands\"");
            assert!(text.contains(&head), "{name}: {text}");
            assert!(text.contains(".SH SYNOPSIS"), "{name}");
        }
    }
}
