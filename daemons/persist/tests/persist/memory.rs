//! What becomes of the engine when memory is short, on a machine that is a directory.

use std::{fs, time::Duration};

use rustix::process::Signal;
use vitriol_persist::{
    Watched,
    bounce::{BounceConfig, Bouncer},
    memory::MemoryPolicy,
    metrics::Metrics,
};
use vitriol_sysfs::Sysfs;

use crate::house::{House, Standin, signal_of};

const MIB: u64 = 1 << 20;

/// The house's machine, which has this much memory left.
fn have(house: &House, available_mib: u64) {
    let proc = house.at("machine/proc");
    fs::create_dir_all(&proc).unwrap();
    let text = format!(
        "MemTotal: 4194304 kB\nMemAvailable: {} kB\n",
        available_mib * 1024
    );
    fs::write(proc.join("meminfo"), text).unwrap();
}

fn bouncer(house: &House, metrics: &Metrics, finish_within: Duration) -> Bouncer {
    let config = BounceConfig {
        engine: Watched {
            name: "engine".to_owned(),
            unit: "vitriol-engine@main.service".to_owned(),
            socket: house.engine_socket(),
        },
        policy: MemoryPolicy {
            warn_below_bytes: 500 * MIB,
            bounce_below_bytes: 250 * MIB,
            polls: 3,
            cooldown: Duration::from_secs(600),
        },
        poll_interval: Duration::from_secs(5),
        deadline: Duration::from_secs(20),
        finish_within,
        end_within: Duration::from_millis(300),
        ask_systemd: false,
    };
    Bouncer::new(config, Sysfs::at(house.at("machine")), metrics.clone())
}

/// Looks every five seconds of a clock that only this knows, until `seconds`.
async fn look_until(bouncer: &mut Bouncer, from: u64, seconds: u64) {
    for at in (from..seconds).step_by(5) {
        bouncer.round(Duration::from_secs(at)).await;
    }
}

fn bounces(metrics: &Metrics) -> String {
    let mut registry = vitriol_chassis::Registry::default();
    metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode_registry(&mut text, &registry).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("bounce"));
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_finishes_its_answers_and_is_told_to_end() {
    let engine = Standin {
        busy: 3,
        ..Standin::default()
    };
    let mut house = House::with("vitriol-standin", engine, &[]);
    let metrics = Metrics::default();
    let mut bouncer = bouncer(&house, &metrics, Duration::from_secs(60));
    have(&house, 100);
    look_until(&mut bouncer, 0, 10).await;
    assert_eq!(house.engine.sheds(), 0, "it has not been short for long");
    look_until(&mut bouncer, 10, 15).await;
    assert_eq!(signal_of(house.end().await), Some(Signal::TERM));
    assert_eq!((house.engine.sheds(), house.engine.slots_asked()), (1, 4));
    assert_eq!(
        bounces(&metrics),
        "bounces_total{unit=\"vitriol-engine@main.service\"} 1"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_neither_finishes_nor_ends_is_killed() {
    let engine = Standin {
        busy: u64::MAX,
        ..Standin::default()
    };
    let deaf = ["env", "--ignore-signal=TERM"];
    let mut house = House::with("vitriol-standin", engine, &deaf);
    let metrics = Metrics::default();
    let mut bouncer = bouncer(&house, &metrics, Duration::from_millis(300));
    have(&house, 100);
    look_until(&mut bouncer, 0, 15).await;
    assert_eq!(signal_of(house.end().await), Some(Signal::KILL));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_enough_memory_and_again_within_the_cooldown_nothing_happens() {
    let mut house = House::new("vitriol-standin", 1);
    let metrics = Metrics::default();
    let mut bouncer = bouncer(&house, &metrics, Duration::ZERO);
    have(&house, 260);
    look_until(&mut bouncer, 0, 300).await;
    // Two looks are not three.
    have(&house, 100);
    look_until(&mut bouncer, 300, 310).await;
    have(&house, 260);
    look_until(&mut bouncer, 310, 315).await;
    assert_eq!(house.engine.sheds(), 0);
    assert_eq!(house.process.try_wait().unwrap(), None);

    have(&house, 100);
    look_until(&mut bouncer, 315, 330).await;
    assert_eq!(signal_of(house.end().await), Some(Signal::TERM));
    // Who answers now has no process any more: were it tried again, it would be asked once more.
    look_until(&mut bouncer, 330, 900).await;
    assert_eq!(house.engine.sheds(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_no_process_of_the_house_is_left_alone() {
    let mut house = House::new("standin", 1);
    let metrics = Metrics::default();
    let mut bouncer = bouncer(&house, &metrics, Duration::ZERO);
    have(&house, 100);
    look_until(&mut bouncer, 0, 15).await;
    assert_eq!(house.process.try_wait().unwrap(), None);
    assert_eq!(
        bounces(&metrics),
        "bounce_failures_total{unit=\"vitriol-engine@main.service\"} 1"
    );
}

/// Without /proc there is nothing to decide by; nobody is ended for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_tells_nothing_of_its_memory_costs_no_engine() {
    let mut house = House::new("vitriol-standin", 1);
    let mut bouncer = bouncer(&house, &Metrics::default(), Duration::ZERO);
    look_until(&mut bouncer, 0, 60).await;
    assert_eq!(house.process.try_wait().unwrap(), None);
}
