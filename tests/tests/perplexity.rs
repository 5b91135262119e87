//! Perplexity of the default model over tests/golden/ppl_text.txt.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its functions too"
)]

use std::process::Command;

use vitriol_testkit::places;

/// llama.cpp with dequantised weights and f32 KV (ppl_results.txt, `deqf32_f32_nofa`).
const REFERENCE: f64 = 13.0495;
const TOLERANCE: f64 = 0.005;

#[test]
fn perplexity_is_the_reference_within_half_a_percent() {
    let output = Command::new(places::binary("vitriol-engine").unwrap())
        .arg("perplexity")
        .arg(places::default_model().unwrap())
        .arg(places::checkout().join("tests/golden/ppl_text.txt"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let said = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = said.split_whitespace().collect();
    let [
        "perplexity",
        perplexity,
        "over",
        tokens,
        "tokens",
        "of",
        chunks,
        "chunks",
    ] = words[..]
    else {
        panic!("what figure is this? {said}");
    };
    assert_eq!(
        (tokens, chunks),
        ("10455", "41"),
        "255 predictions in each of 41 chunks"
    );
    let perplexity: f64 = perplexity.parse().unwrap();
    assert!(
        (perplexity / REFERENCE - 1.0).abs() <= TOLERANCE,
        "perplexity {perplexity}, reference {REFERENCE}"
    );
}
