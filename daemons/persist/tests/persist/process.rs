//! Whom it ends, and whom not.

use rustix::process::Signal;
use vitriol_testkit::process;

use crate::house::{DEADLINE, House, signal_of};

/// More than the 3 s of standing still that make a hang.
const LOOKS: u64 = 35;

const UNIT: &str = "{unit=\"vitriol-engine@main.service\"}";

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_stands_still_is_ended_and_its_threads_are_told() {
    let mut house = House::new("vitriol-standin", 0);
    house.watch("");
    assert_eq!(signal_of(house.end().await), Some(Signal::ABORT));
    let told = house.log_with("stood still and was ended");
    assert!(told.contains("vitriol-standin S 0s"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_daemon_is_killed() {
    let mut house = House::new("vitriol-standin", 0);
    process::stop(house.process.id(), DEADLINE).unwrap();
    house.watch("");
    assert_eq!(signal_of(house.end().await), Some(Signal::KILL));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_moves_is_left_alone() {
    let mut house = House::new("vitriol-standin", 1);
    house.watch("");
    let metrics = house.metrics_after(LOOKS).await;
    let still = format!("vitriol_persist_still_polls{UNIT} 0\n");
    assert!(metrics.contains(&still), "{metrics}");
    assert!(
        !metrics.contains("vitriol_persist_hangs_total{"),
        "{metrics}"
    );
    assert_eq!(house.process.try_wait().unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_not_the_houses_is_not_ended() {
    let mut house = House::new("standin", 0);
    house.watch("");
    let metrics = house.metrics_after(LOOKS).await;
    let failures = format!("vitriol_persist_end_failures_total{UNIT} 1\n");
    assert!(metrics.contains(&failures), "{metrics}");
    assert_eq!(house.process.try_wait().unwrap(), None);
    assert!(house.log().contains("end it by hand"), "{}", house.log());
}
