use vitriol_kernels_core::half::{bf16_to_f32, f16_to_f32, f32_to_f16};

use crate::simd::Simd;

/// Plain arrays: what the build target's own vector unit can do with them is the compiler's choice.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

macro_rules! lanes {
    ($i:ident => $value:expr) => {{
        let mut out = [0f32; 16];
        for $i in 0..16 {
            out[$i] = $value;
        }
        out
    }};
}

macro_rules! words {
    ($i:ident => $value:expr) => {{
        let mut out = [0u32; 16];
        for $i in 0..16 {
            out[$i] = $value;
        }
        out
    }};
}

impl Simd for Scalar {
    type F = [f32; 16];
    type Bits = [u32; 16];

    const TILE_PANELS: usize = 1;
    const TILE_COLUMNS: usize = 3;
    const SIDE_BY_SIDE: bool = false;
    const WIDE: bool = false;
    const DOT_COLUMNS: usize = 1;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; 16]
    }
    #[inline(always)]
    fn zero_bits(self) -> Self::Bits {
        [0; 16]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY: readable for 16 f32 by this function's contract.
        unsafe { p.cast::<[f32; 16]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::F) {
        // SAFETY: writable for 16 f32 by this function's contract.
        unsafe { p.cast::<[f32; 16]>().write_unaligned(v) }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        lanes!(i => a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        lanes!(i => a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        lanes!(i => a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        lanes!(i => a[i] / b[i])
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        lanes!(i => if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        lanes!(i => if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        lanes!(i => a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn scale_exponent(self, v: Self::F, t: Self::F) -> Self::F {
        lanes!(i => f32::from_bits(v[i].to_bits().wrapping_add(t[i].to_bits() << 23)))
    }
    #[inline(always)]
    fn sum(self, mut v: Self::F) -> f32 {
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                v[i] += v[i + width];
            }
        }
        v[0]
    }
    #[inline(always)]
    fn largest(self, v: Self::F) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    fn keep(self, v: Self::F, from: usize, to: usize, fill: f32) -> Self::F {
        lanes!(i => if i >= from && i < to { v[i] } else { fill })
    }
    #[inline(always)]
    fn select_less(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        lanes!(i => if a[i] < b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    unsafe fn load_bits(self, p: *const u8) -> Self::Bits {
        // SAFETY: readable for 64 bytes by this function's contract.
        unsafe { p.cast::<[u32; 16]>().read_unaligned() }
    }
    #[inline(always)]
    fn shift_right<const N: i32>(self, v: Self::Bits) -> Self::Bits {
        let mut out = v;
        for word in &mut out {
            *word >>= N;
        }
        out
    }
    #[inline(always)]
    fn shift_left<const N: i32>(self, v: Self::Bits) -> Self::Bits {
        v.map(|word| word << N)
    }
    #[inline(always)]
    fn splat_word(self, word: i32) -> Self::Bits {
        [word.cast_unsigned(); 16]
    }
    #[inline(always)]
    fn and_mask(self, v: Self::Bits, mask: u32) -> Self::Bits {
        v.map(|word| word & mask)
    }
    #[inline(always)]
    fn or(self, a: Self::Bits, b: Self::Bits) -> Self::Bits {
        words!(i => a[i] | b[i])
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], v: Self::Bits) -> Self::Bits {
        v.map(|word| {
            u32::from_le_bytes(
                word.to_le_bytes()
                    .map(|entry| table[usize::from(entry & 15)]),
            )
        })
    }
    #[inline(always)]
    fn dot(self, acc: Self::Bits, w: Self::Bits, x: Self::Bits) -> Self::Bits {
        let products = |w: u32, x: u32| {
            let pairs = w.to_le_bytes().into_iter().zip(x.to_le_bytes());
            let products = pairs.map(|(w, x)| i32::from(w) * i32::from(x.cast_signed()));
            products.sum::<i32>().cast_unsigned()
        };
        words!(i => acc[i].wrapping_add(products(w[i], x[i])))
    }
    #[inline(always)]
    fn start_biased(self, start: i32) -> Self::Bits {
        self.splat_word(start)
    }
    #[inline(always)]
    fn dot_biased(self, acc: Self::Bits, w: Self::Bits, x: Self::Bits) -> Self::Bits {
        self.dot(acc, w, x)
    }
    #[inline(always)]
    fn dot_short(self, acc: Self::Bits, w: Self::Bits, x: Self::Bits) -> Self::Bits {
        self.dot(acc, w, x)
    }
    #[inline(always)]
    fn widen(self, acc: Self::Bits) -> Self::Bits {
        acc
    }
    #[inline(always)]
    fn range(self, v: [Self::F; 2]) -> (f32, f32, bool) {
        let lanes = v.as_flattened();
        let low = lanes.iter().fold(f32::MAX, |low, &lane| low.min(lane));
        let high = lanes.iter().fold(f32::MIN, |high, &lane| high.max(lane));
        (low, high, !lanes.iter().any(|lane| lane.is_nan()))
    }
    #[inline(always)]
    unsafe fn store_bytes(
        self,
        p: *mut u8,
        v: [Self::F; 2],
        middle: f32,
        inverse: f32,
    ) -> (i32, i32) {
        // From 2^23 on a f32 has no fraction: the addition rounds, and the low bits are the integer.
        const MAGIC: f32 = (3u32 << 22) as f32;
        let byte = |lane: f32| ((lane - middle) * inverse + MAGIC).to_bits() as u8;
        let bytes = v.map(|lanes| lanes.map(byte));
        // SAFETY: writable for 32 bytes by this function's contract.
        unsafe { p.cast::<[[u8; 16]; 2]>().write_unaligned(bytes) };
        let [first, last] = bytes.map(|bytes| {
            let signed = bytes.into_iter().map(|byte| i32::from(byte.cast_signed()));
            signed.sum()
        });
        (first, last)
    }
    #[inline(always)]
    fn words_to_f32(self, v: Self::Bits) -> Self::F {
        lanes!(i => v[i].cast_signed() as f32)
    }
    #[inline(always)]
    unsafe fn store_bits(self, p: *mut u32, v: Self::Bits) {
        // SAFETY: writable for 16 words by this function's contract.
        unsafe { p.cast::<[u32; 16]>().write_unaligned(v) }
    }
    #[inline(always)]
    fn masked_to_f32(self, v: Self::Bits, mask: u32) -> Self::F {
        lanes!(i => (v[i] & mask) as i32 as f32)
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::F {
        // SAFETY: readable for 16 u16 by this function's contract.
        let halves = unsafe { p.cast::<[u16; 16]>().read_unaligned() };
        lanes!(i => f16_to_f32(halves[i]))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::F {
        // SAFETY: readable for 16 u16 by this function's contract.
        let halves = unsafe { p.cast::<[u16; 16]>().read_unaligned() };
        lanes!(i => bf16_to_f32(halves[i]))
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::F {
        // SAFETY: readable for 16 u8 by this function's contract.
        let bytes = unsafe { p.cast::<[u8; 16]>().read_unaligned() };
        lanes!(i => f32::from(bytes[i]))
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::F {
        // SAFETY: readable for 16 i8 by this function's contract.
        let bytes = unsafe { p.cast::<[i8; 16]>().read_unaligned() };
        lanes!(i => f32::from(bytes[i]))
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> Self::F {
        // SAFETY: readable for 8 bytes by this function's contract.
        let bytes = unsafe { p.cast::<[u8; 8]>().read_unaligned() };
        lanes!(i => f32::from(bytes[i % 8] >> (i / 8 * 4) & 15))
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: Self::F) {
        // SAFETY: writable for 16 u16 by this function's contract.
        unsafe { p.cast::<[u16; 16]>().write_unaligned(v.map(f32_to_f16)) }
    }
    #[inline(always)]
    fn prefetch(self, _p: *const u8) {}
}
