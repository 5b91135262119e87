//! A house whose engine is the test's.

use std::{
    fs,
    os::unix::{
        fs::symlink,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::process::Signal;
use tokio::task::JoinHandle;
use tokio_stream::Empty;
use tonic::{
    Request, Response, Status as RpcStatus, Streaming,
    transport::{Channel, Server},
};
use vitriol_ipc::{Listener, connect};
use vitriol_proto::{
    engine::v1::{
        DetokenizeRequest, DetokenizeResponse, GetModelRequest, GetModelResponse, ListSlotsRequest,
        ListSlotsResponse, SessionRequest, ShedRequest, ShedResponse, Slot, SlotState, StepEvents,
        TokenizeRequest, TokenizeResponse,
        engine_server::{Engine, EngineServer},
    },
    persist::v1::persist_client::PersistClient,
    status::v1::{
        Field, GetRequest, GetResponse, Health,
        status_client::StatusClient,
        status_server::{Status, StatusServer},
    },
};
use vitriol_testkit::eventually;

pub const DEADLINE: Duration = Duration::from_secs(30);

/// What the engine of a test is like; clones share what happens to it.
#[derive(Clone, Debug, Default)]
pub struct Standin {
    /// By how much its loop goes on from one look to the next.
    pub pace: u64,
    /// Looks in which it is busy with an answer, after it was asked to take nothing new.
    pub busy: u64,
    pub fingerprint: Vec<Field>,
    pub started_at_ms: u64,
    /// Of the house's process.
    pub pid: u32,
    pub looks: Arc<AtomicU64>,
    /// Times that it was asked to take nothing new, and what runs.
    pub sheds: Arc<AtomicU64>,
    pub slots_asked: Arc<AtomicU64>,
}

#[tonic::async_trait]
impl Status for Standin {
    async fn get(&self, _: Request<GetRequest>) -> Result<Response<GetResponse>, RpcStatus> {
        let looks = self.looks.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(GetResponse {
            daemon: "engine".to_owned(),
            pid: self.pid,
            health: Health::Ready.into(),
            progress: self.pace * looks,
            fingerprint: self.fingerprint.clone(),
            started_at_ms: self.started_at_ms,
            ..GetResponse::default()
        }))
    }
}

#[tonic::async_trait]
impl Engine for Standin {
    type SessionStream = Empty<Result<StepEvents, RpcStatus>>;

    async fn session(
        &self,
        _: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, RpcStatus> {
        Err(RpcStatus::unimplemented("not asked for"))
    }

    async fn get_model(
        &self,
        _: Request<GetModelRequest>,
    ) -> Result<Response<GetModelResponse>, RpcStatus> {
        Err(RpcStatus::unimplemented("not asked for"))
    }

    async fn list_slots(
        &self,
        _: Request<ListSlotsRequest>,
    ) -> Result<Response<ListSlotsResponse>, RpcStatus> {
        let asked = self.slots_asked.fetch_add(1, Ordering::Relaxed);
        let state = match asked < self.busy {
            true => SlotState::Decode,
            false => SlotState::Idle,
        };
        let slot = Slot {
            state: state.into(),
            ..Slot::default()
        };
        Ok(Response::new(ListSlotsResponse {
            slots: vec![slot],
            ..ListSlotsResponse::default()
        }))
    }

    async fn tokenize(
        &self,
        _: Request<TokenizeRequest>,
    ) -> Result<Response<TokenizeResponse>, RpcStatus> {
        Err(RpcStatus::unimplemented("not asked for"))
    }

    async fn detokenize(
        &self,
        _: Request<DetokenizeRequest>,
    ) -> Result<Response<DetokenizeResponse>, RpcStatus> {
        Err(RpcStatus::unimplemented("not asked for"))
    }

    async fn shed(
        &self,
        request: Request<ShedRequest>,
    ) -> Result<Response<ShedResponse>, RpcStatus> {
        assert!((1..=600_000).contains(&request.into_inner().duration_ms));
        self.sheds.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(ShedResponse {}))
    }
}

impl Standin {
    pub fn sheds(&self) -> u64 {
        self.sheds.load(Ordering::Relaxed)
    }

    pub fn slots_asked(&self) -> u64 {
        self.slots_asked.load(Ordering::Relaxed)
    }
}

pub struct House {
    directory: tempfile::TempDir,
    pub engine: Standin,
    pub process: Child,
    persist: Option<Child>,
    serving: Option<JoinHandle<()>>,
}

impl House {
    /// An engine whose process is called `name` and whose loop goes on at `pace`.
    pub fn new(name: &str, pace: u64) -> Self {
        Self::with(
            name,
            Standin {
                pace,
                ..Standin::default()
            },
            &[],
        )
    }

    /// The same with an engine that is like `engine`, its process started by way of `wrapper`.
    pub fn with(name: &str, engine: Standin, wrapper: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join(name);
        // Not a copy: while another test forks, its child has what we write open, and it cannot be run.
        symlink("/bin/sleep", &program).unwrap();
        let mut command = match wrapper {
            [] => {
                let mut command = Command::new(program);
                command.arg0("sleep");
                command
            }
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        let process = command.arg("1000").spawn().unwrap();
        // A wrapper still has its own name for a moment.
        let comm = format!("/proc/{}/comm", process.id());
        let is_named = || (fs::read_to_string(&comm).unwrap().trim() == name).then_some(());
        tokio::task::block_in_place(|| eventually(DEADLINE, "its name", is_named)).unwrap();
        let engine = Standin {
            pid: process.id(),
            ..engine
        };
        let mut house = Self {
            directory,
            engine,
            process,
            persist: None,
            serving: None,
        };
        house.serve();
        house
    }

    fn serve(&mut self) {
        if let Some(before) = self.serving.take() {
            before.abort();
        }
        // The socket of the one before goes with it.
        let socket = self.engine_socket();
        let bind = || Listener::bind(&socket).ok();
        let listener = tokio::task::block_in_place(|| eventually(DEADLINE, "the socket", bind));
        let served = Server::builder()
            .add_service(StatusServer::new(self.engine.clone()))
            .add_service(EngineServer::new(self.engine.clone()))
            .serve_with_incoming(listener.unwrap().incoming());
        self.serving = Some(tokio::spawn(async { served.await.unwrap() }));
    }

    /// Another launch of the engine, in the same process, like `engine`.
    pub fn relaunch(&mut self, engine: Standin) {
        self.engine = Standin {
            pid: self.process.id(),
            ..engine
        };
        self.serve();
    }

    pub fn engine_socket(&self) -> PathBuf {
        self.at("run/vitriol/engine/main.sock")
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts persist, with these lines more in its table of the profile.
    pub fn watch(&mut self, more: &str) {
        let profile = self.at("profile.toml");
        let settings = format!("[persist]\npoll_interval_ms = 100\nhang_polls = 3\n{more}\n");
        fs::write(&profile, settings).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vitriol-persist"));
        command
            .env_clear()
            .env("HOME", self.directory.path())
            .env("XDG_RUNTIME_DIR", self.at("run"))
            .arg("--profile")
            .arg(profile)
            .stdin(Stdio::null())
            .stderr(
                fs::File::options()
                    .create(true)
                    .append(true)
                    .open(self.at("log"))
                    .unwrap(),
            );
        self.persist = Some(command.spawn().unwrap());
    }

    /// Kills persist, as a crash would.
    pub fn kill_persist(&mut self) {
        let mut persist = self.persist.take().unwrap();
        persist.kill().unwrap();
        persist.wait().unwrap();
    }

    /// How the engine's process ended.
    pub async fn end(&mut self) -> ExitStatus {
        let process = &mut self.process;
        let ended = tokio::task::block_in_place(|| {
            eventually(DEADLINE, "the end of the engine", || {
                process.try_wait().unwrap()
            })
        });
        ended.unwrap()
    }

    /// Waits for so many looks and then for what persist counts.
    pub async fn metrics_after(&self, looks: u64) -> String {
        while self.engine.looks.load(Ordering::Relaxed) < looks {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let status = StatusClient::new(self.persist()).get(GetRequest {}).await;
        status.unwrap().into_inner().metrics
    }

    pub fn persist(&self) -> Channel {
        connect(&self.at("run/vitriol/persist/persist.sock"))
    }

    pub fn launches(&self) -> PersistClient<Channel> {
        PersistClient::new(self.persist())
    }

    pub fn log(&self) -> String {
        read(&self.at("log"))
    }

    /// The log once it says `what`.
    pub fn log_with(&self, what: &str) -> String {
        let said = || Some(self.log()).filter(|log| log.contains(what));
        tokio::task::block_in_place(|| eventually(DEADLINE, what, said)).unwrap()
    }
}

impl Drop for House {
    fn drop(&mut self) {
        // They may have ended, as they should.
        for child in self.persist.iter_mut().chain([&mut self.process]) {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

pub fn signal_of(status: ExitStatus) -> Option<Signal> {
    status.signal().and_then(Signal::from_named_raw)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}
