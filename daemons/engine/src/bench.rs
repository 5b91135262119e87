//! The benchmark: what this machine computes with a model, each figure beside what the machine could
//! give at that moment, and, where one is named, beside another engine that does the same work.
//!
//! ```text
//!   run (samples in turn, judged by what others compute meanwhile)
//!    ├─ side ── worker: this engine in a process of its own      one task a line in, one answer a line out
//!    └─ side ── any command that speaks the same lines
//! ```
//! Every row is measured inside the worker; nothing but the worker computes at that time.

pub mod protocol;
pub mod report;
pub mod row;
pub mod run;
pub mod side;
pub mod worker;
