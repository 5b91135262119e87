//! What Demiurge counts. Names on the wire are `vitriol_demiurge_<name>[_unit][_total]`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Labels of a finished request; each from a fixed list of words.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct RequestLabels {
    pub route: &'static str,
    /// `stop`, `length`, `cancelled`, or the code of an error.
    pub outcome: &'static str,
}

/// Counters of the process, cheap to clone.
#[derive(Clone, Default)]
pub struct Metrics {
    /// Completion requests ended, by how.
    pub requests: Family<RequestLabels, Counter>,
    /// Requests that hold a place now.
    pub requests_in_flight: Gauge,
    /// Requests that the engine worked on when the session to it ended.
    pub requests_lost: Counter,
    /// Requests given to the next engine, as nothing of their answer had been shown.
    pub requests_resubmitted: Counter,
    /// Client connections open now.
    pub connections: Gauge,
    pub time_to_first_text: SecondsHistogram,
    pub request_duration: SecondsHistogram,
    /// Prompt tokens of requests that the engine took, reused ones among them.
    pub prompt_tokens: Counter,
    pub cached_tokens: Counter,
    pub completion_tokens: Counter,
    /// 1 while the session to the engine stands.
    pub engine_up: Gauge,
    pub engine_sessions: Counter,
    pub decisions_written: Counter,
    pub decisions_lost: Counter,
    /// 1 while decisions cannot be written.
    pub decisions_degraded: Gauge,
}

/// Seconds in buckets from a warm first token to a long answer on a slow machine.
#[derive(Clone)]
pub struct SecondsHistogram(pub Histogram);

impl Default for SecondsHistogram {
    fn default() -> Self {
        let buckets = [
            0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
        ];
        SecondsHistogram(Histogram::new(buckets))
    }
}

impl Metrics {
    /// Makes all of them visible in `registry`, whose prefix names the daemon.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "requests",
            "Completion requests ended",
            self.requests.clone(),
        );
        registry.register(
            "requests_in_flight",
            "Requests that hold a place",
            self.requests_in_flight.clone(),
        );
        registry.register(
            "requests_lost",
            "Requests that the engine worked on when its session ended",
            self.requests_lost.clone(),
        );
        registry.register(
            "requests_resubmitted",
            "Requests given to the next engine after theirs was lost before their answer began",
            self.requests_resubmitted.clone(),
        );
        registry.register(
            "connections",
            "Client connections open",
            self.connections.clone(),
        );
        registry.register_with_unit(
            "time_to_first_text",
            "From a request's head to its answer's first text",
            Unit::Seconds,
            self.time_to_first_text.0.clone(),
        );
        registry.register_with_unit(
            "request_duration",
            "From a request's head to its end",
            Unit::Seconds,
            self.request_duration.0.clone(),
        );
        for (name, help, counter) in [
            (
                "prompt_tokens",
                "Prompt tokens of requests that the engine took",
                &self.prompt_tokens,
            ),
            (
                "cached_tokens",
                "Prompt tokens whose KV was reused",
                &self.cached_tokens,
            ),
            (
                "completion_tokens",
                "Tokens of answers, whole or not",
                &self.completion_tokens,
            ),
            (
                "engine_sessions",
                "Sessions opened with the engine",
                &self.engine_sessions,
            ),
            (
                "decisions_written",
                "Lines written to the decision log",
                &self.decisions_written,
            ),
            (
                "decisions_lost",
                "Lines the decision log could not take",
                &self.decisions_lost,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        registry.register(
            "engine_up",
            "1 while the session to the engine stands",
            self.engine_up.clone(),
        );
        registry.register(
            "decisions_degraded",
            "1 while the decision log cannot be written",
            self.decisions_degraded.clone(),
        );
    }
}
