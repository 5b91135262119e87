//! `vitriol completions`: what a shell needs to complete the command line.

use clap::CommandFactory;
use clap_complete::Shell;
use vitriol_chassis::Failure;

use crate::{cli::Cli, term};

pub fn run(shell: Shell) -> Result<(), Failure> {
    term::print(String::from_utf8_lossy(&script(shell)))
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "vitriol", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_gets_every_command() {
        for shell in Shell::value_variants() {
            let text = String::from_utf8(script(*shell)).unwrap();
            let command = Cli::command();
            let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
            for name in shown.map(clap::Command::get_name) {
                assert!(text.contains(name), "{shell}: no {name}");
            }
        }
    }
}
