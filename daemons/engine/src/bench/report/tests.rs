use super::*;
use crate::{
    bench::{
        protocol::KvFacts,
        run::Setup,
        side::{Launch, Neighbours},
    },
    kv::KvCodecs,
};

fn sample(values: &[f64], cores: f64, bandwidth: Option<f64>) -> Sample {
    Sample {
        values: values.to_vec(),
        neighbours: Neighbours {
            cores,
            stolen_cores: 0.0,
        },
        bandwidth,
    }
}

fn ready(engine: &str, model: Option<ModelFacts>) -> Ready {
    Ready {
        engine: engine.to_owned(),
        isa: model.as_ref().map(|_| "avx512".to_owned()),
        threads: 2,
        load_s: 0.1,
        model,
    }
}

/// 100 MB of weights, 1 kB of KV a token, 50 M multiplications.
fn facts() -> ModelFacts {
    ModelFacts {
        weights_bytes: 100_000_000,
        weights_bytes_per_token: 100_000_000,
        layer_macs: Some(50_000_000),
        logits_macs: 10_000_000,
        kv: vec![KvFacts {
            window_tokens: None,
            bytes_per_token: 1000,
        }],
        context_tokens_trained: 4096,
    }
}

fn report(rows: Vec<RowResult>, peer: bool) -> Report {
    let launch = Launch {
        program: "x".into(),
        args: Vec::new(),
    };
    let plan = Plan {
        rows: rows.iter().map(|result| result.row).collect(),
        repeat: 2,
        tokens: 64,
        neighbours_cores_max: 0.06,
        retries: 1,
        ours: launch.clone(),
        peer: peer.then_some(launch),
    };
    let machine = Machine {
        cpu: Cpu {
            model: "Example 9000".into(),
            flags: ["avx2", "avx512f", "fma", "sse"].map(str::to_owned).into(),
            cores: 2,
        },
        usable_cores: 2,
        memory_bytes: 8 << 30,
    };
    let results = vec![SetupResult {
        setup: Setup {
            model: "/models/m.gguf".into(),
            threads: 2,
            codecs: KvCodecs::F32,
        },
        ours: ready("vitriol 1", Some(facts())),
        peer: peer.then(|| ready("other 2", None)),
        rows,
        int8_peak: Some(1e12),
    }];
    Report {
        machine,
        plan,
        results,
    }
}

fn row(row: Row, ours: Vec<Sample>, peer: Vec<Sample>) -> RowResult {
    RowResult {
        row,
        ours,
        peer,
        noisy: 0,
        discarded: 0,
    }
}

#[test]
fn decode_is_judged_by_the_bytes_it_moves() {
    let depth = Row::Decode { depth: 8192 };
    // 100 MB of weights and 8224 tokens of 1 kB.
    let bytes = bytes_per_token(depth, 64, &facts()).unwrap();
    assert_eq!(bytes, 108_224_000.0);
    let batch = Row::Batch { sequences: 4 };
    assert_eq!(bytes_per_token(batch, 64, &facts()), Some(25_160_000.0));

    let ours = vec![sample(&[200.0], 0.01, Some(4.0 * 200.0 * bytes))];
    let text = report(vec![row(depth, ours, Vec::new())], false).markdown();
    assert!(
        text.contains("| tg8192 | tokens/s | 200 [200–200] 1 | 108 | 21.6 | 86.6"),
        "{text}"
    );
    assert!(text.contains("| 25% [25%–25%] | – | 0.01 |"), "{text}");
    assert!(
        text.contains("Beyond the context that the model was trained for: tg8192."),
        "{text}"
    );
    assert!(text.contains("avx2 avx512f fma\n"), "{text}");
    assert!(!text.contains("ratio"), "{text}");
}

#[test]
fn prefill_is_judged_by_its_multiplications() {
    let ours = vec![sample(&[4000.0], 0.0, Some(1e10))];
    let report = report(
        vec![row(Row::Prefill { tokens: 512 }, ours, Vec::new())],
        false,
    );
    let json = report.to_json();
    let row = &json["setups"][0]["rows"][0];
    assert_eq!(row["int8_fraction"], 4000.0 * 50e6 / 1e12);
    assert!(row["bytes_per_token"].is_null() && row["peer"].is_null());
}

#[test]
fn a_peer_is_compared_sample_by_sample_and_less_may_be_better() {
    let pairs = |a: [f64; 2]| a.map(|v| sample(&[v], 0.02, Some(1e10))).to_vec();
    let start = |load| vec![sample(&[load, 0.5, 0.01, 120.0], 0.0, None)];
    let mut rows = vec![
        row(
            Row::Decode { depth: 0 },
            pairs([400.0, 200.0]),
            pairs([100.0, 50.0]),
        ),
        row(Row::Start, start(0.1), start(0.4)),
    ];
    rows[0].noisy = 1;
    let report = report(rows, true);
    let json = report.to_json();
    let ratio = |index: usize| json["setups"][0]["rows"][index]["ratio"]["median"].as_f64();
    assert_eq!((ratio(0), ratio(1)), (Some(4.0), Some(4.0)));
    let text = report.markdown();
    assert!(text.contains("| tg0 (disturbed) |"), "{text}");
    assert!(
        text.contains("| load | s | 0.100 [0.100–0.100] 1 | 0.400"),
        "{text}"
    );
    assert!(text.contains("vitriol 1 (avx512) and other 2"), "{text}");
    assert!(
        text.contains("1 samples were taken while others computed."),
        "{text}"
    );
    let svg = report.chart().to_string();
    assert_eq!(svg.matches("<rect x=").count(), 2 * (1 + 4), "{svg}");
}
