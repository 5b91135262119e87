//! `vitriol-kvtier`: KV beyond the life of the process that computed it, as a process.

use std::process::ExitCode;

use vitriol_chassis as chassis;
use vitriol_kvtier::{Args, run};

fn main() -> ExitCode {
    chassis::main("vitriol-kvtier", |environment| {
        let args: Args = chassis::parse_args(std::env::args_os())?;
        if args.check_enabled()? {
            return Ok(());
        }
        let (config, log_format) = args.load(&environment)?;
        let setup = chassis::Setup::new("kvtier", env!("CARGO_PKG_VERSION"))
            .log_format(log_format)
            .drain(config.drain);
        chassis::run(setup, &environment, async |daemon| {
            run(config, environment.inherited.clone(), daemon).await
        })
    })
}
