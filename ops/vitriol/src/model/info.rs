//! `vitriol model info`: what is in a model file, whether the engine runs it, and whether this
//! machine has the memory.

mod check;
mod facts;
mod file_type;
mod fit;
mod kv;
mod report;
#[cfg(test)]
pub(super) mod tests;

use std::path::{Path, PathBuf};

use vitriol_chassis::{Environment, Exit, Failure, OrExit};
use vitriol_gguf::Gguf;
use vitriol_profile::{Engine, ModelReference, Overrides};
use vitriol_sysfs::Sysfs;

use self::{
    check::EngineCheck,
    facts::Facts,
    fit::{Demand, Fit, Supply},
    kv::KvNeed,
    report::Report,
};
use vitriol_profile::budget::OVERHEAD_BYTES;

use crate::{cli::InfoArgs, term};

/// The engine whose settings count.
const ENGINE: &str = "main";

pub fn run(args: &InfoArgs, environment: &Environment) -> Result<(), Failure> {
    let profile = args.settings.load(Overrides::new())?;
    let engine = profile.engine(ENGINE).ok_or_else(|| {
        let message = format!("the profile has no table [engine.{ENGINE}]");
        Failure::new(Exit::Config, message)
    })?;
    let named = args.file.as_deref().unwrap_or(Path::new(""));
    let file = environment.model_file(ModelReference::argument(named))?;
    let gguf = Gguf::open(&file).or_exit(Exit::Config)?;
    let facts = Facts::read(&gguf).or_exit(Exit::Config)?;
    let check = EngineCheck::ask(&engine_binary(args)?, gguf.path(), engine.context_tokens);
    let kv = kv_need(&check, &facts);
    let fit = judge(&check, &facts, kv.as_ref(), engine);
    let report = Report {
        facts,
        check,
        kv,
        fit,
    };
    match args.json {
        true => term::print(format_args!("{:#}\n", report.to_json())),
        false => term::print(report.describe()),
    }
}

fn engine_binary(args: &InfoArgs) -> Result<PathBuf, Failure> {
    let directory = match &args.bin_dir {
        Some(directory) => directory.clone(),
        None => {
            let own = std::env::current_exe().or_exit(Exit::Internal)?;
            own.parent().map(PathBuf::from).unwrap_or_default()
        }
    };
    Ok(directory.join("vitriol-engine"))
}

/// What the engine says it would keep, else what the file's keys let expect at most.
fn kv_need(check: &EngineCheck, facts: &Facts) -> Option<KvNeed> {
    match check.model() {
        Some(model) => Some(KvNeed::of_groups(
            model.kv_groups.clone(),
            model.page_tokens,
        )),
        None => facts.kv_heads().map(KvNeed::at_most),
    }
}

fn judge(check: &EngineCheck, facts: &Facts, kv: Option<&KvNeed>, engine: &Engine) -> Option<Fit> {
    let trained = facts.context_tokens.unwrap_or(0);
    let context_tokens = match u64::from(engine.context_tokens) {
        0 => trained,
        given => given,
    };
    let weights_bytes = check.model().map(|model| model.weights_bytes);
    let demand = Demand {
        weights_bytes: weights_bytes.unwrap_or(facts.weights_bytes()),
        overhead_bytes: OVERHEAD_BYTES,
        context_tokens,
        kv: kv?,
        codecs: [engine.kv_keys, engine.kv_values],
    };
    let supply = Supply {
        available_bytes: Sysfs::host().memory().ok()?.available_bytes,
        kv_bytes_max: engine.kv_bytes_max.get(),
    };
    Some(Fit::judge(&demand, supply))
}
