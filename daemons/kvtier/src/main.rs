//! `vitriol-kvtier`: KV beyond the life of the process that computed it, as a process.

use std::process::ExitCode;

fn main() -> ExitCode {
    vitriol_kvtier::main()
}
