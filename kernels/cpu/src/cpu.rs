//! The ops, planned and spread over threads.

mod attention;
mod elementwise;
mod machine;
mod matmul;
mod token_rows;

use std::sync::{Mutex, MutexGuard, PoisonError};

use thiserror::Error;

pub use attention::AttentionRun;
pub use machine::ProbeMemory;
pub use matmul::ExpertProduct;
pub use token_rows::{Gate, TokenRows};

use crate::isa::{Isa, IsaError};
use crate::pool::Pool;
use crate::table::KernelTable;

/// Why a CPU device could not be opened.
#[derive(Debug, Error)]
pub enum CpuError {
    /// Kernels that this processor cannot run.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// No threads, or more than make sense.
    #[error("cannot compute on {0} threads: use 1 to 1024")]
    Threads(usize),
    /// A kernel does not give what the reference gives.
    #[error(
        "the {isa} kernels give a wrong {op} on this processor; choose others with \
         VITRIOL_ISA or engine.NAME.isa (scalar, sse41, avx2, …), and please report it"
    )]
    WrongAnswer {
        /// Kernels in use.
        isa: Isa,
        /// Op that failed.
        op: &'static str,
    },
    /// The system refuses a thread.
    #[error("cannot start {threads} kernel threads")]
    Spawn {
        /// Threads asked for.
        threads: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// A CPU as a compute device: its threads and the kernels for its instruction set.
///
/// All slices are f32 row-major. Lengths are the caller's programming, not input: an op panics,
/// naming the shape, where they do not match. Ops may be called from any thread, one at a time.
pub struct Cpu {
    table: &'static KernelTable,
    pool: Pool,
    workspace: Mutex<Workspace>,
}

/// Buffers that live from op to op: the large ones are not allocated again once warm.
#[derive(Default)]
struct Workspace {
    tokens: Lines,
    made: Lines,
    partials: Lines,
}

/// f32 memory on cache-line borders, grown as needed, never shrunk; content undefined.
#[derive(Default)]
struct Lines(Vec<Line>);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

impl Lines {
    /// At least `len` f32.
    fn at_least(&mut self, len: usize) -> *mut f32 {
        let lines = len.div_ceil(16);
        if self.0.len() < lines {
            // Not `resize`: the old content need not be copied.
            self.0 = vec![Line([0.0; 16]); lines];
        }
        self.0.as_mut_ptr().cast()
    }
}

/// A pointer that several threads write through, each to places of its own.
#[derive(Clone, Copy)]
struct Shared<T>(*mut T);

// SAFETY: a shared pointer carries no rights; each use states why its places are its own.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn get(self) -> *mut T {
        self.0
    }
}

impl Cpu {
    /// Opens the CPU with this many threads, the caller's included, and the kernels of `isa`
    /// (`None`: the fastest there is).
    ///
    /// Errors: an instruction set the processor lacks, no threads, or a refusal by the system
    pub fn new(threads: usize, isa: Option<Isa>) -> Result<Self, CpuError> {
        let best = Isa::detect();
        let requested = isa.unwrap_or(best);
        let table = KernelTable::of(requested).ok_or(IsaError::Absent { requested, best })?;
        if !(1..=1024).contains(&threads) {
            return Err(CpuError::Threads(threads));
        }
        let pool = Pool::new(threads).map_err(|source| CpuError::Spawn { threads, source })?;
        Ok(Self {
            table,
            pool,
            workspace: Mutex::default(),
        })
    }

    #[cfg(test)]
    pub(crate) fn with_table(table: &'static KernelTable) -> Self {
        let pool = Pool::new(1).expect("one thread is the caller's own");
        Self {
            table,
            pool,
            workspace: Mutex::default(),
        }
    }

    /// Instruction set of the kernels in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.table.isa
    }

    /// Threads that share an op, the caller's included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Runs `run(item)` for 0..items on all threads, as an op.
    pub(crate) fn for_each(&self, items: usize, run: impl Fn(usize) + Sync) {
        self.pool.for_each(items, run);
    }

    fn workspace(&self) -> MutexGuard<'_, Workspace> {
        // After a panic in an op the content is as undefined as ever: nothing to protect.
        self.workspace
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cpu({} threads, {})", self.threads(), self.isa())
    }
}
