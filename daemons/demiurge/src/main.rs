//! `vitriol-demiurge`: the HTTP door of the house as a process.

use std::process::ExitCode;

fn main() -> ExitCode {
    vitriol_demiurge::main()
}
