//! Every computation the engine does on a CPU.
//!
//! [`Cpu`] is the only door: it owns the threads, picks one [`Isa`] when it is built and offers the
//! ops as safe methods. [`PanelMatrix`] holds a weight matrix in the layout the kernels stream,
//! [`KvStore`] the keys and values.
//!
//! # Arithmetic contract
//! Results do not depend on batch, chunking, thread count or tile shape, within one ISA; `avx2`,
//! `avxvnni` and `avx512` also agree with each other bit for bit.
//! - matmul, plain weights: per (token, row) one chain `acc = fma(w[k], x[k], acc)` over ascending k
//!   from +0.
//! - matmul, quantised weights: tokens are rounded to signed bytes, per 32 columns
//!   x = dx·b + middle. Per (token, row) one chain over ascending blocks: for the block, or each
//!   half of it where the format scales these, `acc = fma(d·dx, Σ q·b, acc)` with an exact integer sum
//!   and, where the format has a minimum, `acc = fma(m, dx·Σ b, acc)`; then
//!   `acc = fma(Σ w, middle, acc)`. d and m are what ggml decodes, Σ w follows from them.
//! - attention: per (query, head) the keys are reduced on the absolute grid of 256. Score = chain
//!   over ascending d of q·scale and k, both as the codec stores them (decoded exactly, rotated where
//!   it rotates). Per chunk: m = max, p = exp(s − m), l = 16 lanes then a fixed tree, o = chain over
//!   ascending keys of p·v. Chunks are merged in order, scaled by exp(m − max over all chunks); a
//!   sink enters the maximum and comes first in the sum. A key the query does not see is never
//!   multiplied in; a chunk it sees nothing of never reaches the merge.
//! - norms and activations: per row, sums in a fixed lane pattern, one exponential everywhere.
//!
//! `scalar` multiplies, then adds: portable, with bits of its own, which `sse41` shares.
//!
//! # Layers inside
//! `simd` names the vector operations, `arch/*` implements them per ISA, `generic/*` holds each op
//! once, `table` instantiates them per ISA behind function pointers, `cpu/*` plans the work and
//! spreads it over the `pool`.
#![allow(
    unsafe_code,
    reason = "vector loads from packed panels and disjoint writes by threads"
)]

mod arch;
mod cpu;
mod generic;
mod isa;
mod known_answers;
mod kv;
mod panel;
mod pool;
mod rope;
mod simd;
mod table;

pub use cpu::{AttentionRun, Cpu, CpuError, ExpertProduct, Gate, ProbeMemory, TokenRows};
pub use isa::{Isa, IsaError};
pub use kv::{HEAD_DIM_MAX, KvError, KvPlace, KvShape, KvStore, PAGE_TOKENS, PageFill, PageRead};
pub use panel::{PackError, PanelKind, PanelMatrix};
pub use rope::{RopeAngles, RopeStyle, RopeTable};
pub use vitriol_kernels_core::KvCodec;
pub use vitriol_kernels_core::reference::AttentionOptions;

/// Raised with every change of a bit that an op computes, or of where it lies in a KV page: KV that was
/// stored under another version is not what this one computes.
pub const NUMERICS_VERSION: u32 = 1;
