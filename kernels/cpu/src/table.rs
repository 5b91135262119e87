//! One table of kernels per instruction set, chosen once.

use crate::generic::attention::{ChunkView, PairGroup};
use crate::generic::kv_write::HeadWrite;
use crate::generic::matmul::{OutView, PackedTokens, PanelView};
use crate::generic::tokens::{QuantTokens, QuantiseRows};
use crate::isa::Isa;
use crate::panel::format::PanelFormat;

/// Arguments of a matmul over row-major tokens.
pub(crate) struct Direct {
    pub(crate) w: PanelView,
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) x: *const f32,
    pub(crate) n: usize,
    pub(crate) out: OutView,
}

/// Arguments of a matmul over packed tokens.
pub(crate) struct Packed {
    pub(crate) w: PanelView,
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) x: PackedTokens,
    pub(crate) tiles: (usize, usize),
    pub(crate) out: OutView,
}

/// Arguments of a matmul over quantised tokens.
pub(crate) struct Dot {
    pub(crate) w: PanelView,
    /// First panel, panels.
    pub(crate) panels: (usize, usize),
    pub(crate) x: QuantTokens,
    pub(crate) tiles: (usize, usize),
    pub(crate) out: OutView,
}

/// Arguments of attention over one chunk.
pub(crate) struct Chunk<'a> {
    pub(crate) view: ChunkView,
    pub(crate) groups: &'a [PairGroup<'a>],
    pub(crate) softcap: Option<f32>,
    pub(crate) stride: usize,
    pub(crate) scratch: *mut f32,
}

/// Arguments of the merge of one pair's chunks.
pub(crate) struct Merge {
    pub(crate) partials: *mut f32,
    pub(crate) chunks: usize,
    pub(crate) stride: usize,
    pub(crate) value_dim: usize,
    pub(crate) sink: Option<f32>,
}

/// Arguments of the clamped gated activation.
pub(crate) struct Clamped<'a> {
    pub(crate) gate: &'a [f32],
    pub(crate) up: &'a [f32],
    pub(crate) alpha: f32,
    pub(crate) limit: f32,
}

/// The kernels of one format of quantised weights. One function each: small ones compile side by side.
pub(crate) struct QuantKernels {
    pub(crate) format: PanelFormat,
    pub(crate) dot: unsafe fn(&Dot),
    /// w, row, out.
    pub(crate) decode_row: unsafe fn(PanelView, usize, &mut [f32]),
}

/// The `QuantKernels` of all formats, from functions generic over the format.
macro_rules! quant_kernels {
    ($dot:ident, $decode_row:ident, $($name:ident)*) => {
        [$(crate::table::QuantKernels {
            format: crate::panel::format::PanelFormat::$name,
            dot: $dot::<crate::generic::quants::$name>,
            decode_row: $decode_row::<crate::generic::quants::$name>,
        },)*]
    };
}

type RmsNormRow = unsafe fn(&[f32], &[f32], f32, &mut [f32]);

/// The kernels of one instruction set. Every pointer is unsafe to call: the processor must have
/// the instruction set (checked when a table is chosen), and pointers in the arguments must allow
/// what the generic kernel says.
pub(crate) struct KernelTable {
    pub(crate) isa: Isa,
    pub(crate) tile_panels: usize,
    pub(crate) tile_columns: usize,
    pub(crate) direct: unsafe fn(&Direct),
    pub(crate) packed: unsafe fn(&Packed),
    pub(crate) dot_columns: usize,
    pub(crate) quants: &'static [QuantKernels],
    pub(crate) quantise: unsafe fn(&QuantiseRows),
    pub(crate) rms_norm_row: RmsNormRow,
    pub(crate) silu_mul: unsafe fn(&[f32], &[f32], &mut [f32]),
    pub(crate) gelu_mul: unsafe fn(&[f32], &[f32], &mut [f32]),
    pub(crate) swiglu_clamped: unsafe fn(&Clamped<'_>, &mut [f32]),
    pub(crate) softcap: unsafe fn(&mut [f32], f32),
    /// Keys, then values.
    pub(crate) write_head: [unsafe fn(&HeadWrite<'_>); 2],
    pub(crate) chunk: unsafe fn(&Chunk<'_>),
    pub(crate) merge: unsafe fn(&Merge, &mut [f32]),
}

macro_rules! kernel_table {
    ($module:ident, $isa:expr, $simd:ty, $witness:expr $(, $features:literal)?) => {
        mod $module {
            use super::{
                Chunk, Clamped, Direct, Dot, HeadWrite, KernelTable, Merge, Packed, QuantKernels,
            };
            use crate::generic::matmul::PanelView;
            use crate::generic::quants::QuantFormat;
            use crate::generic::tokens::QuantiseRows;
            use crate::generic::{attention, dot, elementwise, kv_write, matmul, rows, tokens};
            use crate::isa::Isa;
            use crate::simd::Simd;

            /// # Safety
            /// The processor has this instruction set; as [`matmul::direct`].
            $(#[target_feature(enable = $features)])?
            unsafe fn direct(a: &Direct) {
                let s = $witness;
                // SAFETY: the caller's promise.
                unsafe { matmul::direct(s, a.w, a.first, a.count, a.x, a.n, a.out) }
            }

            /// # Safety
            /// The processor has this instruction set; as [`matmul::packed`].
            $(#[target_feature(enable = $features)])?
            unsafe fn packed(a: &Packed) {
                let s = $witness;
                // SAFETY: the caller's promise.
                unsafe { matmul::packed(s, a.w, a.first, a.count, a.x, a.tiles, a.out) }
            }

            /// # Safety
            /// The processor has this instruction set; as [`dot::dot`].
            $(#[target_feature(enable = $features)])?
            unsafe fn dot_products<Q: QuantFormat>(a: &Dot) {
                let s = $witness;
                // SAFETY: the caller's promise.
                unsafe {
                    let apart = apart_tile::<Q::Apart>;
                    dot::dot::<$simd, Q>(s, a.w, a.panels, a.x, a.tiles, a.out, apart)
                }
            }

            /// # Safety
            /// The processor has this instruction set; as [`dot::apart_tile`].
            $(#[target_feature(enable = $features)])?
            unsafe fn apart_tile<Q: QuantFormat>(a: &dot::ApartTile) {
                let s = $witness;
                // SAFETY: the caller's promise.
                unsafe { dot::apart_tile::<$simd, Q>(s, a) }
            }

            /// # Safety
            /// The processor has this instruction set; as [`tokens::quantise_rows`].
            $(#[target_feature(enable = $features)])?
            unsafe fn quantise(a: &QuantiseRows) {
                let s = $witness;
                // SAFETY: the caller's promise.
                unsafe { tokens::quantise_rows(s, a) }
            }

            /// # Safety
            /// The processor has this instruction set; as [`rows::decode_row`].
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn decode_row<Q: QuantFormat>(w: PanelView, row: usize, out: &mut [f32]) {
                let s = $witness;
                // SAFETY: the caller's promise.
                unsafe { rows::decode_row::<$simd, Q>(s, w, row, out) }
            }

            /// # Safety
            /// The processor has this instruction set.
            $(#[target_feature(enable = $features)])?
            unsafe fn rms_norm_row(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
                elementwise::rms_norm_row($witness, x, w, eps, out);
            }

            /// # Safety
            /// The processor has this instruction set.
            $(#[target_feature(enable = $features)])?
            unsafe fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
                elementwise::silu_mul($witness, gate, up, out);
            }

            /// # Safety
            /// The processor has this instruction set.
            $(#[target_feature(enable = $features)])?
            unsafe fn gelu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
                elementwise::gelu_mul($witness, gate, up, out);
            }

            /// # Safety
            /// The processor has this instruction set.
            $(#[target_feature(enable = $features)])?
            unsafe fn swiglu_clamped(a: &Clamped<'_>, out: &mut [f32]) {
                elementwise::swiglu_clamped($witness, a.gate, a.up, a.alpha, a.limit, out);
            }

            /// # Safety
            /// The processor has this instruction set.
            $(#[target_feature(enable = $features)])?
            unsafe fn softcap(x: &mut [f32], cap: f32) {
                elementwise::softcap($witness, x, cap);
            }

            /// # Safety
            /// The processor has this instruction set; as [`kv_write::write_key`].
            $(#[target_feature(enable = $features)])?
            unsafe fn write_key(a: &HeadWrite<'_>) {
                let s = $witness;
                // SAFETY: the caller's promise.
                unsafe { kv_write::write_key(s, a) }
            }

            /// # Safety
            /// The processor has this instruction set; as [`kv_write::write_value`].
            $(#[target_feature(enable = $features)])?
            unsafe fn write_value(a: &HeadWrite<'_>) {
                let s = $witness;
                // SAFETY: the caller's promise.
                unsafe { kv_write::write_value(s, a) }
            }

            /// # Safety
            /// The processor has this instruction set; as [`attention::chunk`].
            $(#[target_feature(enable = $features)])?
            unsafe fn chunk(a: &Chunk<'_>) {
                let s = $witness;
                // SAFETY: the caller's promise.
                unsafe {
                    attention::chunk(s, &a.view, a.groups, a.softcap, a.stride, a.scratch)
                }
            }

            /// # Safety
            /// The processor has this instruction set; as [`attention::merge`].
            $(#[target_feature(enable = $features)])?
            unsafe fn merge(a: &Merge, out: &mut [f32]) {
                let s = $witness;
                // SAFETY: the caller's promise.
                unsafe {
                    attention::merge(s, a.partials, a.chunks, a.stride, a.value_dim, a.sink, out)
                }
            }

            static QUANTS: &[QuantKernels] =
                &crate::panel::format::quant_formats!(quant_kernels!(dot_products, decode_row,));

            pub(super) static TABLE: KernelTable = KernelTable {
                isa: $isa,
                tile_panels: <$simd as Simd>::TILE_PANELS,
                tile_columns: <$simd as Simd>::TILE_COLUMNS,
                direct,
                packed,
                dot_columns: <$simd as Simd>::DOT_COLUMNS,
                quants: QUANTS,
                quantise,
                rms_norm_row,
                silu_mul,
                gelu_mul,
                swiglu_clamped,
                softcap,
                write_head: [write_key, write_value],
                chunk,
                merge,
            };
        }
    };
}

kernel_table!(
    scalar,
    Isa::Scalar,
    crate::arch::scalar::Scalar,
    crate::arch::scalar::Scalar
);
#[cfg(target_arch = "x86_64")]
kernel_table!(
    sse41,
    Isa::Sse41,
    crate::arch::sse41::Sse41,
    // SAFETY: called only where the processor has been found to have it.
    unsafe { crate::arch::sse41::Sse41::new_unchecked() },
    "ssse3,sse4.1"
);
#[cfg(target_arch = "x86_64")]
kernel_table!(
    avx2,
    Isa::Avx2,
    crate::arch::avx2::Avx2<false>,
    // SAFETY: called only where the processor has been found to have it.
    unsafe { crate::arch::avx2::Avx2::<false>::new_unchecked() },
    "avx2,fma,f16c"
);
/// The kernels of `avx2`, but for the int8 dot product.
#[cfg(target_arch = "x86_64")]
mod avx_vnni {
    use super::avx2::{self, decode_row};
    use super::{Dot, KernelTable, QuantKernels};
    use crate::arch::avx2::Avx2;
    use crate::generic::dot;
    use crate::generic::quants::QuantFormat;
    use crate::isa::Isa;

    /// # Safety
    /// The processor has this instruction set; as [`dot::dot`].
    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    unsafe fn dot_products<Q: QuantFormat>(a: &Dot) {
        // SAFETY: the caller's promise.
        unsafe {
            let s = Avx2::<true>::new_unchecked();
            let apart = apart_tile::<Q::Apart>;
            dot::dot::<_, Q>(s, a.w, a.panels, a.x, a.tiles, a.out, apart);
        }
    }

    /// # Safety
    /// The processor has this instruction set; as [`dot::apart_tile`].
    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    unsafe fn apart_tile<Q: QuantFormat>(a: &dot::ApartTile) {
        // SAFETY: the caller's promise.
        unsafe { dot::apart_tile::<_, Q>(Avx2::<true>::new_unchecked(), a) }
    }

    static QUANTS: &[QuantKernels] =
        &crate::panel::format::quant_formats!(quant_kernels!(dot_products, decode_row,));

    pub(super) static TABLE: KernelTable = KernelTable {
        isa: Isa::AvxVnni,
        quants: QUANTS,
        ..avx2::TABLE
    };
}
#[cfg(target_arch = "x86_64")]
kernel_table!(
    avx512,
    Isa::Avx512,
    crate::arch::avx512::Avx512,
    // SAFETY: called only where the processor has been found to have it.
    unsafe { crate::arch::avx512::Avx512::new_unchecked() },
    "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
);

impl KernelTable {
    /// The kernels that every processor runs.
    pub(crate) fn scalar() -> &'static KernelTable {
        &scalar::TABLE
    }

    /// Those of a quantised format.
    pub(crate) fn quant(&self, format: PanelFormat) -> &QuantKernels {
        let kernels = self.quants.iter().find(|kernels| kernels.format == format);
        kernels.unwrap_or_else(|| unreachable!("{format:?} panels are not quantised"))
    }

    /// Table for an instruction set, if this processor has it.
    pub(crate) fn of(isa: Isa) -> Option<&'static KernelTable> {
        if !isa.is_present() {
            return None;
        }
        match isa {
            Isa::Scalar => Some(Self::scalar()),
            #[cfg(target_arch = "x86_64")]
            Isa::Sse41 => Some(&sse41::TABLE),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Some(&avx2::TABLE),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Some(&avx_vnni::TABLE),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Some(&avx512::TABLE),
            #[cfg(not(target_arch = "x86_64"))]
            _ => None,
        }
    }
}
