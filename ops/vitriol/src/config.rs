//! `vitriol config`: the settings and where each came from.

use vitriol_chassis::Failure;
use vitriol_profile::{Overrides, Profile, reference_markdown};

use crate::{cli::ConfigCommand, term};

pub fn run(command: ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Show { settings, origin } => {
            term::print(settings.load(Overrides::new())?.to_toml(origin))
        }
        ConfigCommand::Check { file } => {
            Profile::load(Some(&file), &Overrides::new())?;
            term::print(format_args!("{}: ok\n", file.display()))
        }
        ConfigCommand::Reference => term::print(reference_markdown()),
    }
}
