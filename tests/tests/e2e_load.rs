//! 100 requests of mixed shape, 16 at once, 30 of them left at random points, twice over: no page
//! leaks, memory is flat after the first time, and every answer that was read to its end is byte for
//! byte the one the same request gets alone.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its functions too"
)]

use std::{
    io::Read,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use vitriol_testkit::{
    House, Seed, Setup, eventually,
    house::{DEMIURGE, ENGINE},
    http::Client,
    process,
};

const REQUESTS: usize = 100;
const AT_ONCE: usize = 16;
const CANCELLED: usize = 30;
/// Different requests among the hundred; each is also run alone.
const SHAPES: usize = 25;
/// Growth that allocators may show between two equal loads.
const RESIDENT_SLACK: u64 = 24 << 20;

/// Small enough that the first load fills it: pages are then evicted and reused under pressure.
const PROFILE: &str = "[engine.main]\nkv_bytes_max = \"320 MiB\"";

const WORDS: [&str; 16] = [
    "river", "stone", "lantern", "seven", "quiet", "harbour", "copper", "winter", "letter",
    "engine", "garden", "mirror", "thunder", "paper", "north", "salt",
];

/// One request to one route.
#[derive(Clone, Debug)]
struct Shape {
    path: &'static str,
    body: Value,
}

/// When a client leaves.
#[derive(Clone, Copy, Debug)]
enum Leave {
    Never,
    /// After this many chunks of a stream.
    AfterChunks(usize),
    /// After this long without having read anything.
    After(Duration),
}

/// What a client read to the end.
#[derive(Clone, Debug, PartialEq)]
struct Answer {
    text: String,
    finish: String,
    prompt_tokens: u64,
    completion_tokens: u64,
}

/// Prompts from a few words to several pages, greedy and sampled, with and without stop strings.
fn shape(seed: &mut Seed) -> Shape {
    let length = *seed.choose(&[3, 12, 40, 90, 180, 260]);
    let text: Vec<&str> = (0..length).map(|_| *seed.choose(&WORDS)).collect();
    let text = text.join(" ");
    let chat = seed.below(4) > 0;
    let mut body = json!({
        "max_tokens": 1 + seed.below(32),
        "temperature": seed.choose(&[0.0, 0.0, 0.7, 1.2]),
        "top_p": seed.choose(&[1.0, 0.9]),
        "top_k": seed.choose(&[0, 40]),
        "min_p": seed.choose(&[0.0, 0.05]),
        "seed": seed.below(1 << 30),
    });
    if seed.below(3) == 0 {
        body["stop"] = json!(["\n\n", *seed.choose(&WORDS)]);
    }
    if chat {
        let question = format!("Use these words in one sentence: {text}");
        body["messages"] = json!([{"role": "user", "content": question}]);
    } else {
        body["prompt"] = json!(format!("A list of words: {text},"));
    }
    Shape {
        path: if chat {
            "/v1/chat/completions"
        } else {
            "/v1/completions"
        },
        body,
    }
}

fn text_of(choice: &Value) -> &str {
    let spoken = [
        &choice["message"]["content"],
        &choice["delta"]["content"],
        &choice["text"],
    ];
    spoken
        .into_iter()
        .find_map(Value::as_str)
        .unwrap_or_default()
}

fn answer(text: String, finish: &Value, usage: &Value) -> Answer {
    Answer {
        text,
        finish: finish.as_str().unwrap_or_default().to_owned(),
        prompt_tokens: usage["prompt_tokens"].as_u64().unwrap(),
        completion_tokens: usage["completion_tokens"].as_u64().unwrap(),
    }
}

fn whole(client: &Client, shape: &Shape) -> Answer {
    let reply = client
        .post(shape.path, &shape.body)
        .unwrap()
        .ok_json()
        .unwrap();
    let choice = &reply["choices"][0];
    answer(
        text_of(choice).to_owned(),
        &choice["finish_reason"],
        &reply["usage"],
    )
}

/// Reads a stream until it ends or the client leaves.
fn streamed(client: &Client, shape: &Shape, chunks: usize) -> Option<Answer> {
    let mut body = shape.body.clone();
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let mut stream = client.post_stream(shape.path, &body).unwrap();
    let (mut text, mut finish, mut usage) = (String::new(), Value::Null, Value::Null);
    for _ in 0..chunks {
        let Some(chunk) = stream.next_chunk().unwrap() else {
            return Some(answer(text, &finish, &usage));
        };
        assert!(chunk.get("error").is_none(), "{chunk}");
        let choice = &chunk["choices"][0];
        text.push_str(text_of(choice));
        for (last, now) in [
            (&mut finish, &choice["finish_reason"]),
            (&mut usage, &chunk["usage"]),
        ] {
            if !now.is_null() {
                *last = now.clone();
            }
        }
    }
    None
}

/// Sends the request, reads for a while and closes; an answer that came before that is thrown away.
fn abandoned(client: &Client, shape: &Shape, after: Duration) {
    let body = shape.body.to_string();
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        shape.path,
        body.len()
    );
    let mut connection = client.send_raw(head.as_bytes()).unwrap();
    connection.set_read_timeout(Some(after)).unwrap();
    let mut byte = [0];
    // Either outcome will do: the time is over, or the answer has begun.
    let _: std::io::Result<usize> = connection.read(&mut byte);
}

fn run(client: &Client, shape: &Shape, leave: Leave, stream: bool) -> Option<Answer> {
    match leave {
        Leave::Never if stream => streamed(client, shape, usize::MAX),
        Leave::Never => Some(whole(client, shape)),
        Leave::AfterChunks(chunks) => streamed(client, shape, chunks),
        Leave::After(time) => {
            abandoned(client, shape, time);
            None
        }
    }
}

/// The hundred in random order: which shape, when its client leaves, streamed or not.
fn plan(seed: &mut Seed) -> Vec<(usize, Leave, bool)> {
    let mut plan: Vec<_> = (0..REQUESTS)
        .map(|i| {
            let leave = match (i < CANCELLED, seed.below(2)) {
                (false, _) => Leave::Never,
                (true, 0) => Leave::AfterChunks(seed.below(12)),
                (true, _) => Leave::After(Duration::from_millis(1 + seed.below(1500) as u64)),
            };
            (seed.below(SHAPES), leave, seed.below(2) == 0)
        })
        .collect();
    seed.shuffle(&mut plan);
    plan
}

/// Runs the plan with `AT_ONCE` clients; every complete answer must be the one in `alone`.
/// Returns how many were read to their end.
fn load(
    client: &Client,
    shapes: &[Shape],
    alone: &[Answer],
    plan: Vec<(usize, Leave, bool)>,
) -> usize {
    let queue = Mutex::new(plan);
    let client_thread = || {
        let mut survivors = 0;
        loop {
            let next = queue.lock().unwrap().pop();
            let Some((index, leave, stream)) = next else {
                return survivors;
            };
            if let Some(answer) = run(client, &shapes[index], leave, stream) {
                assert_eq!(
                    answer, alone[index],
                    "{leave:?}, stream {stream}: {:?}",
                    shapes[index]
                );
                survivors += 1;
            }
        }
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(client_thread)).collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum()
    })
}

/// Waits until nothing runs or waits and no page is held.
fn settled(client: &Client) {
    let idle = || {
        let left: f64 = ["sequences_running", "sequences_waiting", "kv_pages_held"]
            .iter()
            .map(|name| client.metric(&format!("vitriol_engine_{name}")))
            .sum::<Option<f64>>()?;
        (left == 0.0).then_some(())
    };
    if let Err(error) = eventually(
        Duration::from_secs(20),
        "an engine that holds nothing",
        idle,
    ) {
        panic!("{error}\n{}", client.get("/metrics").unwrap().text());
    }
    let slots = client.get("/slots").unwrap().ok_json().unwrap();
    assert!(
        slots
            .as_array()
            .unwrap()
            .iter()
            .all(|s| s["is_processing"] == false),
        "{slots}"
    );
}

#[test]
fn a_hundred_mixed_requests_leak_nothing_and_disturb_nobody() {
    let mut seed = Seed::announce("e2e_load");
    let shapes: Vec<Shape> = (0..SHAPES).map(|_| shape(&mut seed)).collect();

    // Alone, in a house that has seen nothing else.
    let alone: Vec<Answer> = {
        let house = House::start(&Setup::default()).unwrap();
        let client = house.client();
        shapes.iter().map(|shape| whole(&client, shape)).collect()
    };

    let house = House::start(&Setup::default().profile(PROFILE)).unwrap();
    let client = house.client();
    let pids = || [ENGINE, DEMIURGE].map(|name| house.daemon_pid(name).unwrap());
    let daemons = pids();
    settled(&client);

    let mut resident = Vec::new();
    for round in 0..2 {
        let start = Instant::now();
        let survivors = load(&client, &shapes, &alone, plan(&mut seed));
        settled(&client);
        // Some of those who leave are served before they do.
        assert!(survivors >= REQUESTS - CANCELLED, "{survivors} answers");
        resident.push(daemons.map(|pid| process::resident_anonymous_bytes(pid).unwrap()));
        let [engine, demiurge] = resident[round].map(|bytes| bytes >> 20);
        eprintln!(
            "round {round}: {survivors} answers in {:.1?}, resident: engine {engine} MiB, \
             demiurge {demiurge} MiB",
            start.elapsed()
        );
    }
    for (name, (before, after)) in [ENGINE, DEMIURGE]
        .into_iter()
        .zip(resident[0].into_iter().zip(resident[1]))
    {
        assert!(
            after <= before + RESIDENT_SLACK,
            "resident memory of {name} went from {} to {} MiB",
            before >> 20,
            after >> 20
        );
    }
    assert_eq!(pids(), daemons, "no daemon ever died");
}
