//! `vitriol chat` against a server that plays its part from a script.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Output, Stdio},
    sync::mpsc::{Receiver, sync_channel},
    thread,
    time::Duration,
};

use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(20);

/// A request as the server got it.
struct Asked {
    head: String,
    body: Value,
}

impl Asked {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    }
}

/// Answers one connection after the other with these bytes and hands on what was asked.
fn serve(answers: Vec<Vec<u8>>) -> (String, Receiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let (told, asked) = sync_channel(answers.len());
    thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(DEADLINE)).expect("set");
            told.send(read_request(&stream)).expect("the test listens");
            // The client may leave early; that is its right.
            let _ = stream.write_all(&answer);
        }
    });
    (url, asked)
}

fn read_request(stream: &TcpStream) -> Asked {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(
            reader.read_line(&mut head).expect("a line"),
            0,
            "cut request: {head}"
        );
    }
    let mut asked = Asked {
        head,
        body: Value::Null,
    };
    let length = asked
        .header("content-length")
        .and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).expect("a whole body");
    asked.body = serde_json::from_slice(&body).expect("JSON");
    asked
}

fn respond(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\n{headers}\r\n{body}").into_bytes()
}

fn stream(events: &[&str]) -> Vec<u8> {
    let body: String = events
        .iter()
        .map(|data| format!("data: {data}\n\n"))
        .collect();
    respond(
        "200 OK",
        "content-type: text/event-stream\r\n",
        &format!(": ping\n\n{body}"),
    )
}

fn chat(url: &str, flags: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_vitriol"))
        .args(["chat", "--url", url])
        .args(flags)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("vitriol runs");
    child
        .stdin
        .take()
        .expect("piped")
        .write_all(input.as_bytes())
        .expect("written");
    child.wait_with_output().expect("ends")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

const ROLE: &str = r#"{"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}"#;
const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":3,
"prompt_tokens_details":{"cached_tokens":9}},"timings":{"predicted_per_second":40.0}}"#;

#[test]
fn a_conversation_goes_on_and_its_figures_are_shown() {
    let hello = r#"{"choices":[{"delta":{"content":"Hé \u001b[2Jllo"}}]}"#;
    let usage = USAGE.replace('\n', "");
    let whole = stream(&[ROLE, hello, STOP, &usage, "[DONE]"]);
    let (url, asked) = serve(vec![whole.clone(), whole]);
    let flags = ["--system", "be brief", "--temperature", "0", "--seed", "7"];
    let output = chat(&url, &flags, "hi\nand?\n/stats\n");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(
        text(&output.stdout),
        // Whatever a model writes, it does not drive the terminal.
        format!(
            "Hé [2Jllo\nHé [2Jllo\n{}\n2 answers in all: {}\n",
            text(&output.stdout)
                .lines()
                .nth(2)
                .expect("a line of figures"),
            "24 prompt tokens (18 cached), 6 generated",
        )
    );
    let figures = "last answer: 12 prompt tokens (9 cached), 3 generated, 40.0 tok/s, first text";
    assert!(
        text(&output.stdout).contains(figures),
        "{}",
        text(&output.stdout)
    );

    let first = asked.recv_timeout(DEADLINE).expect("asked");
    let second = asked.recv_timeout(DEADLINE).expect("asked again");
    assert_eq!(first.body["temperature"], 0.0);
    assert_eq!(first.body["seed"], 7);
    assert_eq!(first.body["messages"][0]["content"], "be brief");
    assert_eq!(
        second.body["messages"][2]["content"], "Hé \u{1b}[2Jllo",
        "kept as it was said"
    );
    assert_eq!(second.body["messages"][3]["content"], "and?");
    let session = first.header("x-session-id").expect("a session id");
    assert!(session.starts_with("chat-"), "{session}");
    assert_eq!(second.header("x-session-id"), Some(session), "one session");
}

#[test]
fn a_house_that_loads_is_waited_for() {
    let body = r#"{"error":{"message":"Loading model","type":"unavailable_error",
        "code":"engine_loading"}}"#;
    let loading = respond("503 Service Unavailable", "retry-after: 1\r\n", body);
    let (url, asked) = serve(vec![loading, stream(&[ROLE, STOP, "[DONE]"])]);
    let output = chat(&url, &[], "hi\n");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("not ready yet"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(asked.iter().count(), 2);
}

#[test]
fn a_house_that_failed_is_not_waited_for() {
    let body = r#"{"error":{"message":"the engine cannot serve: no memory",
        "code":"engine_failed"}}"#;
    let failed = respond("503 Service Unavailable", "retry-after: 1\r\n", body);
    let (url, asked) = serve(vec![failed]);
    let output = chat(&url, &[], "hi\n");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(
        said.contains("no memory") && !said.contains("waiting"),
        "{said}"
    );
    assert_eq!(asked.iter().count(), 1);
}

#[test]
fn refusals_cut_answers_and_errors_in_the_stream_are_told_in_the_servers_words() {
    let refusal = r#"{"error":{"message":"temperature: 9 is above 2"}}"#;
    let cut = r#"{"choices":[{"delta":{"content":"Once upon"}}]}"#;
    let error = r#"{"error":{"message":"engine restarted"}}"#;
    let cases = [
        (
            respond("400 Bad Request", "", refusal),
            64,
            "temperature: 9 is above 2",
        ),
        (
            stream(&[ROLE, cut]),
            69,
            "the answer broke off before its end",
        ),
        (stream(&[ROLE, cut, error]), 69, "engine restarted"),
        (stream(&["{nonsense"]), 69, "event is not JSON"),
    ];
    for (answer, code, words) in cases {
        let (url, _asked) = serve(vec![answer]);
        let output = chat(&url, &[], "hi\n");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words}: {said}");
        assert!(
            said.starts_with("vitriol: ") && said.contains(words),
            "{said}"
        );
    }
}
