//! `vitriol-oom-shield`: what keeps the kernel's OOM killer off the house, as a process.

use std::process::ExitCode;

fn main() -> ExitCode {
    vitriol_oom_shield::main()
}
