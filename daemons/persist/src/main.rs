//! `vitriol-persist`: the watch over the daemons, as a process.

use std::process::ExitCode;

fn main() -> ExitCode {
    vitriol_persist::main()
}
