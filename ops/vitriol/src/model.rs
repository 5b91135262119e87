//! `vitriol model`: bring model files in, list them, look into them.

pub mod catalog;
pub mod digest;
mod fetch;
mod info;
pub mod python;

use std::{ffi::OsStr, fs, path::Path};

use vitriol_chassis::{Environment, Exit, Failure, OrExit};
use vitriol_ipc::HouseDirs;
use vitriol_units::Bytes;

use self::{
    catalog::KnownModel,
    fetch::{Cache, FetchError, Fetched, Step},
    info::Info,
};
use crate::{
    cli::{FetchArgs, ModelCommand},
    term::{self, Line, LiveLines, bar},
};

pub fn run(command: ModelCommand, environment: &Environment) -> Result<(), Failure> {
    let dirs = environment.dirs()?;
    match command {
        ModelCommand::Fetch(args) => fetch(&args, &dirs, environment.path.as_deref()),
        ModelCommand::Info { file, json } => {
            let file = file.unwrap_or_else(|| dirs.default_model());
            let info = Info::read(&file).or_exit(Exit::Config)?;
            match json {
                true => term::print(format_args!("{:#}\n", info.to_json())),
                false => term::print(info.describe()),
            }
        }
        ModelCommand::List => term::print(list(&dirs.models())),
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

/// Known models first, then whatever else lies in the cache.
fn list(models: &Path) -> String {
    let known = |known: &KnownModel| {
        let state = match models.join(known.file).metadata() {
            Ok(found) if found.len() == known.bytes => "in the cache",
            Ok(_) => "damaged; fetch it again",
            Err(_) => "not fetched",
        };
        format!(
            "{:<24} {:>9}  {:<11} {state}; {}\n",
            known.name,
            Bytes(known.bytes).rounded().to_string(),
            known.licence,
            known.about,
        )
    };
    let mut others: Vec<String> = fs::read_dir(models)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let other = name.ends_with(".gguf") && catalog::by_file(&name).is_none();
            let size = Bytes(entry.metadata().ok()?.len()).rounded().to_string();
            other.then(|| format!("{:<24} {size:>9}  {}\n", name, entry.path().display()))
        })
        .collect();
    others.sort();
    catalog::KNOWN.iter().map(known).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_tells_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let text = list(dir.path());
        assert!(
            text.contains("smollm2-135m-instruct     93.8 MiB  Apache-2.0  not fetched"),
            "{text}"
        );
        fs::write(dir.path().join(catalog::KNOWN[0].file), "short").unwrap();
        fs::write(dir.path().join("own.gguf"), "x").unwrap();
        let text = list(dir.path());
        assert!(text.contains("damaged; fetch it again"), "{text}");
        assert!(text.contains("own.gguf"), "{text}");
        assert_eq!(
            list(Path::new("/nonexistent")).lines().count(),
            catalog::KNOWN.len()
        );
    }
}
