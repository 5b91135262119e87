//! The benchmark from end to end on a tiny model: every kind of row, a peer, the files it leaves, and
//! contexts beyond what a model was trained for.

use serde_json::Value;
use std::{path::Path, process::Command, time::Instant};
use vitriol_engine::{
    bench::{
        protocol::{Answer, Task},
        row::Row,
        worker::{Needs, Worker},
    },
    kv::KvCodecs,
    load::{Repack, load},
};
use vitriol_testkit::places::zoo_model;

const ENGINE: &str = env!("CARGO_BIN_EXE_vitriol-engine");

fn worker(model: &str, context_tokens: impl FnOnce(usize) -> usize) -> Worker {
    let began = Instant::now();
    let file = zoo_model(model).unwrap();
    let loaded = load(&file, 2, None, &Repack::Ram, |_, _| 0, &mut |_| {}).unwrap();
    let context_tokens = context_tokens(loaded.model.hyper.context_tokens_trained);
    let needs = Needs {
        codecs: KvCodecs::F32,
        context_tokens,
        kv_tokens: context_tokens.max(4 * 200),
        sequences: 4,
    };
    Worker::start(loaded, needs, began).unwrap()
}

fn rates(answer: Answer) -> Vec<f64> {
    match answer {
        Answer::Rates(rates) if rates.iter().all(|r| r.is_finite() && *r > 0.0) => rates,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_worker_does_every_task() {
    let mut worker = worker("llama.q8_0", |_| 300);
    let prefill = Task::Prefill {
        tokens: 100,
        seed: 9,
        seconds_min: 0.01,
    };
    assert_eq!(rates(worker.run(&prefill).unwrap()).len(), 1);
    let decode = Task::Decode {
        depth: 150,
        tokens: 8,
        runs: 3,
        seed: 1,
    };
    assert_eq!(rates(worker.run(&decode).unwrap()).len(), 3);
    let batch = Task::Batch {
        sequences: 4,
        tokens: 16,
        seed: 2,
    };
    assert_eq!(rates(worker.run(&batch).unwrap()).len(), 1);
    let first = Task::FirstToken {
        tokens: 200,
        seed: 5,
    };
    for task in [&first, &first] {
        assert!(matches!(worker.run(task).unwrap(), Answer::Seconds(s) if s > 0.0));
    }
    assert!(matches!(worker.run(&Task::ReadBandwidth).unwrap(), Answer::Bandwidth(b) if b > 0.0));
    assert!(matches!(
        worker.run(&Task::Int8Peak).unwrap(),
        Answer::MacsPerSecond(_)
    ));
    let too_long = Task::FirstToken {
        tokens: 300,
        seed: 5,
    };
    let error = worker.run(&too_long).unwrap_err().to_string();
    assert!(error.contains("exceed the context of 300"), "{error}");
}

#[test]
fn an_answer_is_timed_without_drafts_and_with_them() {
    let mut worker = worker("llama.q8_0", |_| 600);
    for row in ["copy", "essay"] {
        let task = row.parse::<Row>().unwrap().task(8, 0).unwrap();
        assert_eq!(rates(worker.run(&task).unwrap()).len(), 2);
    }
}

#[test]
fn a_context_beyond_the_trained_one_is_computed_not_cut() {
    let mut beyond = 0;
    let mut worker = worker("llama.f32", |trained| {
        beyond = trained + 70;
        2 * trained
    });
    let decode = Task::Decode {
        depth: beyond,
        tokens: 4,
        runs: 1,
        seed: 1,
    };
    rates(worker.run(&decode).unwrap());
}

fn bench(directory: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let cache = tempfile::tempdir().unwrap();
    let output = Command::new(ENGINE)
        .arg("bench")
        .args(arguments)
        .current_dir(directory)
        .env("XDG_CACHE_HOME", cache.path())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn a_report_has_every_row_beside_the_peers() {
    let directory = tempfile::tempdir().unwrap();
    let model = zoo_model("llama.q8_0").unwrap();
    // The engine is its own peer: whoever speaks the lines is.
    let peer = format!("{ENGINE} bench-worker");
    let arguments = [
        model.to_str().unwrap(),
        "--rows=pp64,tg0,batch2,start",
        "--threads=1",
        // Enough that the tiny model still decodes the first sequence when the second has begun.
        "--tokens=400",
        "--repeat=2",
        "--retries=0",
        "--json=report.json",
        "--svg=report.svg",
        "--peer",
        &peer,
    ];
    let (code, tables, progress) = bench(directory.path(), &arguments);
    assert_eq!(code, Some(0), "{progress}");
    assert!(
        tables.contains("| pp64") && tables.contains("| peak RSS"),
        "{tables}"
    );
    assert!(progress.contains("batch2 #2"), "{progress}");
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    let report: Value = serde_json::from_str(&read("report.json")).unwrap();
    let rows = report["setups"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3 + 4);
    for row in rows {
        for side in ["ours", "peer"] {
            assert_eq!(row[side]["summary"]["n"], 2, "{row}");
            assert!(row[side]["summary"]["min"].as_f64().unwrap() > 0.0, "{row}");
        }
        assert_eq!(row["ratio"]["n"], 2, "{row}");
    }
    assert!(rows[1]["bytes_per_token"].as_f64().unwrap() > 0.0);
    assert!(rows[1]["probe_fraction"]["median"].as_f64().unwrap() > 0.0);
    assert!(read("report.svg").ends_with("</svg>\n"));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
}

#[test]
fn what_cannot_be_measured_is_refused_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let model = zoo_model("llama.q8_0").unwrap();
    let model = model.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 5] = [
        (&[], 64, "<MODELS>"),
        (&[model, "--rows=tg"], 64, "pp512"),
        (&["/nonexistent.gguf"], 78, "/nonexistent.gguf"),
        (
            &[model, "--kv-keys=f16,f32", "--kv-values=f16"],
            64,
            "as many of each",
        ),
        (
            &[model, "--rows=tg0", "--peer=/nonexistent/peer"],
            70,
            "/nonexistent/peer",
        ),
    ];
    for (arguments, code, words) in cases {
        let (found, _, said) = bench(directory.path(), arguments);
        assert_eq!(found, Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
