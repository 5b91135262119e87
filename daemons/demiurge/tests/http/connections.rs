//! Connections that are kept, pipelined, and many.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use serde_json::json;
use vitriol_proto::engine::v1::FinishReason;
use vitriol_testkit::Seed;

use super::demiurge::{House, chat, text_of};
use super::scripted_engine::{Act, SOON, flood_text};

#[test]
fn pipelined_requests_on_a_kept_connection_are_answered_in_order() {
    let house = House::greeting();
    let address = house.demiurge.address;
    let body = chat(false).to_string();
    let post = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let get =
        |path: &str, close: &str| format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{close}\r\n");
    let wire = post.clone()
        + &get("/health", "")
        + &post
        + &get("/nowhere", "")
        + &get("/v1/models", "Connection: close\r\n");
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(SOON)).unwrap();
    connection.write_all(wire.as_bytes()).unwrap();
    let mut answers = String::new();
    connection.read_to_string(&mut answers).unwrap();
    let statuses: Vec<&str> = answers
        .match_indices("HTTP/1.1 ")
        .map(|(at, _)| &answers[at + 9..at + 12])
        .collect();
    assert_eq!(statuses, ["200", "200", "200", "404", "200"], "{answers}");
    assert_eq!(house.engine.record().submits.len(), 2);
    house.engine.assert_no_breach();
}

#[test]
fn a_kept_connection_serves_a_stream_and_then_another_request() {
    let house = House::greeting();
    let address = house.demiurge.address;
    let body = chat(true).to_string();
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(SOON)).unwrap();
    for _ in 0..2 {
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let mut byte = [0];
        while !answer.ends_with(b"\r\n0\r\n\r\n") {
            connection.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        assert!(String::from_utf8_lossy(&answer).contains("data: [DONE]"));
    }
}

/// A hundred requests, sixteen at a time, a third of which leave in the middle: every other one
/// gets all of its answer, and nothing is left behind.
#[test]
fn a_crowd_some_of_which_leaves() {
    let mut random = Seed::announce("crowd");
    let house = House::start("", |submit| {
        let tokens = submit.max_tokens.unwrap_or(1);
        vec![
            Act::Accept,
            Act::Prefill(4),
            Act::Flood(tokens),
            Act::Finish(FinishReason::Stop),
        ]
    });
    let plans: Vec<(u32, bool, bool)> = (0..100)
        .map(|_| {
            let tokens = 1 + random.below(2000) as u32;
            (tokens, random.below(2) == 0, random.below(3) == 0)
        })
        .collect();
    let left = plans.iter().filter(|(_, _, leaves)| *leaves).count();
    thread::scope(|scope| {
        for part in plans.chunks(plans.len().div_ceil(16)) {
            let client = house.client();
            scope.spawn(move || {
                for &(tokens, streams, leaves) in part {
                    let mut body = chat(streams || leaves);
                    body["max_tokens"] = json!(tokens);
                    if leaves {
                        let mut stream = client.post_stream("/v1/chat/completions", &body).unwrap();
                        let _ = stream.next_event().unwrap();
                        continue;
                    }
                    let words = if streams {
                        let mut stream = client.post_stream("/v1/chat/completions", &body).unwrap();
                        text_of(&mut stream)
                    } else {
                        let answer = client.post("/v1/chat/completions", &body).unwrap();
                        let answer = answer.ok_json().unwrap();
                        answer["choices"][0]["message"]["content"]
                            .as_str()
                            .unwrap()
                            .to_owned()
                    };
                    let expected: String = (0..tokens).map(flood_text).collect();
                    assert_eq!(words, expected);
                }
            });
        }
    });
    house.demiurge.until_nothing_runs();
    let decisions = house.demiurge.until_decisions(100);
    let cancelled = decisions
        .iter()
        .filter(|line| line["finish"] == "cancelled")
        .count();
    assert!(cancelled <= left, "{cancelled} cancelled, {left} left");
    assert_eq!(house.engine.record().submits.len(), 100);
    house.engine.assert_no_breach();
}
