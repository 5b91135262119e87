//! `vitriol config save`: the settings in force as a profile that says all and explains it.

use std::path::Path;

use vitriol_chassis::{Exit, Failure};
use vitriol_profile::Profile;

use super::{check_model_stays, load::write_whole};
use crate::term;

const HEADING: &str = "Every setting of the house as it was in force when this was saved, with what \
                       each means. `vitriol config check FILE` checks it, `vitriol config load FILE` \
                       makes it the profile in use.";

/// Writes the profile to `file`, whole or not at all.
///
/// Errors: a file that is there and may not be replaced (64), a place that cannot be written (69), a
/// model that would be another one there (78).
pub fn run(profile: &Profile, file: &Path, force: bool) -> Result<(), Failure> {
    if file.exists() && !force {
        let message = format!(
            "{}: is there already; name another file, or replace it with --force",
            file.display()
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    check_model_stays(profile, file)?;
    write_whole(file, profile.to_document(HEADING).as_bytes())?;
    term::print(format_args!("{}: saved\n", file.display()))
}
