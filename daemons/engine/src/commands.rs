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

/// Threads to compute with: `asked`, or one for each usable core.
fn threads(asked: u32) -> usize {
    match asked {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n as usize,
    }
}
