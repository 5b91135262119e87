//! `vitriol doctor`: can this machine run the house, and if not, what helps.

mod check;
mod checks;
mod storage;

use vitriol_chassis::{Environment, Exit, Failure};
use vitriol_profile::Overrides;
use vitriol_sysfs::Sysfs;

use self::{
    check::{Check, describe, to_json, verdict},
    checks::Subject,
};
use crate::{
    cli::DoctorArgs,
    house,
    term::{self, Paint},
};

pub async fn run(args: &DoctorArgs, environment: &Environment) -> Result<(), Failure> {
    let profile = args.settings.load(Overrides::new())?;
    let model = match profile.model("main") {
        Some(named) => environment.model_file(named)?,
        None => environment.dirs()?.default_model(),
    };
    let dirs = house::locate(&environment.dirs()?, profile.house.listen);
    let subject = Subject {
        sysfs: Sysfs::host(),
        running: house::ask_status_at(&dirs.demiurge_socket())
            .await
            .map(|status| status.pid),
        bin_dir: std::env::current_exe()
            .ok()
            .and_then(|binary| Some(binary.parent()?.to_owned()))
            .unwrap_or_default(),
        search_path: environment.path.clone(),
        profile,
        model,
        dirs,
    };
    let checks = subject.check_all();
    if args.json {
        term::print(format_args!("{:#}\n", to_json(&checks)))?;
    } else {
        let paint =
            Paint(environment.color && std::io::IsTerminal::is_terminal(&std::io::stdout()));
        term::print(describe(&checks, paint))?;
    }
    match verdict(&checks) {
        check::Level::Fail => Err(Failure::new(Exit::Finding, "")),
        _ => Ok(()),
    }
}
