//! `vitriol shield status`: what the kernel would kill, in its order, and what the shield did about it.

use std::time::Duration;

use serde_json::{Value, json};
use vitriol_chassis::{Environment, Exit, Failure};
use vitriol_ipc::connect;
use vitriol_profile::Overrides;
use vitriol_proto::oom_shield::v1::{
    GetReportRequest, GetReportResponse, PressureWatch, Process, Standing,
    oom_shield_client::OomShieldClient,
};
use vitriol_units::Bytes;

use crate::{
    cli::{ShieldCommand, StatusArgs},
    house,
    term::{self, Paint, printable, span},
};

/// The answer is a snapshot; longer than this the shield is not well.
const CALL_DEADLINE: Duration = Duration::from_millis(500);

pub async fn run(command: ShieldCommand, environment: &Environment) -> Result<(), Failure> {
    let ShieldCommand::Status(args) = command;
    status(&args, environment).await
}

async fn status(args: &StatusArgs, environment: &Environment) -> Result<(), Failure> {
    let listen = args.settings.load(Overrides::new())?.house.listen;
    let dirs = house::locate(&environment.dirs()?, listen);
    let mut shield = OomShieldClient::new(connect(&dirs.oom_shield_socket()));
    let call = shield.get_report(GetReportRequest {});
    let cause = match tokio::time::timeout(CALL_DEADLINE, call).await {
        Ok(Ok(report)) => {
            let report = report.into_inner();
            let paint =
                Paint(environment.color && std::io::IsTerminal::is_terminal(&std::io::stdout()));
            return match args.json {
                true => term::print(format_args!("{:#}\n", to_json(&report))),
                false => term::print(describe(&report, paint)),
            };
        }
        Ok(Err(status)) => status.message().to_owned(),
        Err(_) => format!("no answer within {} ms", CALL_DEADLINE.as_millis()),
    };
    let message = format!(
        "oom-shield at {}: {cause}; start the house with 'vitriol up'",
        dirs.oom_shield_socket().display()
    );
    Err(Failure::new(Exit::Dependency, message))
}

fn describe(report: &GetReportResponse, paint: Paint) -> String {
    let mut text = format!(
        "{:>3} {:>5} {:>5} {:>10} {:>8}  {:<15}\n",
        "#", "score", "adj", "memory", "pid", "name"
    );
    for (place, process) in (1..).zip(&report.processes) {
        let line = format!(
            "{place:>3} {:>5} {:>5} {:>10} {:>8}  {:<15}  {}",
            process.oom_score,
            process.oom_score_adj,
            Bytes(process.resident_bytes).rounded().to_string(),
            process.pid,
            printable(&process.name),
            standing(process),
        );
        let line = line.trim_end();
        text += &match process.standing() {
            Standing::Raised => paint.yellow(line),
            Standing::House => paint.green(line),
            _ => line.to_owned(),
        };
        text.push('\n');
    }
    let shown = report.processes.len();
    let all = report.processes_all as usize;
    if shown < all {
        text += &paint.dim(&format!("    and {} with lower scores", all - shown));
        text.push('\n');
    }
    let watch = match report.pressure_watch() {
        PressureWatch::Triggers | PressureWatch::Samples => format!(
            "memory pressure: {} windows with some, {} with a standstill; the engine was asked {} times to \
             take nothing new",
            report.pressure_some, report.pressure_full, report.sheds
        ),
        PressureWatch::None | PressureWatch::Unspecified => {
            "memory pressure: not watched, the kernel tells nothing of it".to_owned()
        }
    };
    text += &format!(
        "\n{} raised, seen {} ago; {watch}\n",
        report.processes_raised,
        span(report.age_ms)
    );
    for (count, what) in [
        (
            report.refusals,
            "scores that the kernel did not let the shield set",
        ),
        (report.shed_failures, "calls to the engine that failed"),
        (
            report.house_unprotected.into(),
            "processes of the house whose score is not below 0, against their units",
        ),
    ] {
        if count > 0 {
            text += &paint.yellow(&format!("{count} {what}"));
            text.push('\n');
        }
    }
    text
}

fn standing(process: &Process) -> String {
    match process.standing() {
        Standing::Raised => format!("raised from {}", process.raised_from.unwrap_or_default()),
        Standing::House => "the house".to_owned(),
        Standing::Vital => "vital".to_owned(),
        Standing::Extra => "spared by the profile".to_owned(),
        Standing::Protected => "protected by others".to_owned(),
        Standing::Refused => "the kernel refused".to_owned(),
        Standing::NotMeant | Standing::Unspecified => String::new(),
    }
}

fn to_json(report: &GetReportResponse) -> Value {
    let process = |process: &Process| {
        let standing = match process.standing() {
            Standing::Raised => "raised",
            Standing::House => "house",
            Standing::Vital => "vital",
            Standing::Extra => "extra",
            Standing::Protected => "protected",
            Standing::Refused => "refused",
            Standing::NotMeant | Standing::Unspecified => "not_meant",
        };
        json!({
            "pid": process.pid,
            "name": process.name,
            "uid": process.uid,
            "resident_bytes": process.resident_bytes,
            "oom_score": process.oom_score,
            "oom_score_adj": process.oom_score_adj,
            "standing": standing,
            "raised_from": process.raised_from,
        })
    };
    let watch = match report.pressure_watch() {
        PressureWatch::Triggers => "triggers",
        PressureWatch::Samples => "samples",
        PressureWatch::None | PressureWatch::Unspecified => "none",
    };
    json!({
        "processes": report.processes.iter().map(process).collect::<Vec<_>>(),
        "processes_all": report.processes_all,
        "processes_raised": report.processes_raised,
        "age_ms": report.age_ms,
        "pressure_watch": watch,
        "memory_locked": report.memory_locked,
        "pressure_some": report.pressure_some,
        "pressure_full": report.pressure_full,
        "sheds": report.sheds,
        "shed_failures": report.shed_failures,
        "refusals": report.refusals,
        "house_unprotected": report.house_unprotected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> GetReportResponse {
        let process = |pid, name: &str, oom_score, adj, standing: Standing, from| Process {
            pid,
            name: name.to_owned(),
            uid: 1000,
            resident_bytes: 400 << 20,
            oom_score,
            oom_score_adj: adj,
            standing: standing.into(),
            raised_from: from,
        };
        GetReportResponse {
            processes: vec![
                process(4242, "firefox", 880, 300, Standing::Raised, Some(0)),
                process(7, "evil\u{1b}[2J", 700, 0, Standing::NotMeant, None),
                process(99, "vitriol-engine", 12, -500, Standing::House, None),
            ],
            processes_all: 60,
            processes_raised: 1,
            age_ms: 2000,
            pressure_watch: PressureWatch::Triggers.into(),
            pressure_some: 3,
            refusals: 2,
            ..GetReportResponse::default()
        }
    }

    #[test]
    fn the_order_for_people() {
        insta::assert_snapshot!(describe(&report(), Paint(false)));
    }

    #[test]
    fn the_order_for_programs() {
        let json = to_json(&report());
        assert_eq!(json["processes"][0]["raised_from"], 0);
        assert_eq!(json["processes"][2]["standing"], "house");
        assert_eq!(json["processes"][2]["raised_from"], Value::Null);
        insta::assert_snapshot!(format!("{json:#}"));
    }

    #[test]
    fn a_kernel_without_pressure_information_is_said() {
        let text = describe(&GetReportResponse::default(), Paint(false));
        assert!(text.contains("not watched"), "{text}");
    }
}
