//! What is refused, how, and that nothing a client sends is a fault of the server's.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::json;
use vitriol_proto::engine::v1::FinishReason;
use vitriol_testkit::eventually;

use super::demiurge::{House, chat, command, hello};
use super::scripted_engine::{Act, SOON};

const CHAT: &str = "/v1/chat/completions";

/// What comes back for raw bytes until the server closes.
fn exchange(house: &House, bytes: &[u8]) -> String {
    let mut connection = house.client().send_raw(bytes).unwrap();
    connection.set_read_timeout(Some(SOON)).unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn malformed_bodies_are_400_and_never_500() {
    let house = House::greeting();
    let client = house.client();
    let deep = format!(
        "{{\"messages\": {}{}}}",
        "[".repeat(50_000),
        "]".repeat(50_000)
    );
    let bodies: [&[u8]; 14] = [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\"text\"",
        b"{\"messages\": }",
        b"{\"messages\": [}",
        b"{\"messages\": {}}",
        b"{\"messages\": [\"\xff\xfe\"]}",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"temperature\": 1e999}",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]} trailing",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"max_tokens\": -5}",
        deep.as_bytes(),
    ];
    for path in [CHAT, "/v1/completions", "/tokenize", "/detokenize"] {
        for body in bodies {
            let answer = client.request("POST", path, Some(body)).unwrap();
            let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
            assert_eq!(answer.status(), 400, "{path} {shown}: {}", answer.text());
            assert!(answer.json().unwrap()["error"]["message"].is_string());
        }
    }
    let place = client
        .request("POST", CHAT, Some(b"{\n \"model\": oops}"))
        .unwrap()
        .text();
    assert!(place.contains("line 2, column 11"), "{place}");
    assert!(house.engine.record().submits.is_empty());
    assert!(!house.demiurge.log().contains("panicked"));
}

#[test]
fn what_cannot_be_honoured_names_its_parameter() {
    let house = House::greeting();
    for (field, value) in [
        (
            "tools",
            json!([{ "type": "function", "function": { "name": "f" } }]),
        ),
        ("tool_choice", json!("required")),
        ("n", json!(2)),
        ("logprobs", json!(true)),
        ("response_format", json!({ "type": "json_object" })),
        ("frequency_penalty", json!(0.5)),
        ("logit_bias", json!({ "50256": -100 })),
    ] {
        let mut body = chat(false);
        body[field] = value;
        let answer = house.client().post(CHAT, &body).unwrap();
        let error = &answer.json().unwrap()["error"];
        assert_eq!(answer.status(), 400, "{field}");
        assert_eq!(
            (&error["param"], &error["code"]),
            (&json!(field), &json!("unsupported_parameter"))
        );
    }
}

#[test]
fn large_bodies_are_413_by_announcement_and_by_count() {
    let house = House::start("body_bytes_max = \"64 KiB\"", |_| hello());
    let address = house.demiurge.address;
    let mut body = chat(false);
    body["messages"][0]["content"] = json!("x".repeat(63 << 10));
    assert_eq!(house.client().post(CHAT, &body).unwrap().status(), 200);
    body["messages"][0]["content"] = json!("x".repeat(65 << 10));
    let answer = house.client().post(CHAT, &body).unwrap();
    assert_eq!(answer.status(), 413);
    assert_eq!(answer.json().unwrap()["error"]["code"], "request_too_large");

    // Announced only: refused before a byte of it is sent.
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nExpect: 100-continue\r\n\
         Content-Length: 999999999999\r\n\r\n"
    );
    assert!(exchange(&house, head.as_bytes()).starts_with("HTTP/1.1 413 "));

    // Not announced: counted.
    let mut bytes = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    );
    for _ in 0..10 {
        bytes += &format!("{:x}\r\n{}\r\n", 8 << 10, "x".repeat(8 << 10));
    }
    bytes += "0\r\n\r\n";
    assert!(exchange(&house, bytes.as_bytes()).starts_with("HTTP/1.1 413 "));
}

/// What comes back for raw bytes while the client keeps the connection open and sends no more.
fn first_answer(house: &House, bytes: &[u8]) -> String {
    let mut connection = house.client().send_raw(bytes).unwrap();
    connection.set_read_timeout(Some(SOON)).unwrap();
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"}}") {
        assert_eq!(connection.read(&mut byte).unwrap(), 1, "{answer:?}");
        answer.push(byte[0]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_huge_content_length_is_413_before_the_body_starts() {
    let house = House::greeting();
    let address = house.demiurge.address;
    for path in [CHAT, "/v1/completions", "/tokenize", "/detokenize"] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 999999999999\r\n\r\n"
        );
        // The body never comes: an answer that waited for it would not either.
        let answer = first_answer(&house, head.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 413 "), "{path}: {answer}");
    }
    // One that writes all it announced before it reads gets to see it too, though the sockets'
    // buffers hold less.
    let mut body = chat(false);
    body["messages"][0]["content"] = json!("x".repeat(40 << 20));
    assert_eq!(house.client().post(CHAT, &body).unwrap().status(), 413);
}

#[test]
fn a_content_encoding_is_415_with_the_remedy() {
    let house = House::greeting();
    let post = |path: &str, encoding: &str| {
        let client = house.client().with_header("Content-Encoding", encoding);
        client.post(path, &chat(false)).unwrap()
    };
    for encoding in ["gzip", "br", "identity, zstd"] {
        let answer = post(CHAT, encoding);
        assert_eq!(answer.status(), 415, "{encoding}");
        let error = &answer.json().unwrap()["error"];
        assert_eq!(error["code"], "unsupported_encoding");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(encoding) && message.contains("; send the body as it is"));
    }
    assert_eq!(
        post("/tokenize", "gzip").json().unwrap()["error"]["code"],
        415
    );
    assert_eq!(post(CHAT, "identity").status(), 200);
    let decisions = house.demiurge.until_decisions(4);
    assert_eq!(decisions[0]["error"], "unsupported_encoding");
    assert_eq!(house.engine.record().submits.len(), 1);
}

#[test]
fn long_tokenize_requests_are_413_whatever_the_body_bound() {
    let house = House::start("body_bytes_max = \"128 MiB\"", |_| hello());
    for (path, body, named) in [
        (
            "/tokenize",
            json!({ "content": "x".repeat((4 << 20) + 1) }),
            "4 MiB",
        ),
        (
            "/detokenize",
            json!({ "tokens": vec![1; (1 << 20) + 1] }),
            "1048576 ids",
        ),
    ] {
        let answer = house.client().post(path, &body).unwrap();
        assert_eq!(answer.status(), 413, "{path}");
        assert!(answer.text().contains(named), "{}", answer.text());
    }
    // The longest text there may be, with its pieces, comes back whole.
    let body = json!({ "content": "x".repeat(4 << 20), "with_pieces": true });
    let answer = house.client().post("/tokenize", &body).unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.text().matches("\"piece\":\"x\"").count(), 4 << 20);
    assert!(answer.text().ends_with("]}"));
}

#[test]
fn more_requests_than_places_are_429() {
    let house = House::start("requests_max = 2", |submit| match submit.max_tokens {
        Some(_) => vec![Act::Accept, Act::Gate, Act::Finish(FinishReason::Stop)],
        None => hello(),
    });
    let client = house.client();
    let mut gated = chat(true);
    gated["max_tokens"] = json!(9);
    let _held: Vec<_> = (0..2)
        .map(|_| client.post_stream(CHAT, &gated).unwrap())
        .collect();
    let answer = client.post(CHAT, &chat(false)).unwrap();
    assert_eq!(answer.status(), 429);
    let error = &answer.json().unwrap()["error"];
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("rate_limit_error"), &json!("queue_full"))
    );
    assert!(answer.header("retry-after").is_some());
    assert_eq!(answer.header("x-demiurge-lane"), Some("local"));
    // Who looks after the house still gets in.
    for path in ["/health", "/metrics", "/slots", "/v1/models"] {
        assert_eq!(client.get(path).unwrap().status(), 200, "{path}");
    }
    house.engine.open_gate();
    eventually(SOON, "a place is free", || {
        (client.post(CHAT, &chat(false)).unwrap().status() == 200).then_some(())
    })
    .unwrap();
}

#[test]
fn a_large_body_without_a_place_gets_to_see_its_429() {
    let house = House::start("requests_max = 1", |_| {
        vec![Act::Accept, Act::Gate, Act::Finish(FinishReason::Stop)]
    });
    let client = house.client();
    let _held = client.post_stream(CHAT, &chat(true)).unwrap();
    // More than the sockets' buffers hold, and all of it is written before anything is read.
    let mut body = chat(false);
    body["messages"][0]["content"] = json!("x".repeat(24 << 20));
    for (path, body) in [
        (CHAT, body.clone()),
        ("/tokenize", json!({ "content": "x".repeat(24 << 20) })),
    ] {
        let answer = client.post(path, &body).unwrap();
        assert_eq!(answer.status(), 429, "{path}");
        assert!(answer.header("retry-after").is_some(), "{path}");
    }
}

#[test]
fn a_model_name_that_is_no_text_is_404_in_json() {
    let house = House::greeting();
    let answer = house.client().get("/v1/models/%ff%fe").unwrap();
    assert_eq!(answer.status(), 404);
    assert_eq!(answer.json().unwrap()["error"]["code"], "model_not_found");
}

#[test]
fn a_page_of_this_machine_may_send_the_headers_its_preflight_names() {
    let house = House::greeting();
    let client = house
        .client()
        .with_header("Origin", "http://localhost:3000")
        .with_header("Access-Control-Request-Method", "POST")
        .with_header(
            "Access-Control-Request-Headers",
            "content-type, x-other-client",
        );
    let answer = client.request("OPTIONS", CHAT, None).unwrap();
    assert_eq!(
        answer.header("access-control-allow-headers"),
        Some("content-type, x-other-client")
    );
    assert_eq!(
        answer.header("access-control-allow-origin"),
        Some("http://localhost:3000")
    );
}

#[test]
fn slow_heads_and_slow_bodies_are_let_go() {
    let house = House::start(
        "request_head_timeout_ms = 300\nrequest_body_timeout_ms = 300",
        |_| hello(),
    );
    let address = house.demiurge.address;
    let begun = Instant::now();
    let half_a_head = exchange(&house, b"POST /v1/chat/completions HTTP/1.1\r\nHost: ");
    assert!(
        half_a_head.is_empty() || half_a_head.starts_with("HTTP/1.1 408"),
        "{half_a_head}"
    );
    let half_a_body = exchange(
        &house,
        format!(
            "POST {CHAT} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
             Content-Length: 100\r\n\r\n{{\"mess"
        )
        .as_bytes(),
    );
    assert!(half_a_body.starts_with("HTTP/1.1 408 "), "{half_a_body}");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn pages_from_elsewhere_are_refused() {
    let house = House::greeting();
    let address = house.demiurge.address;
    let ask = |headers: &str| {
        let request = format!("GET /health HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
        exchange(&house, request.as_bytes())
    };
    let own = format!("Host: {address}\r\n");
    assert!(ask(&own).starts_with("HTTP/1.1 200 "));
    assert!(ask("Host: localhost:9999\r\n").starts_with("HTTP/1.1 200 "));
    for headers in [
        "Host: rebound.example.org\r\n".to_owned(),
        "Host: 192.168.1.7:8265\r\n".to_owned(),
        String::new(),
        format!("{own}Host: example.org\r\n"),
        format!("{own}Origin: http://example.org\r\n"),
        format!("{own}Origin: null\r\n"),
    ] {
        assert!(
            ask(&headers).starts_with("HTTP/1.1 403 "),
            "{headers}: {}",
            ask(&headers)
        );
    }
    let allowed = ask(&format!("{own}Origin: http://localhost:3000\r\n"));
    assert!(
        allowed.contains("access-control-allow-origin: http://localhost:3000"),
        "{allowed}"
    );
    let absolute =
        format!("GET http://example.org/health HTTP/1.1\r\n{own}Connection: close\r\n\r\n");
    assert!(exchange(&house, absolute.as_bytes()).starts_with("HTTP/1.1 403 "));
}

#[test]
fn session_and_lane_headers_are_checked() {
    let house = House::greeting();
    let with = |name: &str, value: &str| {
        house
            .client()
            .with_header(name, value)
            .post(CHAT, &chat(false))
            .unwrap()
    };
    assert_eq!(with("X-Session-Id", &"s".repeat(256)).status(), 200);
    assert_eq!(with("X-Session-Id", &"s".repeat(257)).status(), 400);
    assert_eq!(with("X-Session-Id", "s\u{e9}").status(), 400);
    assert_eq!(with("X-Tenant-Id", &"t".repeat(256)).status(), 200);
    assert_eq!(with("X-Tenant-Id", &"t".repeat(257)).status(), 400);
    assert_eq!(with("X-Priority", "background").status(), 200);
    let unknown = with("X-Priority", "urgent");
    assert_eq!(unknown.status(), 400);
    assert!(
        unknown.text().contains("'interactive' and 'background'"),
        "{}",
        unknown.text()
    );
    let local = with("X-Vitriol-Lane", "local");
    assert_eq!(
        (local.status(), local.header("x-demiurge-cause")),
        (200, Some("local_asked"))
    );
    let paid = with("X-Vitriol-Lane", "paid");
    assert_eq!(
        (paid.status(), paid.header("x-demiurge-cause")),
        (400, Some("lane_unknown"))
    );
}

#[test]
fn request_ids_are_taken_over_when_sound() {
    let house = House::greeting();
    let id = |given: &str| {
        let client = house.client().with_header("X-Request-Id", given);
        client
            .get("/health")
            .unwrap()
            .header("x-request-id")
            .unwrap()
            .to_owned()
    };
    assert_eq!(id("trace-1.2_3"), "trace-1.2_3");
    for given in ["", "a b", "a\"b", &"x".repeat(129)] {
        assert!(id(given).starts_with("req-"), "{given}");
    }
}

#[test]
fn bytes_that_are_no_http_are_survived() {
    let house = House::greeting();
    let corpus: [&[u8]; 6] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
    ];
    for bytes in corpus {
        let answer = exchange(&house, bytes);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{answer}"
        );
    }
    let long = format!(
        "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "x".repeat(100_000)
    );
    let mut connection = house.client().send_raw(b"").unwrap();
    // It may stop reading before all of it is sent.
    let _ = connection.write_all(long.as_bytes());
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
        "{answer}"
    );
    assert_eq!(house.client().get("/health").unwrap().status(), 200);
}

/// Runs the binary to its end; its exit code and the line it leaves.
fn ends_with(listen: &str, settings: &str) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let mut child = command(
        dir.path(),
        &dir.path().join("engine.sock"),
        settings,
        listen,
    )
    .spawn()
    .unwrap();
    let status = eventually(SOON, "it ends", || child.try_wait().unwrap()).unwrap();
    (
        status.code(),
        std::fs::read_to_string(dir.path().join("demiurge.log")).unwrap(),
    )
}

#[test]
fn a_port_that_is_held_is_exit_69_and_names_the_holder() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let (code, log) = ends_with(&address, "");
    assert_eq!(code, Some(69), "{log}");
    let last = log.lines().last().unwrap();
    assert!(last.starts_with("vitriol-demiurge: port"), "{last}");
    assert!(
        last.contains(&format!("process {}", std::process::id())),
        "{last}"
    );
}

#[test]
fn an_address_others_reach_is_refused() {
    let (code, log) = ends_with("0.0.0.0:0", "");
    assert!(matches!(code, Some(64 | 78)), "{code:?}: {log}");
    assert!(log.lines().last().unwrap().contains("loopback") || log.contains("other machines"));
}

#[test]
fn two_on_one_status_socket_is_exit_69() {
    let house = House::greeting();
    let mut second = command(house.dir.path(), house.engine.socket(), "", "127.0.0.1:0")
        .spawn()
        .unwrap();
    let status = eventually(SOON, "it ends", || second.try_wait().unwrap()).unwrap();
    assert_eq!(status.code(), Some(69));
    let log = house.demiurge.log();
    assert!(
        log.contains(&format!("held by process {}", house.demiurge.pid())),
        "{log}"
    );
    assert_eq!(house.client().get("/health").unwrap().status(), 200);
}

#[test]
fn a_wrong_setting_is_exit_78_and_names_it() {
    let (code, log) = ends_with("127.0.0.1:0", "requests_maxx = 3");
    assert_eq!(code, Some(78), "{log}");
    assert!(
        log.contains("requests_maxx") && log.contains("requests_max"),
        "{log}"
    );
}
