//! `vitriol fingerprint`: what the daemons were launched with, and what changed since.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Map, Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tonic::transport::Channel;
use vitriol_chassis::{Environment, Exit, Failure};
use vitriol_ipc::{HouseDirs, connect};
use vitriol_profile::Overrides;
use vitriol_proto::persist::v1::{
    BlessRequest, Comparison, Difference, Launch, ListLaunchesRequest,
    persist_client::PersistClient,
};

use crate::{
    cli::{FingerprintCommand, SettingArgs},
    house,
    term::{self, Paint, printable},
};

/// A disk may be slow to take what is blessed.
const CALL_DEADLINE: Duration = Duration::from_secs(5);

pub async fn run(command: FingerprintCommand, environment: &Environment) -> Result<(), Failure> {
    let paint = Paint(environment.color && std::io::IsTerminal::is_terminal(&std::io::stdout()));
    match command {
        FingerprintCommand::Log(args) => {
            let mut persist = Persist::locate(&args.settings, environment)?;
            let launches = persist.launches(args.limit).await?;
            match args.json {
                true => term::print(format_args!("{:#}\n", to_json(&launches))),
                false => term::print(describe_log(&launches, paint)),
            }
        }
        FingerprintCommand::Diff(args) => {
            let mut persist = Persist::locate(&args.settings, environment)?;
            let newest = newest(persist.launches(0).await?);
            match args.json {
                true => term::print(format_args!("{:#}\n", to_json(&newest))),
                false => term::print(describe_diff(&newest)),
            }
        }
        FingerprintCommand::Bless { settings } => {
            let units = Persist::locate(&settings, environment)?.bless().await?;
            let text = match units.is_empty() {
                true => "blessed already: the newest launches are as the blessed ones\n".to_owned(),
                false => format!("blessed: {}\n", units.join(", ")),
            };
            term::print(text)
        }
    }
}

/// The watch of a house, which keeps the record.
struct Persist {
    client: PersistClient<Channel>,
    dirs: HouseDirs,
}

impl Persist {
    fn locate(settings: &SettingArgs, environment: &Environment) -> Result<Self, Failure> {
        let listen = settings.load(Overrides::new())?.house.listen;
        let dirs = house::locate(&environment.dirs()?, listen);
        let client = PersistClient::new(connect(&dirs.persist_socket()));
        Ok(Self { client, dirs })
    }

    async fn launches(&mut self, limit: u32) -> Result<Vec<Launch>, Failure> {
        let call = self.client.list_launches(ListLaunchesRequest { limit });
        let answer = tokio::time::timeout(CALL_DEADLINE, call).await;
        Ok(answer_of(&self.dirs, answer)?.launches)
    }

    async fn bless(&mut self) -> Result<Vec<String>, Failure> {
        let call = self.client.bless(BlessRequest {});
        let answer = tokio::time::timeout(CALL_DEADLINE, call).await;
        Ok(answer_of(&self.dirs, answer)?.units)
    }
}

type Answer<T> = Result<Result<tonic::Response<T>, tonic::Status>, tokio::time::error::Elapsed>;

/// Errors: persist does not answer, or with an error (69).
fn answer_of<T>(dirs: &HouseDirs, answer: Answer<T>) -> Result<T, Failure> {
    let cause = match answer {
        Ok(Ok(answer)) => return Ok(answer.into_inner()),
        Ok(Err(status)) => status.message().to_owned(),
        Err(_) => format!("no answer within {} s", CALL_DEADLINE.as_secs()),
    };
    let message = format!(
        "persist at {}: {cause}; start the house with 'vitriol up'",
        dirs.persist_socket().display()
    );
    Err(Failure::new(Exit::Dependency, message))
}

/// The newest launch of each unit.
fn newest(launches: Vec<Launch>) -> Vec<Launch> {
    let by_unit = launches
        .into_iter()
        .map(|launch| (launch.unit.clone(), launch));
    by_unit.collect::<BTreeMap<_, _>>().into_values().collect()
}

fn describe_log(launches: &[Launch], paint: Paint) -> String {
    let width = launches.iter().map(|launch| launch.unit.len()).max();
    let width = width.unwrap_or(0);
    let line = |launch: &Launch| {
        let what = match &launch.since_last {
            None => paint.dim("the first on record"),
            Some(Comparison { differences }) if differences.is_empty() => "as before".to_owned(),
            Some(Comparison { differences }) => {
                let changes: Vec<String> = differences
                    .iter()
                    .map(|one| format!("{} {}", printable(&one.field), describe_change(one)))
                    .collect();
                paint.yellow(&changes.join(", "))
            }
        };
        let (at, unit, pid) = (moment(launch), printable(&launch.unit), launch.pid);
        format!("{at}  {unit:<width$}  process {pid}: {what}\n")
    };
    match launches.is_empty() {
        true => "no launch is on record\n".to_owned(),
        false => launches.iter().map(line).collect(),
    }
}

fn describe_diff(launches: &[Launch]) -> String {
    let one = |launch: &Launch| {
        let (base, comparison) = match (&launch.since_blessed, &launch.since_last) {
            (Some(blessed), _) => ("the blessed launch", blessed),
            (None, Some(last)) => ("the launch before it (none is blessed)", last),
            (None, None) => return format!("{}: the first on record\n", printable(&launch.unit)),
        };
        let head = format!(
            "{}, launched {}, against {base}:",
            printable(&launch.unit),
            moment(launch)
        );
        let differences = &comparison.differences;
        if differences.is_empty() {
            return format!("{head} no difference\n");
        }
        let width = differences.iter().map(|one| one.field.len()).max();
        let width = width.unwrap_or(0);
        let lines = differences.iter().map(|one| {
            let field = printable(&one.field);
            format!("{field:<width$}  {}\n", describe_change(one))
        });
        format!("{head}\n{}", lines.collect::<String>())
    };
    match launches.is_empty() {
        true => "no launch is on record\n".to_owned(),
        false => launches.iter().map(one).collect(),
    }
}

fn describe_change(change: &Difference) -> String {
    let side = |value: &Option<String>| match value.as_deref() {
        None => "(none)".to_owned(),
        Some("") => "\"\"".to_owned(),
        Some(value) => printable(value),
    };
    format!("{} -> {}", side(&change.from), side(&change.to))
}

/// When it was, in UTC.
fn moment(launch: &Launch) -> String {
    let seconds = i64::try_from(launch.started_at_ms / 1000).unwrap_or(i64::MAX);
    let at = OffsetDateTime::from_unix_timestamp(seconds).ok();
    let text = at.and_then(|at| at.format(&Rfc3339).ok());
    text.unwrap_or_else(|| format!("{} ms", launch.started_at_ms))
}

fn to_json(launches: &[Launch]) -> Value {
    let difference = |one: &Difference| json!({"field": one.field, "from": one.from, "to": one.to});
    let comparison = |comparison: &Option<Comparison>| match comparison {
        None => Value::Null,
        Some(all) => all.differences.iter().map(difference).collect(),
    };
    let launch = |launch: &Launch| {
        let fields = launch.fingerprint.iter();
        let fields = fields.map(|field| (field.name.clone(), field.value.as_str().into()));
        json!({
            "unit": launch.unit,
            "pid": launch.pid,
            "started_at_ms": launch.started_at_ms,
            "fingerprint": fields.collect::<Map<String, Value>>(),
            "since_last": comparison(&launch.since_last),
            "since_blessed": comparison(&launch.since_blessed),
        })
    };
    json!({ "launches": launches.iter().map(launch).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use vitriol_proto::status::v1::Field;

    use super::*;

    fn launches() -> Vec<Launch> {
        let change = |field: &str, from: Option<&str>, to: Option<&str>| Difference {
            field: field.to_owned(),
            from: from.map(str::to_owned),
            to: to.map(str::to_owned),
        };
        let launch = |unit: &str, pid, since_last, since_blessed| Launch {
            unit: unit.to_owned(),
            pid,
            started_at_ms: 1_796_000_000_123 + u64::from(pid),
            fingerprint: vec![Field {
                name: "alias".to_owned(),
                value: String::new(),
            }],
            since_last,
            since_blessed,
        };
        let same = || Some(Comparison::default());
        let dropped = Comparison {
            differences: vec![
                change("engine.speculation", Some("prompt-lookup"), Some("off")),
                change("alias", Some("evil\u{1b}[2J"), Some("")),
                change("isa", None, Some("avx2")),
            ],
        };
        let engine = "vitriol-engine@main.service";
        vec![
            launch(engine, 7, None, None),
            launch("vitriol-kvtier.service", 8, None, same()),
            launch(engine, 9, Some(dropped.clone()), None),
            launch(engine, 10, same(), Some(dropped)),
        ]
    }

    #[test]
    fn the_launches_for_people() {
        insta::assert_snapshot!(describe_log(&launches(), Paint(false)));
        assert_eq!(describe_log(&[], Paint(false)), "no launch is on record\n");
    }

    #[test]
    fn the_launches_for_programs() {
        insta::assert_snapshot!(format!("{:#}", to_json(&newest(launches()))));
    }

    #[test]
    fn the_newest_launches_against_the_blessed_ones() {
        insta::assert_snapshot!(describe_diff(&newest(launches())));
        let first = describe_diff(&newest(launches()[..1].to_vec()));
        assert_eq!(first, "vitriol-engine@main.service: the first on record\n");
        let before = describe_diff(&newest(launches()[..3].to_vec()));
        assert!(before.contains("(none is blessed):\n"), "{before}");
    }
}
