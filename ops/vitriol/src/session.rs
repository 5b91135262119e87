//! `vitriol session`: conversations that name themselves, and the KV that is stored of them.

mod report;
mod transfer;

use std::{
    io::{self, BufRead, IsTerminal},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::timeout;
use tonic::{Code, Status, transport::Channel};
use vitriol_chassis::{Environment, Exit, Failure};
use vitriol_ipc::{HouseDirs, connect};
use vitriol_profile::Overrides;
use vitriol_proto::kvtier::v1::{
    ListSessionsRequest, RemoveSessionRequest, RestoreSessionRequest, SessionInfo,
    SyncSessionRequest, kv_tier_client::KvTierClient,
};
use vitriol_units::Bytes;

use crate::{
    cli::{
        SessionCommand, SessionRestoreArgs, SessionRmArgs, SessionSaveArgs, SettingArgs, StatusArgs,
    },
    house,
    term::{self, Paint, printable},
};

/// The catalogue is in memory; longer than this the tier is not well.
const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// What is destroyed is overwritten on its disk first.
const REMOVE_DEADLINE: Duration = Duration::from_secs(600);

pub async fn run(command: SessionCommand, environment: &Environment) -> Result<(), Failure> {
    match command {
        SessionCommand::List(args) => list(&args, environment).await,
        SessionCommand::Save(args) => save(&args, environment).await,
        SessionCommand::Restore(args) => restore(&args, environment).await,
        SessionCommand::Export(args) => transfer::export(&args, environment).await,
        SessionCommand::Import(args) => transfer::import(&args, environment).await,
        SessionCommand::Rm(args) => remove(&args, environment).await,
    }
}

/// kvtier of a house.
struct Tier {
    client: KvTierClient<Channel>,
    dirs: HouseDirs,
}

impl Tier {
    fn locate(settings: &SettingArgs, environment: &Environment) -> Result<Self, Failure> {
        let listen = settings.load(Overrides::new())?.house.listen;
        let dirs = house::locate(&environment.dirs()?, listen);
        let client = KvTierClient::new(connect(&dirs.kvtier_socket()));
        Ok(Self { client, dirs })
    }

    /// The answer of a call.
    async fn ask<T>(
        &self,
        within: Duration,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Failure> {
        match timeout(within, call).await {
            Ok(answer) => answer.map_err(|status| self.failure(&status)),
            Err(_) => {
                let seconds = within.as_secs();
                Err(self.gone(&format!("no answer within {seconds} s; call again")))
            }
        }
    }

    fn failure(&self, status: &Status) -> Failure {
        // A transport, or a kvtier of another release, may say no more than its code.
        let message = match status.message() {
            "" => status.code().description().to_owned(),
            message => printable(message),
        };
        match status.code() {
            Code::NotFound | Code::InvalidArgument | Code::AlreadyExists => {
                Failure::new(Exit::Usage, message)
            }
            Code::FailedPrecondition | Code::DataLoss => Failure::new(Exit::Config, message),
            Code::Aborted | Code::ResourceExhausted => Failure::new(Exit::Dependency, message),
            _ => self.gone(&message),
        }
    }

    fn gone(&self, cause: &str) -> Failure {
        let message = format!(
            "kvtier at {}: {cause}; it runs where the profile has enabled = true in [kvtier]",
            self.dirs.kvtier_socket().display()
        );
        Failure::new(Exit::Dependency, message)
    }
}

async fn list(args: &StatusArgs, environment: &Environment) -> Result<(), Failure> {
    let tier = Tier::locate(&args.settings, environment)?;
    let sessions = sessions(&tier).await?;
    let paint = Paint(environment.color && io::stdout().is_terminal());
    match args.json {
        true => term::print(format_args!("{:#}\n", report::to_json(&sessions))),
        false => term::print(report::describe(&sessions, unix_ms(), paint)),
    }
}

async fn sessions(tier: &Tier) -> Result<Vec<SessionInfo>, Failure> {
    let mut client = tier.client.clone();
    let call = client.list_sessions(ListSessionsRequest {});
    let mut listed = tier.ask(CALL_DEADLINE, call).await?.into_inner();
    let mut sessions = Vec::new();
    while let Some(session) = tier.ask(CALL_DEADLINE, listed.message()).await? {
        sessions.push(session);
    }
    Ok(sessions)
}

async fn save(args: &SessionSaveArgs, environment: &Environment) -> Result<(), Failure> {
    let tier = Tier::locate(&args.settings, environment)?;
    let mut client = tier.client.clone();
    let request = SyncSessionRequest {
        id: args.id.clone(),
        within_ms: args.within * 1000,
    };
    let call = client.sync_session(request);
    let synced = tier.ask(deadline(args.within), call).await?.into_inner();
    match synced.cause.as_str() {
        "" => term::print(report::saved(&synced)),
        _ => Err(Failure::new(
            Exit::Dependency,
            report::not_saved(&args.id, &synced),
        )),
    }
}

async fn restore(args: &SessionRestoreArgs, environment: &Environment) -> Result<(), Failure> {
    let tier = Tier::locate(&args.settings, environment)?;
    let mut client = tier.client.clone();
    let request = RestoreSessionRequest {
        id: args.id.clone(),
        bytes_max: args.bytes_max.map_or(0, Bytes::get),
        within_ms: args.within * 1000,
        only_free: false,
    };
    let call = client.restore_session(request);
    let restored = tier.ask(deadline(args.within), call).await?.into_inner();
    match restored.cause.as_str() {
        "" => term::print(report::restored(&restored)),
        _ => Err(Failure::new(
            Exit::Dependency,
            report::not_restored(&args.id, &restored),
        )),
    }
}

/// When kvtier, which was told how long it may take, must have answered.
fn deadline(within_s: u32) -> Duration {
    Duration::from_secs(within_s.into()) + CALL_DEADLINE
}

async fn remove(args: &SessionRmArgs, environment: &Environment) -> Result<(), Failure> {
    let tier = Tier::locate(&args.settings, environment)?;
    if !args.yes {
        let sessions = sessions(&tier).await?;
        let session = sessions.iter().find(|session| session.id == args.id);
        let session = session.ok_or_else(|| unknown(&args.id))?;
        let question = format!(
            "Destroy the KV of session '{}', {} tokens?",
            printable(&session.id),
            session.tokens
        );
        if !confirm(&question)? {
            return term::print("nothing is destroyed\n");
        }
    }
    let mut client = tier.client.clone();
    let request = RemoveSessionRequest {
        id: args.id.clone(),
    };
    let call = client.remove_session(request);
    let removed = tier.ask(REMOVE_DEADLINE, call).await?.into_inner();
    match removed.cause.as_str() {
        "" => term::print(report::removed(&removed)),
        _ => Err(Failure::new(
            Exit::Dependency,
            report::not_removed(&args.id, &removed),
        )),
    }
}

fn unknown(id: &str) -> Failure {
    let id = printable(id);
    Failure::new(
        Exit::Usage,
        format!("there is no session '{id}'; 'vitriol session list' has all"),
    )
}

/// Asks on the terminal. Errors: there is none.
fn confirm(question: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        let message = "nobody is there to be asked; say --yes";
        return Err(Failure::new(Exit::Usage, message));
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    // No answer is a no.
    let _ = io::stdin().lock().read_line(&mut answer);
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}
