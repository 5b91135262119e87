//! `vitriol-oom-shield`: what keeps the kernel's OOM killer off the house, as a process.

use std::process::ExitCode;

use vitriol_chassis as chassis;
use vitriol_oom_shield::{Args, run};

fn main() -> ExitCode {
    chassis::main("vitriol-oom-shield", |environment| {
        let args: Args = chassis::parse_args(std::env::args_os())?;
        let (config, log_format) = args.load(&environment)?;
        let setup = chassis::Setup::new("oom-shield", env!("CARGO_PKG_VERSION"))
            .log_format(log_format)
            .drain(config.drain);
        chassis::run(setup, &environment, async |daemon| {
            run(config, daemon).await
        })
    })
}
