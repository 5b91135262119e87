//! The command line of `vitriol bench`.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::SettingArgs;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// What to measure: the engine by itself (as `vitriol-engine bench` does), or the running house
    /// through its API
    #[arg(long, value_enum, default_value = "engine")]
    pub via: Via,
    #[command(flatten)]
    pub house: HouseArgs,
    /// Samples of each row, with --via http
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: u32,
    /// Directory of the engine's binary; without it the one this binary is in
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
    /// Model and options of `vitriol-engine bench`; see its --help
    #[arg(
        value_name = "MODEL [OPTION]",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub engine_args: Vec<OsString>,
}

impl BenchArgs {
    pub fn settings_mut(&mut self) -> &mut SettingArgs {
        match &mut self.command {
            Some(BenchCommand::Soak(soak)) => &mut soak.house.settings,
            None => &mut self.house.settings,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Via {
    Engine,
    Http,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Load the running house for a while and see whether its memory grows; exit 1 if it does
    Soak(SoakArgs),
}

#[derive(Debug, Args)]
pub struct SoakArgs {
    #[command(flatten)]
    pub house: HouseArgs,
    /// How long, warm-up included
    #[arg(long, value_name = "N", default_value_t = 30.0, value_parser = minutes)]
    pub minutes: f64,
    /// Requests at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub streams: u32,
}

/// The house to measure, and where the report goes.
#[derive(Debug, Args)]
pub struct HouseArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Write the report as JSON too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: Result<f64, _> = text.parse();
    match minutes {
        Ok(minutes) if (0.05..=100_000.0).contains(&minutes) => Ok(minutes),
        _ => Err("write a number of minutes from 0.05 to 100000".to_owned()),
    }
}
