//! A check of the kernels against the f64 reference, on this processor, in about a millisecond.
//!
//! Why: tests run on the machines we have. A processor whose instruction set was never there when
//! tests ran must not be the first to find out, and a faulty one must not answer at all.

use vitriol_kernels_core::kv::{Rotation, kv_round_trip};
use vitriol_kernels_core::reference::{self, AttentionOptions, AttentionShape};
use vitriol_kernels_core::{KvCodec, TensorType, dequantise_row, tolerance};

use crate::cpu::{AttentionRun, Cpu, CpuError};
use crate::kv::{KvPlace, KvShape, KvStore, PAGE_TOKENS};
use crate::panel::PanelMatrix;
use crate::panel::format::PanelFormat;

/// Rows of the matrices: one panel and part of a second.
const ROWS: usize = 27;
const COLS: usize = 256;
/// One token takes the way of decode, more than a tile of them that of prefill.
const TOKENS: [usize; 2] = [1, 14];
/// Past the border of a 256-key chunk.
const DEPTH: usize = 270;
/// The last queries see the most.
const QUERIES: usize = 4;
const SHAPE: AttentionShape = AttentionShape {
    n_heads: 6,
    n_kv_heads: 2,
    key_dim: 32,
    value_dim: 64,
};

impl Cpu {
    /// Computes every op that has kernels per instruction set on fixed numbers and compares with the
    /// reference. Rotation, biases and sums are plain Rust, the same for all.
    ///
    /// Errors: [`CpuError::WrongAnswer`] names the op; nothing computed here can be trusted then.
    pub fn check_known_answers(&self) -> Result<(), CpuError> {
        let mut checked = Vec::new();
        for &tensor_type in TensorType::ALL {
            // Types that share a format share its kernels.
            let format = PanelFormat::of(tensor_type);
            if format.is_some() && !checked.contains(&format) {
                self.check_matmul(tensor_type)?;
                checked.push(format);
            }
        }
        self.check_rows()?;
        for codec in KvCodec::ALL {
            self.check_attention(codec)?;
        }
        Ok(())
    }

    fn wrong(&self, op: &'static str) -> CpuError {
        CpuError::WrongAnswer {
            isa: self.isa(),
            op,
        }
    }

    fn check_matmul(&self, tensor_type: TensorType) -> Result<(), CpuError> {
        let wrong = || self.wrong("matmul");
        let stored = stored_weights(tensor_type);
        let matrix = PanelMatrix::pack(tensor_type, ROWS, COLS, &stored).map_err(|_| wrong())?;
        let mut w = vec![0.0; ROWS * COLS];
        dequantise_row(tensor_type, &stored, &mut w).map_err(|_| wrong())?;
        for n in TOKENS {
            let x = numbers(n * COLS, 1);
            let mut out = vec![0.0; n * ROWS];
            self.matmul(&matrix, &x, n, &mut out);
            let met = match matrix.is_quantised() {
                true => reference::round_tokens(&x),
                false => x.clone(),
            };
            let exact = reference::matmul(&w, ROWS, COLS, &met, n);
            let largest = |v: &[f32]| v.iter().fold(0.0f32, |m, a| m.max(a.abs()));
            // A quantised weight is a byte times its scale plus a minimum, each at most twice it.
            let sum = 4.0 * COLS as f64 * f64::from(largest(&w)) * f64::from(largest(&x));
            all_close(&out, &exact, |_| tolerance::dot_bound(COLS, sum)).ok_or_else(wrong)?;
        }
        Ok(())
    }

    fn check_rows(&self) -> Result<(), CpuError> {
        let (x, w) = (numbers(COLS, 2), numbers(COLS, 3));
        let relative = |exact: f64| tolerance::ELEMENTWISE_RELATIVE * exact.abs() + 1e-30;
        let mut out = vec![0.0; COLS];
        self.rms_norm(&x, &w, 1e-5, 1, COLS, &mut out);
        all_close(&out, &reference::rms_norm(&x, &w, 1e-5), relative)
            .ok_or_else(|| self.wrong("rms_norm"))?;
        self.silu_mul(&x, &w, &mut out);
        all_close(&out, &reference::silu_mul(&x, &w), relative)
            .ok_or_else(|| self.wrong("silu_mul"))?;
        self.gelu_mul(&x, &w, &mut out);
        all_close(&out, &reference::gelu_mul(&x, &w), relative)
            .ok_or_else(|| self.wrong("gelu_mul"))?;
        // Numbers are within ±1: half of that is where the clamps act.
        self.swiglu_clamped(&x, &w, 1.7, 0.5, &mut out);
        all_close(&out, &reference::swiglu_clamped(&x, &w, 1.7, 0.5), relative)
            .ok_or_else(|| self.wrong("swiglu_clamped"))?;
        out.copy_from_slice(&x);
        self.softcap(&mut out, 0.7);
        let capped: Vec<f64> = x
            .iter()
            .map(|&x| reference::softcap(f64::from(x), 0.7))
            .collect();
        all_close(&out, &capped, relative).ok_or_else(|| self.wrong("softcap"))
    }

    /// With a window, a cap and sinks, all of which must matter.
    fn check_attention(&self, codec: KvCodec) -> Result<(), CpuError> {
        let wrong = || self.wrong("attention");
        let AttentionShape {
            n_heads,
            n_kv_heads,
            key_dim,
            value_dim,
        } = SHAPE;
        let n_pages = DEPTH.div_ceil(PAGE_TOKENS);
        let shape = KvShape {
            n_layers: 1,
            n_kv_heads,
            key_dim,
            value_dim,
            key_codec: codec,
            value_codec: codec,
            pages: n_pages,
        };
        let mut kv = KvStore::new(shape).map_err(|_| wrong())?;
        kv.commit(n_pages).map_err(|_| wrong())?;
        let q = numbers(QUERIES * n_heads * key_dim, 4);
        let (k, v) = (
            numbers(DEPTH * n_kv_heads * key_dim, 5),
            numbers(DEPTH * n_kv_heads * value_dim, 6),
        );
        let place = |at: usize| KvPlace {
            page: (at / PAGE_TOKENS) as u32,
            row: (at % PAGE_TOKENS) as u32,
        };
        let places: Vec<KvPlace> = (0..DEPTH).map(place).collect();
        self.kv_write(&mut kv, 0, &k, &v, &places);
        let pages: Vec<u32> = (0..n_pages as u32).collect();
        let first = DEPTH - QUERIES;
        let run = AttentionRun {
            first: 0,
            n: QUERIES,
            position: first as u32,
            pages: &pages,
        };
        let options = AttentionOptions {
            scale: 0.4,
            window: Some(200),
            softcap: Some(2.0),
            sinks: Some(&[1.0, 4.0, -1.0, 3.0, 2.0, 0.0]),
        };
        let mut out = vec![0.0; QUERIES * n_heads * value_dim];
        self.attention(&kv, 0, &q, n_heads, &[run], options, &mut out);
        let decoded = |x: &[f32], dim: usize, rotation: Rotation| -> Vec<f32> {
            x.chunks(dim)
                .flat_map(|head| kv_round_trip(codec, rotation, head))
                .collect()
        };
        let k = decoded(&k, key_dim, codec.key_rotation(key_dim));
        let v = decoded(&v, value_dim, codec.value_rotation(value_dim));
        let exact = reference::attention(SHAPE, &q, &k, &v, first, options);
        all_close(&out, &exact, |_| tolerance::ATTENTION_RELATIVE).ok_or_else(wrong)
    }
}

fn all_close(ours: &[f32], exact: &[f64], bound: impl Fn(f64) -> f64) -> Option<()> {
    let close = |(&a, &b): (&f32, &f64)| (f64::from(a) - b).abs() <= bound(b);
    (ours.len() == exact.len() && ours.iter().zip(exact).all(close)).then_some(())
}

/// Numbers in [−1, 1) that look random and are the same everywhere.
fn numbers(n: usize, salt: u32) -> Vec<f32> {
    (0..n as u32)
        .map(|i| {
            let bits = (i.wrapping_mul(0x9e37_79b9) ^ salt.wrapping_mul(0x85eb_ca6b))
                .wrapping_mul(0xc2b2_ae35);
            (bits >> 8) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect()
}

/// A matrix as a file stores it; scales are small powers of two, quants anything.
fn stored_weights(tensor_type: TensorType) -> Vec<u8> {
    let bytes = ROWS * COLS / tensor_type.block_len() * tensor_type.block_bytes();
    let mut stored: Vec<u8> = numbers(bytes, 7)
        .iter()
        .map(|x| ((x + 1.0) * 127.0) as u8)
        .collect();
    // f16 and bf16 numbers of any bits could be NaN: keep the exponents of 0.01 to 1.
    let one_block = tensor_type.block_bytes();
    for block in stored.chunks_exact_mut(one_block) {
        match tensor_type {
            TensorType::F32 => block[3] = 0x3d | block[3] & 0x80,
            TensorType::F16 => block[1] = 0x30 | block[1] & 0x83,
            TensorType::BF16 => block[1] = 0x3d | block[1] & 0x80,
            TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => {
                block[1] = 0x24;
                block[3] = 0xa4;
            }
            TensorType::Q2_K => {
                block[81] = 0x24;
                block[83] = 0x24;
            }
            TensorType::Q3_K => block[109] = 0x24,
            TensorType::Q6_K => block[209] = 0x24,
            TensorType::TQ1_0 => block[53] = 0x24,
            TensorType::MXFP4 => block[0] = 120,
            TensorType::NVFP4 => {}
            _ => block[1] = 0x24,
        }
    }
    stored
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::KernelTable;

    #[test]
    fn a_wrong_kernel_is_noticed() {
        // Not KernelTable::of: what reaches all tables makes the unit tests compile all kernels.
        let right = KernelTable::scalar();
        type Break = fn(&mut KernelTable);
        let breaks: [(&str, Break); 8] = [
            ("matmul", |table| table.direct = |_| {}),
            ("rms_norm", |table| {
                table.rms_norm_row = |_, _, _, out| out.fill(0.5)
            }),
            ("silu_mul", |table| {
                table.silu_mul = |_, _, out| out.fill(0.5)
            }),
            ("gelu_mul", |table| {
                table.gelu_mul = |_, _, out| out.fill(0.5)
            }),
            ("swiglu_clamped", |table| {
                table.swiglu_clamped = |_, out| out.fill(0.5)
            }),
            ("softcap", |table| table.softcap = |_, _| {}),
            ("attention", |table| table.merge = |_, out| out.fill(0.5)),
            ("attention", |table| table.write_head[1] = |_| {}),
        ];
        for (op, break_it) in breaks {
            let mut table = KernelTable { ..*right };
            break_it(&mut table);
            let cpu = Cpu::with_table(Box::leak(Box::new(table)));
            let error = cpu.check_known_answers().unwrap_err();
            assert!(error.to_string().contains(op), "{op}: {error}");
        }
    }
}
