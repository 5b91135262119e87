//! One line of state per daemon.

use std::time::Duration;

use vitriol_proto::status::v1::{GetResponse, Health};
use vitriol_units::Bytes;

use super::supervise::Phase;
use crate::term::{Line, Paint, bar, printable, span};

/// The line of one daemon: what the supervisor knows, then what the daemon says of itself.
pub fn line(
    name: &str,
    phase: Phase,
    status: Option<&GetResponse>,
    now: Duration,
    paint: Paint,
) -> Line {
    let (state, detail) = match phase {
        // The first start is due at once and is no wait worth naming.
        Phase::Waiting { until } if until > now => {
            let wait = u64::try_from((until - now).as_millis()).unwrap_or(u64::MAX);
            ("waiting", format!("restarts in {}", span(wait)))
        }
        Phase::Waiting { .. } => ("starting", String::new()),
        Phase::Running { .. } => match status {
            Some(status) => running(status),
            None => ("starting", String::new()),
        },
        Phase::Stopping { killed: true, .. } => ("killed", String::new()),
        Phase::Stopping { .. } => ("draining", String::new()),
        Phase::Ended => ("ended", String::new()),
    };
    let padded = format!("{state:<9}");
    let shown = match state {
        "ready" => paint.green(&padded),
        "failed" | "killed" => paint.red(&padded),
        "ended" => padded,
        _ => paint.yellow(&padded),
    };
    let log = match state {
        // Said once and worth keeping; other details change all the time.
        "failed" => format!("{name:<10} {state:<9} {detail}"),
        _ => format!("{name:<10} {state}"),
    };
    Line {
        text: format!("{name:<10} {shown} {detail}").trim_end().to_owned(),
        log,
    }
}

fn running(status: &GetResponse) -> (&'static str, String) {
    let detail = printable(&status.detail).replace('\n', " ");
    match status.health() {
        Health::Ready => ("ready", detail),
        Health::Draining => ("draining", detail),
        Health::Failed => ("failed", detail),
        Health::Starting | Health::Unspecified if status.load_bytes_all > 0 => {
            let (done, all) = (status.load_bytes_done, status.load_bytes_all);
            let of = format!("{} of {}", Bytes(done).rounded(), Bytes(all).rounded());
            ("loading", format!("{} {of}", bar(done, all)))
        }
        Health::Starting | Health::Unspecified => ("starting", detail),
    }
}

/// What is printed when the house first answers, for a person to copy from.
pub fn welcome(url: &str, chat_command: &str) -> String {
    format!(
        "\nready at {url}\n\n  \
         curl -s {url}/v1/chat/completions -H 'content-type: application/json' \\\n    \
         -d '{{\"messages\":[{{\"role\":\"user\",\"content\":\"What color is the sky?\"}}],\
         \"temperature\":0,\"max_tokens\":100}}'\n\n  \
         {chat_command}\n\n\
         ctrl-C stops it\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Paint = Paint(false);

    fn status(health: Health) -> GetResponse {
        GetResponse {
            health: health.into(),
            detail: "3 sequences".into(),
            ..GetResponse::default()
        }
    }

    fn shown(phase: Phase, status: Option<&GetResponse>) -> String {
        line("engine", phase, status, Duration::from_secs(5), PLAIN).text
    }

    #[test]
    fn every_state_has_its_line() {
        let running = Phase::Running { ready_since: None };
        assert_eq!(shown(running, None), "engine     starting");
        let mut loading = status(Health::Starting);
        (loading.load_bytes_done, loading.load_bytes_all) = (47 << 20, 94 << 20);
        assert_eq!(
            shown(running, Some(&loading)),
            "engine     loading   [############------------]  50% 47 MiB of 94 MiB"
        );
        assert_eq!(
            shown(running, Some(&status(Health::Ready))),
            "engine     ready     3 sequences"
        );
        let waiting = Phase::Waiting {
            until: Duration::from_millis(6600),
        };
        assert_eq!(
            shown(waiting, None),
            "engine     waiting   restarts in 1.6 s"
        );
        let stopping = Phase::Stopping {
            since: Duration::ZERO,
            killed: false,
        };
        assert_eq!(shown(stopping, None), "engine     draining");
        assert_eq!(shown(Phase::Ended, None), "engine     ended");
    }

    #[test]
    fn a_log_gets_states_without_what_moves() {
        let running = Phase::Running { ready_since: None };
        let mut loading = status(Health::Starting);
        (loading.load_bytes_done, loading.load_bytes_all) = (47 << 20, 94 << 20);
        let log = |status| line("engine", running, Some(status), Duration::ZERO, PLAIN).log;
        assert_eq!(log(&loading), "engine     loading");
        assert_eq!(
            log(&status(Health::Failed)),
            "engine     failed    3 sequences"
        );
    }

    #[test]
    fn a_daemon_cannot_break_out_of_its_line() {
        let mut evil = status(Health::Ready);
        evil.detail = "a\x1b[2J\nb".into();
        let running = Phase::Running { ready_since: None };
        assert_eq!(shown(running, Some(&evil)), "engine     ready     a[2J b");
    }
}
