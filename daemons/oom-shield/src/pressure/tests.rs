use std::fs;

use super::*;

const FILE: &str = "some avg10=1.00 avg60=0.00 avg300=0.00 total=5000\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=40\n";

fn thresholds() -> Thresholds {
    Thresholds {
        some: Duration::from_millis(300),
        full: Duration::from_millis(100),
    }
}

#[test]
fn totals_are_read_and_compared_with_the_thresholds() {
    let now = Totals::parse(FILE).unwrap();
    assert_eq!(
        now,
        Totals {
            some_us: 5000,
            full_us: 40
        }
    );
    let later = |some_us, full_us| {
        let later = Totals {
            some_us: now.some_us + some_us,
            full_us: now.full_us + full_us,
        };
        let Stalled { some, full } = later.since(now, thresholds());
        (some, full)
    };
    assert_eq!(later(299_999, 99_999), (false, false));
    assert_eq!(later(300_000, 99_999), (true, false));
    assert_eq!(later(299_999, 100_000), (false, true));
    for damaged in [
        "",
        "some total=1\n",
        "some total=x\nfull total=1\n",
        "full total=1\n",
    ] {
        assert_eq!(Totals::parse(damaged), None, "{damaged}");
    }
}

#[test]
fn a_kernel_without_pressure_information_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("memory");
    let error = Watch::open(&file, thresholds()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    fs::write(&file, "").unwrap();
    assert!(Growth::open(&file, thresholds()).is_err());
}

/// As before Linux 6.5 for all but root; here because nobody can wait 5 s within 2 s.
#[test]
fn where_triggers_are_refused_it_is_sampled() {
    let file = Path::new("/proc/pressure/memory");
    let never = Thresholds {
        some: Duration::from_secs(5),
        full: Duration::from_secs(5),
    };
    match Watch::open(file, never) {
        Ok(watch) => assert!(matches!(watch, Watch::Samples { .. })),
        Err(error) => not_run(&error),
    }
}

fn not_run(error: &io::Error) {
    let remedy = format!("boot a kernel with psi=1 ({error})");
    vitriol_testkit::not_run("watching memory pressure", &remedy);
}

/// Without the check, the first stall after the start, however short, would have the engine refuse work on
/// any machine that was ever short of memory since it booted.
#[test]
fn an_event_without_growth_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memory");
    let write = |some_us: u64, full_us: u64| {
        fs::write(
            &path,
            format!("some total={some_us}\nfull total={full_us}\n"),
        )
        .unwrap();
    };
    write(5_000_000, 3_000_000);
    let mut totals = Growth::open(&path, thresholds()).unwrap();
    let both = Stalled {
        some: true,
        full: true,
    };
    let some = Stalled {
        some: true,
        full: false,
    };
    assert_eq!(totals.wake(both), Ok(Wake::Quiet));
    write(5_000_050, 3_000_050);
    assert_eq!(totals.wake(both), Ok(Wake::Quiet));
    write(5_300_000, 3_000_050);
    assert_eq!(totals.wake(both), Ok(Wake::Pressure(some)));
    assert_eq!(totals.wake(both), Ok(Wake::Quiet), "it was told");
    write(5_600_000, 3_500_000);
    assert_eq!(
        totals.wake(some),
        Ok(Wake::Pressure(some)),
        "only what the kernel says"
    );
}
