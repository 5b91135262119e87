//! The command line of `vitriol-engine`.

pub mod bench;
pub mod check;
pub mod perplexity;
pub mod run;
pub mod serve;

use crate::{kv::KvCodecs, load::Repack};
use clap::{Parser, Subcommand};
use vitriol_chassis::Failure;
use vitriol_kernels_core::KvCodec;
use vitriol_profile::ModelReference;

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
    /// Say whether the engine can run a model file, without reading its weights; exit 1 if it cannot.
    Check(check::CheckArgs),
    /// Perplexity of a text, by the protocol of llama.cpp's llama-perplexity.
    Perplexity(perplexity::PerplexityArgs),
    /// Measure prefill, decode, batches, start and memory, each beside what the machine gives.
    Bench(Box<bench::BenchArgs>),
    /// The process that computes for `bench`: a task a line in, an answer a line out.
    #[command(hide = true)]
    BenchWorker(bench::WorkerArgs),
}

/// Opens a model for a command that runs without the daemon: its threads, `VITRIOL_ISA`, no progress.
/// `model`: what the command line says of it.
fn load_model(
    model: &std::path::Path,
    asked_threads: u32,
    context_tokens: usize,
    asked_repack: vitriol_profile::Repack,
    environment: &vitriol_chassis::Environment,
) -> anyhow::Result<crate::load::Loaded> {
    let isa = vitriol_kernels_cpu::Isa::parse(environment.isa.as_deref().unwrap_or("auto"))?;
    let context = |_: &_, _: &_| context_tokens;
    let file = environment.model_file(ModelReference::argument(model))?;
    let (threads, repack) = (threads(asked_threads), repack(asked_repack, environment)?);
    let loaded = crate::load::load(&file, threads, isa, &repack, context, &mut |_| {})?;
    Ok(loaded)
}

/// Where panels come from. Errors: there is no directory to keep them in.
fn repack(
    asked: vitriol_profile::Repack,
    environment: &vitriol_chassis::Environment,
) -> Result<Repack, Failure> {
    match asked {
        vitriol_profile::Repack::Ram => Ok(Repack::Ram),
        vitriol_profile::Repack::File => Ok(Repack::File(environment.panels_dir()?)),
    }
}

/// Threads to compute with: `asked`, or one for each usable core.
fn threads(asked: u32) -> usize {
    match asked {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n as usize,
    }
}

/// How a command encodes KV.
#[derive(Clone, Copy, Debug, clap::Args)]
struct KvArgs {
    /// Encoding of keys: f32, f16, q8_0 or q4_0.
    #[arg(long, value_name = "CODEC", default_value = "f32", value_parser = kv_codec)]
    kv_keys: KvCodec,
    /// Encoding of values: f32, f16, q8_0 or q4_0.
    #[arg(long, value_name = "CODEC", default_value = "f32", value_parser = kv_codec)]
    kv_values: KvCodec,
}

impl KvArgs {
    fn codecs(self) -> KvCodecs {
        KvCodecs {
            keys: self.kv_keys,
            values: self.kv_values,
        }
    }
}

fn kv_codec(name: &str) -> Result<KvCodec, String> {
    let names = || KvCodec::ALL.map(KvCodec::name).join(", ");
    KvCodec::from_name(name).ok_or_else(|| format!("there are: {}", names()))
}
