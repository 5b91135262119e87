//! The process. Here and not in `main.rs`, since what an async function does is compiled where it is awaited: this way
//! once, with the rest of the crate.

use std::process::ExitCode;

use vitriol_chassis as chassis;

use crate::app::run;
use crate::args::Args;

/// Runs the daemon with the arguments and the environment of this process, to its end.
pub fn main() -> ExitCode {
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
