//! The HTTP contract on real binaries and the default model: what the official client cannot see.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its functions too"
)]

use std::{io::Read, time::Duration};

use rustix::process::Signal;
use serde_json::{Value, json};
use vitriol_testkit::{House, Setup, eventually, house::ENGINE, http::Client, process};

/// A chat request for a short, repeatable answer.
fn question(text: &str) -> Value {
    json!({
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 16,
        "temperature": 0,
    })
}

/// `base` with the fields of `more`.
fn with(mut base: Value, more: Value) -> Value {
    let (Value::Object(fields), Value::Object(more)) = (&mut base, more) else {
        panic!("both are objects");
    };
    fields.extend(more);
    base
}

/// Slots that are doing something.
fn busy_slots(client: &Client) -> usize {
    let slots = client.get("/slots").unwrap().ok_json().unwrap();
    slots
        .as_array()
        .unwrap()
        .iter()
        .filter(|slot| slot["is_processing"] == true)
        .count()
}

#[test]
fn health_models_and_slots() {
    let house = House::shared().unwrap();
    let client = house.client();
    for path in ["/health", "/v1/health"] {
        assert_eq!(
            client.get(path).unwrap().ok_json().unwrap()["status"],
            "ok",
            "{path}"
        );
    }
    let models = client.get("/v1/models").unwrap().ok_json().unwrap();
    assert_eq!(models["object"], "list");
    assert_eq!(models["data"].as_array().unwrap().len(), 1);
    let slots = client.get("/slots").unwrap().ok_json().unwrap();
    assert_eq!(
        slots.as_array().unwrap().len(),
        16,
        "sequences_max of the default profile"
    );
    let head = client.request("HEAD", "/health", None).unwrap();
    assert_eq!((head.status(), head.body.len()), (200, 0));
}

#[test]
fn every_answer_says_lane_cause_and_request() {
    let house = House::shared().unwrap();
    let answer = house
        .client()
        .post("/v1/chat/completions", &question("Say hello."))
        .unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert_eq!(answer.header("x-demiurge-lane"), Some("local"));
    let cause = answer.header("x-demiurge-cause").unwrap();
    assert!(
        cause
            .chars()
            .all(|c| c.is_ascii_lowercase() || "_:".contains(c)),
        "{cause}"
    );
    let first = answer.header("x-request-id").unwrap().to_owned();
    let other = house
        .client()
        .post("/v1/chat/completions", &question("Say hello."))
        .unwrap();
    assert_ne!(other.header("x-request-id").unwrap(), first);

    let timings = &answer.json().unwrap()["timings"];
    for name in [
        "prompt_n",
        "prompt_ms",
        "predicted_n",
        "predicted_ms",
        "predicted_per_second",
    ] {
        assert!(timings[name].is_number(), "timings.{name}: {timings}");
    }
}

#[test]
fn errors_are_json_and_never_5xx() {
    let house = House::shared().unwrap();
    let client = house.client();
    let chat = "/v1/chat/completions";
    for (method, path, body, status) in [
        ("GET", "/nowhere", "", 404),
        ("POST", "/nowhere", "{}", 404),
        ("GET", chat, "", 405),
        ("POST", "/health", "{}", 405),
        ("GET", "/v1/models/none", "", 404),
        ("POST", chat, "", 400),
        ("POST", chat, "[]", 400),
        ("POST", chat, "{\"messages\": [\n}", 400),
        ("POST", chat, "{\"messages\": 1}", 400),
        ("POST", chat, "{\"messages\": [{\"role\": \"user\"}]}", 400),
        ("POST", chat, "{\"messages\": [{\"content\": \"x\"}]}", 400),
        ("POST", "/v1/completions", "{}", 400),
        ("POST", "/v1/completions", "{\"prompt\": [4294967295]}", 400),
        ("POST", "/detokenize", "{\"tokens\": [4294967295]}", 400),
        ("POST", "/detokenize", "{\"tokens\": [-1]}", 400),
        ("POST", "/tokenize", "\u{fffd}", 400),
    ] {
        let answer = client.request(method, path, Some(body.as_bytes())).unwrap();
        assert_eq!(
            answer.status(),
            status,
            "{method} {path} {body}: {}",
            answer.text()
        );
        let error = &answer.json().unwrap()["error"];
        assert!(
            error["message"].as_str().is_some_and(|m| !m.is_empty()),
            "{error}"
        );
        assert!(error["type"].is_string(), "{error}");
        // OpenAI's routes have string codes, llama-server's the status as a number.
        let code = &error["code"];
        assert!(
            code.is_string() || code.is_null() || code == status,
            "{method} {path}: {error}"
        );
    }
    let broken = client
        .request("POST", chat, Some(b"{\"messages\": [\n}"))
        .unwrap()
        .text();
    assert!(broken.contains("line 2"), "{broken}");
}

#[test]
fn oversized_bodies_are_refused_before_they_are_sent() {
    let house = House::shared().unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nContent-Length: 99999999999\r\n\r\n",
        house.address()
    );
    let mut stream = house.client().send_raw(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
}

#[test]
fn pages_of_other_sites_cannot_reach_the_house() {
    let house = House::shared().unwrap();
    let foreign = "GET /v1/models HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n";
    let mut answer = String::new();
    house
        .client()
        .send_raw(foreign.as_bytes())
        .unwrap()
        .read_to_string(&mut answer)
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    let origin = house.client().with_header("Origin", "http://example.org");
    assert_eq!(origin.get("/v1/models").unwrap().status(), 403);
    let local = house
        .client()
        .with_header("Origin", "http://localhost:3000");
    assert_eq!(local.get("/v1/models").unwrap().status(), 200);
}

#[test]
fn tokens_go_there_and_back() {
    let house = House::shared().unwrap();
    let client = house.client();
    for text in [
        "Hello, world",
        "  two  spaces\n\ttab",
        "naïve café 你好 😀",
        "",
        "<|im_end|>",
    ] {
        let tokens = client.post("/tokenize", &json!({"content": text})).unwrap();
        let tokens = tokens.ok_json().unwrap()["tokens"].clone();
        let back = client
            .post("/detokenize", &json!({ "tokens": tokens }))
            .unwrap();
        assert_eq!(back.ok_json().unwrap()["content"], text);
    }
    let pieces = client.post(
        "/tokenize",
        &json!({"content": "Hi 😀", "with_pieces": true}),
    );
    let pieces = pieces.unwrap().ok_json().unwrap()["tokens"].clone();
    assert!(
        pieces.as_array().unwrap().iter().all(|t| t["id"].is_u64()),
        "{pieces}"
    );
}

#[test]
fn a_stream_and_a_whole_answer_are_the_same_text() {
    let house = House::shared().unwrap();
    let client = house.client();
    let ask = with(
        question("Write one line with an emoji: 😀 你好"),
        json!({"max_tokens": 32}),
    );
    let whole = client
        .post("/v1/chat/completions", &ask)
        .unwrap()
        .ok_json()
        .unwrap();
    let stream = client.post_stream("/v1/chat/completions", &with(ask, json!({"stream": true})));
    let stream = stream.unwrap();
    assert_eq!(stream.head.header("cache-control"), Some("no-cache"));
    assert_eq!(stream.head.header("x-demiurge-lane"), Some("local"));
    let chunks = stream.chunks().unwrap();
    let text: String = chunks
        .iter()
        .filter_map(|c| c["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, whole["choices"][0]["message"]["content"]);
    assert!(
        chunks.last().unwrap()["timings"].is_object(),
        "{:?}",
        chunks.last()
    );
}

#[test]
fn a_client_that_leaves_stops_its_generation() {
    let house = House::start(&Setup::default()).unwrap();
    let client = house.client();
    let long = with(
        question("Write the numbers from one to one thousand, each in words."),
        json!({"stream": true, "max_tokens": 4000}),
    );
    let mut stream = client.post_stream("/v1/chat/completions", &long).unwrap();
    for _ in 0..4 {
        stream.next_chunk().unwrap().unwrap();
    }
    assert_eq!(busy_slots(&client), 1);
    drop(stream);
    eventually(
        Duration::from_secs(5),
        "idle slots after the client left",
        || (busy_slots(&client) == 0).then_some(()),
    )
    .unwrap();

    // Leaving before the first byte of the answer, in the middle of a long prefill.
    let words = "one two three ".repeat(1500);
    let tokens = client
        .post("/tokenize", &json!({ "content": words }))
        .unwrap();
    let tokens = tokens.ok_json().unwrap()["tokens"]
        .as_array()
        .unwrap()
        .len();
    let body = question(&words).to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        house.address(),
        body.len()
    );
    let computed = || {
        client
            .metric("vitriol_engine_tokens_computed_total")
            .unwrap()
    };
    let before = computed();
    let connection = client.send_raw(request.as_bytes()).unwrap();
    eventually(Duration::from_secs(30), "the prefill", || {
        (busy_slots(&client) == 1).then_some(())
    })
    .unwrap();
    drop(connection);
    // It ends with the step that runs, and a step of 512 tokens takes its time on a busy machine.
    eventually(
        Duration::from_secs(60),
        "idle slots after the client left",
        || (busy_slots(&client) == 0).then_some(()),
    )
    .unwrap();
    let done = computed() - before;
    assert!(
        done < tokens as f64 / 2.0,
        "{done} of {tokens} prompt tokens were computed"
    );
}

#[test]
fn metrics_have_both_families_of_names() {
    let house = House::shared().unwrap();
    let client = house.client();
    client
        .post("/v1/chat/completions", &question("Say hello."))
        .unwrap()
        .ok_json()
        .unwrap();
    let metrics = client.get("/metrics").unwrap();
    assert_eq!(metrics.status(), 200);
    let text = metrics.text();
    for family in [
        "vitriol_demiurge_",
        "vitriol_engine_steps_total",
        "vitriol_engine_kernels_info{isa=\"",
        "llamacpp:prompt_tokens_total",
        "llamacpp:tokens_predicted_total",
    ] {
        assert!(
            text.lines().any(|line| line.starts_with(family)),
            "no {family} in\n{text}"
        );
    }
}

#[test]
fn a_session_hears_which_message_had_it_computed_again() {
    let house = House::shared().unwrap();
    let client = house.client().with_header("X-Session-Id", "dated");
    let turns = |date: &str| {
        let system = format!("Today is {date}. {}", "Answer kindly. ".repeat(60));
        json!([
            { "role": "system", "content": system },
            { "role": "user", "content": "Say hello." },
        ])
    };
    let ask = |messages: Value| {
        let body = with(question(""), json!({ "messages": messages }));
        client.post("/v1/chat/completions", &body).unwrap()
    };
    for date in ["Monday", "Monday"] {
        let answer = ask(turns(date)).ok_json().unwrap();
        assert!(answer["timings"].get("cache_diverged_token").is_none());
    }
    let answer = ask(turns("Friday"));
    let timings = &answer.json().unwrap()["timings"];
    let token = timings["cache_diverged_token"].as_u64().unwrap();
    assert!((1..20).contains(&token) && timings["cache_n"].as_u64().unwrap() <= token);
    assert_eq!(timings["cache_diverged_message"], 0);
    let said = format!(", diverged-token={token}, diverged-message=0");
    assert!(answer.header("x-vitriol-kv").unwrap().ends_with(&said));
}

#[test]
fn a_saved_conversation_outlives_being_erased_and_the_engine() {
    let tier = "[kvtier]\nenabled = true\narena_bytes = '128 MiB'\nslot_bytes = '768 KiB'";
    let house = House::start(&Setup::default().profile(tier)).unwrap();
    let client = house.client().with_header("X-Session-Id", "violets");
    let act = |action: &str| {
        let path = format!("/slots/0?action={action}");
        let body = json!({ "filename": "violets.bin" });
        client.post(&path, &body).unwrap()
    };
    // Long enough to be kept, whatever it is expected to be worth.
    let ask = || {
        let prompt = "The violet grows in the shade of the wood. ".repeat(130);
        let body = json!({ "prompt": prompt, "max_tokens": 8, "temperature": 0 });
        let answer = client.post("/v1/completions", &body).unwrap();
        answer.ok_json().unwrap()
    };
    let first = ask();
    let prompt_tokens = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt_tokens > 1100, "{prompt_tokens}");
    let full_blocks = (prompt_tokens - 1) / 64 * 64;

    let saved = act("save").ok_json().unwrap();
    let n_saved = saved["n_saved"].as_u64().unwrap();
    assert!(
        n_saved >= full_blocks && n_saved < full_blocks + 128,
        "{saved}"
    );
    assert!(
        saved["n_written"].as_u64().unwrap() > n_saved * 1000,
        "{saved}"
    );
    let named = (&saved["id_slot"], &saved["filename"]);
    assert_eq!(named, (&json!(0), &json!("violets.bin")));
    let erased = act("erase").ok_json().unwrap();
    assert_eq!(erased, json!({ "id_slot": 0, "n_erased": n_saved }));
    assert_eq!(act("save").status(), 404, "it is gone");

    let engine = house.daemon_pid(ENGINE).unwrap();
    process::signal(engine, Signal::KILL).unwrap();
    let restored = eventually(Duration::from_secs(60), "it is restored", || {
        let answer = act("restore");
        (answer.status() != 503).then(|| answer.ok_json().unwrap())
    });
    let restored = restored.unwrap();
    assert_eq!(restored["n_restored"], n_saved, "{restored}");
    assert!(restored.get("cause").is_none(), "{restored}");
    let second = ask();
    assert_eq!(second["choices"][0]["text"], first["choices"][0]["text"]);
    let timings = &second["timings"];
    let tokens = |name: &str| timings[name].as_u64().unwrap();
    assert!(tokens("cache_n") * 100 >= full_blocks * 99, "{timings}");
    let brought = tokens("cache_arena_n") + tokens("cache_mirror_n");
    assert!(brought * 100 >= full_blocks * 99, "{timings}");
}

#[test]
fn what_was_said_is_written_nowhere() {
    let house = House::start(&Setup::default()).unwrap();
    let client = house
        .client()
        .with_header("X-Session-Id", "session-of-the-test");
    let secret = "Rumpelstiltskin-4711";
    let answer = client.post(
        "/v1/chat/completions",
        &question(&format!("Repeat: {secret}")),
    );
    answer.unwrap().ok_json().unwrap();
    // A body that is refused: a JSON string that holds the request.
    let refused = client.post("/v1/chat/completions", &question(secret).to_string().into());
    assert_eq!(refused.unwrap().status(), 400);

    let line = eventually(Duration::from_secs(5), "a line in decisions.jsonl", || {
        let file = house.files_named("decisions.jsonl").pop()?;
        let text = std::fs::read_to_string(file).ok()?;
        text.lines().next().map(str::to_owned)
    })
    .unwrap();
    let decision: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(decision["schema"], 1);
    assert_eq!(decision["lane"], "local");
    assert_eq!(decision["status"], 200);
    assert_eq!(decision["session"], "session-of-the-test");
    assert!(decision["prompt_tokens"].as_u64().unwrap() > 0);
    assert!(decision["completion_tokens"].as_u64().unwrap() > 0);

    for file in walk(house.directory()) {
        let bytes = std::fs::read(&file).unwrap_or_default();
        let found = bytes.windows(secret.len()).any(|w| w == secret.as_bytes());
        assert!(!found, "{} holds what the user said", file.display());
    }
}

fn walk(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files.extend(walk(&entry.path()));
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    files
}
