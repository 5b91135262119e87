//! What this machine gives at most, measured beside the ops so that their rates can be read as
//! fractions: bytes read from memory, and int8 multiplications where the processor has them.

use std::hint::black_box;
use std::time::Instant;

use vitriol_shm::{Reservation, ReservationError};

use super::{Cpu, Shared};
use crate::arch::scalar::Scalar;
use crate::generic::machine::read_lines;
use crate::isa::Isa;

/// What one thread reads between two looks at the shared counter.
const PART_BYTES: usize = 256 << 10;
const LINE_BYTES: usize = 64;

/// Memory to read for [`Cpu::read_bandwidth`], in huge pages where the system gives them, as
/// large weight matrices lie.
pub struct ProbeMemory {
    range: Reservation,
    bytes: usize,
}

impl ProbeMemory {
    /// `bytes` (rounded up to whole parts of 256 KiB) of memory, every page of it written once.
    ///
    /// Errors: the system refuses the memory
    pub fn new(bytes: usize) -> Result<Self, ReservationError> {
        let bytes = bytes.max(1).next_multiple_of(PART_BYTES);
        let mut range = Reservation::new(bytes)?;
        range.commit(bytes)?;
        let values = range.as_ptr().cast::<f32>();
        // SAFETY: `bytes` from the start are committed and this value's alone; zeroed memory is
        // initialised f32.
        let values = unsafe { std::slice::from_raw_parts_mut(values, bytes / size_of::<f32>()) };
        // Not zero: pages that were only read would all be the kernel's one page of zeros.
        values.fill(1.0);
        Ok(Self { range, bytes })
    }

    /// Bytes one pass reads.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Cpu {
    /// Reads all of `memory` once with all threads.
    ///
    /// Returns: bytes/s
    pub fn read_bandwidth(&self, memory: &ProbeMemory) -> f64 {
        let base = Shared(memory.range.as_ptr());
        let began = Instant::now();
        self.pool.for_each(memory.bytes / PART_BYTES, |part| {
            let p = base.get().wrapping_add(part * PART_BYTES).cast::<f32>();
            let lines = PART_BYTES / LINE_BYTES;
            // SAFETY: parts lie inside the committed, initialised memory; the ISA was detected when
            // this device was opened.
            black_box(unsafe { read_part(self.isa(), p, lines) });
        });
        memory.bytes as f64 / began.elapsed().as_secs_f64()
    }

    /// Multiply-accumulates of 8-bit integers that all threads do at most, from registers; `None`
    /// where the kernels' instruction set has no such instruction (VNNI) on this processor.
    ///
    /// Returns: MAC/s                                    Cost: about 50 ms
    pub fn int8_peak(&self) -> Option<f64> {
        let run = int8_loop(self.isa())?;
        let rounds = 1 << 16;
        // Many short items: whichever thread wakes late, all end together.
        let items = self.threads() * 64;
        let mut best = 0.0f64;
        for _ in 0..3 {
            let began = Instant::now();
            self.pool.for_each(items, |_| {
                // SAFETY: `int8_loop` gave the loop because the processor has its instructions.
                black_box(unsafe { (run.run)(rounds / 64) });
            });
            let macs = (items * (rounds / 64) * run.macs_per_round) as f64;
            best = best.max(macs / began.elapsed().as_secs_f64());
        }
        Some(best)
    }
}

impl std::fmt::Debug for ProbeMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProbeMemory({} bytes)", self.bytes)
    }
}

/// # Safety
/// The processor has `isa`; `p` readable for `lines` × 64 bytes of f32.
unsafe fn read_part(isa: Isa, p: *const f32, lines: usize) -> f32 {
    match isa {
        // SAFETY: the caller's promise.
        Isa::Scalar => unsafe { read_lines(Scalar, p, lines) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise.
        Isa::Sse41 => unsafe { x86::read_sse41(p, lines) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise.
        Isa::Avx2 | Isa::AvxVnni => unsafe { x86::read_avx2(p, lines) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise.
        Isa::Avx512 => unsafe { x86::read_avx512(p, lines) },
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the caller's promise.
        _ => unsafe { read_lines(Scalar, p, lines) },
    }
}

/// A loop of independent int8 multiply-accumulates.
#[derive(Clone, Copy)]
struct Int8Loop {
    run: unsafe fn(usize) -> i32,
    macs_per_round: usize,
}

#[cfg(target_arch = "x86_64")]
fn int8_loop(isa: Isa) -> Option<Int8Loop> {
    match isa {
        Isa::Avx512 => Some(Int8Loop {
            run: x86::multiply_avx512_vnni,
            macs_per_round: x86::CHAINS * 64,
        }),
        Isa::AvxVnni => Some(Int8Loop {
            run: x86::multiply_avx_vnni,
            macs_per_round: x86::CHAINS * 32,
        }),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn int8_loop(_: Isa) -> Option<Int8Loop> {
    None
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use crate::arch::{avx2::Avx2, avx512::Avx512, sse41::Sse41};
    use crate::generic::machine::read_lines;

    /// Two multiplications start each cycle and one takes five: ten in flight keep both busy.
    pub(super) const CHAINS: usize = 12;

    /// # Safety
    /// The processor has the features; as [`read_lines`].
    #[target_feature(enable = "ssse3,sse4.1")]
    pub(super) unsafe fn read_sse41(p: *const f32, lines: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { read_lines(Sse41::new_unchecked(), p, lines) }
    }

    /// # Safety
    /// The processor has the features; as [`read_lines`].
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn read_avx2(p: *const f32, lines: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { read_lines(Avx2::<false>::new_unchecked(), p, lines) }
    }

    /// # Safety
    /// The processor has the features; as [`read_lines`].
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) unsafe fn read_avx512(p: *const f32, lines: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { read_lines(Avx512::new_unchecked(), p, lines) }
    }

    /// # Safety
    /// The processor has the features.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn multiply_avx512_vnni(rounds: usize) -> i32 {
        let a = black_box(_mm512_set1_epi32(0x0102_0304));
        let b = black_box(_mm512_set1_epi32(0x0403_0201));
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        sums.into_iter()
            .map(|sum| _mm512_reduce_add_epi32(sum))
            .fold(0, i32::wrapping_add)
    }

    /// # Safety
    /// The processor has the features.
    #[target_feature(enable = "avx2,avxvnni")]
    pub(super) unsafe fn multiply_avx_vnni(rounds: usize) -> i32 {
        let a = black_box(_mm256_set1_epi32(0x0102_0304));
        let b = black_box(_mm256_set1_epi32(0x0403_0201));
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_dpbusd_avx_epi32(*sum, a, b);
            }
        }
        sums.into_iter()
            .map(|sum| _mm256_extract_epi32::<0>(sum))
            .fold(0, i32::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_reads_every_line_once_on_every_instruction_set() {
        let memory = ProbeMemory::new(3 * PART_BYTES).unwrap();
        let p = memory.range.as_ptr().cast::<f32>();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_present()) {
            for lines in [0, 1, 8, 13, 512] {
                // SAFETY: the memory has more lines than that; the ISA is present.
                let sum = unsafe { read_part(isa, p, lines) };
                assert_eq!(sum, 16.0 * lines as f32, "{isa}, {lines} lines");
            }
        }
    }

    #[test]
    fn a_buffer_holds_whole_parts() {
        assert_eq!(ProbeMemory::new(0).unwrap().bytes(), PART_BYTES);
        assert_eq!(
            ProbeMemory::new(PART_BYTES + 1).unwrap().bytes(),
            2 * PART_BYTES
        );
    }

    #[test]
    fn the_int8_loop_multiplies_what_it_counts() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_present()) {
            let Some(run) = int8_loop(isa) else {
                println!("{isa} has no int8 multiplication here: its peak is NOT checked");
                continue;
            };
            // Each 32-bit lane gets 1·4 + 2·3 + 3·2 + 4·1 a round and chain.
            // SAFETY: the loop was given because the processor has its instructions.
            let sum = unsafe { (run.run)(3) };
            let lanes = if isa == Isa::Avx512 { 16 } else { 1 };
            assert_eq!(sum, 20 * 3 * 12 * lanes, "{isa}");
        }
    }
}
