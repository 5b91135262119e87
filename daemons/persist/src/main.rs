//! `vitriol-persist`: the watch over the daemons, as a process.

use std::process::ExitCode;

use vitriol_chassis as chassis;
use vitriol_persist::{Args, run};

fn main() -> ExitCode {
    chassis::main("vitriol-persist", |environment| {
        let args: Args = chassis::parse_args(std::env::args_os())?;
        let (config, log_format) = args.load(&environment)?;
        let setup =
            chassis::Setup::new("persist", env!("CARGO_PKG_VERSION")).log_format(log_format);
        chassis::run(setup, &environment, async |daemon| {
            run(config, daemon).await
        })
    })
}
