//! `vitriol-engine`: see `vitriol-engine --help`.

use std::process::ExitCode;
use vitriol_chassis as chassis;
use vitriol_engine::commands::{Args, Command, bench, check, perplexity, run, serve};

fn main() -> ExitCode {
    chassis::main("vitriol-engine", |environment| {
        let args: Args = chassis::parse_args(std::env::args_os())?;
        match args.command {
            Command::Serve(args) => serve::serve(args, &environment),
            Command::Run(args) => run::run(args, &environment),
            Command::Check(args) => check::run(&args, &environment),
            Command::Perplexity(args) => perplexity::run(args, &environment),
            Command::Bench(args) => bench::run(&args, &environment),
            Command::BenchWorker(args) => bench::work(&args, &environment),
        }
    })
}
