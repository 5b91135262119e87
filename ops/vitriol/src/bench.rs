//! `vitriol bench`: the engine's own figures, by its binary; and those of a running house, through its
//! API, as a client sees them.

pub mod args;
mod client;
mod http;
mod soak;
mod timeline;

use std::{ffi::OsString, os::unix::process::CommandExt, path::PathBuf, process::Command};

use vitriol_chassis::{Environment, Exit, Failure, OrExit};
use vitriol_profile::Overrides;
use vitriol_sysfs::Sysfs;

use self::{
    args::{BenchArgs, BenchCommand, HouseArgs, Via},
    client::Client,
};
use crate::{house, http::Api};

pub async fn run(args: &BenchArgs, environment: &Environment) -> Result<(), Failure> {
    match (&args.command, args.via) {
        (Some(BenchCommand::Soak(soak)), _) => soak::run(soak, environment).await,
        (None, Via::Http) if !args.engine_args.is_empty() => {
            let message = "--via http measures the house that runs: no model and no options of the \
                           engine's bench go with it";
            Err(Failure::new(Exit::Usage, message))
        }
        (None, Via::Http) => http::run(args, environment).await,
        (None, Via::Engine) => Err(become_engine(args)),
    }
}

/// Becomes `vitriol-engine bench`, which alone links the kernels; comes back only where it cannot.
fn become_engine(args: &BenchArgs) -> Failure {
    let engine = match &args.bin_dir {
        Some(directory) => Ok(directory.join("vitriol-engine")),
        None => std::env::current_exe().map(|own| own.with_file_name("vitriol-engine")),
    };
    let engine: PathBuf = match engine.or_exit(Exit::Internal) {
        Ok(engine) => engine,
        Err(failure) => return failure,
    };
    let arguments = [OsString::from("bench")];
    let error = Command::new(&engine)
        .args(arguments.iter().chain(&args.engine_args))
        .exec();
    Failure::new(
        Exit::Dependency,
        format!("cannot run {}: {error}", engine.display()),
    )
}

/// A running house: its API, and the processes whose memory is looked at.
#[derive(Debug)]
struct Target {
    client: Client,
    /// (name, pid) of the daemons that answer.
    daemons: Vec<(&'static str, u32)>,
    engine_socket: PathBuf,
}

impl Target {
    /// Finds the house of the settings. Errors: nobody answers there, or its model speaks no text.
    async fn find(args: &HouseArgs, environment: &Environment) -> Result<Self, Failure> {
        let listen = args.settings.load(Overrides::new())?.house.listen;
        if !listen.ip().is_loopback() {
            let message =
                format!("{listen} is not this machine's own address; bench loads no other");
            return Err(Failure::new(Exit::Usage, message));
        }
        let api = Api::new(&format!("http://{listen}")).or_exit(Exit::Usage)?;
        let client = Client::open(api).await.or_exit(Exit::Dependency)?;
        let dirs = house::locate(&environment.dirs()?, listen);
        let (engine_socket, demiurge_socket) = (dirs.engine_socket("main"), dirs.demiurge_socket());
        let (engine, demiurge) = tokio::join!(
            house::ask_status_at(&engine_socket),
            house::ask_status_at(&demiurge_socket)
        );
        let statuses = [("engine", engine), ("demiurge", demiurge)];
        let daemons = statuses.into_iter().filter_map(|(name, status)| {
            let pid = status?.pid;
            (pid > 0).then_some((name, pid))
        });
        Ok(Self {
            client,
            daemons: daemons.collect(),
            engine_socket,
        })
    }

    /// Resident bytes of each daemon now.
    fn resident_bytes(&self) -> Result<Vec<(&'static str, u64)>, Failure> {
        let host = Sysfs::host();
        let of = |&(name, pid): &(&'static str, u32)| {
            host.process_resident_bytes(pid).map(|bytes| (name, bytes))
        };
        let bytes: Result<Vec<_>, _> = self.daemons.iter().map(of).collect();
        bytes.or_exit(Exit::Dependency)
    }
}
