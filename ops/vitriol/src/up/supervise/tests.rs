use proptest::prelude::*;

use super::*;

const ENGINE: DaemonId = 0;
const DEMIURGE: DaemonId = 1;
const STOP: Duration = Duration::from_secs(15);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn house() -> Supervisor {
    Supervisor::new([STOP, STOP])
}

/// Both daemons running and ready at time zero.
fn ready_house() -> Supervisor {
    let mut house = house();
    house.step(Event::Tick, ms(0));
    house.step(Event::Ready(ENGINE), ms(0));
    house.step(Event::Ready(DEMIURGE), ms(0));
    house
}

#[test]
fn both_start_at_once_in_order() {
    let actions = house().step(Event::Tick, ms(0));
    assert_eq!(actions, [Action::Start(ENGINE), Action::Start(DEMIURGE)]);
}

#[test]
fn a_crash_is_followed_by_a_restart_at_once_and_the_next_by_one_after_the_backoff() {
    let mut house = ready_house();
    let killed = Event::Exited(ENGINE, Ending::Signal(9));
    assert_eq!(house.step(killed, ms(1000)), [Action::Start(ENGINE)]);
    assert_eq!(house.step(killed, ms(1100)), []);
    assert_eq!(house.next_wake(), Some(ms(1300)));
    assert_eq!(house.step(Event::Tick, ms(1299)), []);
    assert_eq!(house.step(Event::Tick, ms(1300)), [Action::Start(ENGINE)]);
    // Once more: twice the delay.
    house.step(Event::Exited(ENGINE, Ending::Code(70)), ms(1400));
    assert_eq!(house.next_wake(), Some(ms(1800)));
}

#[test]
fn backoff_doubles_to_its_limit() {
    let delays: Vec<u128> = (1..=8).map(|n| backoff(n).as_millis()).collect();
    assert_eq!(delays, [0, 200, 400, 800, 1600, 3200, 6400, 10_000]);
    assert_eq!(backoff(u32::MAX), BACKOFF_MAX);
}

#[test]
fn health_for_a_while_resets_the_backoff() {
    let mut house = ready_house();
    let mut now = ms(0);
    for _ in 0..6 {
        house.step(Event::Exited(ENGINE, Ending::Code(70)), now);
        now = house.next_wake().unwrap_or(now);
        house.step(Event::Tick, now);
    }
    house.step(Event::Ready(ENGINE), now);
    now += HEALTHY_AFTER;
    let actions = house.step(Event::Exited(ENGINE, Ending::Code(70)), now);
    assert_eq!(actions, [Action::Start(ENGINE)]);
}

#[test]
fn a_lasting_cause_at_the_first_start_ends_the_house_with_its_code() {
    for (code, exit) in [
        (64, Exit::Usage),
        (69, Exit::Dependency),
        (78, Exit::Config),
    ] {
        let mut house = house();
        house.step(Event::Tick, ms(0));
        let actions = house.step(Event::Exited(ENGINE, Ending::Code(code)), ms(50));
        assert_eq!(actions, [Action::Terminate(DEMIURGE)]);
        let actions = house.step(Event::Exited(DEMIURGE, Ending::Code(0)), ms(90));
        assert_eq!(actions, [Action::Finish(exit)]);
    }
}

#[test]
fn a_lasting_cause_later_is_retried_slowly() {
    let mut house = ready_house();
    house.step(Event::Exited(DEMIURGE, Ending::Code(69)), ms(0));
    assert_eq!(house.next_wake(), Some(BACKOFF_MAX));
    assert!(!house.is_stopping());
}

#[test]
fn a_first_start_that_only_crashes_is_given_up() {
    let mut house = house();
    house.step(Event::Tick, ms(0));
    let mut now = ms(0);
    for _ in 1..FIRST_STARTS_MAX {
        let mut actions = house.step(Event::Exited(ENGINE, Ending::Signal(11)), now);
        if actions.is_empty() {
            now = house.next_wake().unwrap();
            actions = house.step(Event::Tick, now);
        }
        assert_eq!(actions, [Action::Start(ENGINE)]);
    }
    house.step(Event::Exited(ENGINE, Ending::Signal(11)), now);
    assert!(house.is_stopping());
    let actions = house.step(Event::Exited(DEMIURGE, Ending::Code(0)), now);
    assert_eq!(actions, [Action::Finish(Exit::Internal)]);
}

#[test]
fn the_door_closes_before_the_engine() {
    let mut house = ready_house();
    assert_eq!(
        house.step(Event::StopAsked, ms(0)),
        [Action::Terminate(DEMIURGE)]
    );
    assert_eq!(house.step(Event::Tick, ms(1)), []);
    let actions = house.step(Event::Exited(DEMIURGE, Ending::Code(0)), ms(2));
    assert_eq!(actions, [Action::Terminate(ENGINE)]);
    let actions = house.step(Event::Exited(ENGINE, Ending::Code(0)), ms(3));
    assert_eq!(actions, [Action::Finish(Exit::Ok)]);
}

#[test]
fn a_daemon_that_does_not_stop_is_killed_at_its_deadline() {
    let mut house = ready_house();
    house.step(Event::StopAsked, ms(0));
    assert_eq!(house.next_wake(), Some(STOP));
    assert_eq!(house.step(Event::Tick, STOP), [Action::Kill(DEMIURGE)]);
    assert_eq!(house.step(Event::Tick, STOP * 2), [], "once is enough");
}

#[test]
fn a_daemon_that_waited_for_its_restart_does_not_keep_a_stopping_house_awake() {
    let mut house = ready_house();
    for _ in 0..2 {
        house.step(Event::Exited(ENGINE, Ending::Signal(9)), ms(0));
    }
    let actions = house.step(Event::StopAsked, ms(1));
    assert_eq!(actions, [Action::Terminate(DEMIURGE)]);
    assert_eq!(house.phase(ENGINE), Phase::Ended);
    assert_eq!(house.next_wake(), Some(ms(1) + STOP));
}

#[test]
fn impatience_kills_all_at_once() {
    let mut house = ready_house();
    house.step(Event::StopAsked, ms(0));
    let actions = house.step(Event::KillAsked, ms(1));
    assert_eq!(actions, [Action::Kill(DEMIURGE), Action::Kill(ENGINE)]);
}

/// What the world may do next.
fn any_event() -> impl Strategy<Value = (Event, u64)> {
    let ending = prop_oneof![
        (0i32..=2).prop_map(Ending::Code),
        prop_oneof![Just(64), Just(69), Just(70), Just(78)].prop_map(Ending::Code),
        (1i32..=15).prop_map(Ending::Signal),
    ];
    let event = prop_oneof![
        8 => Just(Event::Tick),
        4 => (0usize..2).prop_map(Event::Ready),
        6 => (0usize..2, ending).prop_map(|(daemon, ending)| Event::Exited(daemon, ending)),
        1 => Just(Event::StopAsked),
        1 => Just(Event::KillAsked),
    ];
    (event, prop_oneof![0u64..300, 0u64..40_000])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Follows the actions as the shell would and checks every rule at every step.
    #[test]
    fn the_rules_hold_in_any_order_of_events(
        events in proptest::collection::vec(any_event(), 0..60)
    ) {
        let mut house = house();
        let mut now = ms(0);
        let mut alive = [false; 2];
        let mut asked_at = [None; 2];
        let mut starts = [[None; 2]; 2];
        let (mut stop_wanted, mut kill_wanted, mut finished) = (false, false, false);
        let closing = [(Event::StopAsked, 0), (Event::KillAsked, 0)];
        let exits = [1, 0].map(|daemon| (Event::Exited(daemon, Ending::Signal(9)), 1));
        for (event, wait) in
            [(Event::Tick, 0)].into_iter().chain(events).chain(closing).chain(exits)
        {
            now += ms(wait);
            match event {
                // Only what runs can exit or be ready.
                Event::Exited(daemon, _) | Event::Ready(daemon) if !alive[daemon] => continue,
                Event::Exited(daemon, _) => {
                    alive[daemon] = false;
                }
                Event::StopAsked => stop_wanted = true,
                Event::KillAsked => (stop_wanted, kill_wanted) = (true, true),
                _ => {}
            }
            for action in house.step(event, now) {
                prop_assert!(!finished, "nothing follows the end");
                match action {
                    Action::Start(daemon) => {
                        prop_assert!(!alive[daemon], "one process a daemon");
                        prop_assert!(!stop_wanted, "no start after stop");
                        let [before_last, last] = starts[daemon];
                        let earliest = before_last.map_or(now, |at: Duration| at + BACKOFF_MIN);
                        prop_assert!(now >= earliest, "of two restarts in a row one waits");
                        starts[daemon] = [last, Some(now)];
                        alive[daemon] = true;
                        asked_at[daemon] = None;
                    }
                    Action::Terminate(daemon) => {
                        prop_assert!(alive[daemon] && asked_at[daemon].is_none());
                        prop_assert!(daemon == DEMIURGE || !alive[DEMIURGE], "door first");
                        asked_at[daemon] = Some(now);
                    }
                    Action::Kill(daemon) => {
                        let overdue = asked_at[daemon].is_some_and(|at: Duration| now >= at + STOP);
                        prop_assert!(alive[daemon] && (kill_wanted || overdue));
                    }
                    Action::Finish(_) => {
                        prop_assert!(alive == [false; 2], "no orphans");
                        finished = true;
                    }
                }
            }
            for daemon in [ENGINE, DEMIURGE] {
                if let Phase::Waiting { until } = house.phase(daemon) {
                    prop_assert!(!house.is_stopping(), "nothing waits for a start after stop");
                    prop_assert!(until <= now + BACKOFF_MAX, "no wait beyond the limit");
                }
            }
        }
        prop_assert!(finished, "killed daemons that exited end the house");
    }
}
