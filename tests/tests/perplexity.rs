//! Perplexity of the real models over tests/golden/ppl_text.txt.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and shows its figures, in its functions too"
)]

use std::process::Command;

use vitriol_testkit::{not_run, places};
use vitriol_tests::models::{REAL_MODELS, RealModel};

/// How far our figure may be from the reference's, as a share.
const TOLERANCE: f64 = 0.005;
/// Predictions scored in a chunk of 512 tokens.
const SCORED: usize = 255;

/// Perplexity after each chunk that was scored.
struct Figures(Vec<f64>);

impl Figures {
    /// Over the first `chunks` chunks; 0: over all that were scored.
    fn over(&self, chunks: usize) -> f64 {
        match chunks {
            0 => self.0[self.0.len() - 1],
            n => self.0[n - 1],
        }
    }
}

/// What `vitriol-engine perplexity` says of the first `chunks` chunks (0 = all) with KV in `codec`.
fn measure(model: &RealModel, codec: &str, chunks: usize) -> Figures {
    let output = Command::new(places::binary("vitriol-engine").unwrap())
        .args(["perplexity", "--kv-keys", codec, "--kv-values", codec])
        .args(["--chunks", &chunks.to_string()])
        .arg((model.path)().unwrap())
        .arg(places::checkout().join("tests/golden/ppl_text.txt"))
        .output()
        .unwrap();
    let on_the_way = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{on_the_way}");
    // chunk 3 of 41: 17.8747 (3.8 s)
    let figures: Vec<f64> = on_the_way
        .lines()
        .filter_map(|line| {
            line.strip_prefix("chunk ")?
                .split_whitespace()
                .nth(3)?
                .parse()
                .ok()
        })
        .collect();
    let scored = match chunks {
        0 => model.chunks,
        n => n,
    };
    assert_eq!(figures.len(), scored, "{}: {on_the_way}", model.key);
    let last = figures[scored - 1];
    let tokens = scored * SCORED;
    let said = String::from_utf8(output.stdout).unwrap();
    let expected = format!("perplexity {last:.4} over {tokens} tokens of {scored} chunks\n");
    assert_eq!(said, expected, "{}", model.key);
    Figures(figures)
}

fn check_reference(model: &RealModel, perplexity: f64) {
    let reference = model.perplexity;
    assert!(
        (perplexity / reference - 1.0).abs() <= TOLERANCE,
        "{}: perplexity {perplexity}, reference {reference}",
        model.key
    );
}

/// What a codec adds to the perplexity of f32 KV over the first `chunks` chunks (0 = all), as a share, is
/// at most `rise_max`. Better than f32 by more than the tolerance is a mistake too; equal is KV that was
/// never encoded.
fn check_rise(model: &RealModel, exact: &Figures, codec: &str, chunks: usize, rise_max: f64) {
    let (exact, perplexity) = (
        exact.over(chunks),
        measure(model, codec, chunks).over(chunks),
    );
    let rise = perplexity / exact - 1.0;
    let key = model.key;
    let what = format!("{key}, KV in {codec}: {perplexity:.4}, {rise:+.3e} on f32");
    eprintln!("{what}");
    assert!(
        rise <= rise_max && rise > -TOLERANCE,
        "{what}, bar {rise_max}"
    );
    // Of f16 the four decimals may be the same.
    if codec != "f16" {
        assert_ne!(perplexity, exact, "{what}");
    }
}

/// `some` chunks, or all where everything is wanted.
fn chunks(of: &str, some: usize) -> usize {
    if places::wants_full_tests() {
        return 0;
    }
    let what = format!("perplexity of {of} beyond {some} chunks");
    not_run(&what, "ops/test --full perplexity");
    some
}

#[test]
fn the_default_model_is_at_its_reference_and_its_codecs_within_their_bars() {
    let model = &REAL_MODELS[0];
    let exact = measure(model, "f32", 0);
    check_reference(model, exact.over(0));
    let few = chunks("the default model's f16 and q8_0 KV", 4);
    check_rise(model, &exact, "f16", few, TOLERANCE);
    check_rise(model, &exact, "q8_0", few, TOLERANCE);
    // The bar is a figure of the whole text, of which the first chunks are the hardest.
    check_rise(model, &exact, "q4_0", 0, model.q4_0_rise);
}

#[test]
fn gemma_is_at_its_reference_and_its_codecs_within_their_bars() {
    let model = &REAL_MODELS[1];
    let chunks = chunks("gemma", 4);
    let exact = measure(model, "f32", chunks);
    if chunks == 0 {
        check_reference(model, exact.over(0));
    }
    check_rise(model, &exact, "f16", chunks, TOLERANCE);
    check_rise(model, &exact, "q8_0", chunks, TOLERANCE);
    check_rise(model, &exact, "q4_0", chunks, model.q4_0_rise);
}
