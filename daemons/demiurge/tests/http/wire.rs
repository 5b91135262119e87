//! Every form on the wire, as snapshots.

use serde_json::{Value, json};
use vitriol_proto::engine::v1::{Failed, FailureKind, FinishReason, Sampling, Submit, submit};
use vitriol_testkit::http::{Client, Response};

use super::demiurge::{House, chat, hello};
use super::scripted_engine::Act;

/// A head's telling headers and a body whose changing parts are replaced.
fn shown(response: &Response) -> String {
    let mut text = format!("{}\n", response.status());
    for name in [
        "content-type",
        "cache-control",
        "x-accel-buffering",
        "retry-after",
        "allow",
        "x-demiurge-lane",
        "x-demiurge-cause",
        "x-vitriol-kv",
    ] {
        if let Some(value) = response.header(name) {
            text += &format!("{name}: {value}\n");
        }
    }
    assert!(response.header("x-request-id").is_some());
    text += "\n";
    text += &stable(&response.text());
    text
}

/// The body with ids and times replaced, whether it is JSON or events.
fn stable(body: &str) -> String {
    if let Ok(value) = serde_json::from_str(body) {
        return serde_json::to_string_pretty(&redacted(value)).unwrap();
    }
    let lines = body.lines().map(|line| match line.strip_prefix("data: ") {
        Some(data) => match serde_json::from_str(data) {
            Ok(value) => format!("data: {}", redacted(value)),
            Err(_) => line.to_owned(),
        },
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn redacted(mut value: Value) -> Value {
    if let Some(object) = value.as_object_mut() {
        if let Some(id) = object.get_mut("id").filter(|id| id.is_string()) {
            let id_text = id.as_str().unwrap_or_default();
            if let Some((prefix, unique)) = id_text.split_once("cmpl-") {
                assert_eq!(unique.len(), 24, "{id_text}");
                *id = json!(format!("{prefix}cmpl-ID"));
            }
        }
        let answers = [
            "chat.completion",
            "chat.completion.chunk",
            "text_completion",
        ];
        if object
            .get("object")
            .and_then(Value::as_str)
            .is_some_and(|kind| answers.contains(&kind))
        {
            assert!(object["created"].as_u64().unwrap() > 1_700_000_000);
            object["created"] = json!("TIME");
            let ours = format!("vitriol-{}-", env!("CARGO_PKG_VERSION"));
            let fingerprint = object["system_fingerprint"].as_str().unwrap();
            object["system_fingerprint"] = json!(fingerprint.replace(&ours, "vitriol-VERSION-"));
        }
    }
    value
}

fn post(client: &Client, path: &str, body: &Value) -> String {
    shown(&client.post(path, body).unwrap())
}

#[test]
fn chat_forms() {
    let house = House::greeting();
    let client = house.client();
    let path = "/v1/chat/completions";
    insta::assert_snapshot!("chat_whole", post(&client, path, &chat(false)));
    insta::assert_snapshot!("chat_stream", post(&client, path, &chat(true)));
    let mut with_usage = chat(true);
    with_usage["stream_options"] = json!({ "include_usage": true });
    insta::assert_snapshot!("chat_stream_with_usage", post(&client, path, &with_usage));
    house.engine.assert_no_breach();
}

#[test]
fn completion_forms() {
    let house = House::greeting();
    let client = house.client();
    let path = "/v1/completions";
    let body = json!({ "prompt": "Once" });
    insta::assert_snapshot!("completion_whole", post(&client, path, &body));
    let body = json!({ "prompt": [1, 2, 3], "stream": true });
    insta::assert_snapshot!("completion_stream", post(&client, path, &body));
}

#[test]
fn an_answer_without_text_is_still_an_answer() {
    let house = House::start("", |_| vec![Act::Accept, Act::Finish(FinishReason::Length)]);
    let client = house.client();
    let path = "/v1/chat/completions";
    insta::assert_snapshot!("empty_whole", post(&client, path, &chat(false)));
    insta::assert_snapshot!("empty_stream", post(&client, path, &chat(true)));
}

#[test]
fn what_reaches_the_engine() {
    let house = House::greeting();
    let client = house
        .client()
        .with_header("X-Session-Id", "s-7")
        .with_header("X-Tenant-Id", "t-3")
        .with_header("X-Priority", "background");
    let body = json!({
        "messages": [{ "role": "user", "content": "hi", "extra": [1, 2] }],
        "chat_template_kwargs": { "enable_thinking": false },
        "temperature": 0.5, "top_p": 0.75, "top_k": 5, "min_p": 0.25, "seed": 42,
        "max_tokens": 9, "stop": ["END", "STOP"], "ignore_eos": true, "user": "ignored",
    });
    assert_eq!(
        client.post("/v1/chat/completions", &body).unwrap().status(),
        200
    );
    let prompt_only = json!({ "prompt": "raw <|im_end|>" });
    assert_eq!(
        client
            .post("/v1/completions", &prompt_only)
            .unwrap()
            .status(),
        200
    );
    let submits = house.engine.record().submits;
    let Some(submit::Prompt::Chat(prompt)) = &submits[0].prompt else {
        panic!("no chat prompt")
    };
    assert_eq!(
        prompt.messages_json,
        body["messages"].to_string().as_bytes()
    );
    assert_eq!(
        prompt.template_kwargs_json,
        body["chat_template_kwargs"].to_string().as_bytes()
    );
    assert!(prompt.tools_json.is_empty());
    assert_eq!(submits[0].sampling.unwrap().seed, 42);
    let Some(submit::Prompt::Text(prompt)) = &submits[1].prompt else {
        panic!("no text prompt")
    };
    assert_eq!(prompt.text, "raw <|im_end|>");
    // A seed that the client did not give is drawn afresh.
    let drawn: Vec<u64> = (0..2).map(|_| seed_of(&house, &prompt_only)).collect();
    assert_ne!(drawn[0], drawn[1]);
    let shown: Vec<Submit> = submits
        .into_iter()
        .zip([42, 0])
        .map(|(submit, seed)| {
            let sampling = submit
                .sampling
                .map(|sampling| Sampling { seed, ..sampling });
            Submit {
                prompt: None,
                sampling,
                ..submit
            }
        })
        .collect();
    insta::assert_snapshot!("submits", format!("{shown:#?}"));
}

/// The seed with which the engine gets a request.
fn seed_of(house: &House, body: &Value) -> u64 {
    house.client().post("/v1/completions", body).unwrap();
    house
        .engine
        .record()
        .submits
        .last()
        .unwrap()
        .sampling
        .unwrap()
        .seed
}

#[test]
fn the_engines_refusals() {
    let failures = [
        (FailureKind::Invalid, "the prompt is empty"),
        (FailureKind::Template, "line 3: roles must alternate"),
        (FailureKind::ContextOverflow, ""),
        (FailureKind::Busy, ""),
        (FailureKind::Draining, ""),
        (FailureKind::Internal, "a tensor has no rows"),
    ];
    let house = House::start("", move |submit| {
        let (kind, message) = failures[submit.max_tokens.unwrap_or(1) as usize - 1];
        let mut failed = Failed {
            kind: kind as i32,
            message: message.into(),
            ..Failed::default()
        };
        if kind == FailureKind::ContextOverflow {
            (failed.prompt_tokens, failed.context_tokens) = (5000, 4096);
        }
        if kind == FailureKind::Busy {
            failed.retry_after_ms = 1500;
        }
        vec![Act::Fail(failed)]
    });
    let client = house.client();
    for (number, (kind, _)) in failures.iter().enumerate() {
        // A streamed request is refused with a status too, because nothing has been sent yet.
        let mut body = chat(number % 2 == 1);
        body["max_tokens"] = json!(number + 1);
        let answer = post(&client, "/v1/chat/completions", &body);
        insta::assert_snapshot!(format!("engine_refuses_{}", kind.as_str_name()), answer);
    }
}

#[test]
fn a_failure_in_the_middle_ends_the_stream_without_done() {
    let failed = Failed {
        kind: FailureKind::Internal as i32,
        message: "oh".into(),
        ..Failed::default()
    };
    let house = House::start("", move |_| {
        vec![Act::Accept, Act::Say("Hel"), Act::Fail(failed.clone())]
    });
    let client = house.client();
    insta::assert_snapshot!(
        "failure_midway",
        post(&client, "/v1/chat/completions", &chat(true))
    );
    let whole = post(&client, "/v1/chat/completions", &chat(false));
    insta::assert_snapshot!("failure_midway_whole", whole);
}

#[test]
fn an_engine_that_ignores_the_window_loses_the_request_and_only_that() {
    let house = House::start("", |submit| match submit.max_tokens {
        Some(1) => vec![Act::Accept, Act::Overrun(100_000), Act::Hold],
        _ => hello(),
    });
    let client = house.client();
    let mut body = chat(false);
    body["max_tokens"] = json!(1);
    let refused = client.post("/v1/chat/completions", &body).unwrap();
    assert_eq!(refused.status(), 500, "{}", refused.text());
    assert_eq!(
        client
            .post("/v1/chat/completions", &chat(false))
            .unwrap()
            .status(),
        200
    );
    house.engine.until("the culprit is cancelled", |record| {
        record.cancels.len() == 1
    });
}

#[test]
fn models_tokens_health_and_slots() {
    let house = House::greeting();
    let client = house.client();
    let get = |path: &str| shown(&client.get(path).unwrap());
    insta::assert_snapshot!("models", get("/v1/models"));
    insta::assert_snapshot!("model", get("/v1/models/smol"));
    insta::assert_snapshot!("model_unknown", get("/v1/models/gpt-5"));
    insta::assert_snapshot!("health", get("/health"));
    assert_eq!(get("/health"), get("/v1/health"));
    insta::assert_snapshot!("slots", get("/slots"));
    assert_eq!(
        client.get("/slots?fail_on_no_slot=1").unwrap().status(),
        200
    );

    let tokenize = |body: Value| post(&client, "/tokenize", &body);
    insta::assert_snapshot!(
        "tokenize",
        tokenize(json!({ "content": "hé", "add_special": true }))
    );
    let with_pieces = tokenize(json!({ "content": "hé", "with_pieces": true }));
    insta::assert_snapshot!("tokenize_with_pieces", with_pieces);
    insta::assert_snapshot!("tokenize_refused", tokenize(json!({ "content": 5 })));
    let detokenize = |body: Value| post(&client, "/detokenize", &body);
    insta::assert_snapshot!(
        "detokenize",
        detokenize(json!({ "tokens": [104, 195, 169] }))
    );
    insta::assert_snapshot!(
        "detokenize_refused",
        detokenize(json!({ "tokens": [70_000] }))
    );
}

#[test]
fn paths_and_methods_that_are_not_there() {
    let house = House::greeting();
    let client = house.client();
    let ask = |method: &str, path: &str| shown(&client.request(method, path, None).unwrap());
    insta::assert_snapshot!("no_route_openai", ask("GET", "/v1/embeddings"));
    insta::assert_snapshot!("no_route_llama", ask("POST", "/apply-template"));
    insta::assert_snapshot!("bad_method_openai", ask("GET", "/v1/chat/completions"));
    insta::assert_snapshot!("bad_method_llama", ask("DELETE", "/slots"));
    let head = client.request("HEAD", "/v1/models", None).unwrap();
    assert_eq!((head.status(), head.body.len()), (200, 0));
    let options = client
        .request("OPTIONS", "/v1/chat/completions", None)
        .unwrap();
    assert_eq!(options.status(), 204);
    assert_eq!(options.header("allow"), Some("GET, HEAD, POST, OPTIONS"));
}

#[test]
fn models_are_known_by_alias_and_file() {
    let house = House::greeting();
    let client = house.client();
    for name in ["smol", "SmolLM2-135M.Q4_1", "SmolLM2-135M.Q4_1.gguf", ""] {
        let mut body = chat(false);
        body["model"] = json!(name);
        let answer = client
            .post("/v1/chat/completions", &body)
            .unwrap()
            .ok_json()
            .unwrap();
        assert_eq!(answer["model"], "smol", "{name}");
    }
    let mut body = chat(false);
    body["model"] = json!("gpt-5");
    insta::assert_snapshot!(
        "model_not_found",
        post(&client, "/v1/chat/completions", &body)
    );
}

#[test]
fn metrics_of_both_daemons_and_llama_servers_names() {
    let house = House::greeting();
    house
        .client()
        .post("/v1/chat/completions", &chat(false))
        .unwrap();
    let response = house.client().get("/metrics").unwrap();
    let page = response.text();
    assert!(
        response
            .header("content-type")
            .unwrap()
            .starts_with("application/openmetrics-text")
    );
    for line in [
        "vitriol_demiurge_requests_total{route=\"chat_completions\",outcome=\"stop\"} 1",
        "vitriol_demiurge_prompt_tokens_total 12",
        "vitriol_demiurge_cached_tokens_total 4",
        "vitriol_demiurge_completion_tokens_total 1",
        "vitriol_demiurge_engine_up 1",
        "vitriol_demiurge_engine_requests 0",
        "vitriol_demiurge_requests_in_flight 0",
        "vitriol_engine_steps_total 7",
        "llamacpp:n_decode_total 7",
        "llamacpp:prompt_tokens_total 1200",
        "llamacpp:prompt_tokens_seconds 480",
        "llamacpp:requests_processing 1",
        "llamacpp:requests_deferred 3",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
    }
    assert!(page.ends_with("# EOF\n") && page.matches("# EOF").count() == 1);
}

#[test]
fn a_prompt_of_many_megabytes_reaches_the_engine_whole() {
    let house = House::greeting();
    let text = "violets ".repeat(3 << 20);
    let mut body = chat(false);
    body["messages"][0]["content"] = json!(text);
    assert_eq!(
        house
            .client()
            .post("/v1/chat/completions", &body)
            .unwrap()
            .status(),
        200
    );
    let submits = house.engine.record().submits;
    let Some(submit::Prompt::Chat(prompt)) = &submits[0].prompt else {
        panic!("no chat prompt")
    };
    assert!(prompt.messages_json == body["messages"].to_string().as_bytes());
}
