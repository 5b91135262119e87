//! `vitriol-demiurge`: the HTTP door of the house as a process.

use std::process::ExitCode;

use vitriol_chassis as chassis;
use vitriol_demiurge::{Args, run};

fn main() -> ExitCode {
    chassis::main("vitriol-demiurge", |environment| {
        let args: Args = chassis::parse_args(std::env::args_os())?;
        let (config, log_format) = args.load(&environment)?;
        let setup = chassis::Setup::new("demiurge", env!("CARGO_PKG_VERSION"))
            .log_format(log_format)
            .drain(config.drain);
        chassis::run(setup, &environment, async |daemon| {
            run(config, environment.inherited.clone(), daemon).await
        })
    })
}
