//! The engine dies, restarts, loads, fails, hangs. What becomes of the requests it had: `resubmission`.

use std::thread;

use vitriol_proto::engine::v1::FinishReason;
use vitriol_testkit::http::Event;

use super::demiurge::{Demiurge, House, chat, hello, text_of};
use super::scripted_engine::{Act, Mood, SOON, ScriptedEngine};

#[test]
fn a_stream_that_breaks_ends_with_an_error_and_no_done() {
    let mut house = House::start("", |_| vec![Act::Accept, Act::Say("Hel"), Act::Hold]);
    let mut stream = house
        .client()
        .post_stream("/v1/chat/completions", &chat(true))
        .unwrap();
    for _ in 0..2 {
        assert!(matches!(
            stream.next_event().unwrap(),
            Some(Event::Chunk(_))
        ));
    }
    house.engine.kill();
    let Some(Event::Chunk(error)) = stream.next_event().unwrap() else {
        panic!("no error")
    };
    assert_eq!(error["error"]["code"], "engine_lost");
    assert_eq!(error["error"]["type"], "server_error");
    assert_eq!(stream.next_event().unwrap(), None);
    house
        .demiurge
        .until_metric("vitriol_demiurge_requests_lost_total", 1.0);
    let decision = house.demiurge.until_decisions(1).remove(0);
    assert_eq!(
        (&decision["finish"], &decision["error"]),
        (&"error".into(), &"engine_lost".into())
    );
}

#[test]
fn a_request_that_comes_during_a_restart_is_held_and_served() {
    let mut house = House::greeting();
    house.engine.kill();
    house
        .demiurge
        .until_metric("vitriol_demiurge_engine_up", 0.0);
    let health = house.client().get("/health").unwrap();
    assert_eq!(health.status(), 503);
    let client = house.client();
    let asking = thread::spawn(move || client.post("/v1/chat/completions", &chat(false)).unwrap());
    house
        .demiurge
        .until_metric("vitriol_demiurge_requests_in_flight", 1.0);
    house.engine.restart();
    let answer = asking.join().unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert_eq!(answer.header("x-demiurge-cause"), Some("engine_restarting"));
}

#[test]
fn a_restart_that_takes_too_long_is_503() {
    let mut house = House::start("engine_wait_ms = 200", |_| hello());
    house.engine.kill();
    house
        .demiurge
        .until_metric("vitriol_demiurge_engine_up", 0.0);
    let answer = house
        .client()
        .post("/v1/chat/completions", &chat(true))
        .unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.json().unwrap()["error"]["code"], "engine_restarting");
    assert!(answer.header("retry-after").is_some());
    // What was known of the model is still told.
    assert_eq!(house.client().get("/v1/models").unwrap().status(), 200);
}

#[test]
fn while_it_loads_requests_are_refused_at_once_and_then_served() {
    let dir = tempfile::tempdir().unwrap();
    let engine = ScriptedEngine::start(dir.path(), |_| hello());
    engine.set_mood(Mood::Loading);
    let demiurge = Demiurge::start(dir.path(), engine.socket(), "");
    let client = demiurge.client();
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let mut body = chat(false);
        body["prompt"] = "x".into();
        let answer = client.post(path, &body).unwrap();
        assert_eq!(answer.status(), 503);
        let error = &answer.json().unwrap()["error"];
        assert_eq!(
            (&error["message"], &error["type"]),
            (&"Loading model".into(), &"unavailable_error".into())
        );
        assert!(answer.header("retry-after").is_some());
        assert_eq!(answer.header("x-demiurge-cause"), Some("engine_loading"));
    }
    let health = client.get("/health").unwrap();
    assert_eq!(health.status(), 503);
    let error = &health.json().unwrap()["error"];
    assert_eq!(
        (&error["code"], &error["message"]),
        (&503.into(), &"Loading model".into())
    );
    assert_eq!(client.get("/v1/models").unwrap().status(), 503);
    assert_eq!(client.get("/slots").unwrap().status(), 503);
    assert_eq!(client.get("/metrics").unwrap().status(), 200);
    engine.set_mood(Mood::Ready);
    demiurge.until_ready();
    assert_eq!(
        client
            .post("/v1/chat/completions", &chat(false))
            .unwrap()
            .status(),
        200
    );
}

#[test]
fn an_engine_that_failed_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let engine = ScriptedEngine::start(dir.path(), |_| hello());
    engine.set_mood(Mood::Failed);
    let demiurge = Demiurge::start(dir.path(), engine.socket(), "");
    let told = vitriol_testkit::eventually(SOON, "the reason is known", || {
        let answer = demiurge
            .client()
            .post("/v1/chat/completions", &chat(false))
            .unwrap();
        assert_eq!(answer.status(), 503);
        Some(answer.text()).filter(|text| text.contains("kv_bytes_max"))
    });
    assert!(told.unwrap().contains("engine_failed"));
}

#[test]
fn an_engine_that_hangs_is_noticed() {
    let house = House::start("engine_deadline_ms = 50", |_| {
        vec![Act::Accept, Act::Say("Hel"), Act::Hold]
    });
    let mut stream = house
        .client()
        .post_stream("/v1/chat/completions", &chat(true))
        .unwrap();
    for _ in 0..2 {
        assert!(matches!(
            stream.next_event().unwrap(),
            Some(Event::Chunk(_))
        ));
    }
    house.engine.set_mood(Mood::Hung);
    loop {
        match stream.next_event().unwrap() {
            Some(Event::Comment(_)) => {}
            Some(Event::Chunk(error)) => {
                assert_eq!(error["error"]["code"], "engine_lost");
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    // The control plane answers within its deadline meanwhile.
    assert_eq!(house.client().get("/metrics").unwrap().status(), 200);
}

#[test]
fn silence_is_filled_with_comments() {
    let house = House::start("ping_interval_ms = 100", |_| {
        vec![
            Act::Accept,
            Act::Gate,
            Act::Say("Hello"),
            Act::Finish(FinishReason::Stop),
        ]
    });
    let mut stream = house
        .client()
        .post_stream("/v1/chat/completions", &chat(true))
        .unwrap();
    for _ in 0..3 {
        assert_eq!(
            stream.next_event().unwrap(),
            Some(Event::Comment("ping".into()))
        );
    }
    house.engine.open_gate();
    let text = text_of(&mut stream);
    assert_eq!(text, "Hello");
}

#[test]
fn a_long_prefill_is_filled_with_comments_too() {
    let house = House::start("ping_interval_ms = 100", |_| {
        vec![
            Act::Accept,
            Act::LongPrefill,
            Act::Say("Hello"),
            Act::Finish(FinishReason::Stop),
        ]
    });
    let mut stream = house
        .client()
        .post_stream("/v1/chat/completions", &chat(true))
        .unwrap();
    for _ in 0..3 {
        assert_eq!(
            stream.next_event().unwrap(),
            Some(Event::Comment("ping".into()))
        );
    }
    house.engine.open_gate();
    while stream.next_chunk().unwrap().is_some() {}
}

#[test]
fn many_kills_lose_no_place() {
    let mut house = House::start("requests_max = 4", |_| {
        vec![Act::Accept, Act::Say("Hel"), Act::Hold]
    });
    for round in 1..=5 {
        let mut streams: Vec<_> = (0..4)
            .map(|_| {
                house
                    .client()
                    .post_stream("/v1/chat/completions", &chat(true))
                    .unwrap()
            })
            .collect();
        for stream in &mut streams {
            assert!(matches!(
                stream.next_event().unwrap(),
                Some(Event::Chunk(_))
            ));
        }
        house.engine.kill();
        for stream in &mut streams {
            while stream.next_event().unwrap().is_some() {}
        }
        house
            .demiurge
            .until_metric("vitriol_demiurge_requests_lost_total", f64::from(4 * round));
        house.engine.restart();
        house.demiurge.until_ready();
    }
    house.demiurge.until_nothing_runs();
    assert!(!house.demiurge.log().contains("panicked"));
}
