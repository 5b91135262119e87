//! `vitriol kv`: what the KV tier holds, and whether it does its work.

mod check;

use std::time::Duration;

use serde_json::{Value, json};
use vitriol_chassis::{Environment, Exit, Failure};
use vitriol_ipc::{HouseDirs, connect};
use vitriol_profile::Overrides;
use vitriol_proto::kvtier::v1::{
    Mirror, StatsRequest, StatsResponse, kv_tier_client::KvTierClient,
};
use vitriol_units::Bytes;

use crate::{
    cli::{KvCommand, SettingArgs, StatusArgs},
    house,
    term::{self, Paint, printable},
};

/// The answer is a snapshot; longer than this the tier is not well.
const CALL_DEADLINE: Duration = Duration::from_millis(500);

pub async fn run(command: KvCommand, environment: &Environment) -> Result<(), Failure> {
    match command {
        KvCommand::Status(args) => status(&args, environment).await,
        KvCommand::Check(args) => {
            let dirs = locate(&args.settings, environment)?;
            let found = check::run(&dirs)
                .await
                .map_err(|cause| failure(&dirs, &cause))?;
            term::print(format_args!("{found}\n"))
        }
    }
}

async fn status(args: &StatusArgs, environment: &Environment) -> Result<(), Failure> {
    let dirs = locate(&args.settings, environment)?;
    let mut tier = KvTierClient::new(connect(&dirs.kvtier_socket()));
    let call = tier.stats(StatsRequest {});
    let cause = match tokio::time::timeout(CALL_DEADLINE, call).await {
        Ok(Ok(stats)) => {
            let stats = stats.into_inner();
            let paint =
                Paint(environment.color && std::io::IsTerminal::is_terminal(&std::io::stdout()));
            return match args.json {
                true => term::print(format_args!("{:#}\n", to_json(&stats))),
                false => term::print(describe(&stats, paint)),
            };
        }
        Ok(Err(status)) => status.message().to_owned(),
        Err(_) => format!("no answer within {} ms", CALL_DEADLINE.as_millis()),
    };
    Err(failure(&dirs, &cause))
}

fn locate(settings: &SettingArgs, environment: &Environment) -> Result<HouseDirs, Failure> {
    let listen = settings.load(Overrides::new())?.house.listen;
    Ok(house::locate(&environment.dirs()?, listen))
}

fn failure(dirs: &HouseDirs, cause: &str) -> Failure {
    let message = format!(
        "kvtier at {}: {cause}; it runs where the profile has enabled = true in [kvtier]",
        dirs.kvtier_socket().display()
    );
    Failure::new(Exit::Dependency, message)
}

fn describe(stats: &StatsResponse, paint: Paint) -> String {
    let used = stats.slots.saturating_sub(stats.slots_free);
    let pages = match (stats.huge_pages, stats.locked) {
        (true, _) => "huge pages",
        (false, true) => "locked in memory",
        (false, false) => "may be swapped out",
    };
    let given_back = match stats.slots_given_back {
        0 => String::new(),
        slots => format!(", {slots} free ones given back to the machine"),
    };
    let mut text = format!(
        "arena      {} ({pages}), {used} of {} slots of {} used{given_back}; id {}, start {}\n",
        Bytes(stats.arena_bytes).rounded(),
        stats.slots,
        Bytes(stats.slot_bytes).rounded(),
        hex(&stats.arena_id),
        stats.epoch,
    );
    text += &match &stats.mirror {
        None => format!("mirror     {}\n", paint.dim("none")),
        Some(mirror) => describe_mirror(mirror, stats.unmirrored, paint),
    };
    text += &format!(
        "found      {} in the arena, {} on the mirror, {} not at all\n",
        stats.found_arena, stats.found_mirror, stats.found_nowhere
    );
    text += &format!(
        "made room  {} evicted, {} not worth the room of another\n",
        stats.evicted, stats.not_worth
    );
    text += &format!("sessions   {} in the catalogue", stats.sessions);
    if !stats.sessions_down.is_empty() {
        let down = printable(&stats.sessions_down);
        text += &paint.red(&format!(", not all on disk: {down}"));
    }
    text.push('\n');
    for (count, what) in [
        (
            stats.slots_quarantined,
            "slots of engines from before a restart that have not come back",
        ),
        (
            stats.damaged,
            "payloads in the arena that were not what had been sealed",
        ),
        (
            stats.mirror.as_ref().map_or(0, |mirror| mirror.damaged),
            "records on the mirror that were not what had been written",
        ),
    ] {
        if count > 0 {
            text += &paint.yellow(&format!("{count} {what}"));
            text.push('\n');
        }
    }
    text
}

fn describe_mirror(mirror: &Mirror, unmirrored: u64, paint: Paint) -> String {
    let state = match mirror.down.as_str() {
        "" => paint.green("up"),
        cause => paint.red(&format!("down: {}", printable(cause))),
    };
    format!(
        "mirror     {state}, {} records, {}; {unmirrored} in memory alone\n\
         since its start {} stored, {} refused, {} loaded; {} written today\n",
        mirror.records,
        Bytes(mirror.bytes).rounded(),
        mirror.stored,
        mirror.refused,
        mirror.loaded,
        Bytes(mirror.bytes_today).rounded(),
    )
    .replace("\nsince", "\n           since")
}

fn to_json(stats: &StatsResponse) -> Value {
    let mirror = |mirror: &Mirror| {
        json!({
            "down": Some(&mirror.down).filter(|cause| !cause.is_empty()),
            "records": mirror.records,
            "bytes": mirror.bytes,
            "stored": mirror.stored,
            "refused": mirror.refused,
            "loaded": mirror.loaded,
            "damaged": mirror.damaged,
            "bytes_today": mirror.bytes_today,
        })
    };
    json!({
        "arena_id": hex(&stats.arena_id),
        "epoch": stats.epoch,
        "arena_bytes": stats.arena_bytes,
        "slot_bytes": stats.slot_bytes,
        "huge_pages": stats.huge_pages,
        "locked": stats.locked,
        "slots": stats.slots,
        "slots_free": stats.slots_free,
        "slots_given_back": stats.slots_given_back,
        "slots_quarantined": stats.slots_quarantined,
        "unmirrored": stats.unmirrored,
        "found_arena": stats.found_arena,
        "found_mirror": stats.found_mirror,
        "found_nowhere": stats.found_nowhere,
        "evicted": stats.evicted,
        "not_worth": stats.not_worth,
        "damaged": stats.damaged,
        "sessions": stats.sessions,
        "sessions_down": Some(&stats.sessions_down).filter(|cause| !cause.is_empty()),
        "mirror": stats.mirror.as_ref().map(mirror),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats() -> StatsResponse {
        StatsResponse {
            slots: 511,
            slots_free: 500,
            slots_given_back: 60,
            slots_quarantined: 2,
            found_arena: 40,
            found_mirror: 3,
            found_nowhere: 7,
            evicted: 5,
            arena_id: vec![0xab; 16],
            epoch: 2,
            slot_bytes: 2 << 20,
            arena_bytes: 1 << 30,
            locked: true,
            unmirrored: 1,
            sessions: 3,
            sessions_down: "cannot write an entry: No space left".to_owned(),
            mirror: Some(Mirror {
                down: "cannot write to segment 3: No space left\u{1b}[2J".to_owned(),
                records: 90,
                bytes: 200 << 20,
                stored: 80,
                refused: 4,
                loaded: 6,
                damaged: 1,
                bytes_today: 300 << 20,
            }),
            ..StatsResponse::default()
        }
    }

    #[test]
    fn the_tier_for_people() {
        insta::assert_snapshot!(describe(&stats(), Paint(false)));
    }

    #[test]
    fn the_tier_for_programs() {
        let json = to_json(&stats());
        assert_eq!(json["arena_id"], "ab".repeat(16));
        let healthy = StatsResponse {
            mirror: Some(Mirror::default()),
            ..stats()
        };
        assert_eq!(to_json(&healthy)["mirror"]["down"], Value::Null);
        insta::assert_snapshot!(format!("{json:#}"));
    }

    #[test]
    fn a_tier_without_a_mirror_says_so() {
        let text = describe(&StatsResponse::default(), Paint(false));
        assert!(text.contains("mirror     none\n"), "{text}");
    }
}
