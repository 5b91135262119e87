//! What the processor can do at most: one pass over memory, as the streaming kernels read it.

use crate::simd::Simd;

/// f32 of one cache line.
const LINE: usize = 16;
/// How far ahead lines are asked for: hides the latency of memory that no hardware prefetcher
/// follows across pages.
const AHEAD_BYTES: usize = 4096;

/// Sum of `lines` cache lines from `p` on, in eight chains so that no addition waits for another.
///
/// # Safety
/// `p` must be readable for `lines` × 64 bytes of f32.
#[inline(always)]
pub(crate) unsafe fn read_lines<S: Simd>(s: S, p: *const f32, lines: usize) -> f32 {
    const CHAINS: usize = 8;
    let mut sums = [s.splat(0.0); CHAINS];
    let whole = lines / CHAINS * CHAINS;
    let mut at = 0;
    while at < whole {
        for (chain, sum) in sums.iter_mut().enumerate() {
            let line = p.wrapping_add((at + chain) * LINE);
            s.prefetch(line.cast::<u8>().wrapping_add(AHEAD_BYTES));
            // SAFETY: line `at + chain` < `lines`, readable by the caller's promise.
            *sum = s.add(*sum, unsafe { s.load(line) });
        }
        at += CHAINS;
    }
    for line in whole..lines {
        // SAFETY: `line` < `lines`, readable by the caller's promise.
        sums[0] = s.add(sums[0], unsafe { s.load(p.wrapping_add(line * LINE)) });
    }
    let sum = sums.into_iter().reduce(|a, b| s.add(a, b));
    sum.map_or(0.0, |sum| s.sum(sum))
}
