//! What deaths, second starts and ctrl-C do: `vitriol up` with real daemons.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its functions too"
)]

use std::{
    os::unix::fs::MetadataExt,
    process::{Command, Output},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use vitriol_testkit::{
    House, Setup, eventually, holds_for,
    house::{DEMIURGE, ENGINE, KVTIER},
    http::Client,
    process,
};

/// Exit code for a port or lock that another process holds.
const HELD: i32 = 69;

fn question(max_tokens: u32, stream: bool) -> Value {
    json!({
        "messages": [{"role": "user", "content": "Tell a long story about the sea."}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": stream,
    })
}

fn answers(client: &Client) -> bool {
    client
        .post("/v1/chat/completions", &question(4, false))
        .is_ok_and(|a| a.status() == 200)
}

/// Runs the command to its end, which must come by itself.
fn finish(mut command: Command, within: Duration) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let log = |name: &str| std::fs::File::create(directory.path().join(name)).unwrap();
    let mut child = command
        .stdout(log("out"))
        .stderr(log("err"))
        .spawn()
        .unwrap();
    let status = eventually(within, "end of the command", || child.try_wait().unwrap());
    if status.is_err() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let read = |name: &str| std::fs::read(directory.path().join(name)).unwrap();
    Output {
        status: status.unwrap(),
        stdout: read("out"),
        stderr: read("err"),
    }
}

/// The first process with this executable under `up` whose pid is not `old`.
fn successor(house: &House, executable: &str, old: u32) -> u32 {
    eventually(Duration::from_secs(60), "a new process", || {
        house.daemon_pid(executable).ok().filter(|pid| *pid != old)
    })
    .unwrap()
}

#[test]
fn a_killed_engine_ends_its_streams_with_an_error_and_comes_back() {
    let house = House::start(&Setup::default()).unwrap();
    let client = house.client();
    let mut stream = client
        .post_stream("/v1/chat/completions", &question(4000, true))
        .unwrap();
    stream.next_chunk().unwrap().unwrap();
    let old = house.daemon_pid(ENGINE).unwrap();
    process::signal(old, Signal::KILL).unwrap();

    let mut last = None;
    while let Ok(Some(chunk)) = stream.next_chunk() {
        last = Some(chunk);
    }
    let last = last.expect("an error event before the end");
    assert!(last["error"]["message"].is_string(), "{last}");
    assert!(
        stream.next_event().is_ok_and(|end| end.is_none()),
        "nothing follows, not even [DONE]"
    );

    // A request that arrives while the engine restarts waits and is then served.
    assert!(answers(&client), "{}", house.said());
    assert_ne!(successor(&house, ENGINE, old), old);
    eventually(Duration::from_secs(10), "health", || {
        (client.get("/health").ok()?.status() == 200).then_some(())
    })
    .unwrap();
}

/// Seconds of prefill, on any machine that tests run on; of which the engine has nothing from a question with
/// another `number`.
fn long_question(number: usize, stream: bool) -> Value {
    let words = "The tide comes in, the tide goes out, and the lamp is lit again. ".repeat(200);
    let mut question = question(12, stream);
    question["messages"][0]["content"] = format!("Song {number}. {words}What is lit?").into();
    question
}

#[test]
fn an_engine_killed_in_the_middle_of_a_prefill_costs_its_clients_nothing_but_time() {
    let house = House::start(&Setup::default()).unwrap();
    let ask = |number: usize, stream: bool| {
        let client = house.client();
        let question = long_question(number, stream);
        std::thread::spawn(move || {
            let path = "/v1/chat/completions";
            if !stream {
                let answer = client.post(path, &question).unwrap();
                let answer = answer.ok_json().unwrap();
                return answer["choices"][0]["message"]["content"]
                    .as_str()
                    .unwrap()
                    .to_owned();
            }
            let stream = client.post_stream(path, &question).unwrap();
            let chunks = stream.chunks().expect("an answer that ends in [DONE]");
            let content = |chunk: &Value| chunk["choices"][0]["delta"]["content"].clone();
            let texts = chunks.iter().map(content);
            texts
                .filter_map(|text| text.as_str().map(str::to_owned))
                .collect()
        })
    };
    let in_prefill = || {
        let slots = house.client().get("/slots").ok()?.ok_json().ok()?;
        let mut slots = slots.as_array()?.iter();
        let is_begun = |slot: &Value| {
            slot["state"] == "prefill" && slot["prompt_tokens_done"].as_u64() > Some(0)
        };
        slots.any(is_begun).then_some(())
    };
    let mut answers = Vec::new();
    for (number, stream) in [true, false].into_iter().enumerate() {
        let asked = ask(number, stream);
        eventually(
            Duration::from_secs(60),
            "the middle of a prefill",
            in_prefill,
        )
        .unwrap();
        let old = house.daemon_pid(ENGINE).unwrap();
        process::signal(old, Signal::KILL).unwrap();
        answers.push(asked.join().unwrap());
        successor(&house, ENGINE, old);
    }
    let undisturbed = [0, 1].map(|number| ask(number, false).join().unwrap());
    assert!(undisturbed.iter().all(|answer| !answer.is_empty()));
    assert_eq!(answers, undisturbed);
    let resubmitted = house
        .client()
        .metric("vitriol_demiurge_requests_resubmitted_total");
    assert_eq!(resubmitted, Some(2.0), "{}", house.said());
}

#[test]
fn a_stopped_engine_is_ended_and_comes_back() {
    let often = "[persist]\npoll_interval_ms = 100\npoll_deadline_ms = 100\nhang_polls = 5";
    let house = House::start(&Setup::default().profile(often)).unwrap();
    let client = house.client();
    assert!(answers(&client), "{}", house.said());
    let old = house.daemon_pid(ENGINE).unwrap();
    let log = &house.files_named("persist.log")[0];
    let known = format!("pid={old}");
    eventually(Duration::from_secs(60), "a first look at it", || {
        std::fs::read_to_string(log)
            .ok()?
            .contains(&known)
            .then_some(())
    })
    .unwrap();
    process::stop(old, Duration::from_secs(60)).unwrap();
    assert_ne!(successor(&house, ENGINE, old), old);
    assert!(answers(&client), "{}", house.said());
}

/// The log of persist once it says all of `words` in one line.
fn persist_says(house: &House, words: &[&str]) -> String {
    let log = &house.files_named("persist.log")[0];
    let said = || {
        let text = std::fs::read_to_string(log).ok()?;
        let mut lines = text.lines();
        lines
            .any(|line| words.iter().all(|word| line.contains(word)))
            .then_some(text)
    };
    eventually(Duration::from_secs(60), &words.join(", "), said).unwrap()
}

/// The one whose supervisor is `vitriol up`, which starts it again at once; persist must not storm.
#[test]
fn an_engine_that_hangs_again_at_once_is_left_alone() {
    let rarely = "[persist]\npoll_interval_ms = 100\npoll_deadline_ms = 100\nhang_polls = 5\n\
                  restart_pause_ms = 3600000\nrestart_pause_max_ms = 3600000";
    let house = House::start(&Setup::default().profile(rarely)).unwrap();
    let first = house.daemon_pid(ENGINE).unwrap();
    persist_says(&house, &["watched", &format!("pid={first}")]);
    process::stop(first, Duration::from_secs(60)).unwrap();
    let second = successor(&house, ENGINE, first);
    persist_says(&house, &["watched", &format!("pid={second}")]);
    assert!(answers(&house.client()), "{}", house.said());
    process::stop(second, Duration::from_secs(60)).unwrap();
    let said = persist_says(&house, &["engine", "hangs again; it is left alone for"]);
    assert_eq!(
        said.matches("stood still and was ended").count(),
        1,
        "{said}"
    );
    assert_eq!(house.daemon_pid(ENGINE).unwrap(), second);
    process::signal(second, Signal::CONT).unwrap();
    eventually(Duration::from_secs(60), "an answer", || {
        answers(&house.client()).then_some(())
    })
    .unwrap();
    assert_eq!(house.daemon_pid(ENGINE).unwrap(), second, "it goes on");
}

#[test]
fn an_engine_is_restarted_once_where_memory_is_short() {
    // No machine has as much.
    let short = "[persist]\npoll_interval_ms = 100\nmemory_bounce_bytes = '1024 TiB'\nmemory_short_ms = 200";
    let house = House::start(&Setup::default().profile(short)).unwrap();
    let said = persist_says(&house, &["ended for the memory it had", "SIGTERM"]);
    assert!(said.contains("memory stays short"), "{said}");
    eventually(Duration::from_secs(60), "an answer", || {
        answers(&house.client()).then_some(())
    })
    .unwrap();
    let log = std::fs::read_to_string(&house.files_named("engine.log")[0]).unwrap();
    assert!(log.contains("engine drains"), "{log}");
    let engine = house.daemon_pid(ENGINE).unwrap();
    let said = persist_says(&house, &["watched", &format!("pid={engine}")]);
    assert_eq!(said.matches("memory stays short").count(), 1, "{said}");
}

#[test]
fn a_killed_demiurge_comes_back_on_its_port() {
    let house = House::start(&Setup::default()).unwrap();
    let (engine, demiurge) = (
        house.daemon_pid(ENGINE).unwrap(),
        house.daemon_pid(DEMIURGE).unwrap(),
    );
    process::signal(demiurge, Signal::KILL).unwrap();
    successor(&house, DEMIURGE, demiurge);
    eventually(
        Duration::from_secs(30),
        "an answer on the same port",
        || answers(&house.client()).then_some(()),
    )
    .unwrap();
    assert_eq!(
        house.daemon_pid(ENGINE).unwrap(),
        engine,
        "the engine went on"
    );
}

/// Inodes of the arenas that a process has open.
fn arenas(pid: u32) -> Vec<u64> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let is_arena = |path: &std::path::PathBuf| {
        let target = std::fs::read_link(path).unwrap_or_default();
        target.to_string_lossy().contains("vitriol-kv-arena")
    };
    let paths = descriptors.flatten().map(|entry| entry.path());
    paths
        .filter(is_arena)
        .map(|path| std::fs::metadata(path).unwrap().ino())
        .collect()
}

#[test]
fn a_killed_kvtier_finds_its_memory_again_and_nobody_else_holds_it() {
    let tier = "[kvtier]\nenabled = true\narena_bytes = '8 MiB'\nslot_bytes = '1 MiB'";
    let house = House::start(&Setup::default().profile(tier)).unwrap();
    let wait = Duration::from_secs(60);
    for metric in [
        "vitriol_kvtier_records_unmirrored",
        "vitriol_engine_tier_attached",
    ] {
        let shown = || house.client().metric(metric);
        eventually(wait, metric, shown).unwrap();
    }
    let page = house.client().get("/metrics").unwrap().text();
    for daemon in [
        "vitriol_demiurge_",
        "vitriol_persist_",
        "vitriol_oom_shield_",
    ] {
        assert!(page.contains(daemon), "{daemon} in\n{page}");
    }
    let before = house.daemon_pid(KVTIER).unwrap();
    let open = || Some(arenas(before)).filter(|open| open.len() == 1);
    let arena = eventually(wait, "the first arena", open).unwrap();
    eventually(wait, "the supervisor keeps it", || {
        (arenas(house.up_pid()) == arena).then_some(())
    })
    .unwrap();
    process::signal(before, Signal::KILL).unwrap();
    let after = successor(&house, KVTIER, before);
    let open = || Some(arenas(after)).filter(|open| !open.is_empty());
    assert_eq!(eventually(wait, "an arena", open).unwrap(), arena);
    // One that starts after it, and is not given it by kvtier as the engine is.
    let demiurge = house.daemon_pid(DEMIURGE).unwrap();
    process::signal(demiurge, Signal::KILL).unwrap();
    let demiurge = successor(&house, DEMIURGE, demiurge);
    assert_eq!(arenas(demiurge), [0; 0]);
    eventually(wait, "an answer", || answers(&house.client()).then_some(())).unwrap();
}

/// What `vitriol session` says of the conversation `id`, once kvtier is there to ask.
fn stored(house: &House, setup: &Setup, id: &str) -> Value {
    let wait = Duration::from_secs(60);
    let list = || {
        let mut list = Setup::vitriol(house.directory()).unwrap();
        list.args(["session", "list", "--json", "--listen", setup.listen()]);
        let listed = finish(list, wait);
        listed.status.success().then_some(listed.stdout)
    };
    let listed = eventually(wait, "a list of sessions", list).unwrap();
    let listed: Value = serde_json::from_slice(&listed).unwrap();
    let mut sessions = listed["sessions"].as_array().unwrap().iter();
    sessions
        .find(|session| session["id"] == id)
        .unwrap()
        .clone()
}

#[test]
fn a_house_that_lost_its_memory_has_its_latest_conversation_there_before_it_is_asked_for() {
    const BYTES_MAX: f64 = 40e6;
    let tier = "[kvtier]\nenabled = true\narena_bytes = '128 MiB'\nslot_bytes = '1 MiB'\n\
                [persist]\nwarmup_bytes = 40000000";
    let setup = Setup::default().profile(tier).named_port().unwrap();
    let mut house = House::start(&setup).unwrap();
    let wait = Duration::from_secs(60);
    let attached = |house: &House| {
        let is_attached = house.client().metric("vitriol_engine_tier_attached");
        (is_attached == Some(1.0)).then_some(())
    };
    eventually(wait, "an attachment", || attached(&house)).unwrap();
    let ask = |house: &House, id: &str| {
        let client = house.client().with_header("X-Session-Id", id);
        let mut body = question(4, false);
        let text = format!("{id} {}", "and the lamp is lit again ".repeat(200));
        body["messages"][0]["content"] = text.into();
        let answer = client.post("/v1/chat/completions", &body);
        answer.unwrap().ok_json().unwrap()
    };
    let save = |house: &House, id: &str| {
        let mut save = Setup::vitriol(house.directory()).unwrap();
        save.args(["session", "save", id, "--listen", setup.listen()]);
        finish(save, wait).status.success().then_some(())
    };
    let mut first = Vec::new();
    for id in ["earlier", "latest"] {
        first.push(ask(&house, id));
        // Its turn is told a moment after its answer.
        eventually(wait, "all of it on disk", || save(&house, id)).unwrap();
    }

    house.restart(&setup).unwrap();
    let warmed = || house.client().metric("vitriol_persist_warmups_total");
    let is_warm = || warmed().filter(|warmups| *warmups == 1.0);
    eventually(wait, "a warm tier", is_warm).unwrap();
    let bytes = house.client().metric("vitriol_persist_warmup_bytes_total");
    assert!(bytes > Some(0.0) && bytes <= Some(BYTES_MAX), "{bytes:?}");
    let latest = stored(&house, &setup, "latest");
    assert_eq!(latest["records_in_arena"], latest["records"], "{latest}");
    let earlier = stored(&house, &setup, "earlier");
    assert!(
        earlier["records_in_arena"].as_u64() < earlier["records"].as_u64(),
        "{earlier}"
    );
    eventually(wait, "an attachment", || attached(&house)).unwrap();
    let again = ask(&house, "latest");
    let timings = &again["timings"];
    let tokens = again["usage"]["prompt_tokens"].as_u64().unwrap();
    let from_arena = timings["cache_arena_n"].as_u64().unwrap();
    assert!(
        from_arena >= (tokens - 1) / 64 * 64,
        "{timings} of {tokens}"
    );
    assert_eq!(
        timings["cache_mirror_n"].as_u64().unwrap_or(0),
        0,
        "{timings}"
    );
    assert_eq!(
        again["choices"][0]["message"],
        first[1]["choices"][0]["message"]
    );

    // One whose kvtier alone was killed has kept its memory, and nothing is brought.
    let kvtier = house.daemon_pid(KVTIER).unwrap();
    process::signal(kvtier, Signal::KILL).unwrap();
    successor(&house, KVTIER, kvtier);
    eventually(wait, "an attachment", || attached(&house)).unwrap();
    let latest = stored(&house, &setup, "latest");
    assert_eq!(latest["records_in_arena"], latest["records"], "{latest}");
    let is_left_alone = || warmed() == Some(1.0);
    holds_for(Duration::from_secs(2), "no other warm-up", is_left_alone).unwrap();
    assert_eq!(
        house.client().metric("vitriol_persist_warmup_bytes_total"),
        bytes
    );
}

#[test]
fn a_second_up_is_refused_and_names_the_holder() {
    let setup = Setup::default().named_port().unwrap();
    let house = House::start(&setup).unwrap();

    // The same user again: the lock tells.
    let mut again = Setup::vitriol(house.directory()).unwrap();
    again.args(["up", "--listen", setup.listen()]);
    let refused = finish(again, Duration::from_secs(30));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(HELD), "{said}");
    assert!(said.contains(&house.up_pid().to_string()), "{said}");

    // Other directories, the same port.
    let elsewhere = tempfile::tempdir().unwrap();
    let mut other = setup.spawn_up(elsewhere.path()).unwrap();
    let status = eventually(Duration::from_secs(60), "end of the second up", || {
        other.try_wait().unwrap()
    });
    if status.is_err() {
        other.kill().unwrap();
    }
    let said = std::fs::read_to_string(elsewhere.path().join("up.log")).unwrap();
    assert_eq!(status.unwrap().code(), Some(HELD), "{said}");

    assert!(answers(&house.client()), "the first house is untouched");
}

#[test]
fn ctrl_c_lets_running_answers_finish() {
    let house = House::start(&Setup::default()).unwrap();
    let client = house.client();
    let mut stream = client
        .post_stream("/v1/chat/completions", &question(24, true))
        .unwrap();
    stream.next_chunk().unwrap().unwrap();
    let (engine, demiurge) = (
        house.daemon_pid(ENGINE).unwrap(),
        house.daemon_pid(DEMIURGE).unwrap(),
    );

    house.signal_up(Signal::INT).unwrap();
    let rest = stream.chunks().expect("the answer goes on to [DONE]");
    let reason = rest
        .iter()
        .rev()
        .find_map(|c| c["choices"][0]["finish_reason"].as_str());
    assert!(matches!(reason, Some("length" | "stop")), "{rest:?}");

    let status = house.wait_up(Duration::from_secs(30)).unwrap();
    assert_eq!(status.code(), Some(0), "{}", house.said());
    for pid in [engine, demiurge] {
        process::gone(pid, Duration::from_secs(1)).unwrap();
    }
    assert!(client.get("/health").is_err(), "nobody listens any more");
}

#[test]
fn a_second_sigterm_or_hangup_goes_on_draining() {
    let house = House::start(&Setup::default()).unwrap();
    let mut stream = house
        .client()
        .post_stream("/v1/chat/completions", &question(200, true))
        .unwrap();
    stream.next_chunk().unwrap().unwrap();
    let demiurge = house.daemon_pid(DEMIURGE).unwrap();
    for signal in [Signal::HUP, Signal::TERM, Signal::TERM] {
        house.signal_up(signal).unwrap();
        eventually(Duration::from_secs(10), "the end has begun", || {
            house.said().contains("stopping: ").then_some(())
        })
        .unwrap();
    }
    // `up` has asked it already, or does so now.
    process::signal(demiurge, Signal::TERM).unwrap();
    stream.chunks().expect("the answer goes on to [DONE]");
    let status = house.wait_up(Duration::from_secs(30)).unwrap();
    assert_eq!(status.code(), Some(0), "{}", house.said());
}

#[test]
fn a_drain_has_an_end() {
    let profile = "[demiurge]\ndrain_ms = 500\n[engine.main]\ndrain_ms = 500";
    let house = House::start(&Setup::default().profile(profile)).unwrap();
    let mut stream = house
        .client()
        .post_stream("/v1/chat/completions", &question(4000, true))
        .unwrap();
    stream.next_chunk().unwrap().unwrap();
    let start = Instant::now();
    house.signal_up(Signal::TERM).unwrap();
    let status = house.wait_up(Duration::from_secs(20)).unwrap();
    assert_eq!(status.code(), Some(0), "{}", house.said());
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "took {:?}",
        start.elapsed()
    );
    assert!(
        stream.chunks().is_err(),
        "a cut answer does not end in [DONE]"
    );
}

#[test]
fn daemons_do_not_outlive_a_killed_supervisor() {
    let house = House::start(&Setup::default()).unwrap();
    let daemons = [
        house.daemon_pid(ENGINE).unwrap(),
        house.daemon_pid(DEMIURGE).unwrap(),
    ];
    house.signal_up(Signal::KILL).unwrap();
    for pid in daemons {
        process::gone(pid, Duration::from_secs(30)).unwrap();
    }
}

#[test]
fn a_house_that_cannot_print_its_welcome_serves_and_drains() {
    let house = House::start(&Setup::default().stdout_full()).unwrap();
    eventually(Duration::from_secs(20), "the failed welcome", || {
        house.said().contains("standard output: ").then_some(())
    })
    .unwrap();
    assert!(answers(&house.client()), "{}", house.said());
    house.signal_up(Signal::TERM).unwrap();
    let status = house.wait_up(Duration::from_secs(30)).unwrap();
    assert_eq!(status.code(), Some(0), "{}", house.said());
}

#[test]
fn a_model_that_is_not_there_ends_the_first_start_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("nowhere.gguf");
    let mut up = Setup::default()
        .model(missing.clone())
        .spawn_up(directory.path())
        .unwrap();
    let status = eventually(Duration::from_secs(30), "end of up", || {
        up.try_wait().unwrap()
    })
    .unwrap();
    let said = std::fs::read_to_string(directory.path().join("up.log")).unwrap();
    assert!(matches!(status.code(), Some(69 | 78)), "{status:?}: {said}");
    assert!(said.contains(&missing.display().to_string()), "{said}");
}
