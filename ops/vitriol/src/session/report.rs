//! What `vitriol session` prints.

use serde_json::{Value, json};
use vitriol_proto::kvtier::v1::{
    RemoveSessionResponse, RestoreSessionResponse, SessionInfo, SyncSessionResponse,
};
use vitriol_units::Bytes;

use crate::term::{Paint, printable, span};

pub fn describe(sessions: &[SessionInfo], now_ms: u64, paint: Paint) -> String {
    if sessions.is_empty() {
        return "no sessions; a conversation has a name where its requests have X-Session-Id\n"
            .to_owned();
    }
    let mut text = format!(
        "{:>9} {:>7} {:>9} {:>9} {:>11}  session\n",
        "tokens", "blocks", "in memory", "on disk", "last turn"
    );
    for session in sessions {
        let ago = span(now_ms.saturating_sub(session.last_turn_ms));
        text += &format!(
            "{:>9} {:>7} {:>9} {:>9} {:>11}  {}",
            session.tokens,
            session.blocks,
            share(session.records_in_arena, session.records),
            share(session.records_on_mirror, session.records),
            format!("{ago} ago"),
            printable(&session.id),
        );
        if session.records_nowhere > 0 {
            let gone = format!(
                "  {} of it is gone",
                share(session.records_nowhere, session.records)
            );
            text += &paint.yellow(&gone);
        }
        text.push('\n');
    }
    text
}

/// Of the records, in whole percent; only all is 100%, only none is 0%.
fn share(part: u64, all: u64) -> String {
    let percent = match part {
        0 => 0,
        part if part >= all => 100,
        part => (part * 100 / all).clamp(1, 99),
    };
    format!("{percent}%")
}

pub fn to_json(sessions: &[SessionInfo]) -> Value {
    let session = |session: &SessionInfo| {
        json!({
            "id": session.id,
            "tokens": session.tokens,
            "blocks": session.blocks,
            "last_turn_ms": session.last_turn_ms,
            "encoding": session.tag.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
            "records": session.records,
            "records_in_arena": session.records_in_arena,
            "records_on_mirror": session.records_on_mirror,
            "records_nowhere": session.records_nowhere,
        })
    };
    json!({ "sessions": sessions.iter().map(session).collect::<Vec<_>>() })
}

pub fn saved(synced: &SyncSessionResponse) -> String {
    let SyncSessionResponse {
        records, blocks, ..
    } = synced;
    format!("{blocks} blocks are on disk, in {records} records\n")
}

pub fn not_saved(id: &str, synced: &SyncSessionResponse) -> String {
    let remedy = match (synced.pending, synced.nowhere) {
        (1.., _) => "call again",
        (0, 1..) => "its next turn computes and stores them again",
        (0, 0) => "call again when that is mended",
    };
    format!(
        "{} of {} records of session '{}' are on disk; {} are not yet, {} are nowhere: {}; {remedy}",
        synced.on_mirror,
        synced.records,
        printable(id),
        synced.pending,
        synced.nowhere,
        printable(&synced.cause),
    )
}

pub fn restored(restored: &RestoreSessionResponse) -> String {
    format!(
        "{} blocks are in memory; {} records, {}, were brought\n",
        restored.blocks,
        restored.brought,
        Bytes(restored.brought_bytes).rounded()
    )
}

pub fn not_restored(id: &str, restored: &RestoreSessionResponse) -> String {
    format!(
        "{} of {} records of session '{}' are in memory, {} were brought: {}; the next turn computes the rest, \
         or brings it",
        restored.in_arena,
        restored.records,
        printable(id),
        restored.brought,
        printable(&restored.cause),
    )
}

pub fn removed(removed: &RemoveSessionResponse) -> String {
    let shared = match removed.shared {
        0 => String::new(),
        shared => format!("; {shared} stay, other sessions go on with them"),
    };
    format!("{} records are destroyed{shared}\n", removed.destroyed)
}

pub fn not_removed(id: &str, removed: &RemoveSessionResponse) -> String {
    let names = removed.left_names.iter().map(|name| {
        let key = name.key.iter().take(4).map(|byte| format!("{byte:02x}"));
        format!("{}…/{:x}", key.collect::<String>(), name.group)
    });
    let names = match removed.left {
        0 => String::new(),
        _ => format!(" ({})", names.collect::<Vec<_>>().join(", ")),
    };
    format!(
        "{} of {} records of session '{}' are not destroyed yet{names}: {}; call again",
        removed.left,
        removed.left + removed.destroyed,
        printable(id),
        printable(&removed.cause),
    )
}

#[cfg(test)]
mod tests {
    use vitriol_proto::kvtier::v1::RecordName;

    use super::*;

    fn sessions() -> Vec<SessionInfo> {
        let whole = SessionInfo {
            id: "agent-7".to_owned(),
            tokens: 50_021,
            blocks: 781,
            last_turn_ms: 1_000_000,
            tag: vec![0xab; 16],
            records: 1562,
            records_in_arena: 1562,
            records_on_mirror: 1561,
            records_nowhere: 0,
        };
        let partly = SessionInfo {
            id: "evil\u{1b}[2J".to_owned(),
            records_in_arena: 3,
            records_on_mirror: 0,
            records_nowhere: 1559,
            ..whole.clone()
        };
        vec![whole, partly]
    }

    #[test]
    fn the_sessions_for_people() {
        insta::assert_snapshot!(describe(&sessions(), 1_042_000, Paint(false)));
        assert!(describe(&[], 0, Paint(false)).contains("X-Session-Id"));
    }

    #[test]
    fn the_sessions_for_programs() {
        insta::assert_snapshot!(format!("{:#}", to_json(&sessions())));
    }

    #[test]
    fn what_is_not_whole_says_why_and_what_then() {
        let synced = SyncSessionResponse {
            records: 10,
            on_mirror: 7,
            pending: 1,
            nowhere: 2,
            cause: "no space".to_owned(),
            blocks: 5,
            bytes: 10 << 20,
        };
        assert_eq!(
            not_saved("a", &synced),
            "7 of 10 records of session 'a' are on disk; 1 are not yet, 2 are nowhere: no space; call again"
        );
        let whole = SyncSessionResponse {
            cause: String::new(),
            ..synced
        };
        assert_eq!(saved(&whole), "5 blocks are on disk, in 10 records\n");
        let response = RestoreSessionResponse {
            records: 10,
            in_arena: 4,
            brought: 3,
            brought_bytes: 6 << 20,
            blocks: 2,
            cause: "60000 ms are over".to_owned(),
        };
        assert_eq!(
            not_restored("a", &response),
            "4 of 10 records of session 'a' are in memory, 3 were brought: 60000 ms are over; the next turn \
             computes the rest, or brings it"
        );
        assert_eq!(
            restored(&response),
            "2 blocks are in memory; 3 records, 6 MiB, were brought\n"
        );
    }

    #[test]
    fn what_could_not_be_destroyed_is_named() {
        let response = RemoveSessionResponse {
            destroyed: 10,
            shared: 3,
            blocks: 5,
            cause: "no space left".to_owned(),
            left: 1,
            left_names: vec![RecordName {
                key: vec![0xcd; 32],
                tag: vec![0; 16],
                group: 0x1_0000,
            }],
        };
        assert_eq!(
            not_removed("a", &response),
            "1 of 11 records of session 'a' are not destroyed yet (cdcdcdcd…/10000): no space left; call again"
        );
        let words = removed(&response);
        assert_eq!(
            words,
            "10 records are destroyed; 3 stay, other sessions go on with them\n"
        );
    }
}
