use serde_json::{Value, json};
use vitriol_kernels_core::KvCodec;
use vitriol_units::Bytes;

use super::{
    check::EngineCheck,
    facts::Facts,
    file_type,
    fit::{Fit, Verdict},
    kv::KvNeed,
};

/// All that is told about a model file.
pub struct Report {
    pub facts: Facts,
    pub check: EngineCheck,
    pub kv: Option<KvNeed>,
    pub fit: Option<Fit>,
}

impl Report {
    /// For people.
    pub fn describe(&self) -> String {
        let mut rows = self.fact_rows();
        rows.push(("engine", self.engine_row()));
        rows.push(("memory", self.fit.as_ref().map_or_else(unknown, fit_row)));
        let mut text: String = rows
            .iter()
            .map(|(name, value)| format!("{name:<14} {value}\n"))
            .collect();
        text += &self.tensor_table();
        text += &self.kv_table();
        text
    }

    fn fact_rows(&self) -> Vec<(&'static str, String)> {
        let facts = &self.facts;
        let number = |value: Option<u64>| value.map_or_else(unknown, |v| v.to_string());
        let text = |value: &Option<String>| value.clone().unwrap_or_else(unknown);
        let size = Bytes(facts.file_bytes).rounded();
        let file = match facts.parts.len() {
            1 => size.to_string(),
            parts => format!("{size} in {parts} parts"),
        };
        let file_type = match facts.file_type {
            None => unknown(),
            Some(id) => file_type::name(id).map_or_else(|| id.to_string(), str::to_owned),
        };
        let kv_heads = facts.n_kv_heads.as_deref().map_or_else(unknown, ranged);
        let mut rows = vec![
            ("name", text(&facts.name)),
            ("architecture", facts.architecture.clone()),
            ("licence", text(&facts.licence)),
            ("file", file),
            ("file type", file_type),
            (
                "parameters",
                format!("{:.1} M", facts.parameters as f64 / 1e6),
            ),
            (
                "context",
                format!("{} tokens", number(facts.context_tokens)),
            ),
            ("layers", number(facts.n_layers)),
            ("d_model", number(facts.d_model)),
            (
                "heads",
                format!("{}, {kv_heads} for K and V", number(facts.n_heads)),
            ),
            (
                "head size",
                format!("K {}, V {}", number(facts.key_dim), number(facts.value_dim)),
            ),
        ];
        if let Some(window) = facts.window_tokens {
            rows.push(("window", format!("{window} tokens, in some or all layers")));
        }
        if let Some(experts) = &facts.experts {
            let used = number(experts.used);
            rows.push(("experts", format!("{}, {used} for a token", experts.count)));
        }
        let tokenizer = match &facts.tokenizer {
            None => "none".to_owned(),
            Some(tokenizer) => {
                let kinds = [&tokenizer.model, &tokenizer.pre];
                let kinds: Vec<&str> = kinds.into_iter().flatten().map(String::as_str).collect();
                format!("{}, {} tokens", kinds.join(" "), number(tokenizer.tokens))
            }
        };
        let template = if facts.has_chat_template { "yes" } else { "no" };
        rows.extend([
            ("tokenizer", tokenizer),
            ("chat template", template.to_owned()),
        ]);
        rows
    }

    fn engine_row(&self) -> String {
        match &self.check {
            EngineCheck::Runs {
                tokenizer_fault: None,
                ..
            } => "runs it".to_owned(),
            EngineCheck::Runs {
                tokenizer_fault: Some(fault),
                ..
            } => format!("runs it, on token ids only: {fault}"),
            EngineCheck::Refuses { why_not, .. } => format!("does not run it: {why_not}"),
            EngineCheck::NotAsked { why_not } => format!("not asked: {why_not}"),
        }
    }

    fn tensor_table(&self) -> String {
        let mut text = format!("\n{:<14} {:>7} {:>12}\n", "tensors", "count", "bytes");
        for (kind, (tensors, bytes)) in &self.facts.types {
            let size = Bytes(*bytes).rounded();
            text += &format!("  {kind:<12} {tensors:>7} {size:>12}\n");
        }
        text
    }

    fn kv_table(&self) -> String {
        let Some(kv) = &self.kv else {
            return String::new();
        };
        let context = self.facts.context_tokens.unwrap_or(0);
        let has_windows = kv.window_bytes(KvCodec::F32, KvCodec::F32) > 0;
        let windows = if has_windows { "in windows" } else { "" };
        let mut text = format!(
            "\n{:<14} {:>10} {:>10} {:>12} {windows:>12} {:>14}\n",
            "KV per token", "K", "V", "K and V", "full context"
        );
        for codec in KvCodec::ALL {
            let [keys, values] = sides(kv, codec, KvNeed::bytes_per_token);
            let fixed = match has_windows {
                true => Bytes(kv.window_bytes(codec, codec)).rounded().to_string(),
                false => String::new(),
            };
            text += &format!(
                "  {:<12} {:>10} {:>10} {:>12} {fixed:>12} {:>14}\n",
                codec.name(),
                Bytes(keys).rounded(),
                Bytes(values).rounded(),
                Bytes(keys + values).rounded(),
                Bytes(kv.bytes_at(context, codec, codec)).rounded(),
            );
        }
        if kv.is_bound {
            text +=
                "  At most: windows are not taken off where the engine does not run the model.\n";
        }
        text
    }

    /// The fields are documented in docs/cli-json.md.
    pub fn to_json(&self) -> Value {
        let facts = &self.facts;
        let types = facts.types.iter().map(
            |(kind, (tensors, bytes))| json!({"type": kind, "tensors": tensors, "bytes": bytes}),
        );
        let experts = |e: &super::facts::Experts| json!({"count": e.count, "used": e.used});
        let tokenizer = |t: &super::facts::TokenizerFacts| json!({"model": t.model, "pre": t.pre, "tokens": t.tokens});
        json!({
            "files": facts.parts,
            "file_bytes": facts.file_bytes,
            "file_type": facts.file_type,
            "file_type_name": facts.file_type.and_then(file_type::name),
            "architecture": facts.architecture,
            "name": facts.name,
            "licence": facts.licence,
            "parameters": facts.parameters,
            "context_tokens": facts.context_tokens,
            "n_layers": facts.n_layers,
            "d_model": facts.d_model,
            "n_heads": facts.n_heads,
            "n_kv_heads": facts.n_kv_heads,
            "key_dim": facts.key_dim,
            "value_dim": facts.value_dim,
            "window_tokens": facts.window_tokens,
            "experts": facts.experts.as_ref().map(experts),
            "tokenizer": facts.tokenizer.as_ref().map(tokenizer),
            "has_chat_template": facts.has_chat_template,
            "tensor_types": types.collect::<Vec<_>>(),
            "kv": self.kv.as_ref().map(kv_json),
            "engine": engine_json(&self.check),
            "fit": self.fit.as_ref().map(fit_json),
        })
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// One number, or the least and the most of several.
fn ranged(numbers: &[u64]) -> String {
    match (numbers.iter().min(), numbers.iter().max()) {
        (Some(least), Some(most)) if least == most => most.to_string(),
        (Some(least), Some(most)) => format!("{least} to {most}"),
        _ => unknown(),
    }
}

/// Bytes of keys and of values by themselves.
fn sides(kv: &KvNeed, codec: KvCodec, of: fn(&KvNeed, KvCodec, KvCodec) -> u64) -> [u64; 2] {
    let both = of(kv, codec, codec);
    let keys = of(&kv.keys_only(), codec, codec);
    [keys, both - keys]
}

fn fit_row(fit: &Fit) -> String {
    let size = |bytes| Bytes(bytes).rounded().to_string();
    let [keys, values] = fit.codecs;
    let needs = format!(
        "weights {} + overhead {} + KV of {} tokens {} ({keys}/{values}), of {} available",
        size(fit.weights_bytes),
        size(fit.overhead_bytes),
        fit.context_tokens,
        size(fit.kv_bytes),
        size(fit.supply.available_bytes),
    );
    let verdict = match fit.verdict {
        Verdict::Fits => "fits".to_owned(),
        Verdict::BeyondProfile => format!(
            "fits with {} tokens of context, for engine.main.kv_bytes_max is {}",
            fit.context_tokens_fit,
            Bytes(fit.supply.kv_bytes_max),
        ),
        Verdict::ContextTooLong => {
            format!("fits with {} tokens of context", fit.context_tokens_fit)
        }
        Verdict::TooLarge => "does not fit".to_owned(),
    };
    format!("{verdict}: {needs}")
}

fn kv_json(kv: &KvNeed) -> Value {
    let groups = kv.groups.iter().map(|group| {
        json!({
            "window_tokens": group.window_tokens,
            "n_layers": group.heads.n_layers,
            "n_kv_heads": group.heads.n_kv_heads,
            "key_dim": group.heads.key_dim,
            "value_dim": group.heads.value_dim,
        })
    });
    let by_codec = |of: fn(&KvNeed, KvCodec, KvCodec) -> u64| {
        let rows = KvCodec::ALL.into_iter().map(|codec| {
            let [keys, values] = sides(kv, codec, of);
            (codec.name().to_owned(), json!({"k": keys, "v": values}))
        });
        Value::Object(rows.collect())
    };
    json!({
        "is_bound": kv.is_bound,
        "groups": groups.collect::<Vec<_>>(),
        "bytes_per_token": by_codec(KvNeed::bytes_per_token),
        "window_bytes": by_codec(KvNeed::window_bytes),
    })
}

fn engine_json(check: &EngineCheck) -> Value {
    match check {
        EngineCheck::Runs {
            model,
            tokenizer_fault,
        } => json!({
            "runs": true,
            "why_not": null,
            "weights_bytes": model.weights_bytes,
            "tokenizer_why_not": tokenizer_fault,
        }),
        EngineCheck::Refuses {
            why_not,
            architectures,
        } => json!({"runs": false, "why_not": why_not, "architectures": architectures}),
        EngineCheck::NotAsked { why_not } => json!({"runs": null, "why_not": why_not}),
    }
}

fn fit_json(fit: &Fit) -> Value {
    let [keys, values] = fit.codecs;
    json!({
        "verdict": fit.verdict.name(),
        "weights_bytes": fit.weights_bytes,
        "overhead_bytes": fit.overhead_bytes,
        "context_tokens": fit.context_tokens,
        "context_tokens_fit": fit.context_tokens_fit,
        "kv_bytes": fit.kv_bytes,
        "kv_codec": {"k": keys.name(), "v": values.name()},
        "available_bytes": fit.supply.available_bytes,
        "kv_bytes_max": fit.supply.kv_bytes_max,
    })
}
