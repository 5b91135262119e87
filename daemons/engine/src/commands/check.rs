use crate::{
    kv::PAGE_TOKENS,
    load::with_causes,
    model::{Architecture, Model, ModelCheck},
    template::ChatTemplate,
};
use anyhow::Context;
use serde_json::{Value, json};
use std::{io::Write, path::PathBuf, sync::Arc};
use vitriol_chassis::{Environment, Exit, Failure, OrExit};
use vitriol_gguf::{Gguf, GgufError};
use vitriol_kernels_cpu::{Cpu, Isa};
use vitriol_profile::ModelReference;
use vitriol_tokens::Tokenizer;

#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    /// Model file (GGUF), or a name of `vitriol model list`.
    model: PathBuf,
    /// Context the model would run with; 0 = what it was trained for.
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    context_tokens: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What the engine would make of a model file.
#[derive(Debug)]
struct Report {
    /// Hyperparameters and tensors, or why they cannot be run.
    model: Result<ModelCheck, String>,
    /// The tokenizer, or why there is none; without one the model takes token ids only.
    tokenizer: Result<Tokenizer, String>,
    /// Why the model's chat template cannot be used.
    template_fault: Option<String>,
}

/// Says whether the engine can run a model file, without reading its weights; exit 1 if it cannot.
pub fn run(args: &CheckArgs, environment: &Environment) -> Result<(), Failure> {
    let file = environment.model_file(ModelReference::argument(&args.model))?;
    let gguf = Gguf::open(&file).or_exit(Exit::Config)?;
    let isa = Isa::parse(environment.isa.as_deref().unwrap_or("auto")).or_exit(Exit::Config)?;
    let device = Arc::new(Cpu::new(1, isa).or_exit(Exit::Config)?);
    let report = Report::of(&gguf, device, args.context_tokens as usize).or_exit(Exit::Config)?;
    let text = match args.json {
        true => format!("{:#}\n", report.to_json()),
        false => report.describe(),
    };
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())
        .context("write to standard output")?;
    match report.why_not() {
        None => Ok(()),
        Some(why_not) => Err(Failure::new(Exit::Finding, why_not)),
    }
}

impl Report {
    /// Errors: a key of the wrong type, which is a damaged file.
    fn of(gguf: &Gguf, device: Arc<Cpu>, context_tokens: usize) -> Result<Self, GgufError> {
        let model = Model::check(gguf, device, context_tokens).map_err(|error| with_causes(&error));
        let source = gguf.metadata().get_str("tokenizer.chat_template")?;
        let tokenizer = Tokenizer::from_gguf(gguf);
        let template_fault = match &tokenizer {
            Ok(tokenizer) => ChatTemplate::compile(source, tokenizer)
                .err()
                .map(|error| format!("chat template: {}", with_causes(&error))),
            Err(_) => None,
        };
        Ok(Self {
            model,
            tokenizer: tokenizer.map_err(|error| with_causes(&error)),
            template_fault,
        })
    }

    /// Why the engine would refuse the file.
    fn why_not(&self) -> Option<&str> {
        match &self.model {
            Err(error) => Some(error),
            Ok(_) => self.template_fault.as_deref(),
        }
    }

    fn describe(&self) -> String {
        let Ok(model) = &self.model else {
            // What is wrong is said where the process ends.
            return String::new();
        };
        let tokenizer = match &self.tokenizer {
            Ok(tokenizer) => format!("{} tokens", tokenizer.n_vocab()),
            Err(error) => format!("token ids only: {error}"),
        };
        format!(
            "architecture   {}\nparameters     {}\nweights        {} bytes in memory\n\
             tokenizer      {tokenizer}\n",
            model.hyper.architecture.name(),
            model.totals.parameters,
            model.totals.weights_bytes,
        )
    }

    /// The fields are documented in docs/cli-json.md, under `model info`.
    fn to_json(&self) -> Value {
        let tokenizer = match &self.tokenizer {
            Ok(tokenizer) => json!({"tokens": tokenizer.n_vocab(), "why_not": null}),
            Err(error) => json!({"tokens": null, "why_not": error}),
        };
        json!({
            "runs": self.why_not().is_none(),
            "why_not": self.why_not(),
            "architectures": Architecture::ALL.map(Architecture::name),
            "model": self.model.as_ref().ok().map(model_json),
            "tokenizer": tokenizer,
        })
    }
}

fn model_json(model: &ModelCheck) -> Value {
    let hyper = &model.hyper;
    let groups = model.kv_groups.iter().map(|group| {
        json!({
            "window_tokens": group.window,
            "n_layers": group.layers.len(),
            "n_kv_heads": group.n_kv_heads,
            "key_dim": group.key_dim,
            "value_dim": group.value_dim,
        })
    });
    json!({
        "parameters": model.totals.parameters,
        "weights_bytes": model.totals.weights_bytes,
        "vocab": hyper.vocab,
        "context_tokens_trained": hyper.context_tokens_trained,
        "page_tokens": PAGE_TOKENS,
        "kv_groups": groups.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vitriol_testkit::{
        gguf_file::{STRING, entry, sound, string},
        places::zoo_model,
    };

    fn report(gguf: &Gguf) -> Report {
        let device = Arc::new(Cpu::new(1, None).unwrap());
        Report::of(gguf, device, 0).unwrap()
    }

    #[test]
    fn the_check_finds_what_a_load_finds() {
        let gguf = Gguf::open(&zoo_model("llama.q8_0").unwrap()).unwrap();
        let found = report(&gguf).to_json();
        let device = Arc::new(Cpu::new(1, None).unwrap());
        let model = Model::load(&gguf, device, |_, _| 0, &mut |_| {}).unwrap();
        assert_eq!(found["runs"], true, "{found}");
        assert_eq!(found["model"]["parameters"], model.totals.parameters);
        assert_eq!(found["model"]["weights_bytes"], model.totals.weights_bytes);
        let group = &found["model"]["kv_groups"][0];
        assert_eq!(group["n_layers"], model.kv_groups[0].layers.len());
        assert!(group["window_tokens"].is_null());
    }

    #[test]
    fn what_cannot_be_run_says_why() {
        let foreign = entry("general.architecture", STRING, string(b"mamba"));
        let other = sound().with(|file| file.metadata[0] = foreign);
        let lacking = sound();
        for (file, words) in [(other, "\"mamba\" is not supported"), (lacking, "llama.")] {
            let gguf = Gguf::from_bytes("m.gguf".as_ref(), file.bytes()).unwrap();
            let report = report(&gguf);
            let why_not = report.why_not().expect("it cannot be run");
            assert!(why_not.contains(words), "{why_not}");
            assert_eq!(report.to_json()["runs"], false);
            assert!(report.to_json()["model"].is_null());
        }
    }
}
