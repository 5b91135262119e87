//! `vitriol session export` and `import`: kvtier writes and reads the file; here it is opened and handed over.

use std::{fs::File, io, os::fd::AsFd, path::Path, time::Duration};

use tokio::{io::AsyncWriteExt, time::timeout};
use tonic::{Response, Status, Streaming};
use vitriol_chassis::{Environment, Exit, Failure};
use vitriol_ipc::{connect_stream, send_descriptor};
use vitriol_proto::kvtier::v1::{
    ExportSessionRequest, ImportSessionRequest, TransferEvent, Transferred, transfer_event::Kind,
};
use vitriol_units::Bytes;

use super::{CALL_DEADLINE, Tier};
use crate::{
    cli::{SessionExportArgs, SessionImportArgs},
    term::{self, printable},
};

/// Every record is told of; longer than this none takes.
const RECORD_DEADLINE: Duration = Duration::from_secs(60);

pub async fn export(args: &SessionExportArgs, environment: &Environment) -> Result<(), Failure> {
    let tier = Tier::locate(&args.settings, environment)?;
    let path = &args.file;
    if path.exists() && !args.force {
        return Err(there_already(path));
    }
    // Under another name until it is whole; removed when that never comes, and nobody else's to read.
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let draft = tempfile::Builder::new()
        .prefix(".vitriol-session-")
        .tempfile_in(directory.unwrap_or(Path::new(".")))
        .map_err(|error| failed("make", path, &error))?;
    let mut client = tier.client.clone();
    let request = ExportSessionRequest {
        id: args.id.clone(),
    };
    let call = client.export_session(request);
    let done = transfer(&tier, call, draft.as_file()).await?;
    let kept = match args.force {
        true => draft.persist(path),
        false => draft.persist_noclobber(path),
    };
    kept.map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => there_already(path),
        _ => failed("name", path, &error.error),
    })?;
    term::print(format_args!(
        "session '{}': {} records, {}, in {}\n",
        printable(&done.id),
        done.records,
        Bytes(done.bytes).rounded(),
        path.display()
    ))
}

pub async fn import(args: &SessionImportArgs, environment: &Environment) -> Result<(), Failure> {
    let tier = Tier::locate(&args.settings, environment)?;
    let file = File::open(&args.file).map_err(|error| failed("open", &args.file, &error))?;
    let mut client = tier.client.clone();
    let request = ImportSessionRequest {
        id: args.id.clone().unwrap_or_default(),
        replace: args.replace,
    };
    let call = client.import_session(request);
    let done = transfer(&tier, call, &file).await?;
    term::print(format_args!(
        "session '{}': {} records are taken over; its next turn goes on with them\n",
        printable(&done.id),
        done.records
    ))
}

/// Hands `file` over and waits until kvtier is done with it. An interrupted call leaves nothing behind.
async fn transfer(
    tier: &Tier,
    call: impl Future<Output = Result<Response<Streaming<TransferEvent>>, Status>>,
    file: &File,
) -> Result<Transferred, Failure> {
    let moved = async {
        let mut events = tier.ask(CALL_DEADLINE, call).await?.into_inner();
        loop {
            let event = tier.ask(RECORD_DEADLINE, events.message()).await?;
            match event.and_then(|event| event.kind) {
                Some(Kind::Token(token)) => {
                    let socket = tier.dirs.kvtier_arena_socket();
                    let handed = timeout(CALL_DEADLINE, hand_over(&socket, &token, file)).await;
                    let handed = handed.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                    handed
                        .map_err(|error| tier.gone(&format!("the file is not taken: {error}")))?;
                }
                Some(Kind::Progress(_)) => {}
                Some(Kind::Done(done)) => return Ok(done),
                None => return Err(tier.gone("its answer ended early")),
            }
        }
    };
    tokio::select! {
        moved = moved => moved,
        _ = tokio::signal::ctrl_c() => {
            Err(Failure::new(Exit::Dependency, "interrupted; nothing is kept of it"))
        }
    }
}

async fn hand_over(socket: &Path, token: &[u8], file: &File) -> io::Result<()> {
    let mut stream = connect_stream(socket).await?;
    stream.write_all(token).await?;
    send_descriptor(&stream, file.as_fd()).await
}

fn there_already(path: &Path) -> Failure {
    let message = format!("{} is there; --force replaces it", path.display());
    Failure::new(Exit::Usage, message)
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    let message = format!("cannot {what} {}: {error}", path.display());
    Failure::new(Exit::Config, message)
}
