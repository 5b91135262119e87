//! Who computes how much in the next step, who starts next and who makes room: pure decisions over
//! what the sequences are and what steps have cost. No clock, no I/O, no pages.
//!
//! The contract: while a sequence decodes, a step takes no longer than `decode_stall_ms_max` by what
//! steps have been measured to cost ([`StepCost`]), except that prefill always moves by a small chunk.
//! Drafted tokens are verified where that gives more tokens a ms ([`plan_drafts`]).
//! Tenants share the time of prefill by deficit round robin, the sessions of one likewise
//! ([`PrefillTurns`]); places go round the tenants too ([`AdmissionOrder`]). When pages run out, the
//! youngest of the lowest priority gives way ([`choose_victim`]).

mod admission;
mod drafts;
mod owner;
mod plan;
mod preemption;
mod prefill_turns;
mod reservations;
mod step_cost;

pub use admission::{AdmissionOrder, Candidate, Fit, OVERTAKEN_MAX, decide_admission};
pub use drafts::{Draft, plan_drafts};
pub use owner::{Owner, Ownership, Priority};
pub use plan::{
    LONE_TOKENS_MIN, Phase, Scheduler, SequenceView, Share, StepBounds, StepMs, Work, measured_ms,
};
pub use preemption::{Holder, choose_victim};
pub use prefill_turns::{CHUNK_TOKENS_MIN, PrefillTurns, Prompt, StepRoom};
pub use reservations::{Reservations, TenantUse};
pub use step_cost::{PrefillRun, StepCost};
