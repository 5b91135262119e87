//! The processes themselves: an engine that is killed while it answers.

use super::{DEADLINE, KvTier, SETTINGS};
use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tokio_stream::StreamExt;
use vitriol_ipc::connect;
use vitriol_proto::{
    engine::v1::{
        Finished, GetModelRequest, Sampling, SessionRequest, StepEvents, Submit, TokenPrompt,
        Usage, engine_client::EngineClient, event::Kind, session_request, submit::Prompt,
    },
    status::v1::{GetRequest, status_client::StatusClient},
};
use vitriol_testkit::places::zoo_model;

struct Process {
    child: Child,
    socket: PathBuf,
}

impl Process {
    /// An engine of the house that `kvtier` is of.
    fn start(kvtier: &KvTier) -> Self {
        let home = kvtier.directory.path();
        let profile = home.join("engine.toml");
        let model = zoo_model("llama.q8_0").unwrap();
        let engine = format!(
            "[engine.main]\nmodel = '{}'\nthreads = 2\n",
            model.display()
        );
        fs::write(
            &profile,
            format!("{engine}{SETTINGS}lookup_ms_max = 60000\n"),
        )
        .unwrap();
        let socket = home.join("run/vitriol/engine/main.sock");
        let child = Command::new(env!("CARGO_BIN_EXE_vitriol-engine"))
            .env_clear()
            .env("HOME", home)
            .env("XDG_RUNTIME_DIR", home.join("run"))
            .arg("serve")
            .arg("--profile")
            .arg(&profile)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, socket }
    }

    async fn serves(&self) {
        let mut client = EngineClient::new(connect(&self.socket));
        let began = Instant::now();
        while client.get_model(GetModelRequest {}).await.is_err() {
            assert!(began.elapsed() < DEADLINE, "the engine does not serve");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until a counter or gauge of its metrics is at least `least`.
    async fn counts(&self, name: &str, least: u64) {
        let mut client = StatusClient::new(connect(&self.socket));
        let began = Instant::now();
        loop {
            let metrics = client
                .get(GetRequest {})
                .await
                .unwrap()
                .into_inner()
                .metrics;
            let start = format!("vitriol_engine_tier_{name} ");
            let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
            let count: u64 = line.expect("it is counted").parse().unwrap();
            if count >= least {
                return;
            }
            assert!(began.elapsed() < DEADLINE, "{name}: {count}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The events of a greedy answer to a prompt of token ids.
    async fn ask(&self, ids: Vec<u32>, tokens: u32) -> tonic::Streaming<StepEvents> {
        let submit = Submit {
            request_id: 1,
            session_id: "s".into(),
            prompt: Some(Prompt::Tokens(TokenPrompt { ids })),
            max_tokens: Some(tokens),
            ignore_eog: true,
            window_tokens: 10_000,
            sampling: Some(Sampling::default()),
            ..Submit::default()
        };
        let kind = session_request::Kind::Submit(submit);
        let request = SessionRequest { kind: Some(kind) };
        let requests = tokio_stream::once(request).chain(tokio_stream::pending());
        let mut client = EngineClient::new(connect(&self.socket));
        client.session(requests).await.unwrap().into_inner()
    }

    /// Its text and its figures.
    async fn answer(&self, ids: Vec<u32>, tokens: u32) -> (String, Usage) {
        let (mut text, mut events) = (String::new(), self.ask(ids, tokens).await);
        loop {
            for event in events.message().await.unwrap().unwrap().events {
                match event.kind.unwrap() {
                    Kind::Delta(delta) => text += &delta.text,
                    Kind::Finished(Finished { usage, .. }) => return (text, usage.unwrap()),
                    Kind::Failed(failed) => panic!("{failed:?}"),
                    Kind::Accepted(_) | Kind::Prefill(_) => {}
                }
            }
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[tokio::test]
async fn a_conversation_comes_back_when_the_engine_is_killed_in_the_middle() {
    let kvtier = KvTier::start();
    let prompt: Vec<u32> = (0..400).map(|i| 8 + i * 7 % 362).collect();
    let blocks = 384;
    let engine = Process::start(&kvtier);
    engine.serves().await;
    engine.counts("attached", 1).await;
    let (expected, usage) = engine.answer(prompt.clone(), 200).await;
    assert_eq!((usage.cached_tokens, usage.arena_tokens), (0, 0));
    engine.counts("pages_spilled_total", blocks / 64).await;
    // Another answer is under way.
    let mut running = engine
        .ask(prompt.iter().rev().copied().collect(), 3000)
        .await;
    running.message().await.unwrap().unwrap();
    engine.kill();

    let engine = Process::start(&kvtier);
    engine.serves().await;
    engine.counts("attached", 1).await;
    let (answer, usage) = engine.answer(prompt, 200).await;
    assert_eq!(answer, expected);
    assert_eq!((usage.cached_tokens, usage.arena_tokens), (384, 384));
    assert!(usage.tier_ms > 0.0);
}
