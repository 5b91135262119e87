//! The engine dies under a request: the next one has it, as long as the client has seen nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};
use vitriol_proto::engine::v1::{Priority, Submit};
use vitriol_testkit::http::{Event, EventStream};

use super::demiurge::{House, chat, hello, text_of};
use super::scripted_engine::{Act, PROMPT_TOKENS, SOON};

const CHAT: &str = "/v1/chat/completions";

/// A house whose engine does `first` for the first request that it gets, and greets ever after.
fn house(settings: &str, first: &[Act]) -> House {
    let first = first.to_vec();
    let submits = AtomicUsize::new(0);
    let script = move |_: &Submit| match submits.fetch_add(1, Ordering::Relaxed) {
        0 => first.clone(),
        _ => hello(),
    };
    House::start(settings, script)
}

/// Kills the engine once it has so many requests and Demiurge has taken note.
fn kill(house: &mut House, submits: usize) {
    house
        .engine
        .until("it is asked", |record| record.submits.len() == submits);
    house.engine.kill();
    house
        .demiurge
        .until_metric("vitriol_demiurge_engine_up", 0.0);
}

/// The error that a stream ends with, after comments alone.
fn error_of(mut stream: EventStream) -> Value {
    loop {
        match stream.next_event().unwrap() {
            Some(Event::Comment(_)) => {}
            Some(Event::Chunk(error)) => {
                assert_eq!(stream.next_event().unwrap(), None, "not even [DONE]");
                return error["error"].clone();
            }
            other => panic!("{other:?}"),
        }
    }
}

fn failed(tries: u32, error: &str) -> (Value, Value, Value) {
    (tries.into(), "error".into(), error.into())
}

/// Tries, finish and error of a decision.
fn ended(decision: &Value) -> (Value, Value, Value) {
    let field = |name: &str| decision[name].clone();
    (field("tries"), field("finish"), field("error"))
}

/// How the house's one request ended; nothing is left of it.
fn outcome(house: &House) -> (Value, Value, Value) {
    let decision = house.demiurge.until_decisions(1).remove(0);
    house.demiurge.until_nothing_runs();
    house.engine.assert_no_breach();
    ended(&decision)
}

#[test]
fn a_stream_that_has_shown_nothing_goes_on_with_the_next_engine() {
    // A token without text shows nothing either.
    let first = [Act::Accept, Act::Prefill(8), Act::Say(""), Act::Hold];
    let mut house = house("ping_interval_ms = 100", &first);
    let client = house
        .client()
        .with_header("X-Session-Id", "s-1")
        .with_header("X-Tenant-Id", "t-1")
        .with_header("X-Priority", "background");
    let mut stream = client.post_stream(CHAT, &chat(true)).unwrap();
    kill(&mut house, 1);
    // The client is kept company while there is no engine.
    for _ in 0..2 {
        assert_eq!(
            stream.next_event().unwrap(),
            Some(Event::Comment("ping".into()))
        );
    }
    house.engine.restart();
    assert_eq!(text_of(&mut stream), "Hello there");

    assert_eq!(outcome(&house), (2.into(), "stop".into(), Value::Null));
    let decision = house.demiurge.decisions().remove(0);
    assert_eq!(decision["cause"], "engine_restarting");
    assert_eq!(decision["prompt_tokens"], PROMPT_TOKENS);
    assert_eq!(decision["completion_tokens"], 1);
    house
        .demiurge
        .until_metric("vitriol_demiurge_requests_resubmitted_total", 1.0);
    // As if the first had never had it: not counted twice, and the same order to the last bit of its seed.
    house
        .demiurge
        .until_metric("vitriol_demiurge_completion_tokens_total", 1.0);
    let submits = house.engine.record().submits;
    let order = |submit: &Submit| Submit {
        request_id: 0,
        ..submit.clone()
    };
    assert_eq!(order(&submits[0]), order(&submits[1]));
    let told = &submits[1];
    assert_eq!((&*told.session_id, &*told.tenant_id), ("s-1", "t-1"));
    assert_eq!(told.priority(), Priority::Background);
    let log = house.demiurge.log();
    let said = "its engine was lost before its answer began";
    assert_eq!(log.matches(said).count(), 1, "{log}");
}

#[test]
fn a_whole_answer_is_that_of_the_next_engine_alone() {
    let first = [Act::Accept, Act::Say("Hel"), Act::Say("lo"), Act::Hold];
    let mut house = house("", &first);
    let client = house.client();
    let asking = thread::spawn(move || client.post(CHAT, &chat(false)).unwrap());
    house.engine.until("two tokens", |record| {
        record.sent.values().sum::<u64>() == 2
    });
    kill(&mut house, 1);
    house.engine.restart();
    let answer = asking.join().unwrap();
    let body = answer.ok_json().unwrap();
    assert_eq!(body["choices"][0]["message"]["content"], "Hello there");
    assert_eq!(body["usage"]["completion_tokens"], 1);
    assert_eq!(answer.header("x-demiurge-cause"), Some("engine_restarting"));
    assert_eq!(outcome(&house), (2.into(), "stop".into(), Value::Null));
    house
        .demiurge
        .until_metric("vitriol_demiurge_completion_tokens_total", 1.0);
}

#[test]
fn a_request_that_a_dying_engine_has_not_taken_is_given_to_the_next_one() {
    let mut house = house("", &[Act::Hold]);
    let client = house.client();
    let asking = thread::spawn(move || client.post(CHAT, &chat(true)).unwrap());
    kill(&mut house, 1);
    house.engine.restart();
    let answer = asking.join().unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert_eq!(outcome(&house), (2.into(), "stop".into(), Value::Null));
}

#[test]
fn no_third_engine_gets_a_request_that_two_died_of() {
    let mut house = House::start("", |_| vec![Act::Accept, Act::Hold]);
    let stream = house.client().post_stream(CHAT, &chat(true)).unwrap();
    for submits in 1..=2 {
        kill(&mut house, submits);
        house.engine.restart();
    }
    let error = error_of(stream);
    assert_eq!(error["code"], "engine_lost");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("died 2 times"), "{message}");
    assert_eq!(outcome(&house), failed(2, "engine_lost"));
    house.demiurge.until_ready();
    assert_eq!(house.engine.record().submits.len(), 2);

    // Of a whole answer, and where neither has taken it.
    let mut house = House::start("", |_| vec![Act::Hold]);
    let client = house.client();
    let asking = thread::spawn(move || client.post(CHAT, &chat(false)).unwrap());
    for submits in 1..=2 {
        kill(&mut house, submits);
        house.engine.restart();
    }
    let answer = asking.join().unwrap();
    assert_eq!(answer.status(), 502);
    assert_eq!(answer.json().unwrap()["error"]["code"], "engine_lost");
    assert_eq!(outcome(&house), failed(2, "engine_lost"));
    house
        .demiurge
        .until_metric("vitriol_demiurge_requests_resubmitted_total", 1.0);
}

#[test]
fn a_stream_that_has_shown_text_is_not_given_to_another() {
    let mut house = house("", &[Act::Accept, Act::Say("Hel"), Act::Hold]);
    let mut stream = house.client().post_stream(CHAT, &chat(true)).unwrap();
    for _ in 0..2 {
        let next = stream.next_event().unwrap();
        assert!(matches!(next, Some(Event::Chunk(_))), "{next:?}");
    }
    kill(&mut house, 1);
    house.engine.restart();
    assert_eq!(error_of(stream)["code"], "engine_lost");
    assert_eq!(outcome(&house), failed(1, "engine_lost"));
    house.demiurge.until_ready();
    assert_eq!(house.engine.record().submits.len(), 1);
}

#[test]
fn one_whose_client_has_left_is_not_given_to_another() {
    let mut house = house("", &[Act::Accept, Act::Hold]);
    let stream = house.client().post_stream(CHAT, &chat(true)).unwrap();
    kill(&mut house, 1);
    drop(stream);
    assert_eq!(outcome(&house), (1.into(), "cancelled".into(), Value::Null));
    house.engine.restart();
    house.demiurge.until_ready();
    assert_eq!(house.engine.record().submits.len(), 1);
}

#[test]
fn a_house_that_drains_gives_nothing_to_another() {
    for is_draining_first in [false, true] {
        let mut house = house("", &[Act::Accept, Act::Hold]);
        let stream = house.client().post_stream(CHAT, &chat(true)).unwrap();
        match is_draining_first {
            false => kill(&mut house, 1),
            true => {
                house.demiurge.terminate();
                vitriol_testkit::eventually(SOON, "it drains", || {
                    house.client().get("/health").is_err().then_some(())
                })
                .unwrap();
                house.engine.kill();
            }
        }
        house.demiurge.terminate();
        assert_eq!(error_of(stream)["code"], "draining");
        let status = house.demiurge.wait(SOON);
        assert_eq!(status.code(), Some(0), "{}", house.demiurge.log());
        let decision = house.demiurge.decisions().remove(0);
        assert_eq!(ended(&decision), failed(1, "draining"));
    }
}

#[test]
fn the_next_engine_is_waited_for_as_long_as_for_any() {
    let mut house = House::start("engine_wait_ms = 200", |_| vec![Act::Accept, Act::Hold]);
    let stream = house.client().post_stream(CHAT, &chat(true)).unwrap();
    kill(&mut house, 1);
    assert_eq!(error_of(stream)["code"], "engine_restarting");
    assert_eq!(outcome(&house), failed(1, "engine_restarting"));

    house.engine.restart();
    house.demiurge.until_ready();
    let client = house.client();
    let asking = thread::spawn(move || client.post(CHAT, &chat(false)).unwrap());
    kill(&mut house, 2);
    let answer = asking.join().unwrap();
    assert_eq!(answer.status(), 503);
    assert!(answer.header("retry-after").is_some());
    let decision = house.demiurge.until_decisions(2).remove(1);
    assert_eq!(ended(&decision), failed(1, "engine_restarting"));
    assert_eq!(decision["prompt_tokens"], Value::Null, "of no answer");
}

#[test]
fn a_prompt_keeps_its_share_of_memory_until_its_answer_begins() {
    const LARGE: u32 = 7;
    // The least memory for bodies that there is: 16 MiB.
    let house = House::start("body_bytes_max = '1 MiB'", |submit| {
        match submit.max_tokens {
            Some(LARGE) => vec![Act::Accept, Act::Gate, Act::Say("one"), Act::Hold],
            _ => hello(),
        }
    });
    let body = |max_tokens: u32| {
        let mut body = chat(true);
        body["max_tokens"] = max_tokens.into();
        body["messages"][0]["content"] = json!("x".repeat((1 << 20) - 1000));
        body
    };
    let mut streams: Vec<EventStream> = (0..16)
        .map(|_| house.client().post_stream(CHAT, &body(LARGE)).unwrap())
        .collect();
    let one_more = || house.client().post(CHAT, &body(1)).unwrap();
    let refused = one_more();
    assert_eq!(refused.status(), 429, "{}", refused.text());
    for _ in &streams {
        house.engine.open_gate();
    }
    for stream in &mut streams {
        assert!(stream.next_chunk().unwrap().is_some());
    }
    let served = one_more();
    assert_eq!(served.status(), 200, "{}", served.text());
}
