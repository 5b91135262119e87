//! A client that leaves stops its generation, wherever its request stands.

use std::io::Write;

use vitriol_proto::engine::v1::FinishReason;

use super::demiurge::{House, chat, text_of};
use super::scripted_engine::{Act, PROMPT_TOKENS};

/// The bytes of a POST of `body`.
fn request_bytes(house: &House, body: &str) -> Vec<u8> {
    let address = house.demiurge.address;
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// After the client has left: the engine heard of it, nothing is left, the account is closed. Gives the
/// tokens it names, of the prompt and of the answer.
fn assert_cancelled(house: &House) -> (Option<u64>, Option<u64>) {
    house
        .engine
        .until("the engine hears of it", |record| record.cancels.len() == 1);
    house.demiurge.until_nothing_runs();
    let decision = house.demiurge.until_decisions(1).remove(0);
    assert_eq!(decision["finish"], "cancelled");
    assert_eq!(decision["status"], 499);
    house.engine.assert_no_breach();
    let tokens = |field| decision[field].as_u64();
    let counted = tokens("completion_tokens").unwrap_or(0) as f64;
    house
        .demiurge
        .until_metric("vitriol_demiurge_completion_tokens_total", counted);
    (tokens("prompt_tokens"), tokens("completion_tokens"))
}

/// Tokens of every scripted prompt.
const PROMPT: Option<u64> = Some(PROMPT_TOKENS as u64);

#[test]
fn in_the_middle_of_a_stream() {
    let house = House::start("", |_| vec![Act::Accept, Act::Say("Hel"), Act::Hold]);
    let mut stream = house
        .client()
        .post_stream("/v1/chat/completions", &chat(true))
        .unwrap();
    assert!(stream.next_chunk().unwrap().is_some());
    assert!(house.engine.record().cancels.is_empty());
    drop(stream);
    assert_eq!(assert_cancelled(&house), (PROMPT, Some(1)));
}

#[test]
fn before_the_first_text_of_a_stream() {
    let house = House::start("", |_| vec![Act::Accept, Act::Hold]);
    let stream = house
        .client()
        .post_stream("/v1/chat/completions", &chat(true))
        .unwrap();
    drop(stream);
    assert_eq!(assert_cancelled(&house), (PROMPT, Some(0)));
}

#[test]
fn while_a_whole_answer_is_collected() {
    let house = House::start("", |_| vec![Act::Accept, Act::Say("Hel"), Act::Hold]);
    let bytes = request_bytes(&house, &chat(false).to_string());
    let connection = house.client().send_raw(&bytes).unwrap();
    house
        .engine
        .until("it is sent", |record| record.sent.len() == 1);
    drop(connection);
    // How far it had come on this side of the wire is not known.
    assert_cancelled(&house);
}

#[test]
fn before_the_engine_has_accepted() {
    for stream in [false, true] {
        let house = House::start("", |_| vec![Act::Hold]);
        let bytes = request_bytes(&house, &chat(stream).to_string());
        let connection = house.client().send_raw(&bytes).unwrap();
        house
            .engine
            .until("it is submitted", |record| record.submits.len() == 1);
        drop(connection);
        assert_eq!(assert_cancelled(&house), (None, None));
    }
}

#[test]
fn before_the_body_is_whole_the_engine_never_hears_of_it() {
    let house = House::start("", |_| vec![Act::Accept, Act::Finish(FinishReason::Stop)]);
    let bytes = request_bytes(&house, &chat(false).to_string());
    let mut connection = house.client().send_raw(&bytes[..bytes.len() - 5]).unwrap();
    house
        .demiurge
        .until_metric("vitriol_demiurge_requests_in_flight", 1.0);
    connection.flush().unwrap();
    drop(connection);
    house
        .demiurge
        .until_metric("vitriol_demiurge_requests_in_flight", 0.0);
    assert_eq!(house.demiurge.until_decisions(1).len(), 1);
    assert!(house.engine.record().submits.is_empty());
}

#[test]
fn one_that_leaves_does_not_disturb_another() {
    let house = House::start("", |_| {
        vec![
            Act::Accept,
            Act::Say("one"),
            Act::Gate,
            Act::Say(" two"),
            Act::Finish(FinishReason::Stop),
        ]
    });
    let client = house.client();
    let mut stays = client
        .post_stream("/v1/chat/completions", &chat(true))
        .unwrap();
    let mut leaves = client
        .post_stream("/v1/chat/completions", &chat(true))
        .unwrap();
    assert!(stays.next_chunk().unwrap().is_some());
    assert!(leaves.next_chunk().unwrap().is_some());
    drop(leaves);
    house
        .engine
        .until("the engine hears of it", |record| record.cancels.len() == 1);
    house.engine.open_gate();
    let text = text_of(&mut stays);
    assert_eq!(text, "one two");
}
