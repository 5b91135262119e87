use std::{
    fs::{self, File},
    net::{TcpListener, TcpStream},
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::net::{SendFlags, send};
use vitriol_testkit::eventually;

use super::*;
use crate::{
    pressure::{Growth, Thresholds},
    relief::Messages,
};

const DEADLINE: Duration = Duration::from_secs(60);

fn tell(stop: &OwnedFd) {
    rustix::io::write(stop, &1u64.to_ne_bytes()).unwrap();
}

fn event_file() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

/// Ends the watch that asks for anything, and counts what was asked.
struct Asked {
    stop: OwnedFd,
    trims: AtomicU64,
    sheds: AtomicU64,
}

impl Asked {
    fn new() -> Self {
        Self {
            stop: event_file(),
            trims: AtomicU64::new(0),
            sheds: AtomicU64::new(0),
        }
    }
}

impl Relievers for Asked {
    fn trim(&self) {
        self.trims.fetch_add(1, Ordering::Relaxed);
        tell(&self.stop);
    }

    fn shed(&self) {
        self.sheds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Totals of a fixed length, so that a reader sees them whole.
fn totals(us: u64) -> String {
    let line = |kind: &str| format!("{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={us:012}\n");
    line("some") + &line("full")
}

/// The counter counts what this thread allocates; the guard's loop runs on it, everything else (the file
/// that changes, the runtime that is woken) on others.
#[test]
fn once_it_waits_the_guard_allocates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memory");
    fs::write(&path, totals(0)).unwrap();
    let thresholds = Thresholds {
        some: Duration::from_millis(1),
        full: Duration::from_millis(1),
    };
    let mut watch = Watch::Samples {
        window: Duration::from_millis(5),
        totals: Growth::open(&path, thresholds).unwrap(),
    };

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let messages = Arc::new(Messages::default());
    let heard = Arc::new(AtomicU64::new(0));
    let (told, hearing) = (Arc::clone(&messages), Arc::clone(&heard));
    runtime.spawn(async move {
        loop {
            told.shed_wanted().await;
            hearing.fetch_add(1, Ordering::Relaxed);
        }
    });
    let stop = Arc::new(event_file());
    let (for_driver, heard_by_driver) = (Arc::clone(&stop), Arc::clone(&heard));
    let driver = thread::spawn(move || {
        let file = File::options().write(true).open(&path).unwrap();
        let mut us = 0;
        let came = eventually(DEADLINE, "ten calls to shed", || {
            us += 10_000;
            file.write_all_at(totals(us).as_bytes(), 0).unwrap();
            (heard_by_driver.load(Ordering::Relaxed) >= 10).then_some(())
        });
        tell(&for_driver);
        came
    });
    let metrics = Metrics::default();
    let mut ended = Err(Errno::INVAL);
    let counted = allocation_counter::measure(|| {
        ended = keep_watch(&mut watch, stop.as_fd(), &*messages, &metrics);
    });
    driver.join().unwrap().unwrap();
    assert_eq!(ended, Ok(()));
    assert_eq!(counted.count_total, 0, "{counted:?}");
    assert!(metrics.sheds.get() >= 10 && metrics.pressure_full.get() == metrics.sheds.get());
    // The counter works.
    let one = allocation_counter::measure(|| drop(std::hint::black_box(Box::new(7u64))));
    assert_eq!(one.count_total, 1);
}

/// A connection on which urgent data lies, which is polled as the kernel's triggers are.
fn urgent(wanted: bool) -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (receiver, _) = listener.accept().unwrap();
    if wanted {
        send(&sender, b"!", SendFlags::OOB).unwrap();
    }
    (receiver.into(), sender)
}

/// Totals that have grown by a second since they were looked at.
fn grown(directory: &Path) -> Growth {
    let path = directory.join("memory");
    fs::write(&path, totals(0)).unwrap();
    let thresholds = Thresholds {
        some: Duration::from_millis(300),
        full: Duration::from_millis(100),
    };
    let growth = Growth::open(&path, thresholds).unwrap();
    fs::write(&path, totals(1_000_000)).unwrap();
    growth
}

#[test]
fn a_trigger_says_who_waits_and_nothing_is_allocated() {
    let directory = tempfile::tempdir().unwrap();
    for (some_waits, full_waits) in [(true, false), (true, true)] {
        let ((some, _one), (full, _other)) = (urgent(some_waits), urgent(full_waits));
        let mut watch = Watch::Triggers {
            some,
            full,
            totals: grown(directory.path()),
        };
        let asked = Asked::new();
        let metrics = Metrics::default();
        let mut ended = Err(Errno::INVAL);
        let counted = allocation_counter::measure(|| {
            ended = keep_watch(&mut watch, asked.stop.as_fd(), &asked, &metrics);
        });
        assert_eq!((ended, counted.count_total), (Ok(()), 0));
        assert_eq!(asked.trims.load(Ordering::Relaxed), 1);
        assert_eq!(asked.sheds.load(Ordering::Relaxed) > 0, full_waits);
    }
}

#[test]
fn a_trigger_that_breaks_ends_the_watch() {
    let directory = tempfile::tempdir().unwrap();
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let (full, _other) = urgent(false);
    let mut watch = Watch::Triggers {
        some: writer.into(),
        full,
        totals: grown(directory.path()),
    };
    let asked = Asked::new();
    let ended = keep_watch(&mut watch, asked.stop.as_fd(), &asked, &Metrics::default());
    assert_eq!(ended, Err(Errno::NODEV));
    assert_eq!(asked.trims.load(Ordering::Relaxed), 0);
}

#[test]
fn dropping_a_guard_ends_its_thread_whatever_it_waits_for() {
    let thresholds = Thresholds {
        some: Duration::from_secs(2),
        full: Duration::from_secs(2),
    };
    let file = Path::new("/proc/pressure/memory");
    let Ok(watch) = Watch::open(file, thresholds) else {
        return vitriol_testkit::not_run("a guard on real triggers", "boot a kernel with psi=1");
    };
    let messages: Arc<dyn Relievers> = Arc::new(Messages::default());
    let held = Arc::downgrade(&messages);
    let guard = Guard::start(watch, messages, Metrics::default()).unwrap();
    drop(guard);
    assert!(held.upgrade().is_none(), "the thread has ended");
}

#[test]
fn locking_memory_works_or_says_why_not() {
    // Both are fine; what is not is a process that ends or hangs over it.
    if let Err(error) = lock_memory() {
        let denied = [Errno::NOMEM, Errno::PERM, Errno::AGAIN].map(|errno| errno.raw_os_error());
        assert!(
            error
                .raw_os_error()
                .is_some_and(|code| denied.contains(&code)),
            "{error}"
        );
    }
}
