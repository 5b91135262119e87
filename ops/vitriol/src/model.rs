//! `vitriol model`: bring model files in, list them, look into them.

pub mod digest;
mod fetch;
mod info;
mod list;
pub mod python;

use std::ffi::OsStr;

use vitriol_chassis::{Environment, Exit, Failure};
use vitriol_ipc::HouseDirs;
use vitriol_profile::catalog;
use vitriol_units::Bytes;

use self::fetch::{Cache, FetchError, Fetched, Step};
use crate::{
    cli::{FetchArgs, ModelCommand},
    term::{self, Line, LiveLines, bar},
};

pub fn run(command: ModelCommand, environment: &Environment) -> Result<(), Failure> {
    let dirs = environment.dirs()?;
    match command {
        ModelCommand::Fetch(args) => fetch(&args, &dirs, environment.path.as_deref()),
        ModelCommand::Info(args) => info::run(&args, environment),
        ModelCommand::List { json } => {
            let listed = list::list(&dirs.models());
            match json {
                true => term::print(format_args!("{:#}\n", list::to_json(&listed))),
                false => term::print(list::describe(&listed)),
            }
        }
    }
}

fn fetch(args: &FetchArgs, dirs: &HouseDirs, path: Option<&OsStr>) -> Result<(), Failure> {
    let named = args.name.as_deref();
    let model = catalog::find(named).ok_or_else(|| {
        let known: Vec<&str> = catalog::KNOWN.iter().map(|known| known.name).collect();
        let message = format!(
            "model '{}' is not known; known are: {}",
            named.unwrap_or_default(),
            known.join(", ")
        );
        Failure::new(Exit::Usage, message)
    })?;
    let mut lines = LiveLines::on_stderr();
    let cache = Cache::open(&dirs.cache, |step| show(&mut lines, step))?;
    let fetched = match &args.file {
        Some(file) => cache.take_file(file, named.map(|_| model), |step| show(&mut lines, step)),
        None => cache.fetch(model, path, |step| show(&mut lines, step)),
    };
    lines.show(Vec::new());
    match fetched? {
        Fetched::AlreadyThere(path) => {
            term::print(format_args!("{}: already there\n", path.display()))
        }
        Fetched::Stored(path) => {
            let what = path
                .file_name()
                .and_then(OsStr::to_str)
                .and_then(catalog::by_file);
            let licence = what
                .map(|known| format!(" ({})", known.licence))
                .unwrap_or_default();
            term::print(format_args!("{}{licence}\n", path.display()))
        }
    }
}

fn show(lines: &mut LiveLines, step: Step) {
    let progress = |what: &str, done, all| {
        let of = Bytes(all).rounded();
        (
            format!("{what:<11} {} of {of}", bar(done, all)),
            format!("{what} {of}"),
        )
    };
    let plain = |what: &str| (what.to_owned(), what.to_owned());
    let (text, log) = match step {
        Step::WaitingForLock => plain("waiting for another fetch to end"),
        Step::PreparingPython => plain("preparing pip in a virtual environment"),
        Step::Downloading { done, all } => progress("downloading", done, all),
        Step::Unpacking { done, all } => progress("unpacking", done, all),
        Step::Copying { done, all } => progress("copying", done, all),
        Step::Checking => plain("checking sha256"),
    };
    lines.show(vec![Line { text, log }]);
}

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Self {
        let exit = match &error {
            FetchError::NoPython
            | FetchError::NoVenv { .. }
            | FetchError::Download { .. }
            | FetchError::DiskFull { .. }
            | FetchError::NoRoom { .. } => Exit::Dependency,
            FetchError::Digest { .. } | FetchError::NotGguf(_) | FetchError::Dirs(_) => {
                Exit::Config
            }
            FetchError::Unzip { .. } | FetchError::Io { .. } => Exit::Internal,
        };
        Failure::of(exit, error)
    }
}
