//! The command line of `vitriol-engine`.

pub mod perplexity;
pub mod run;
pub mod serve;

use clap::{Parser, Subcommand};

/// Inference over GGUF models on this machine.
#[derive(Debug, Parser)]
#[command(name = "vitriol-engine", version, about)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model to Demiurge over a Unix socket.
    Serve(serve::ServeArgs),
    /// Complete a prompt on the command line, greedily unless told otherwise.
    Run(run::RunArgs),
    /// Perplexity of a text, by the protocol of llama.cpp's llama-perplexity.
    Perplexity(perplexity::PerplexityArgs),
}

/// Opens a model for a command that runs without the daemon: its threads, `VITRIOL_ISA`, no progress.
fn load_model(
    file: &std::path::Path,
    asked_threads: u32,
    environment: &vitriol_chassis::Environment,
) -> anyhow::Result<crate::load::Loaded> {
    let isa = vitriol_kernels_cpu::Isa::parse(environment.isa.as_deref().unwrap_or("auto"))?;
    let loaded = crate::load::load(file, threads(asked_threads), isa, &mut |_| {})?;
    Ok(loaded)
}

/// Threads to compute with: `asked`, or one for each usable core.
fn threads(asked: u32) -> usize {
    match asked {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n as usize,
    }
}
