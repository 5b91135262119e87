//! A slow reader pauses its own sequence and costs no memory; others go on.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use vitriol_proto::engine::v1::FinishReason;
use vitriol_testkit::{eventually, holds_for, process};

use super::demiurge::{House, chat, hello};
use super::scripted_engine::{Act, SOON};

/// Tokens of the long answer: some four megabytes, far more than all buffers on the way hold.
const FLOOD: u32 = 60_000;

/// The default of `engine.main.window_tokens`.
const WINDOW: u64 = 256;

fn house(settings: &str) -> House {
    House::start(settings, |submit| match submit.max_tokens {
        Some(FLOOD) => vec![
            Act::Accept,
            Act::Flood(FLOOD),
            Act::Finish(FinishReason::Stop),
        ],
        _ => hello(),
    })
}

/// A connection with a small receive buffer on which the long answer was asked for.
fn ask_for_flood(address: SocketAddr) -> TcpStream {
    let mut body = chat(true);
    body["max_tokens"] = FLOOD.into();
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 16 << 10).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    stream
}

fn sent(house: &House) -> u64 {
    house
        .engine
        .record()
        .sent
        .values()
        .copied()
        .max()
        .unwrap_or_default()
}

/// Waits until the engine sends no more, and returns how many tokens it has sent.
fn plateau(house: &House) -> u64 {
    let mut last = 0;
    eventually(SOON, "the engine pauses", || {
        let before = sent(house);
        let quiet = holds_for(Duration::from_millis(400), "quiet", || {
            sent(house) == before
        });
        last = before;
        (before > 0 && quiet.is_ok()).then_some(())
    })
    .unwrap();
    last
}

#[test]
fn a_reader_that_does_not_read_pauses_its_sequence() {
    let house = house("");
    let before = process::resident_anonymous_bytes(house.demiurge.pid()).unwrap();
    let mut slow = ask_for_flood(house.demiurge.address);
    let sent_tokens = plateau(&house);
    assert!(
        sent_tokens < u64::from(FLOOD) / 4,
        "paused only after {sent_tokens} tokens"
    );
    let record = house.engine.record();
    let credited = record.credited.values().copied().max().unwrap_or_default();
    assert_eq!(
        sent_tokens - credited,
        WINDOW,
        "it pauses exactly at its window"
    );
    let grown = process::resident_anonymous_bytes(house.demiurge.pid()).unwrap() - before;
    assert!(grown < 8 << 20, "{grown} bytes for one slow reader");

    // Others are served while it sleeps.
    let other = house
        .client()
        .post("/v1/chat/completions", &chat(false))
        .unwrap();
    assert_eq!(other.status(), 200);

    // It wakes up, as a quick reader now, and every token is there, in order.
    rustix::net::sockopt::set_socket_recv_buffer_size(&slow, 1 << 20).unwrap();
    let mut text = String::new();
    slow.read_to_string(&mut text).unwrap();
    let mut next = 0;
    for data in text.lines().filter_map(|line| line.strip_prefix("data: {")) {
        let chunk: serde_json::Value = serde_json::from_str(&format!("{{{data}")).unwrap();
        let words = chunk["choices"][0]["delta"]["content"]
            .as_str()
            .unwrap_or_default();
        for number in words
            .split_whitespace()
            .filter(|word| !word.starts_with('.'))
        {
            assert_eq!(number.parse::<u32>().unwrap(), next);
            next += 1;
        }
    }
    assert_eq!(next, FLOOD);
    assert!(text.contains("data: [DONE]"));
    house.engine.assert_no_breach();
}

#[test]
fn a_reader_that_has_stopped_for_good_is_let_go() {
    let house = house("reader_stall_timeout_ms = 1000");
    let stopped = ask_for_flood(house.demiurge.address);
    house
        .engine
        .until("it is let go", |record| record.cancels.len() == 1);
    house
        .demiurge
        .until_metric("vitriol_demiurge_engine_requests", 0.0);
    drop(stopped);
}

#[test]
fn a_whole_answer_longer_than_the_window_comes_through() {
    let house = house("");
    let mut body = chat(false);
    body["max_tokens"] = FLOOD.into();
    let answer = house
        .client()
        .post("/v1/chat/completions", &body)
        .unwrap()
        .ok_json()
        .unwrap();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(text.len(), 64 * FLOOD as usize);
    house.engine.assert_no_breach();
}
