//! What is on record of the engine's launches, across persist's own.

use std::{fs, os::unix::fs::PermissionsExt};

use vitriol_proto::{
    persist::v1::{BlessRequest, Launch, ListLaunchesRequest},
    status::v1::Field,
};
use vitriol_testkit::eventually;

use crate::house::{DEADLINE, House, Standin};

fn engine(started_at_ms: u64, speculation: &str) -> Standin {
    let field = |name: &str, value: &str| Field {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    Standin {
        pace: 1,
        fingerprint: vec![field("isa", "avx2"), field("speculation", speculation)],
        started_at_ms,
        ..Standin::default()
    }
}

async fn launches(house: &House, limit: u32) -> Vec<Launch> {
    let call = house
        .launches()
        .list_launches(ListLaunchesRequest { limit })
        .await;
    // Before it listens there are none.
    call.map_or_else(|_| Vec::new(), |answer| answer.into_inner().launches)
}

async fn until_on_record(house: &House, count: usize) -> Vec<Launch> {
    let handle = tokio::runtime::Handle::current();
    let listed = || Some(handle.block_on(launches(house, 0))).filter(|all| all.len() >= count);
    tokio::task::block_in_place(|| eventually(DEADLINE, "launches on record", listed)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_is_on_record_once_whoever_restarts_and_a_change_is_said() {
    let mut house = House::with("vitriol-standin", engine(1_000, "prompt-lookup"), &[]);
    house.watch("");
    let first = until_on_record(&house, 1).await;
    assert_eq!(first[0].unit, "vitriol-engine@main.service");
    assert_eq!(first[0].fingerprint, house.engine.fingerprint);
    assert_eq!(
        (first[0].pid, first[0].started_at_ms),
        (house.process.id(), 1_000)
    );
    let bless = async |house: &House| {
        let blessed = house.launches().bless(BlessRequest {}).await;
        blessed.unwrap().into_inner().units
    };
    assert_eq!(bless(&house).await, ["vitriol-engine@main.service"]);
    assert_eq!(bless(&house).await, [""; 0], "it is blessed already");
    let journal = house.at(".local/state/vitriol/persist/launches");
    let stored = fs::read(&journal).unwrap();
    let mode = fs::metadata(&journal).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // The same process, seen by another persist.
    house.kill_persist();
    house.watch("");
    house.log_with("watched");
    let metrics = house.metrics_after(12).await;
    assert!(!metrics.contains("persist_launches_total{"), "{metrics}");
    assert_eq!(
        fs::read(&journal).unwrap(),
        stored,
        "nothing is written twice"
    );

    // The same settings but one.
    house.kill_persist();
    house.relaunch(engine(2_000, "off"));
    house.watch("");
    let both = until_on_record(&house, 2).await;
    for compared in [&both[1].since_last, &both[1].since_blessed] {
        let differences = &compared.as_ref().unwrap().differences;
        assert_eq!(differences.len(), 1, "{differences:?}");
        assert_eq!(differences[0].field, "speculation");
        assert_eq!(differences[0].to.as_deref(), Some("off"));
    }
    let said = house.log_with("launched otherwise than the last time");
    assert!(said.contains("speculation: prompt-lookup -> off"), "{said}");
    assert_eq!(launches(&house, 1).await, both[1..]);
}
