#![allow(clippy::print_stdout)]
use std::time::Instant;
use vitriol_kernels_core::TensorType;
use vitriol_kernels_cpu::*;
fn main() {
    let cpu = Cpu::new(1, None).unwrap();
    for t in [TensorType::Q4_1, TensorType::Q8_0, TensorType::F16, TensorType::F32] {
        let (rows, cols) = (576, 576);
        let bytes = vec![0x11u8; rows * t.row_bytes(cols).unwrap()];
        let w = PanelMatrix::pack(t, rows, cols, &bytes).unwrap();
        for n in [1usize, 2, 3, 4, 5, 6, 8, 12, 24, 48, 96, 510] {
            let x = vec![0.5f32; n * cols];
            let mut out = vec![0f32; n * rows];
            let mut best = f64::MAX;
            for _ in 0..15 {
                let reps = 1 + 400 / n;
                let s = Instant::now();
                for _ in 0..reps {
                    cpu.matmul(&w, &x, n, &mut out);
                }
                best = best.min(s.elapsed().as_secs_f64() / reps as f64);
            }
            println!("{t} n={n}: {:.1} GB/s {:.1} GFLOPS {:.2} ns/16w", bytes.len() as f64 / best / 1e9, (2 * n * rows * cols) as f64 / best / 1e9, best*1e9/(rows*cols/16) as f64);
        }
    }
}
