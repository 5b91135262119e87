//! The Session stream with the default model: what a Demiurge sees.

use crate::limits::{limits, steady_ms};
use serde_json::{Value as Json, json};
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};
use vitriol_chassis::Heartbeat;
use vitriol_engine::{
    engine::{Engine, EngineLimits},
    kv::KvCodecs,
    load::{Repack, load, start},
    metrics::EngineMetrics,
    scheduler::StepBounds,
    service::{EngineService, Serving},
    session,
};
use vitriol_profile::Speculation;
use vitriol_proto::engine::v1::{
    Cancel, ChatPrompt, Credit, FailureKind, FinishReason, Finished, Sampling, SessionRequest,
    ShedRequest, StepEvents, Submit, TextPrompt, TokenPrompt, Usage, engine_server::Engine as _,
    event::Kind, session_request, submit::Prompt,
};
use vitriol_testkit::{eventually, places};

const DEADLINE: Duration = Duration::from_secs(120);

fn engine() -> Arc<Engine> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    // On a plain thread: starting an engine waits for its self test.
    let engine = ENGINE.get_or_init(|| std::thread::spawn(started).join().unwrap());
    Arc::clone(engine)
}

fn started() -> Arc<Engine> {
    let loaded = load(
        &places::default_model().unwrap(),
        2,
        None,
        &Repack::Ram,
        |_, _| 0,
        &mut |_| {},
    )
    .unwrap();
    let defaults = limits(&[85]);
    let limits = EngineLimits {
        alias: "smol".to_owned(),
        context_tokens: 1024,
        sequences_max: 8,
        queue_max: 32,
        bounds: StepBounds {
            tokens_max: 256,
            ..defaults.bounds
        },
        step_ms: steady_ms,
        ..defaults
    };
    Arc::new(
        start(
            loaded,
            limits,
            EngineMetrics::default(),
            Heartbeat::silent(),
            None,
        )
        .unwrap(),
    )
}

/// An engine of its own, with the zoo's model, for tests that end it.
fn small_engine() -> Arc<Engine> {
    let loaded = load(
        &places::zoo_model("llama.f32").unwrap(),
        1,
        None,
        &Repack::Ram,
        |_, _| 0,
        &mut |_| {},
    )
    .unwrap();
    let limits = EngineLimits {
        alias: "zoo".to_owned(),
        codecs: KvCodecs::F32,
        speculation: Speculation::PromptLookup,
        pages: vec![64],
        ..engine().limits.clone()
    };
    Arc::new(
        start(
            loaded,
            limits,
            EngineMetrics::default(),
            Heartbeat::silent(),
            None,
        )
        .unwrap(),
    )
}

/// One Session stream and what came of it.
struct Peer {
    requests: mpsc::Sender<Result<SessionRequest, Status>>,
    replies: mpsc::Receiver<Result<StepEvents, Status>>,
    seen: Vec<(u64, Kind)>,
}

impl Peer {
    fn connect() -> Self {
        Self::connect_to(engine())
    }

    fn connect_to(engine: Arc<Engine>) -> Self {
        let (requests, stream) = mpsc::channel(64);
        let (replies_in, replies) = mpsc::channel(4);
        let tokenising = Arc::new(Semaphore::new(2));
        tokio::spawn(session::run(
            engine,
            tokenising,
            ReceiverStream::new(stream),
            replies_in,
        ));
        Self {
            requests,
            replies,
            seen: Vec::new(),
        }
    }

    async fn send(&self, kind: session_request::Kind) {
        self.requests
            .send(Ok(SessionRequest { kind: Some(kind) }))
            .await
            .unwrap();
    }

    async fn submit(&self, submit: Submit) {
        self.send(session_request::Kind::Submit(submit)).await;
    }

    /// Reads until `enough` says so of the events of one request.
    async fn until(&mut self, request_id: u64, enough: impl Fn(&[&Kind]) -> bool) {
        let read = async {
            loop {
                let own: Vec<&Kind> = self
                    .seen
                    .iter()
                    .filter(|(id, _)| *id == request_id)
                    .map(|(_, k)| k)
                    .collect();
                if enough(&own) {
                    return;
                }
                let message = self
                    .replies
                    .recv()
                    .await
                    .expect("the stream is open")
                    .unwrap();
                self.seen.extend(
                    message
                        .events
                        .into_iter()
                        .map(|e| (e.request_id, e.kind.unwrap())),
                );
            }
        };
        tokio::time::timeout(DEADLINE, read).await.expect("in time");
    }

    /// A request whose answer has begun and goes on for a while.
    async fn stream_without_end(&mut self, request_id: u64) {
        self.submit(Submit {
            ignore_eog: true,
            ..text(request_id, "Once upon a time", 900)
        })
        .await;
        self.until(request_id, |own| {
            own.iter().any(|k| matches!(k, Kind::Delta(_)))
        })
        .await;
    }

    async fn text(&mut self, request_id: u64) -> (String, Finished) {
        self.until(request_id, |own| {
            matches!(own.last(), Some(Kind::Finished(_) | Kind::Failed(_)))
        })
        .await;
        let mut text = String::new();
        for (id, kind) in &self.seen {
            match kind {
                Kind::Delta(delta) if *id == request_id => text.push_str(&delta.text),
                Kind::Finished(finished) if *id == request_id => return (text, finished.clone()),
                Kind::Failed(failed) if *id == request_id => panic!("{failed:?}"),
                _ => {}
            }
        }
        unreachable!("the last event was Finished");
    }

    async fn failure(&mut self, request_id: u64) -> (FailureKind, String) {
        self.until(request_id, |own| {
            matches!(own.last(), Some(Kind::Failed(_)))
        })
        .await;
        let last = self.seen.iter().rfind(|(id, _)| *id == request_id);
        let Some((_, Kind::Failed(failed))) = last else {
            unreachable!("just seen")
        };
        (failed.kind(), failed.message.clone())
    }
}

fn greedy() -> Sampling {
    Sampling {
        top_p: 1.0,
        ..Sampling::default()
    }
}

fn text(request_id: u64, text: &str, max_tokens: u32) -> Submit {
    let prompt = TextPrompt {
        text: text.to_owned(),
        ..TextPrompt::default()
    };
    Submit {
        request_id,
        prompt: Some(Prompt::Text(prompt)),
        sampling: Some(greedy()),
        max_tokens: Some(max_tokens),
        ..Submit::default()
    }
}

fn chat(request_id: u64, messages: &str) -> Submit {
    let chat = ChatPrompt {
        messages_json: messages.as_bytes().to_vec(),
        ..ChatPrompt::default()
    };
    Submit {
        prompt: Some(Prompt::Chat(chat)),
        ..text(request_id, "", 24)
    }
}

async fn everything_given_back() {
    tokio::task::spawn_blocking(|| {
        eventually(DEADLINE, "nothing runs", || {
            let snapshot = engine().step.snapshot();
            (snapshot.slots.is_empty() && snapshot.pool.held == 0).then_some(())
        })
    })
    .await
    .unwrap()
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_is_accepted_streamed_and_finished_with_its_usage() {
    let mut peer = Peer::connect();
    // Longer than a block: of prompts that are shorter, the cache finds the latest alone, which may be that of a test beside
    // this one.
    let walk = "I went for a walk over the hills with my dog, my sister and two friends of hers. ";
    let question = format!("{}What color is the sky on a clear day?", walk.repeat(4));
    let messages = json!([{"role": "user", "content": question}]).to_string();
    peer.submit(chat(7, &messages)).await;
    let (answer, finished) = peer.text(7).await;
    assert!(answer.contains("blue"), "{answer}");
    let usage = finished.usage.unwrap();
    assert!(matches!(peer.seen[0].1, Kind::Accepted(a) if a.prompt_tokens == usage.prompt_tokens));
    assert!(
        usage.completion_tokens > 3 && usage.prefill_ms > 0.0,
        "{usage:?}"
    );

    // The same again: all but the last token comes from the cache, the answer is the same.
    peer.submit(chat(8, &messages)).await;
    let (again, finished) = peer.text(8).await;
    assert_eq!(again, answer);
    let cached = finished.usage.unwrap().cached_tokens;
    assert_eq!(cached, usage.prompt_tokens - 1);
}

/// Token ids of a chat as the engine gives them to itself.
fn chat_ids(messages: &Json) -> Vec<u32> {
    let engine = engine();
    let language = engine.language.as_ref().unwrap();
    let messages = messages.to_string();
    let prompt = language
        .template
        .render(messages.as_bytes(), b"", b"", true);
    prompt.unwrap().encode(&language.tokenizer)
}

/// The first token and the message that are said to be others than in the request before.
fn diverged(usage: &Usage) -> Option<(usize, Option<u32>)> {
    let token = usage.diverged_token.map(|token| token as usize);
    token.map(|token| (token, usage.diverged_message))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_history_changed_hears_where() {
    let mut peer = Peer::connect();
    let mut next_id = 0;
    let mut ask = async |session: &str, tenant: &str, messages: &Json| {
        next_id += 1;
        peer.submit(Submit {
            session_id: session.to_owned(),
            tenant_id: tenant.to_owned(),
            ..chat(next_id, &messages.to_string())
        })
        .await;
        let (answer, finished) = peer.text(next_id).await;
        (answer, finished.usage.unwrap())
    };
    let says = |role: &str, text: &str| json!({ "role": role, "content": text });
    let long = |text: &str| format!("{text} ").repeat(25);
    let system = says("system", &long("Violets are blue on Monday."));
    let first = says("user", &long("What is the color of the sky?"));
    let second = says("user", &long("And that of the sea?"));
    let other = says("user", &long("And that of a wood?"));

    let one_turn = json!([system, first]);
    let (answer, usage) = ask("violets", "", &one_turn).await;
    assert_eq!(diverged(&usage), None, "nothing is known");
    let answer = says("assistant", &answer);
    let two_turns = json!([system, first, answer, second]);
    let (_, usage) = ask("violets", "", &two_turns).await;
    assert_eq!(diverged(&usage), None, "only appended");
    assert!(usage.cached_tokens as usize >= chat_ids(&one_turn).len() / 64 * 64);

    // Each is an edit of the request before.
    let edits = [
        (json!([system, first, answer, other]), 3),
        (json!([system, other]), 1),
        (
            json!([says("system", &long("Violets are blue on Friday.")), other]),
            0,
        ),
    ];
    let mut before = two_turns;
    for (messages, message) in edits {
        let mut both = chat_ids(&before).into_iter().zip(chat_ids(&messages));
        let token = both.position(|(a, b)| a != b).unwrap();
        let (_, usage) = ask("violets", "", &messages).await;
        assert_eq!(diverged(&usage), Some((token, Some(message))), "{messages}");
        assert!(usage.cached_tokens as usize <= token, "{usage:?}");
        before = messages;
    }
    for (session, tenant) in [("roses", ""), ("violets", "another"), ("", "")] {
        let (_, usage) = ask(session, tenant, &one_turn).await;
        assert_eq!(diverged(&usage), None, "{session} {tenant}");
    }
    assert_eq!(engine().metrics.prompts_diverged.get(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_up_or_cost_nothing_is_no_divergence() {
    let engine = tokio::task::spawn_blocking(small_engine).await.unwrap();
    let mut peer = Peer::connect_to(engine);
    let mut next_id = 0;
    let mut ask = async |session: &str, seed: u32, tokens: u32| {
        next_id += 1;
        let ids = (0..tokens).map(|i| 8 + (i * 7 + seed * 31) % 362).collect();
        peer.submit(Submit {
            session_id: session.to_owned(),
            prompt: Some(Prompt::Tokens(TokenPrompt { ids })),
            ignore_eog: true,
            ..text(next_id, "", 1)
        })
        .await;
        peer.text(next_id).await.1.usage.unwrap()
    };
    // Two things in turn under one name, and both are held.
    for (seed, expected) in [(1, None), (2, Some((0, None))), (1, None), (2, None)] {
        let usage = ask("a", seed, 400).await;
        assert_eq!(diverged(&usage), expected, "{seed}");
    }
    // More than there are pages for, of others.
    for seed in 3..16 {
        ask("", seed, 400).await;
    }
    let usage = ask("a", 2, 430).await;
    assert!(usage.cached_tokens < 384, "{usage:?}");
    assert_eq!(diverged(&usage), None, "given up, and as before");
    let usage = ask("a", 1, 430).await;
    assert_eq!(diverged(&usage), Some((0, None)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_string_ends_before_itself_wherever_tokens_cut_it() {
    let mut peer = Peer::connect();
    peer.submit(text(1, "Count: 1, 2, 3, 4, 5,", 40)).await;
    let (whole, finished) = peer.text(1).await;
    assert_eq!(finished.reason(), FinishReason::Length);
    assert_eq!(finished.usage.unwrap().completion_tokens, 40);
    // Every stretch of the answer serves as a stop string.
    let chars: Vec<char> = whole.chars().collect();
    for (i, start) in (2..chars.len() - 4).step_by(5).enumerate() {
        let stop: String = chars[start..start + 3].iter().collect();
        let id = 100 + i as u64;
        peer.submit(Submit {
            stop: vec![stop.clone()],
            ..text(id, "Count: 1, 2, 3, 4, 5,", 40)
        })
        .await;
        let (cut, finished) = peer.text(id).await;
        assert_eq!(cut, whole[..whole.find(&stop).unwrap()], "stop {stop:?}");
        assert_eq!(finished.reason(), FinishReason::Stop);
        assert_eq!(finished.stopping_string, stop);
    }
    everything_given_back().await;
}

/// An answer that repeats its prompt comes in drafts; a stop string amid one ends it all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_string_amid_a_draft_ends_before_itself() {
    let mut peer = Peer::connect();
    let prompt = "The old wooden door, the old wooden gate, the old wooden door, the old wooden gate, the \
                  old wooden door,";
    peer.submit(text(1, prompt, 60)).await;
    let (whole, finished) = peer.text(1).await;
    let usage = finished.usage.unwrap();
    assert!(
        usage.accepted_tokens > 10 && usage.accepted_tokens <= usage.drafted_tokens,
        "{usage:?}"
    );
    for (id, stop) in (2..).zip([" old", "wooden", "den d", "r, the", "door", "r, the old"]) {
        let cut_by = Submit {
            stop: vec![stop.to_owned()],
            ..text(id, prompt, 60)
        };
        peer.submit(cut_by).await;
        let (cut, finished) = peer.text(id).await;
        assert_eq!(cut, whole[..whole.find(stop).unwrap()], "stop {stop:?}");
        assert_eq!(finished.reason(), FinishReason::Stop);
        let usage = finished.usage.unwrap();
        assert!(usage.accepted_tokens < usage.completion_tokens, "{usage:?}");
    }
    everything_given_back().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_machine_is_short_of_memory_only_what_was_accepted_goes_on() {
    let engine = tokio::task::spawn_blocking(small_engine).await.unwrap();
    let service = EngineService::default();
    let call = |duration_ms| service.shed(Request::new(ShedRequest { duration_ms }));
    assert_eq!(call(1).await.unwrap_err().code(), Code::Unavailable);
    service.serve(Serving::new(
        Arc::clone(&engine),
        "m.gguf".into(),
        0,
        String::new(),
    ));
    for wrong in [0, 600_001] {
        let refused = call(wrong).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{wrong}");
    }
    let mut peer = Peer::connect_to(Arc::clone(&engine));
    let tokens = |request_id| Submit {
        prompt: Some(Prompt::Tokens(TokenPrompt { ids: vec![5, 6, 7] })),
        ignore_eog: true,
        ..text(request_id, "", 40)
    };
    peer.submit(tokens(1)).await;
    peer.until(1, |own| !own.is_empty()).await;
    call(600_000).await.unwrap();
    peer.submit(tokens(2)).await;
    let (kind, message) = peer.failure(2).await;
    assert_eq!(kind, FailureKind::Busy);
    assert!(message.contains("short of memory"), "{message}");
    let hint = peer.seen.iter().find_map(|(id, kind)| match kind {
        Kind::Failed(failed) if *id == 2 => Some(failed.retry_after_ms),
        _ => None,
    });
    assert!((1..=600_000).contains(&hint.unwrap()), "{hint:?}");
    assert_eq!(engine.metrics.requests_shed.get(), 1);
    assert_eq!(peer.text(1).await.1.reason(), FinishReason::Length);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_ends_a_request_and_frees_its_pages() {
    let mut peer = Peer::connect();
    peer.stream_without_end(1).await;
    peer.send(session_request::Kind::Cancel(Cancel { request_id: 1 }))
        .await;
    let (_, finished) = peer.text(1).await;
    assert_eq!(finished.reason(), FinishReason::Cancelled);
    // Cancelled in the same breath as submitted: before it is tokenised.
    peer.submit(text(2, "Once upon a time", 900)).await;
    peer.send(session_request::Kind::Cancel(Cancel { request_id: 2 }))
        .await;
    assert_eq!(peer.text(2).await.1.reason(), FinishReason::Cancelled);
    everything_given_back().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_ends_cancels_its_requests() {
    let mut peer = Peer::connect();
    peer.stream_without_end(1).await;
    drop(peer);
    everything_given_back().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_credit_a_request_pauses_at_its_window() {
    let mut peer = Peer::connect();
    let windowed = Submit {
        window_tokens: 8,
        ignore_eog: true,
        session_id: "paused".to_owned(),
        ..text(1, "Once upon a time", 60)
    };
    peer.submit(windowed).await;
    let tokens = |own: &[&Kind]| -> u32 {
        own.iter()
            .map(|k| if let Kind::Delta(d) = k { d.tokens } else { 0 })
            .sum()
    };
    peer.until(1, |own| tokens(own) >= 8).await;
    // Another request of the same stream is not held up by it.
    peer.submit(text(2, "The sky is", 30)).await;
    peer.text(2).await;
    let slots = engine().step.snapshot().slots;
    let paused = slots.iter().find(|s| &*s.session_id == "paused").unwrap();
    assert!(paused.tokens_generated < 20, "{paused:?}");
    peer.send(session_request::Kind::Credit(Credit {
        request_id: 1,
        tokens: 60,
    }))
    .await;
    assert_eq!(peer.text(1).await.1.usage.unwrap().completion_tokens, 60);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_requests_fail_with_their_reason() {
    let mut peer = Peer::connect();
    let tokens = |ids: Vec<u32>| Some(Prompt::Tokens(TokenPrompt { ids }));
    let cases = [
        (text(1, "", 5), FailureKind::Invalid, "empty"),
        (
            Submit {
                prompt: None,
                ..text(1, "", 5)
            },
            FailureKind::Invalid,
            "no prompt",
        ),
        (
            Submit {
                prompt: tokens(vec![1, 49152]),
                ..text(1, "", 5)
            },
            FailureKind::Invalid,
            "49152",
        ),
        (text(1, "x", 0), FailureKind::Invalid, "max_tokens"),
        (
            Submit {
                sampling: Some(Sampling {
                    top_p: 2.0,
                    ..greedy()
                }),
                ..text(1, "x", 5)
            },
            FailureKind::Invalid,
            "top_p",
        ),
        (
            Submit {
                stop: vec![String::new()],
                ..text(1, "x", 5)
            },
            FailureKind::Invalid,
            "stop",
        ),
        (
            Submit {
                prompt: tokens(vec![5; 1024]),
                ..text(1, "", 5)
            },
            FailureKind::ContextOverflow,
            "exceeds the available context size",
        ),
        (
            text(1, &"a".repeat(16 << 20), 5),
            FailureKind::ContextOverflow,
            "at least",
        ),
        (chat(1, "{"), FailureKind::Invalid, "messages"),
        (chat(1, "[]"), FailureKind::Invalid, "messages"),
    ];
    for (i, (submit, kind, words)) in cases.into_iter().enumerate() {
        let request_id = 10 + i as u64;
        peer.submit(Submit {
            request_id,
            ..submit
        })
        .await;
        let (failed, message) = peer.failure(request_id).await;
        assert_eq!(failed, kind, "case {i}: {message}");
        assert!(message.contains(words), "case {i}: {message}");
    }
    everything_given_back().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_id_in_use_ends_the_stream() {
    let mut peer = Peer::connect();
    peer.submit(text(5, "The sky is", 900)).await;
    peer.submit(text(5, "The sky is", 900)).await;
    let ended = async {
        loop {
            match peer.replies.recv().await {
                Some(Ok(_)) => {}
                Some(Err(status)) => return status,
                None => panic!("the stream ended without a reason"),
            }
        }
    };
    let status = tokio::time::timeout(DEADLINE, ended)
        .await
        .expect("in time");
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    everything_given_back().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_only_sends_is_not_listened_to_for_ever() {
    let mut peer = Peer::connect();
    let empty = |request_id| text(request_id, "", 5);
    // Each is refused, and nobody reads the refusals: at some point nothing more is taken.
    let mut sent = 0;
    let stuck = loop {
        let submit = SessionRequest {
            kind: Some(session_request::Kind::Submit(empty(1000 + sent))),
        };
        let taken = peer.requests.send(Ok(submit));
        if tokio::time::timeout(Duration::from_secs(2), taken)
            .await
            .is_err()
        {
            break true;
        }
        sent += 1;
        if sent > 100_000 {
            break false;
        }
    };
    assert!(stuck, "{sent} requests were taken unread");
    // As soon as it reads, all it sent is answered.
    peer.failure(1000 + sent - 1).await;
    everything_given_back().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_for_what_was_taken_and_then_ends_the_stream() {
    let engine = tokio::task::spawn_blocking(small_engine).await.unwrap();
    let mut peer = Peer::connect_to(Arc::clone(&engine));
    let long = "the quick brown fox ".repeat(40);
    peer.submit(Submit {
        ignore_eog: true,
        ..text(1, &long, 200)
    })
    .await;
    peer.until(1, |own| !own.is_empty()).await;
    engine.drain();
    assert!(!engine.is_idle(), "a request is under way");
    let (_, finished) = peer.text(1).await;
    assert_eq!(finished.usage.unwrap().completion_tokens, 200);
    let end = tokio::time::timeout(DEADLINE, peer.replies.recv())
        .await
        .expect("in time");
    assert!(end.is_none(), "{end:?}");
    assert!(engine.is_idle());
}
