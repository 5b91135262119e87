//! One page of metrics out of all processes, and llama-server's names for those who watch by them.

use std::fmt::Write;

use vitriol_proto::engine::v1::{ListSlotsResponse, SlotState};

/// Content-Type of the page.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Kinds of metric that an alias may be.
#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}

/// A metric of the engine under llama-server's name (without `llamacpp:`, and without `_total`).
struct Alias {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    source: Source,
}

enum Source {
    /// A sample of the engine.
    Sample(&'static str),
    /// One figure less another.
    Less(&'static str, &'static str),
    /// Figures per second: one source over a sample of seconds.
    Rate(&'static Source, &'static str),
}

/// llama-server counts prompt tokens that were computed; the engine counts all, and the reused.
const PROMPT_TOKENS: Source = Source::Less(
    "vitriol_engine_prompt_tokens_total",
    "vitriol_engine_prompt_tokens_cached_total",
);
const PREFILL_SECONDS: &str = "vitriol_engine_prefill_seconds_total";
const TOKENS_GENERATED: Source = Source::Sample("vitriol_engine_tokens_generated_total");
const DECODE_SECONDS: &str = "vitriol_engine_decode_seconds_total";

const ALIASES: [Alias; 7] = [
    Alias {
        name: "prompt_tokens",
        kind: Kind::Counter,
        help: "Prompt tokens computed",
        source: PROMPT_TOKENS,
    },
    Alias {
        name: "prompt_seconds",
        kind: Kind::Counter,
        help: "Time spent on prompts",
        source: Source::Sample(PREFILL_SECONDS),
    },
    Alias {
        name: "tokens_predicted",
        kind: Kind::Counter,
        help: "Tokens generated",
        source: TOKENS_GENERATED,
    },
    Alias {
        name: "tokens_predicted_seconds",
        kind: Kind::Counter,
        help: "Time spent on generation",
        source: Source::Sample(DECODE_SECONDS),
    },
    Alias {
        name: "prompt_tokens_seconds",
        kind: Kind::Gauge,
        help: "Prompt tokens a second, since the engine started",
        source: Source::Rate(&PROMPT_TOKENS, PREFILL_SECONDS),
    },
    Alias {
        name: "predicted_tokens_seconds",
        kind: Kind::Gauge,
        help: "Generated tokens a second, since the engine started",
        source: Source::Rate(&TOKENS_GENERATED, DECODE_SECONDS),
    },
    Alias {
        name: "n_decode",
        kind: Kind::Counter,
        help: "Steps computed",
        source: Source::Sample("vitriol_engine_steps_total"),
    },
];

impl Source {
    /// The figure, where `text` has all it is made of.
    fn value(&self, text: &str) -> Option<f64> {
        match self {
            Source::Sample(name) => sample(text, name),
            Source::Less(all, part) => Some(sample(text, all)? - sample(text, part)?),
            Source::Rate(figure, seconds) => {
                let (figure, seconds) = (figure.value(text)?, sample(text, seconds)?);
                Some(if seconds > 0.0 { figure / seconds } else { 0.0 })
            }
        }
    }
}

/// The page: Demiurge's registry, the engine's, those of `others`, llama-server's names as far as the engine gives
/// the figures, and the closing line. Registries come as OpenMetrics text without one.
pub fn page(
    own: &str,
    engine: Option<&str>,
    others: &[String],
    slots: Option<&ListSlotsResponse>,
) -> String {
    let engine = engine.unwrap_or_default();
    let mut page = String::with_capacity(own.len() + engine.len() + 2048);
    for part in [own, engine]
        .into_iter()
        .chain(others.iter().map(String::as_str))
    {
        page.push_str(part);
        if !part.is_empty() && !part.ends_with('\n') {
            page.push('\n');
        }
    }
    for alias in &ALIASES {
        if let Some(value) = alias.source.value(engine) {
            write_alias(&mut page, alias.name, alias.kind, alias.help, value);
        }
    }
    if let Some(slots) = slots {
        let running = slots
            .slots
            .iter()
            .filter(|slot| slot.state() != SlotState::Idle)
            .count();
        let (running, queued) = (running as f64, f64::from(slots.queued));
        write_alias(
            &mut page,
            "requests_processing",
            Kind::Gauge,
            "Requests running",
            running,
        );
        write_alias(
            &mut page,
            "requests_deferred",
            Kind::Gauge,
            "Requests queued",
            queued,
        );
    }
    page.push_str("# EOF\n");
    page
}

fn write_alias(page: &mut String, name: &str, kind: Kind, help: &str, value: f64) {
    let (kind, suffix) = match kind {
        Kind::Counter => ("counter", "_total"),
        Kind::Gauge => ("gauge", ""),
    };
    // Writing to a string does not fail.
    let _ = write!(
        page,
        "# HELP llamacpp:{name} {help}.\n# TYPE llamacpp:{name} {kind}\n\
         llamacpp:{name}{suffix} {value}\n"
    );
}

/// The value of a sample without labels.
fn sample(text: &str, name: &str) -> Option<f64> {
    text.lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .find_map(|value| value.split(' ').next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use vitriol_proto::engine::v1::Slot;

    use super::*;

    const ENGINE: &str = "# TYPE vitriol_engine_prompt_tokens counter\n\
        vitriol_engine_prompt_tokens_total 1500\n\
        vitriol_engine_prompt_tokens_cached_total 300\n\
        vitriol_engine_prefill_seconds_total 2.5\n\
        vitriol_engine_steps_total 7\n";

    #[test]
    fn all_registries_then_aliases_then_the_end() {
        let slots = ListSlotsResponse {
            slots: vec![
                Slot {
                    state: SlotState::Decode as i32,
                    ..Slot::default()
                },
                Slot {
                    state: SlotState::Idle as i32,
                    ..Slot::default()
                },
            ],
            queued: 3,
            ..ListSlotsResponse::default()
        };
        let others = ["vitriol_kvtier_slots 4".to_owned(), String::new()];
        let own = "vitriol_demiurge_engine_up 1\n";
        let page = page(own, Some(ENGINE), &others, Some(&slots));
        assert!(page.starts_with(own));
        for line in [
            "vitriol_kvtier_slots 4",
            "llamacpp:prompt_tokens_total 1200",
            "llamacpp:prompt_seconds_total 2.5",
            "llamacpp:prompt_tokens_seconds 480",
            "llamacpp:n_decode_total 7",
            "llamacpp:requests_processing 1",
            "llamacpp:requests_deferred 3",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
        }
        // What the engine does not give is left out, not made up.
        assert!(!page.contains("llamacpp:tokens_predicted"));
        assert!(page.ends_with("# EOF\n"));
        assert_eq!(page.matches("# EOF").count(), 1);
    }

    #[test]
    fn without_an_engine_the_page_is_demiurges_own() {
        assert_eq!(page("a 1", None, &[], None), "a 1\n# EOF\n");
    }

    #[test]
    fn samples_are_matched_by_whole_name() {
        let text = "steps_total_other 1\nsteps_total{a=\"b\"} 2\nsteps_total 3 1700000000\n";
        assert_eq!(sample(text, "steps_total"), Some(3.0));
        assert_eq!(sample(text, "steps"), None);
    }
}
