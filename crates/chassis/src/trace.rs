//! The log: native entries in the journal, lines or JSON on standard error elsewhere.

mod text;

use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};
use vitriol_profile::LogFormat;

use crate::{Environment, Exit, Failure};

use self::text::ForPeople;

/// Starts the process's log.
///
/// Where standard error leads to the journal, events go there with their fields, whatever `format`
/// says; a journal that cannot be reached gets text. Elsewhere standard error gets lines for people
/// (coloured on a terminal) or one JSON object a line.
///
/// Errors: `VITRIOL_LOG` is no filter; a log runs already.
pub fn init(format: LogFormat, environment: &Environment) -> Result<(), Failure> {
    let directives = environment.log_filter.as_deref().unwrap_or("info");
    let filter = EnvFilter::try_new(directives).map_err(|error| {
        Failure::new(
            Exit::Config,
            format!("VITRIOL_LOG='{directives}': {error}; write for instance 'info' or 'debug'"),
        )
    })?;
    // Why a daemon ends is said whatever is filtered: under the journal nothing else says it.
    let filter = match "vitriol_chassis=error".parse() {
        Ok(last_word) if !says_errors(directives) => filter.add_directive(last_word),
        _ => filter,
    };
    let registry = tracing_subscriber::registry().with(filter);
    let journal = environment.journal.then(journal_layer).and_then(Result::ok);
    let base = || fmt::layer().with_writer(std::io::stderr);
    let started = match (journal, format) {
        (Some(journal), _) => registry.with(journal).try_init(),
        (None, LogFormat::Json) => registry.with(base().json().flatten_event(true)).try_init(),
        (None, LogFormat::Text) => registry
            .with(
                base()
                    .fmt_fields(ForPeople)
                    .with_ansi(environment.color && !environment.journal),
            )
            .try_init(),
    };
    started.map_err(|error| Failure::of(Exit::Internal, error))
}

/// Fields keep their names, so that a kind's `message_id` is the journal's MESSAGE_ID.
fn journal_layer() -> std::io::Result<tracing_journald::Layer> {
    Ok(tracing_journald::layer()?
        .with_field_prefix(None)
        .with_priority_mappings(PriorityMappings {
            info: Priority::Informational,
            debug: Priority::Debug,
            ..PriorityMappings::new()
        }))
}

/// Whether a filter lets errors of this crate through: by a level for everything, or by naming the crate.
fn says_errors(directives: &str) -> bool {
    directives.split(',').map(str::trim).any(|directive| {
        let level_of_all = directive.parse::<tracing::Level>().is_ok();
        level_of_all || directive.starts_with("vitriol_chassis=")
    })
}

#[cfg(test)]
mod tests {
    use super::says_errors;

    #[test]
    fn a_level_for_everything_says_errors_and_a_target_alone_does_not() {
        for directives in ["info", "warn,vitriol_engine=debug", "vitriol_chassis=off"] {
            assert!(says_errors(directives), "{directives}");
        }
        for directives in ["vitriol_engine=debug", "off", ""] {
            assert!(!says_errors(directives), "{directives}");
        }
    }
}
