//! What one completion request came to: collected while it runs, written once when it ends, however
//! it ends.

use std::time::{Duration, Instant};

use http::{HeaderValue, StatusCode};
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};
use tokio::sync::OwnedSemaphorePermit;
use vitriol_chassis::event;
use vitriol_proto::engine::v1::Usage;

use crate::answer::Route;
use crate::api_error::ApiError;
use crate::decision_log::{Decision, DecisionLog, SCHEMA};
use crate::lane::{Cause, Lane, LaneInputs, Verdict};
use crate::metrics::{Metrics, RequestLabels};

/// Status in the log for a client that left, before its answer or in the middle of it.
const CLIENT_LEFT: u16 = 499;

/// How a request ended that nobody ended otherwise.
const CANCELLED: &str = "cancelled";

/// The running account of a request. Dropping it writes the decision line and the metrics; whoever
/// drops a request on the way (a client that leaves, a drain) thereby closes its account as
/// cancelled.
pub struct Account {
    line: Decision,
    begun: Instant,
    first_text: Option<Duration>,
    /// Of an answer that is complete.
    usage: Option<Usage>,
    decisions: DecisionLog,
    metrics: Metrics,
    place: Option<OwnedSemaphorePermit>,
}

impl Account {
    /// Opens the account of a request whose head has just arrived.
    pub fn open(
        route: Route,
        request_id: String,
        inputs: LaneInputs,
        decisions: DecisionLog,
        metrics: Metrics,
    ) -> Account {
        let line = Decision {
            schema: SCHEMA,
            ts: timestamp(OffsetDateTime::now_utc()),
            request_id,
            session: None,
            route: route.as_str(),
            lane: Lane::Local,
            cause: Cause::LocalOnly,
            inputs,
            model: None,
            tries: 0,
            stream: false,
            status: CLIENT_LEFT,
            finish: CANCELLED,
            error: None,
            prompt_tokens: None,
            cached_tokens: None,
            completion_tokens: None,
            queue_ms: None,
            ttft_ms: None,
            total_ms: 0.0,
        };
        Account {
            line,
            begun: Instant::now(),
            first_text: None,
            usage: None,
            decisions,
            metrics,
            place: None,
        }
    }

    /// The request has a place among those in flight, and keeps it until the account closes.
    pub fn take_place(&mut self, place: OwnedSemaphorePermit) {
        self.metrics.requests_in_flight.inc();
        self.place = Some(place);
    }

    /// The client's session.
    pub fn session(&mut self, session: &str) {
        self.line.session = Some(session.to_owned());
    }

    /// The client wants a stream.
    pub fn streamed(&mut self, stream: bool) {
        self.line.stream = stream;
    }

    /// Where the request goes, and what that was decided from.
    pub fn decided(&mut self, inputs: LaneInputs, verdict: Verdict) {
        self.line.inputs = inputs;
        self.line.lane = verdict.lane;
        self.line.cause = verdict.cause;
    }

    /// An engine gets the request.
    pub fn submitted(&mut self) {
        self.line.tries += 1;
        if self.line.tries > 1 {
            self.metrics.requests_resubmitted.inc();
            tracing::info!(
                message_id = event::REQUEST_RESUBMITTED,
                request_id = self.line.request_id.as_str(),
                vitriol_session = self.line.session.as_deref(),
                vitriol_lane = self.line.lane.as_str(),
                tries = self.line.tries,
                "its engine was lost before its answer began; the next one has it now"
            );
        }
    }

    /// The engine was lost before its answer began: what it did counts for nothing.
    pub fn engine_lost(&mut self) {
        self.line.prompt_tokens = None;
        self.line.cached_tokens = None;
        self.line.completion_tokens = None;
        self.first_text = None;
    }

    /// An engine with this model took the prompt.
    pub fn accepted(&mut self, model: &str, prompt_tokens: u32) {
        self.line.model = Some(model.to_owned());
        self.line.prompt_tokens = Some(prompt_tokens);
        self.line.completion_tokens = Some(0);
    }

    /// So many prompt tokens needed no computing.
    pub fn prefilled(&mut self, cached_tokens: u32) {
        self.line.cached_tokens = Some(cached_tokens);
    }

    /// The client's connection takes text that stands for so many tokens more.
    pub fn delivered(&mut self, tokens: u32) {
        let before = self.line.completion_tokens.unwrap_or(0);
        self.line.completion_tokens = Some(before.saturating_add(tokens));
    }

    /// An answer's head goes out.
    pub fn status(&mut self, status: StatusCode) {
        self.line.status = status.as_u16();
    }

    /// The answer's first text is here; later calls are without effect.
    pub fn text(&mut self) {
        self.first_text.get_or_insert_with(|| self.begun.elapsed());
    }

    /// The answer is complete.
    pub fn finished(&mut self, finish: &'static str, usage: &Usage) {
        self.usage = Some(*usage);
        self.line.finish = finish;
        self.line.prompt_tokens = Some(usage.prompt_tokens);
        self.line.cached_tokens = Some(usage.cached_tokens);
        self.line.completion_tokens = Some(usage.completion_tokens);
        self.line.queue_ms = Some(thousandths(usage.queue_ms));
    }

    /// The request ends with an error.
    pub fn failed(&mut self, error: &ApiError) {
        self.line.finish = "error";
        self.line.error = Some(error.label());
    }

    /// Headers that tell the client where it was answered, and, once that is known, where the KV of its
    /// prompt was, in tokens, and where the prompt parts from that of the request before.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, HeaderValue)> + use<> {
        let where_answered = [
            (
                "x-demiurge-lane",
                HeaderValue::from_static(self.line.lane.as_str()),
            ),
            (
                "x-demiurge-cause",
                HeaderValue::from_static(self.line.cause.as_str()),
            ),
        ];
        let kv = self.usage.and_then(|usage| {
            let (arena, mirror) = (usage.arena_tokens, usage.mirror_tokens);
            let engine = usage
                .cached_tokens
                .saturating_sub(arena.saturating_add(mirror));
            let mut value = format!("engine={engine}, arena={arena}, mirror={mirror}");
            for (name, at) in [
                ("diverged-token", usage.diverged_token),
                ("diverged-message", usage.diverged_message),
            ] {
                value += &at.map_or_else(String::new, |at| format!(", {name}={at}"));
            }
            Some(("x-vitriol-kv", HeaderValue::try_from(value).ok()?))
        });
        where_answered.into_iter().chain(kv)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let total = self.begun.elapsed();
        self.line.total_ms = milliseconds(total);
        self.line.ttft_ms = self.first_text.map(milliseconds);
        if self.line.finish == CANCELLED {
            // Of a stream 200 went out, but the client did not get the answer that this promised.
            self.line.status = CLIENT_LEFT;
        }
        let (metrics, line) = (&self.metrics, &self.line);
        for (counter, tokens) in [
            (&metrics.prompt_tokens, line.prompt_tokens),
            (&metrics.cached_tokens, line.cached_tokens),
            (&metrics.completion_tokens, line.completion_tokens),
        ] {
            counter.inc_by(tokens.unwrap_or(0).into());
        }
        let outcome = self.line.error.unwrap_or(self.line.finish);
        let labels = RequestLabels {
            route: self.line.route,
            outcome,
        };
        self.metrics.requests.get_or_create(&labels).inc();
        self.metrics.request_duration.0.observe(total.as_secs_f64());
        if let Some(first_text) = self.first_text {
            self.metrics
                .time_to_first_text
                .0
                .observe(first_text.as_secs_f64());
        }
        if self.place.take().is_some() {
            self.metrics.requests_in_flight.dec();
        }
        self.decisions.record(&self.line);
        log_end(&self.line);
    }
}

/// One event a request: who looks into the journal finds it by its session or its lane.
fn log_end(line: &Decision) {
    let request_id = line.request_id.as_str();
    let vitriol_session = line.session.as_deref();
    let vitriol_lane = line.lane.as_str();
    let cause = line.cause.as_str();
    match line.error {
        None => tracing::info!(
            message_id = event::REQUEST_ANSWERED,
            request_id,
            vitriol_session,
            vitriol_lane,
            cause,
            finish = line.finish,
            status = line.status,
            prompt_tokens = line.prompt_tokens,
            cached_tokens = line.cached_tokens,
            completion_tokens = line.completion_tokens,
            queue_ms = line.queue_ms,
            ttft_ms = line.ttft_ms,
            total_ms = line.total_ms,
            "request ended"
        ),
        Some(error) => tracing::info!(
            message_id = event::REQUEST_REFUSED,
            request_id,
            vitriol_session,
            vitriol_lane,
            cause,
            error,
            status = line.status,
            tries = line.tries,
            total_ms = line.total_ms,
            "request refused"
        ),
    }
}

fn milliseconds(duration: Duration) -> f64 {
    thousandths(duration.as_secs_f64() * 1000.0)
}

/// Rounded to a thousandth: finer digits are noise.
fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// RFC 3339 in UTC with milliseconds.
fn timestamp(at: OffsetDateTime) -> String {
    let at = at.to_offset(UtcOffset::UTC);
    let at = at.replace_millisecond(at.millisecond()).unwrap_or(at);
    // Years beyond four digits are the only times without such a form.
    at.format(&Rfc3339).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_have_milliseconds() {
        let at = OffsetDateTime::from_unix_timestamp_nanos(1_700_000_000_123_456_789).unwrap();
        assert_eq!(timestamp(at), "2023-11-14T22:13:20.123Z");
    }
}
