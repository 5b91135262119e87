//! The log on standard error.

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};
use vitriol_profile::LogFormat;

use crate::{Environment, Exit, Failure};

/// Starts the process's log on standard error: lines for people (coloured on a terminal, without a
/// time in the journal, which has its own) or one JSON object a line.
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
    let registry = tracing_subscriber::registry().with(filter);
    let base = || fmt::layer().with_writer(std::io::stderr);
    let started = match (format, environment.journal) {
        (LogFormat::Json, _) => registry.with(base().json().flatten_event(true)).try_init(),
        (LogFormat::Text, true) => registry
            .with(base().with_ansi(false).without_time())
            .try_init(),
        (LogFormat::Text, false) => registry
            .with(base().with_ansi(environment.color))
            .try_init(),
    };
    started.map_err(|error| Failure::of(Exit::Internal, error))
}
