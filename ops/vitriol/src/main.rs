//! `vitriol`: run the house, talk to it, look into it.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]

mod bench;
mod chat;
mod cli;
mod completions;
mod config;
mod doctor;
mod fingerprint;
mod house;
mod http;
mod install;
mod kv;
mod logs;
mod manual;
mod model;
mod session;
mod shield;
mod status;
mod term;
mod up;

use std::process::ExitCode;

use vitriol_chassis::{self as chassis, Environment, Exit, Failure, OrExit};

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    chassis::main("vitriol", |environment| {
        let mut cli: Cli = chassis::parse_args(std::env::args_os())?;
        if let Some(settings) = cli.command.settings_mut() {
            config::use_installed(settings, &environment);
        }
        // One thread: every command waits more than it computes.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .or_exit(Exit::Internal)?;
        let result = runtime.block_on(run(cli.command, &environment));
        // A blocked read of the terminal must not hold the process back.
        runtime.shutdown_background();
        result
    })
}

async fn run(command: Command, environment: &Environment) -> Result<(), Failure> {
    match command {
        Command::Up(args) => up::run(&args, environment).await,
        Command::Chat(args) => chat::run(&args, environment).await,
        Command::Status(args) => status::run(&args, environment).await,
        Command::Shield(command) => shield::run(command, environment).await,
        Command::Kv(command) => kv::run(command, environment).await,
        Command::Session(command) => session::run(command, environment).await,
        Command::Fingerprint(command) => fingerprint::run(command, environment).await,
        Command::Doctor(args) => doctor::run(&args, environment).await,
        Command::Model(command) => model::run(command, environment),
        Command::Install(args) => install::install(&args, environment),
        Command::Uninstall(args) => install::uninstall(&args, environment),
        Command::CheckPort { listen } => up::check_port(listen),
        Command::Config(command) => config::run(command, environment),
        Command::Logs(args) => logs::run(&args, environment).await,
        Command::Bench(args) => bench::run(&args, environment).await,
        Command::Completions { shell } => completions::run(shell),
        Command::Man { dir } => manual::run(dir.as_deref()),
    }
}
