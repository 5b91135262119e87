//! Which lane answers a request, and whether it may start now: a pure function whose inputs and
//! verdict both go to the decision log, so that a logged decision can be replayed.

use serde::Serialize;

/// Where a request is answered. This release has one lane; others come with their daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// The engine of this house.
    Local,
}

impl Lane {
    /// The word in the header and the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Lane::Local => "local",
        }
    }
}

/// Why the verdict is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// There is no other lane.
    LocalOnly,
    /// The caller named the local lane.
    LocalAsked,
    /// The caller named a lane this house does not have.
    LaneUnknown,
    /// The engine has not been ready since Demiurge started.
    EngineLoading,
    /// The engine was ready before and is coming back.
    EngineRestarting,
    /// The engine says that it will not become ready.
    EngineFailed,
    /// Demiurge is finishing what runs.
    Draining,
}

impl Cause {
    /// The word in the header and the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::LocalOnly => "local_only",
            Cause::LocalAsked => "local_asked",
            Cause::LaneUnknown => "lane_unknown",
            Cause::EngineLoading => "engine_loading",
            Cause::EngineRestarting => "engine_restarting",
            Cause::EngineFailed => "engine_failed",
            Cause::Draining => "draining",
        }
    }
}

/// The engine as the lane decision sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineView {
    Ready,
    /// Not ready yet, for the first time.
    Loading,
    /// Was ready, is gone, is expected back.
    Restarting,
    /// Said that it will not become ready.
    Failed,
}

/// The lane a caller asked for with `x-vitriol-lane`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AskedLane {
    /// No header, or `auto`.
    Any,
    Local,
    Unknown,
}

impl AskedLane {
    /// Reads the header's value.
    pub fn parse(value: Option<&str>) -> AskedLane {
        match value.map(str::trim) {
            None | Some("" | "auto") => AskedLane::Any,
            Some("local") => AskedLane::Local,
            Some(_) => AskedLane::Unknown,
        }
    }
}

/// All that the decision depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LaneInputs {
    pub asked: AskedLane,
    /// The caller sent X-Session-Id.
    pub session: bool,
    pub engine: EngineView,
    pub draining: bool,
}

/// What to do with the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send it to the lane now.
    Serve,
    /// Wait until the lane is ready, up to the bound of the profile, then serve.
    Hold,
    /// Answer with an error; the cause says which.
    Refuse,
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub lane: Lane,
    pub cause: Cause,
    pub action: Action,
}

/// Decides the lane of a request.
///
/// A first load takes long and its end is not known, so requests are refused at once and clients
/// poll; a restart is short, so they are held. A house that drains refuses before anything else.
pub fn decide(inputs: LaneInputs) -> Verdict {
    let verdict = |cause, action| Verdict {
        lane: Lane::Local,
        cause,
        action,
    };
    if inputs.draining {
        return verdict(Cause::Draining, Action::Refuse);
    }
    let cause = match inputs.asked {
        AskedLane::Any => Cause::LocalOnly,
        AskedLane::Local => Cause::LocalAsked,
        AskedLane::Unknown => return verdict(Cause::LaneUnknown, Action::Refuse),
    };
    match inputs.engine {
        EngineView::Ready => verdict(cause, Action::Serve),
        EngineView::Loading => verdict(Cause::EngineLoading, Action::Refuse),
        EngineView::Restarting => verdict(Cause::EngineRestarting, Action::Hold),
        EngineView::Failed => verdict(Cause::EngineFailed, Action::Refuse),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: LaneInputs = LaneInputs {
        asked: AskedLane::Any,
        session: false,
        engine: EngineView::Ready,
        draining: false,
    };

    #[test]
    fn a_ready_engine_serves_and_says_whether_it_was_asked() {
        assert_eq!(
            decide(READY),
            Verdict {
                lane: Lane::Local,
                cause: Cause::LocalOnly,
                action: Action::Serve
            }
        );
        let asked = LaneInputs {
            asked: AskedLane::Local,
            ..READY
        };
        assert_eq!(decide(asked).cause, Cause::LocalAsked);
    }

    #[test]
    fn a_load_refuses_and_a_restart_holds() {
        let loading = LaneInputs {
            engine: EngineView::Loading,
            ..READY
        };
        assert_eq!(decide(loading).action, Action::Refuse);
        let restarting = LaneInputs {
            engine: EngineView::Restarting,
            ..READY
        };
        assert_eq!(decide(restarting).action, Action::Hold);
    }

    #[test]
    fn an_unknown_lane_is_refused_even_when_the_engine_is_ready() {
        assert_eq!(AskedLane::parse(Some("paid")), AskedLane::Unknown);
        assert_eq!(AskedLane::parse(Some(" local ")), AskedLane::Local);
        assert_eq!(AskedLane::parse(Some("auto")), AskedLane::Any);
        let unknown = LaneInputs {
            asked: AskedLane::Unknown,
            ..READY
        };
        assert_eq!(decide(unknown).action, Action::Refuse);
    }

    #[test]
    fn a_draining_house_serves_nobody() {
        for asked in [AskedLane::Any, AskedLane::Local, AskedLane::Unknown] {
            for engine in [
                EngineView::Ready,
                EngineView::Loading,
                EngineView::Restarting,
                EngineView::Failed,
            ] {
                let verdict = decide(LaneInputs {
                    asked,
                    session: true,
                    engine,
                    draining: true,
                });
                assert_eq!(verdict.action, Action::Refuse);
                assert_eq!(verdict.cause, Cause::Draining);
            }
        }
    }
}
