//! The real binary, started in a directory of its own.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use vitriol_proto::engine::v1::{FinishReason, Submit};
use vitriol_testkit::http::{Client, EventStream};
use vitriol_testkit::{eventually, process};

use super::scripted_engine::{Act, SOON, ScriptedEngine};

/// A running Demiurge; killed when dropped.
pub struct Demiurge {
    child: Child,
    dir: PathBuf,
    pub address: SocketAddr,
}

/// A house of an engine and a Demiurge, in a directory that goes when it does.
pub struct House {
    // Dropped in this order: first the door, then the engine, then their directory.
    pub demiurge: Demiurge,
    pub engine: ScriptedEngine,
    pub dir: TempDir,
}

impl House {
    /// Both, with this script and these lines under `[demiurge]` in the profile; ready to answer.
    pub fn start(
        settings: &str,
        script: impl Fn(&Submit) -> Vec<Act> + Send + Sync + 'static,
    ) -> House {
        let dir = tempfile::tempdir().unwrap();
        let engine = ScriptedEngine::start(dir.path(), script);
        let demiurge = Demiurge::start(dir.path(), engine.socket(), settings);
        demiurge.until_ready();
        House {
            demiurge,
            engine,
            dir,
        }
    }

    /// One whose every answer is "Hello there".
    pub fn greeting() -> House {
        House::start("", |_| hello())
    }

    pub fn client(&self) -> Client {
        self.demiurge.client()
    }
}

/// The acts of a short answer. Its text is one token: several may come in one chunk or in more, as
/// the reader is quick.
pub fn hello() -> Vec<Act> {
    vec![
        Act::Accept,
        Act::Prefill(8),
        Act::Say("Hello there"),
        Act::Finish(FinishReason::Stop),
    ]
}

/// A chat request of one message.
pub fn chat(stream: bool) -> Value {
    json!({
        "model": "smol",
        "messages": [{ "role": "user", "content": "a question about violets" }],
        "stream": stream,
    })
}

impl Demiurge {
    /// Starts the binary and waits until it has bound its port.
    pub fn start(dir: &Path, engine_socket: &Path, settings: &str) -> Demiurge {
        let address_file = dir.join("demiurge/demiurge.addr");
        let _ = fs::remove_file(&address_file);
        let mut child = command(dir, engine_socket, settings, "127.0.0.1:0")
            .spawn()
            .unwrap();
        let address = eventually(SOON, "demiurge binds its port", || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("demiurge ended with {status}: {}", log(dir));
            }
            fs::read_to_string(&address_file).ok()?.trim().parse().ok()
        });
        Demiurge {
            child,
            dir: dir.to_owned(),
            address: address.unwrap(),
        }
    }

    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until /health says ok.
    pub fn until_ready(&self) {
        eventually(SOON, "health ok", || {
            (self.client().get("/health").ok()?.status() == 200).then_some(())
        })
        .unwrap();
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        process::signal(self.pid(), Signal::TERM).unwrap();
    }

    /// Waits for its end.
    pub fn wait(&mut self, within: Duration) -> ExitStatus {
        eventually(within, "demiurge ends", || self.child.try_wait().unwrap()).unwrap()
    }

    /// All it wrote to its log.
    pub fn log(&self) -> String {
        log(&self.dir)
    }

    /// The decisions so far.
    pub fn decisions(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.dir.join("state/decisions.jsonl")).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Waits for the first `count` decisions.
    pub fn until_decisions(&self, count: usize) -> Vec<Value> {
        let what = format!("{count} decisions");
        eventually(SOON, &what, || {
            Some(self.decisions()).filter(|all| all.len() >= count)
        })
        .unwrap()
    }

    /// A metric without labels, as of now.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let page = self.client().get("/metrics").unwrap().text();
        page.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// Waits until no request holds a place, and the engine has none.
    pub fn until_nothing_runs(&self) {
        self.until_metric("vitriol_demiurge_requests_in_flight", 0.0);
        self.until_metric("vitriol_demiurge_engine_requests", 0.0);
    }

    /// Waits until a metric has a value.
    pub fn until_metric(&self, name: &str, value: f64) {
        let what = format!("{name} {value}");
        eventually(SOON, &what, || {
            (self.metric(name) == Some(value)).then_some(())
        })
        .unwrap();
    }
}

/// The text of a stream that comes to its end.
pub fn text_of(stream: &mut EventStream) -> String {
    let mut text = String::new();
    while let Some(chunk) = stream.next_chunk().unwrap() {
        text += chunk["choices"][0]["delta"]["content"]
            .as_str()
            .unwrap_or_default();
    }
    text
}

impl Drop for Demiurge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log(dir: &Path) -> String {
    fs::read_to_string(dir.join("demiurge.log")).unwrap_or_default()
}

/// The binary with everything in `dir`.
pub fn command(dir: &Path, engine_socket: &Path, settings: &str, listen: &str) -> Command {
    let profile = dir.join("profile.toml");
    fs::write(&profile, format!("[demiurge]\n{settings}\n")).unwrap();
    let log = File::options()
        .create(true)
        .append(true)
        .open(dir.join("demiurge.log"))
        .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vitriol-demiurge"));
    command
        .arg("--profile")
        .arg(profile)
        .args(["--listen", listen])
        .arg("--engine-socket")
        .arg(engine_socket)
        .arg("--status-socket")
        .arg(dir.join("demiurge/demiurge.sock"))
        .arg("--state-dir")
        .arg(dir.join("state"))
        .env_clear()
        .env("HOME", dir)
        .env("XDG_RUNTIME_DIR", dir)
        // Everything it could say, so that tests may look for what it must not.
        .env("VITRIOL_LOG", "vitriol_demiurge=trace,info")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    command
}
