//! SIGTERM: what runs may finish, nothing new begins, and the end comes in time.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use vitriol_proto::engine::v1::FinishReason;
use vitriol_testkit::eventually;
use vitriol_testkit::http::Event;

use super::demiurge::{House, chat, text_of};
use super::scripted_engine::{Act, SOON};

fn gated(settings: &str) -> House {
    House::start(settings, |_| {
        vec![
            Act::Accept,
            Act::Say("one"),
            Act::Gate,
            Act::Say(" two"),
            Act::Finish(FinishReason::Stop),
        ]
    })
}

#[test]
fn a_running_answer_finishes_and_new_ones_are_not_taken() {
    let mut house = gated("");
    let client = house.client();
    let mut stream = client
        .post_stream("/v1/chat/completions", &chat(true))
        .unwrap();
    assert!(stream.next_chunk().unwrap().is_some());
    house.demiurge.terminate();
    let address = house.demiurge.address;
    eventually(SOON, "the port is closed", || {
        TcpStream::connect(address).is_err().then_some(())
    })
    .unwrap();
    house.engine.open_gate();
    let text = text_of(&mut stream);
    assert_eq!(text, "one two");
    assert_eq!(
        house.demiurge.wait(SOON).code(),
        Some(0),
        "{}",
        house.demiurge.log()
    );
    let decisions = house.demiurge.decisions();
    assert_eq!(
        (decisions.len(), &decisions[0]["finish"]),
        (1, &"stop".into())
    );
    assert!(!house.dir.path().join("demiurge/demiurge.addr").exists());
    assert!(!house.dir.path().join("demiurge/demiurge.sock").exists());
}

#[test]
fn past_the_deadline_answers_end_with_an_error() {
    let mut house = gated("drain_ms = 300");
    let client = house.client();
    let mut stream = client
        .post_stream("/v1/chat/completions", &chat(true))
        .unwrap();
    for _ in 0..2 {
        assert!(matches!(
            stream.next_event().unwrap(),
            Some(Event::Chunk(_))
        ));
    }
    house.demiurge.terminate();
    let Some(Event::Chunk(error)) = stream.next_event().unwrap() else {
        panic!("no error")
    };
    assert_eq!(error["error"]["code"], "draining");
    assert_eq!(stream.next_event().unwrap(), None);
    assert_eq!(
        house.demiurge.wait(SOON).code(),
        Some(0),
        "{}",
        house.demiurge.log()
    );
    // The end of the session cancels what was left in it.
    house
        .engine
        .until("the session ends", |record| record.sessions_ended == 1);
    assert_eq!(house.demiurge.decisions()[0]["error"], "draining");
}

#[test]
fn idle_connections_do_not_hold_it_up() {
    let mut house = gated("");
    let address = house.demiurge.address;
    let _silent: Vec<_> = (0..3)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    house
        .demiurge
        .until_metric("vitriol_demiurge_connections", 4.0);
    let begun = Instant::now();
    house.demiurge.terminate();
    assert_eq!(house.demiurge.wait(SOON).code(), Some(0));
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
}
