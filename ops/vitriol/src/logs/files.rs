//! The files that `vitriol up` leaves in the state directory: a log a daemon, and the decisions.

mod tail;

use std::{collections::VecDeque, io, path::PathBuf, time::Duration};

use time::OffsetDateTime;
use vitriol_chassis::{Exit, Failure};
use vitriol_ipc::HouseDirs;

use self::tail::Tail;
use super::{
    Lines, Unit, Wanted,
    line::{Form, is_about, time_of},
};
use crate::term::{self, printable};

/// How often a followed file is looked at.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

/// Where the logs of a house lie.
pub fn directory(dirs: &HouseDirs) -> PathBuf {
    let log = dirs.log("engine");
    log.parent().unwrap_or(&dirs.state).to_owned()
}

/// Shows the lines that are wanted, and with `follow` goes on until ctrl-C.
///
/// Errors: no house has logged here (69), a file that cannot be read (69).
pub async fn show(dirs: &HouseDirs, wanted: &Wanted) -> Result<(), Failure> {
    let mut sources = sources(dirs, wanted);
    if !sources.iter().any(|source| source.tail.path().exists()) {
        let message = format!(
            "no log in {}: no house of 'vitriol up' has run at this address; for installed units add \
             --from journal",
            directory(dirs).display()
        );
        return Err(Failure::new(Exit::Dependency, message));
    }
    let since = wanted
        .since
        .map(|since| since.moment(OffsetDateTime::now_utc()));
    let filter = Filter {
        since,
        session: wanted.session.clone(),
        lane: wanted.lane.clone(),
    };
    let mut newest = Newest::new(wanted.lines);
    for source in &mut sources {
        source.read_past(&filter, |record| newest.push(record))?;
        newest.source_ends();
    }
    for record in newest.in_order() {
        print(&record)?;
    }
    if !wanted.follow {
        return Ok(());
    }
    let stop = tokio::signal::ctrl_c();
    tokio::select! {
        stopped = stop => stopped.map_err(|error| Failure::of(Exit::Internal, error)),
        failed = follow(&mut sources, &filter) => failed,
    }
}

async fn follow(sources: &mut [Source], filter: &Filter) -> Result<(), Failure> {
    let mut looks = tokio::time::interval(FOLLOW_INTERVAL);
    loop {
        looks.tick().await;
        let mut records = Vec::new();
        for source in &mut *sources {
            source.read_new(filter, |record| records.push(record))?;
        }
        records.sort_by_key(|record| record.time);
        for record in &records {
            print(record)?;
        }
    }
}

fn print(record: &Record) -> Result<(), Failure> {
    term::print(format_args!(
        "{:<10} {}\n",
        record.source,
        printable(&record.text)
    ))
}

/// A line that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    /// Its own or that of the line it goes on from; `None` before the first.
    time: Option<OffsetDateTime>,
    source: &'static str,
    text: String,
}

/// Which lines are wanted.
#[derive(Debug, Default)]
struct Filter {
    since: Option<OffsetDateTime>,
    session: Option<String>,
    lane: Option<String>,
}

impl Filter {
    fn wants(&self, line: &str, form: Form, time: Option<OffsetDateTime>) -> bool {
        let about = |field: &str, value: &Option<String>| {
            value
                .as_ref()
                .is_none_or(|value| is_about(line, form, field, value))
        };
        // What has no time cannot be said to be recent.
        self.since
            .is_none_or(|since| time.is_some_and(|time| time >= since))
            && about("session", &self.session)
            && about("lane", &self.lane)
    }
}

/// A file of lines.
#[derive(Debug)]
struct Source {
    name: &'static str,
    form: Form,
    tail: Tail,
    /// Time of the last line that had one, and whether that line was wanted: a line without a time
    /// (the rest of a panic) goes with the one before.
    last: (Option<OffsetDateTime>, bool),
}

/// The files that can have what is wanted. Decisions are looked into where sessions or lanes are
/// asked for, which is what they tell of.
fn sources(dirs: &HouseDirs, wanted: &Wanted) -> Vec<Source> {
    let source = |name, form, path| Source {
        name,
        form,
        tail: Tail::new(path),
        last: (None, false),
    };
    let mut sources = Vec::new();
    let wants = |unit| wanted.unit.is_none_or(|only| only == unit);
    if wants(Unit::Engine) {
        sources.push(source("engine", Form::Log, dirs.log("engine")));
    }
    if wants(Unit::OomShield) {
        sources.push(source("oom-shield", Form::Log, dirs.log("oom-shield")));
    }
    if wants(Unit::Kvtier) {
        sources.push(source("kvtier", Form::Log, dirs.log("kvtier")));
    }
    if wants(Unit::Persist) {
        sources.push(source("persist", Form::Log, dirs.log("persist")));
    }
    if wants(Unit::Demiurge) {
        sources.push(source("demiurge", Form::Log, dirs.log("demiurge")));
        if wanted.session.is_some() || wanted.lane.is_some() {
            sources.push(source("decisions", Form::Decisions, dirs.decisions()));
        }
    }
    sources
}

impl Source {
    /// Gives what was put aside and what stands in the file.
    fn read_past(&mut self, filter: &Filter, give: impl FnMut(Record)) -> Result<(), Failure> {
        self.read(filter, give, |tail, line| {
            tail.read_aside(&mut *line)?;
            tail.read_new(&mut *line)
        })
    }

    /// Gives what has been written since.
    fn read_new(&mut self, filter: &Filter, give: impl FnMut(Record)) -> Result<(), Failure> {
        self.read(filter, give, |tail, line| tail.read_new(&mut *line))
    }

    fn read(
        &mut self,
        filter: &Filter,
        mut give: impl FnMut(Record),
        read: impl FnOnce(&mut Tail, &mut dyn FnMut(&str)) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let (name, form, last) = (self.name, self.form, &mut self.last);
        let mut look = |line: &str| {
            if let Some(time) = time_of(line, form) {
                *last = (Some(time), filter.wants(line, form, Some(time)));
            }
            if last.1 || last.0.is_none() && filter.wants(line, form, None) {
                give(Record {
                    time: last.0,
                    source: name,
                    text: line.to_owned(),
                });
            }
        };
        read(&mut self.tail, &mut look).map_err(|error| {
            let message = format!("read {}: {error}", self.tail.path().display());
            Failure::new(Exit::Dependency, message)
        })
    }
}

/// The newest lines of several files, in the order of their times.
#[derive(Debug)]
struct Newest {
    most: Lines,
    /// Of the sources that have ended.
    records: Vec<Record>,
    /// Of the source that is being read.
    current: VecDeque<Record>,
}

impl Newest {
    fn new(most: Lines) -> Self {
        Self {
            most,
            records: Vec::new(),
            current: VecDeque::new(),
        }
    }

    fn push(&mut self, record: Record) {
        self.current.push_back(record);
        if let Lines::Last(most) = self.most
            && self.current.len() > most
        {
            self.current.pop_front();
        }
    }

    fn source_ends(&mut self) {
        self.records.extend(self.current.drain(..));
    }

    fn in_order(mut self) -> Vec<Record> {
        self.source_ends();
        // Stable: lines of one file stay in its order.
        self.records.sort_by_key(|record| record.time);
        let skipped = match self.most {
            Lines::All => 0,
            Lines::Last(most) => self.records.len().saturating_sub(most),
        };
        self.records.split_off(skipped)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::house;

    const ENGINE: &str = "2026-11-30T08:00:01.0Z  INFO engine: loading\n\
                          2026-11-30T08:00:04.0Z  INFO engine: ready\n\
                          thread 'step' panicked at src/step.rs:1:2:\n";
    const DEMIURGE: &str = "2026-11-30T08:00:02.0Z  INFO demiurge: listening\n\
         2026-11-30T08:00:05.0Z  INFO demiurge: request ended vitriol_session=\"s\" \
         vitriol_lane=\"local\"\n";
    const DECISIONS: &str = "{\"ts\":\"2026-11-30T08:00:05.0Z\",\"session\":\"s\",\"lane\":\"local\"}\n\
                             {\"ts\":\"2026-11-30T08:00:06.0Z\",\"session\":\"t\",\"lane\":\"local\"}\n";

    fn logged(root: &std::path::Path) -> HouseDirs {
        let dirs = house::tests::dirs(root);
        fs::create_dir_all(directory(&dirs)).unwrap();
        fs::write(dirs.log("engine"), ENGINE).unwrap();
        fs::write(dirs.log("demiurge"), DEMIURGE).unwrap();
        fs::write(dirs.decisions(), DECISIONS).unwrap();
        dirs
    }

    fn wanted() -> Wanted {
        Wanted {
            unit: None,
            session: None,
            lane: None,
            since: None,
            lines: Lines::All,
            follow: false,
        }
    }

    fn shown(dirs: &HouseDirs, wanted: &Wanted) -> Vec<String> {
        let filter = Filter {
            since: wanted
                .since
                .map(|since| since.moment(OffsetDateTime::now_utc())),
            session: wanted.session.clone(),
            lane: wanted.lane.clone(),
        };
        let mut newest = Newest::new(wanted.lines);
        for source in &mut sources(dirs, wanted) {
            source
                .read_past(&filter, |record| newest.push(record))
                .unwrap();
            newest.source_ends();
        }
        let in_order = newest.in_order().into_iter();
        in_order
            .map(|record| format!("{} {}", record.source, record.text))
            .collect()
    }

    #[test]
    fn logs_are_woven_together_by_their_times() {
        let root = tempfile::tempdir().unwrap();
        let dirs = logged(root.path());
        let all = shown(&dirs, &wanted());
        let ends = [
            "loading",
            "listening",
            "ready",
            "step.rs:1:2:",
            "vitriol_lane=\"local\"",
        ];
        assert_eq!(all.len(), ends.len(), "{all:#?}");
        for (line, end) in all.iter().zip(ends) {
            assert!(line.ends_with(end), "{all:#?}");
        }
        let last = shown(
            &dirs,
            &Wanted {
                lines: Lines::Last(2),
                ..wanted()
            },
        );
        assert_eq!(last, all[3..]);
    }

    #[test]
    fn units_sessions_lanes_and_times_narrow() {
        let root = tempfile::tempdir().unwrap();
        let dirs = logged(root.path());
        let engine = Wanted {
            unit: Some(Unit::Engine),
            ..wanted()
        };
        assert_eq!(shown(&dirs, &engine).len(), 3);
        let session = Wanted {
            session: Some("s".into()),
            ..wanted()
        };
        let about = shown(&dirs, &session);
        assert_eq!(about.len(), 2, "{about:?}");
        assert!(about[1].starts_with("decisions {"), "{about:?}");
        let lane = Wanted {
            lane: Some("local".into()),
            ..wanted()
        };
        assert_eq!(shown(&dirs, &lane).len(), 3);
        let late = Wanted {
            since: Some("2026-11-30T08:00:03Z".parse().unwrap()),
            ..wanted()
        };
        let late = shown(&dirs, &late);
        assert_eq!(
            late.len(),
            3,
            "the panic goes with the line before it: {late:?}"
        );
    }

    #[tokio::test]
    async fn a_house_that_never_ran_is_named() {
        let root = tempfile::tempdir().unwrap();
        let dirs = house::tests::dirs(root.path());
        let failure = show(&dirs, &wanted()).await.unwrap_err();
        assert_eq!(failure.exit, Exit::Dependency);
        assert!(failure.message.contains("--from journal"), "{failure}");
    }
}
