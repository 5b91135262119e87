//! `cargo xtask`: structure checks and generated documents, by hand.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool"
)]

use std::process::ExitCode;

use anyhow::Result;
use xtask::{layers, profile_docs, workspace_root};

const USAGE: &str = "usage: cargo xtask layers | profile-docs

  layers         check layers, api-map.toml and where unsafe and async code lie
  profile-docs   write profiles/README.md from the profile schema";

const EXIT_USAGE: u8 = 64;
const EXIT_INTERNAL: u8 = 70;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["layers"] => check_layers(),
        ["profile-docs"] => write_profile_docs(),
        ["--help" | "-h" | "help"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    done.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::from(EXIT_INTERNAL)
    })
}

fn check_layers() -> Result<ExitCode> {
    let broken = layers::check(&workspace_root())?;
    for line in &broken {
        eprintln!("{line}");
    }
    if broken.is_empty() {
        println!("layers: every rule holds");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

fn write_profile_docs() -> Result<ExitCode> {
    let root = workspace_root();
    let changed = profile_docs::write(&root)?;
    let state = if changed { "written" } else { "up to date" };
    println!("{}: {state}", profile_docs::path(&root).display());
    Ok(ExitCode::SUCCESS)
}
