//! `vitriol status`: what the daemons of a running house are at.

use std::time::Duration;

use serde_json::{Value, json};
use vitriol_chassis::{Environment, Exit, Failure};
use vitriol_ipc::{HouseDirs, connect};
use vitriol_profile::Overrides;
use vitriol_proto::{
    engine::v1::{
        GetModelRequest, GetModelResponse, ListSlotsRequest, ListSlotsResponse, SlotState,
        engine_client::EngineClient,
    },
    status::v1::{GetResponse, Health},
};
use vitriol_units::Bytes;

use crate::{
    cli::StatusArgs,
    house,
    term::{self, Paint, bar, printable, span},
};

/// Control calls are answered from snapshots; longer than this the engine is not well.
const CALL_DEADLINE: Duration = Duration::from_millis(500);

pub async fn run(args: &StatusArgs, environment: &Environment) -> Result<(), Failure> {
    let profile = args.settings.load(Overrides::new())?;
    let dirs = house::locate(&environment.dirs()?, profile.house.listen);
    // A house started with another profile shows by its socket.
    let has_tier = profile.kvtier.enabled || dirs.kvtier_socket().exists();
    let report = Report::gather(&dirs, has_tier).await;
    if args.json {
        term::print(format_args!("{:#}\n", report.to_json()))?;
    } else {
        let paint =
            Paint(environment.color && std::io::IsTerminal::is_terminal(&std::io::stdout()));
        term::print(report.describe(paint))?;
    }
    match report.silent() {
        None => Ok(()),
        // In JSON the report says it all.
        Some(_) if args.json => Err(Failure::new(Exit::Dependency, "")),
        Some(daemon) => {
            let message = format!(
                "{daemon} does not answer in {}; start the house with 'vitriol up'",
                dirs.runtime.display()
            );
            Err(Failure::new(Exit::Dependency, message))
        }
    }
}

/// All that the house says of itself.
#[derive(Debug, Default)]
struct Report {
    /// By name; `None` for a daemon that does not answer.
    daemons: Vec<(&'static str, Option<GetResponse>)>,
    model: Option<GetModelResponse>,
    slots: Option<ListSlotsResponse>,
}

impl Report {
    async fn gather(dirs: &HouseDirs, has_tier: bool) -> Self {
        let engine_socket = dirs.engine_socket("main");
        let demiurge_socket = dirs.demiurge_socket();
        let shield_socket = dirs.oom_shield_socket();
        let tier_socket = dirs.kvtier_socket();
        let watch_socket = dirs.persist_socket();
        let (engine, demiurge, shield, tier, watch) = tokio::join!(
            house::ask_status_at(&engine_socket),
            house::ask_status_at(&demiurge_socket),
            house::ask_status_at(&shield_socket),
            house::ask_status_at(&tier_socket),
            house::ask_status_at(&watch_socket),
        );
        let mut report = Self::default();
        if engine
            .as_ref()
            .is_some_and(|status| status.health() == Health::Ready)
        {
            let mut client = EngineClient::new(connect(&engine_socket));
            let model = tokio::time::timeout(CALL_DEADLINE, client.get_model(GetModelRequest {}));
            report.model = model
                .await
                .ok()
                .and_then(Result::ok)
                .map(tonic::Response::into_inner);
            let slots = tokio::time::timeout(CALL_DEADLINE, client.list_slots(ListSlotsRequest {}));
            report.slots = slots
                .await
                .ok()
                .and_then(Result::ok)
                .map(tonic::Response::into_inner);
        }
        report.daemons = vec![
            ("engine", engine),
            ("demiurge", demiurge),
            ("oom-shield", shield),
            ("persist", watch),
        ];
        if has_tier {
            report.daemons.push(("kvtier", tier));
        }
        report
    }

    /// The first daemon that does not answer.
    fn silent(&self) -> Option<&'static str> {
        self.daemons
            .iter()
            .find(|(_, status)| status.is_none())
            .map(|(name, _)| *name)
    }

    fn describe(&self, paint: Paint) -> String {
        let mut text = String::new();
        for (name, status) in &self.daemons {
            let Some(status) = status else {
                text += &format!("{name:<10} {}\n", paint.red("no answer"));
                continue;
            };
            let state = format!("{:<9}", health_name(status.health()));
            let state = match status.health() {
                Health::Ready => paint.green(&state),
                Health::Failed => paint.red(&state),
                _ => paint.yellow(&state),
            };
            let load = match status.health() {
                Health::Starting => bar(status.load_bytes_done, status.load_bytes_all) + " ",
                _ => String::new(),
            };
            text += &format!(
                "{name:<10} {state} up {}, process {}, version {}; {}{}\n",
                span(status.uptime_ms),
                status.pid,
                status.version,
                load.trim_start(),
                printable(&status.detail),
            );
        }
        if let Some(model) = &self.model {
            text += &describe_model(model);
        }
        if let Some(slots) = &self.slots {
            text += &describe_slots(slots);
        }
        text
    }

    fn to_json(&self) -> Value {
        let daemons = self.daemons.iter().map(|(name, status)| {
            json!({
                "daemon": name,
                "answers": status.is_some(),
                "health": status.as_ref().map(|s| health_name(s.health())),
                "detail": status.as_ref().map(|s| &s.detail),
                "pid": status.as_ref().map(|s| s.pid),
                "version": status.as_ref().map(|s| &s.version),
                "uptime_ms": status.as_ref().map(|s| s.uptime_ms),
                "progress": status.as_ref().map(|s| s.progress),
                "load_bytes_done": status.as_ref().map(|s| s.load_bytes_done),
                "load_bytes_all": status.as_ref().map(|s| s.load_bytes_all),
            })
        });
        json!({
            "daemons": daemons.collect::<Vec<_>>(),
            "model": self.model.as_ref().map(model_json),
            "slots": self.slots.as_ref().map(slots_json),
        })
    }
}

fn health_name(health: Health) -> &'static str {
    match health {
        Health::Unspecified => "unknown",
        Health::Starting => "starting",
        Health::Ready => "ready",
        Health::Draining => "draining",
        Health::Failed => "failed",
    }
}

fn describe_model(model: &GetModelResponse) -> String {
    format!(
        "model      {} ({}, {:.1} M parameters, {}), context {} of {} tokens, KV {} a token, {} on {} \
         threads\n",
        model.alias,
        model.architecture,
        model.parameters as f64 / 1e6,
        Bytes(model.file_bytes).rounded(),
        model.context_tokens,
        model.context_tokens_trained,
        Bytes(model.kv_bytes_per_token).rounded(),
        model.isa,
        model.threads,
    )
}

fn describe_slots(slots: &ListSlotsResponse) -> String {
    let count = |state| {
        slots
            .slots
            .iter()
            .filter(|slot| slot.state() == state)
            .count()
    };
    let idle = count(SlotState::Idle);
    format!(
        "slots      {} of {} busy ({} prefill, {} decode, {} paused), {} queued\n\
         pages      {} used, {} cached, {} in all, {} tokens each\n",
        slots.slots.len() - idle,
        slots.slots.len(),
        count(SlotState::Prefill),
        count(SlotState::Decode),
        count(SlotState::Paused),
        slots.queued,
        slots.pages_used,
        slots.pages_cached,
        slots.pages_all,
        slots.page_tokens,
    )
}

fn model_json(model: &GetModelResponse) -> Value {
    json!({
        "alias": model.alias,
        "architecture": model.architecture,
        "file": model.file,
        "file_bytes": model.file_bytes,
        "parameters": model.parameters,
        "context_tokens": model.context_tokens,
        "context_tokens_trained": model.context_tokens_trained,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "sequences_max": model.sequences_max,
        "isa": model.isa,
        "threads": model.threads,
        "batch_invariant": model.batch_invariant,
        "ready_at": model.ready_at,
    })
}

fn slots_json(slots: &ListSlotsResponse) -> Value {
    let slot = |slot: &vitriol_proto::engine::v1::Slot| {
        let state = match slot.state() {
            SlotState::Idle => "idle",
            SlotState::Prefill => "prefill",
            SlotState::Decode => "decode",
            SlotState::Paused => "paused",
        };
        json!({
            "id": slot.id,
            "state": state,
            "session_id": slot.session_id,
            "prompt_tokens": slot.prompt_tokens,
            "prompt_tokens_done": slot.prompt_tokens_done,
            "cached_tokens": slot.cached_tokens,
            "completion_tokens": slot.completion_tokens,
            "context_tokens": slot.context_tokens,
        })
    };
    json!({
        "slots": slots.slots.iter().map(slot).collect::<Vec<_>>(),
        "queued": slots.queued,
        "pages_used": slots.pages_used,
        "pages_cached": slots.pages_cached,
        "pages_all": slots.pages_all,
        "page_tokens": slots.page_tokens,
    })
}

#[cfg(test)]
mod tests {
    use vitriol_proto::engine::v1::Slot;

    use super::*;

    fn report() -> Report {
        let status = GetResponse {
            health: Health::Ready.into(),
            version: "0.1.0".into(),
            pid: 7,
            uptime_ms: 61_000,
            detail: "1 sequence".into(),
            ..GetResponse::default()
        };
        let busy = Slot {
            state: SlotState::Decode.into(),
            ..Slot::default()
        };
        Report {
            daemons: vec![("engine", Some(status)), ("demiurge", None)],
            model: Some(GetModelResponse {
                alias: "smol".into(),
                architecture: "llama".into(),
                parameters: 134_515_008,
                file_bytes: 98_362_432,
                kv_bytes_per_token: 46_080,
                isa: "avx2".into(),
                threads: 2,
                ..GetModelResponse::default()
            }),
            slots: Some(ListSlotsResponse {
                slots: vec![busy, Slot::default()],
                page_tokens: 64,
                ..ListSlotsResponse::default()
            }),
        }
    }

    #[test]
    fn the_report_for_people() {
        let text = report().describe(Paint(false));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "engine     ready     up 1 min 1 s, process 7, version 0.1.0; 1 sequence"
        );
        assert_eq!(lines[1], "demiurge   no answer");
        assert!(
            lines[2].contains("smol (llama, 134.5 M parameters, 93.8 MiB)"),
            "{}",
            lines[2]
        );
        assert!(lines[2].contains("KV 45 KiB a token"), "{}", lines[2]);
        assert!(
            lines[3].starts_with("slots      1 of 2 busy (0 prefill, 1 decode"),
            "{}",
            lines[3]
        );
    }

    #[test]
    fn the_report_for_programs() {
        let json = report().to_json();
        assert_eq!(json["daemons"][0]["health"], "ready");
        assert_eq!(json["daemons"][1]["answers"], false);
        assert_eq!(json["daemons"][1]["pid"], Value::Null);
        assert_eq!(json["model"]["parameters"], 134_515_008);
        assert_eq!(json["slots"]["slots"][0]["state"], "decode");
        insta::assert_snapshot!(format!("{json:#}"));
        assert_eq!(report().silent(), Some("demiurge"));
    }
}
