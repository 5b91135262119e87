//! How close the engine comes to one model of the zoo, and where it goes wrong first.
//!
//!     cargo run --release -p vitriol-tests --example zoo_check -- NAME|FILE.gguf ...
//!
//! NAME is a file of the zoo (`llama_moe.f32`, or `llama_moe` for short), looked up as the tests do; the record
//! of a FILE lies beside it. Exits with 1 where a file is off.
#![allow(clippy::print_stdout, reason = "a tool for a terminal, not a daemon")]

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use vitriol_testkit::golden::ZooRecord;
use vitriol_tests::{
    Runner, RunnerOptions, Trace,
    judge::{continuation, distance, layer_distances, misrouted, yardstick},
    zoo,
};

/// Beyond this a layer is taken to be wrong: f32 runs differ by some 1e-12, gemma's from llama.cpp's table
/// of GELU values by 5e-7 at most.
const LAYER_NMSE_MAX: f64 = 1e-5;

fn main() -> ExitCode {
    let mut all_good = true;
    for name in std::env::args().skip(1) {
        all_good &= check(&name).unwrap_or_else(|error| {
            println!("  {error:#}");
            false
        });
    }
    if all_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The model, its record and its name in the zoo.
fn find(name: &str) -> Result<(PathBuf, ZooRecord, String)> {
    if let Some(stem) = name.strip_suffix(".gguf") {
        let path = PathBuf::from(name);
        let (place, file) = (
            path.parent().context("a file")?.to_owned(),
            PathBuf::from(stem)
                .file_name()
                .context("a file")?
                .to_string_lossy()
                .into_owned(),
        );
        let record = ZooRecord::read_in(&place, &file)?;
        return Ok((path, record, file));
    }
    let file = if name.contains('.') {
        name.to_owned()
    } else {
        format!("{name}.f32")
    };
    let (path, record) = zoo::find(&file)?.context("set VITRIOL_ZOO: only the whole zoo has it")?;
    Ok((path, record, file))
}

fn check(name: &str) -> Result<bool> {
    let (path, record, file) = find(name)?;
    let yard = yardstick(&file);
    println!("{file}");
    let mut runner = Runner::load(&path, &RunnerOptions::default())?;

    let (array, limit) = yard.batch;
    let (logits, trace) = runner.traced(&record.tokens)?;
    print_layers(&trace, &record)?;
    let mut good = print_distance(
        "batch",
        array,
        &logits,
        &record,
        &record.batch_positions,
        limit,
    )?;
    if let Some((array, limit)) = yard.step {
        let logits = runner.logits(&record.tokens, &vec![1; record.tokens.len()])?;
        good &= print_distance(
            "token by token",
            array,
            &logits,
            &record,
            &record.positions,
            limit,
        )?;
    }
    let found = continuation(&mut runner, &record, yard.greedy)?;
    let routed_well = print_routing(&trace, &record)?;
    println!(
        "  greedy: {} agree, ties at {:?}, wrong at {:?}",
        found.agreed, found.ties, found.wrong
    );
    Ok(good && routed_well && found.wrong.is_empty())
}

/// The residual stream after each layer, where the record has it; names the first layer that is off.
fn print_layers(trace: &Trace, record: &ZooRecord) -> Result<()> {
    let Some(array) = ["deq_l_out", "l_out"]
        .into_iter()
        .find(|array| record.has(array))
    else {
        return Ok(());
    };
    let mut is_first = true;
    for (layer, found) in layer_distances(trace, record, array)?.iter().enumerate() {
        let is_off = found.nmse > LAYER_NMSE_MAX || found.difference.is_infinite();
        println!(
            "  layer {layer}: |Δ| {:.2e} at position {}, NMSE {:.1e}{}",
            found.difference,
            found.position,
            found.nmse,
            if is_off && is_first {
                " <- the first that is OFF"
            } else {
                ""
            }
        );
        is_first &= !is_off;
    }
    Ok(())
}

fn print_routing(trace: &Trace, record: &ZooRecord) -> Result<bool> {
    if !record.arrays().any(|array| array.starts_with("moe_topk-")) || record.has("deq_greedy") {
        return Ok(true);
    }
    let wrong = misrouted(trace, record)?;
    let (of, first) = (trace.experts.len() * record.tokens.len(), wrong.first());
    match first {
        None => println!("  experts: all {of} choices agree"),
        Some((layer, position)) => println!(
            "  experts: {} of {of} choices are OFF, the first in layer {layer} at position {position}",
            wrong.len()
        ),
    }
    Ok(wrong.is_empty())
}

fn print_distance(
    how: &str,
    array: &str,
    logits: &[f32],
    record: &ZooRecord,
    positions: &[usize],
    limit: f32,
) -> Result<bool> {
    let found = distance(logits, &record.f32(array)?, positions);
    let good = found.difference <= limit;
    println!(
        "  {how}: |Δlogit| {:.2e} at position {}, NMSE {:.1e} against {array}, limit {limit:.0e}: {}",
        found.difference,
        found.position,
        found.nmse,
        if good { "good" } else { "OFF" }
    );
    Ok(good)
}
