//! The process: whom it ends, and whom not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

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
use tonic::{Request, Response, Status as RpcStatus, transport::Server};
use vitriol_ipc::{Listener, connect};
use vitriol_proto::status::v1::{
    GetRequest, GetResponse, Health,
    status_client::StatusClient,
    status_server::{Status, StatusServer},
};
use vitriol_testkit::{eventually, process};

const DEADLINE: Duration = Duration::from_secs(30);

/// Answers for an engine whose process is another.
struct Engine {
    pid: u32,
    /// By how much its loop goes on from one look to the next.
    pace: u64,
    looks: Arc<AtomicU64>,
}

#[tonic::async_trait]
impl Status for Engine {
    async fn get(&self, _: Request<GetRequest>) -> Result<Response<GetResponse>, RpcStatus> {
        let looks = self.looks.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(GetResponse {
            daemon: "engine".to_owned(),
            pid: self.pid,
            health: Health::Ready.into(),
            progress: self.pace * looks,
            ..GetResponse::default()
        }))
    }
}

struct House {
    directory: tempfile::TempDir,
    looks: Arc<AtomicU64>,
    process: Child,
    persist: Option<Child>,
}

impl House {
    /// An engine whose process is called `name` and whose loop goes on at `pace`.
    fn new(name: &str, pace: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join(name);
        // Not a copy: while another test forks, its child has what we write open, and it cannot be run.
        symlink("/bin/sleep", &program).unwrap();
        let looks = Arc::new(AtomicU64::new(0));
        let process = Command::new(program)
            .arg0("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let socket = directory.path().join("run/vitriol/engine/main.sock");
        let engine = Engine {
            pid: process.id(),
            pace,
            looks: Arc::clone(&looks),
        };
        let listener = Listener::bind(&socket).unwrap();
        tokio::spawn(
            Server::builder()
                .add_service(StatusServer::new(engine))
                .serve_with_incoming(listener.incoming()),
        );
        Self {
            directory,
            looks,
            process,
            persist: None,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn watch(&mut self) {
        let profile = self.at("profile.toml");
        let settings = "[persist]\npoll_interval_ms = 100\nhang_polls = 3\n";
        fs::write(&profile, settings).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vitriol-persist"));
        command
            .env_clear()
            .env("HOME", self.directory.path())
            .env("XDG_RUNTIME_DIR", self.at("run"))
            .arg("--profile")
            .arg(profile)
            .stdin(Stdio::null())
            .stderr(fs::File::create(self.at("log")).unwrap());
        self.persist = Some(command.spawn().unwrap());
    }

    /// How the engine's process ended.
    async fn end(&mut self) -> ExitStatus {
        let process = &mut self.process;
        let ended = tokio::task::block_in_place(|| {
            eventually(DEADLINE, "the end of the engine", || {
                process.try_wait().unwrap()
            })
        });
        ended.unwrap()
    }

    /// Waits for so many looks and then for what persist counts.
    async fn metrics_after(&self, looks: u64) -> String {
        while self.looks.load(Ordering::Relaxed) < looks {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let socket = self.at("run/vitriol/persist/persist.sock");
        let status = StatusClient::new(connect(&socket)).get(GetRequest {}).await;
        status.unwrap().into_inner().metrics
    }

    fn log(&self) -> String {
        fs::read_to_string(self.at("log")).unwrap()
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

fn signal_of(status: ExitStatus) -> Option<Signal> {
    status.signal().and_then(Signal::from_named_raw)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_stands_still_is_ended_and_its_threads_are_told() {
    let mut house = House::new("vitriol-standin", 0);
    house.watch();
    assert_eq!(signal_of(house.end().await), Some(Signal::ABORT));
    let log = &house.at("log");
    let told = || Some(read(log)).filter(|log| log.contains("stood still and was ended"));
    let told = tokio::task::block_in_place(|| eventually(DEADLINE, "the log", told)).unwrap();
    assert!(told.contains("vitriol-standin S 0s"), "{told}");
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_daemon_is_killed() {
    let mut house = House::new("vitriol-standin", 0);
    process::stop(house.process.id(), DEADLINE).unwrap();
    house.watch();
    assert_eq!(signal_of(house.end().await), Some(Signal::KILL));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_moves_is_left_alone() {
    let mut house = House::new("vitriol-standin", 1);
    house.watch();
    let metrics = house.metrics_after(35).await;
    let unit = "{unit=\"vitriol-engine@main.service\"}";
    let still = format!("vitriol_persist_still_polls{unit} 0\n");
    assert!(metrics.contains(&still), "{metrics}");
    assert!(
        !metrics.contains("vitriol_persist_hangs_total{"),
        "{metrics}"
    );
    assert_eq!(house.process.try_wait().unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_not_the_houses_is_not_ended() {
    let mut house = House::new("standin", 0);
    house.watch();
    let metrics = house.metrics_after(35).await;
    let unit = "{unit=\"vitriol-engine@main.service\"}";
    let failures = format!("vitriol_persist_end_failures_total{unit} 1\n");
    assert!(metrics.contains(&failures), "{metrics}");
    assert_eq!(house.process.try_wait().unwrap(), None);
    assert!(house.log().contains("end it by hand"), "{}", house.log());
}
