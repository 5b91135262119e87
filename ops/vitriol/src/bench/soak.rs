//! `vitriol bench soak`: mixed load for a while, and whether the daemons' memory grows under it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use vitriol_chassis::{Environment, Exit, Failure, OrExit};
use vitriol_ipc::connect;
use vitriol_measure::{Trend, rounded, write_whole};
use vitriol_proto::engine::v1::{ListSlotsRequest, engine_client::EngineClient};
use vitriol_units::Bytes;

use super::{Target, args::SoakArgs, client::Client};
use crate::term;

/// Part of the time after which memory should have reached its height: pools filled, buffers grown.
const WARM_UP: f64 = 0.4;

/// How full the pool of KV pages must be by then: it keeps what was computed, and grows until it is full.
const POOL_FILLED_MIN: f64 = 0.9;

/// The engine answers such questions from snapshots.
const SLOTS_DEADLINE: Duration = Duration::from_secs(5);

/// Looks at the daemons' memory, in all.
const LOOKS: u32 = 120;
const LOOK_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Growth that is taken for none, whatever the statistics: less than a day makes visible.
const TOLERANCE_BYTES_PER_HOUR: f64 = 256.0 * 1024.0;

/// Memory of one daemon over time.
#[derive(Clone, Debug, Default)]
struct Series {
    /// (hours since the start, bytes)
    points: Vec<(f64, f64)>,
}

impl Series {
    /// The trend after the warm-up of a run of `hours`.
    fn trend(&self, hours: f64) -> Option<Trend> {
        let after = self
            .points
            .iter()
            .filter(|point| point.0 >= WARM_UP * hours);
        Trend::of(&after.copied().collect::<Vec<_>>())
    }
}

pub async fn run(args: &SoakArgs, environment: &Environment) -> Result<(), Failure> {
    let target = Target::find(&args.house, environment).await?;
    if target.daemons.len() < 2 {
        let message = "the daemons' status does not answer, so that their memory is unknown; run this \
                       as the user who runs the house";
        return Err(Failure::new(Exit::Dependency, message));
    }
    let length = Duration::from_secs_f64(args.minutes * 60.0);
    let load = Arc::new(Load::default());
    let mut streams = tokio::task::JoinSet::new();
    for stream in 0..args.streams {
        let (client, load) = (target.client.clone(), Arc::clone(&load));
        streams.spawn(async move { load.go_on(&client, stream.into()).await });
    }
    let watched = watch(&target, length, &load).await;
    load.stop.store(true, Ordering::Relaxed);
    while streams.join_next().await.is_some() {}
    let watched = watched?;
    let report = Report {
        hours: length.as_secs_f64() / 3600.0,
        series: watched.0,
        pool_filled_before: watched.1,
        requests: load.requests.load(Ordering::Relaxed),
        cancelled: load.cancelled.load(Ordering::Relaxed),
        failed: load.failed.load(Ordering::Relaxed),
    };
    if let Some(path) = &args.house.json {
        write_whole(path, &format!("{:#}\n", report.to_json())).or_exit(Exit::Dependency)?;
    }
    term::print(report.describe())?;
    match report.finding() {
        None => Ok(()),
        Some(finding) => Err(Failure::new(Exit::Finding, finding)),
    }
}

/// Looks at the daemons' memory until `length` has passed. Also: how much of the pool of KV pages was in
/// use when the warm-up ended, 0 to 1.
async fn watch(
    target: &Target,
    length: Duration,
    load: &Load,
) -> Result<(Vec<(&'static str, Series)>, f64), Failure> {
    let mut pool_filled = None;
    let names = target.daemons.iter().map(|(name, _)| *name);
    let mut series: Vec<_> = names.map(|name| (name, Series::default())).collect();
    let began = Instant::now();
    let interval = (length / LOOKS).max(LOOK_INTERVAL_MIN);
    let mut ticks = tokio::time::interval(interval);
    let mut said = Duration::ZERO;
    while began.elapsed() < length {
        ticks.tick().await;
        let at = began.elapsed();
        for ((_, series), (_, bytes)) in series.iter_mut().zip(target.resident_bytes()?) {
            series
                .points
                .push((at.as_secs_f64() / 3600.0, bytes as f64));
        }
        if pool_filled.is_none() && at >= length.mul_f64(WARM_UP) {
            pool_filled = Some(pool_filled_now(target).await?);
        }
        if at >= said {
            said += (length / 10).max(Duration::from_secs(10));
            let requests = load.requests.load(Ordering::Relaxed);
            let sizes = series.iter().filter_map(|(name, series)| {
                let bytes = series.points.last()?.1;
                Some(format!("{name} {}", Bytes(bytes as u64).rounded()))
            });
            let sizes: Vec<_> = sizes.collect();
            term::note(format_args!(
                "{} s, {requests} requests: {}",
                at.as_secs(),
                sizes.join(", ")
            ));
        }
    }
    Ok((series, pool_filled.unwrap_or(0.0)))
}

/// Part of the pages that hold KV, be it of sequences that ended.
async fn pool_filled_now(target: &Target) -> Result<f64, Failure> {
    let mut engine = EngineClient::new(connect(&target.engine_socket));
    let asked = tokio::time::timeout(SLOTS_DEADLINE, engine.list_slots(ListSlotsRequest {})).await;
    let slots = asked.or_exit(Exit::Dependency)?.or_exit(Exit::Dependency)?;
    let slots = slots.into_inner();
    let filled = slots.pages_used + slots.pages_cached;
    Ok(filled as f64 / slots.pages_all.max(1) as f64)
}

/// The streams' common state.
#[derive(Debug, Default)]
struct Load {
    stop: AtomicBool,
    requests: AtomicU64,
    cancelled: AtomicU64,
    failed: AtomicU64,
}

/// One request of the mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    seed: u64,
    prompt: usize,
    tokens: usize,
    /// The client leaves after so long.
    leaves: Option<Duration>,
}

/// The mix: mostly short prompts, some that were seen before, a few long ones, one in five given up.
/// `number` counts a stream's requests; nothing is left to chance, so that runs compare.
fn plan_request(stream: u64, number: u64, context: usize) -> Request {
    let mixed = (stream << 32 | number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
    let prompt = match mixed % 10 {
        0..6 => 32 + (mixed as usize >> 8) % 200,
        6..9 => 400 + (mixed as usize >> 8) % 600,
        _ => 3000,
    };
    let tokens = 8 + (mixed as usize >> 24) % 56;
    let prompt = prompt.min(context.saturating_sub(tokens + 1)).max(1);
    // A third repeats an earlier prompt of the stream.
    let seed = if mixed.is_multiple_of(3) {
        number % 8
    } else {
        number + 100
    };
    Request {
        seed: stream << 32 | seed,
        prompt,
        tokens,
        leaves: mixed
            .is_multiple_of(5)
            .then(|| Duration::from_millis(mixed >> 20 & 127)),
    }
}

impl Load {
    /// Sends one request after the other until told to stop.
    async fn go_on(&self, client: &Client, stream: u64) {
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let request = plan_request(stream, number, client.context_tokens);
            let prompt = client.prompt(request.seed, request.prompt);
            let asking = client.complete(&prompt, request.tokens);
            let answered = match request.leaves {
                None => Some(asking.await),
                Some(after) => tokio::time::timeout(after, asking).await.ok(),
            };
            self.requests.fetch_add(1, Ordering::Relaxed);
            match answered {
                None => {
                    self.cancelled.fetch_add(1, Ordering::Relaxed);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    // The first says what is wrong; a house that is gone would say it for ever.
                    if self.failed.fetch_add(1, Ordering::Relaxed) == 0 {
                        term::note(format_args!("a request failed: {error:#}"));
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Report {
    hours: f64,
    series: Vec<(&'static str, Series)>,
    /// Part of the pool of KV pages that was in use when the warm-up ended.
    pool_filled_before: f64,
    requests: u64,
    cancelled: u64,
    failed: u64,
}

impl Report {
    /// What is wrong, if anything is.
    fn finding(&self) -> Option<String> {
        if self.failed > 0 {
            return Some(format!(
                "{} of {} requests failed",
                self.failed, self.requests
            ));
        }
        if self.pool_filled_before < POOL_FILLED_MIN {
            return Some(format!(
                "the pool of KV pages was still filling ({:.0}%) when the warm-up ended: run longer, or \
                 start the house with a smaller engine.main.kv_bytes_max",
                100.0 * self.pool_filled_before
            ));
        }
        self.series.iter().find_map(|(name, series)| {
            let Some(trend) = series.trend(self.hours) else {
                return Some(format!(
                    "{name} was looked at too rarely for a trend; run longer"
                ));
            };
            let grows = trend.slope > 0.0 && !trend.is_flat(TOLERANCE_BYTES_PER_HOUR);
            grows.then(|| format!("the memory of {name} grows by {}", per_hour(&trend)))
        })
    }

    fn describe(&self) -> String {
        let mut text = format!(
            "{} requests in {} minutes, {} of them given up by the client, {} failed\n",
            self.requests,
            rounded(self.hours * 60.0),
            self.cancelled,
            self.failed
        );
        for (name, series) in &self.series {
            let ends = [series.points.first(), series.points.last()];
            let [first, last] = ends.map(|point| point.map_or(0.0, |point| point.1));
            let trend = match series.trend(self.hours) {
                Some(trend) => format!("{} after warm-up, {} looks", per_hour(&trend), trend.n),
                None => "too few looks for a trend".to_owned(),
            };
            let (first, last) = (Bytes(first as u64).rounded(), Bytes(last as u64).rounded());
            text += &format!("{name:<9} {first} at first, {last} in the end; {trend}\n");
        }
        text
    }

    /// The fields are documented in docs/cli-json.md.
    fn to_json(&self) -> Value {
        let daemons = self.series.iter().map(|(name, series)| {
            let trend = series.trend(self.hours);
            json!({
                "daemon": name,
                "slope_bytes_per_hour": trend.map(|trend| trend.slope),
                "slope_error_bytes_per_hour": trend.map(|trend| trend.slope_error),
                "resident_bytes": series.points.iter().map(|(hours, bytes)| {
                    json!({"seconds": hours * 3600.0, "bytes": bytes})
                }).collect::<Vec<_>>(),
            })
        });
        json!({
            "minutes": self.hours * 60.0,
            "requests": self.requests,
            "cancelled": self.cancelled,
            "failed": self.failed,
            "pool_filled_before": self.pool_filled_before,
            "finding": self.finding(),
            "daemons": daemons.collect::<Vec<_>>(),
        })
    }
}

fn per_hour(trend: &Trend) -> String {
    let kib = |bytes: f64| rounded(bytes / 1024.0);
    format!("{} ± {} KiB/hour", kib(trend.slope), kib(trend.slope_error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(bytes: impl Fn(f64) -> f64, failed: u64) -> Report {
        // Half an hour, a look every fifteen seconds.
        let points = (0..120).map(|look| {
            let hours = f64::from(look) / 240.0;
            (hours, bytes(hours))
        });
        let series = Series {
            points: points.collect(),
        };
        Report {
            hours: 0.5,
            series: vec![("engine", series)],
            pool_filled_before: 1.0,
            requests: 10,
            cancelled: 2,
            failed,
        }
    }

    #[test]
    fn growth_is_found_and_a_warm_up_is_not_growth() {
        let warm_up = report(|hours| 1e8 + 5e7 * (hours / 0.15).min(1.0), 0);
        assert_eq!(warm_up.finding(), None);
        let leak = report(|hours| 1e8 + 4e7 * hours, 0);
        let finding = leak.finding().unwrap();
        assert!(finding.contains("engine grows by 39063"), "{finding}");
        let shrinking = report(|hours| 1e8 - 4e7 * hours, 0);
        assert_eq!(shrinking.finding(), None);
        let noise = report(|hours| 1e8 + 1e6 * (hours * 3e3).sin(), 0);
        assert_eq!(noise.finding(), None);
    }

    #[test]
    fn a_failed_request_is_a_finding_and_so_is_too_short_a_run() {
        let failed = report(|_| 1e8, 1).finding();
        assert_eq!(failed.as_deref(), Some("1 of 10 requests failed"));
        let mut short = report(|_| 1e8, 0);
        short.series[0].1.points.truncate(2);
        assert!(short.finding().unwrap().contains("run longer"));
        let mut filling = report(|_| 1e8, 0);
        filling.pool_filled_before = 0.5;
        let finding = filling.finding().unwrap();
        assert!(finding.contains("still filling (50%)"), "{finding}");
    }

    #[test]
    fn the_mix_is_bounded_varied_and_the_same_again() {
        let mix = |stream| (0..400).map(move |number| plan_request(stream, number, 4096));
        assert!(mix(0).eq(mix(0)) && !mix(0).eq(mix(1)));
        assert!(mix(2).all(|r| r.prompt >= 1 && r.prompt + r.tokens < 4096 && r.tokens >= 8));
        let given_up = mix(3).filter(|r| r.leaves.is_some()).count();
        assert!((40..160).contains(&given_up), "{given_up} of 400");
        assert!(mix(4).any(|r| r.prompt == 3000) && mix(4).any(|r| r.prompt < 232));
        assert!((0..400).all(|n| plan_request(5, n, 40).prompt < 40));
    }
}
