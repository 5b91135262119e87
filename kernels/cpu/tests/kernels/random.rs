use vitriol_kernels_core::TensorType;
use vitriol_kernels_core::half::{f32_to_bf16, f32_to_f16};

/// Seeded generator (xorshift64*): tests repeat.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform in [−1, 1).
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 33) as usize % n
    }

    pub fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    /// Rows of a tensor as stored in a file, every bit of the quants random.
    pub fn weights(&mut self, tensor_type: TensorType, rows: usize, cols: usize) -> Vec<u8> {
        let blocks = rows * cols / tensor_type.block_len();
        let mut out = Vec::new();
        for _ in 0..blocks {
            match tensor_type {
                TensorType::F32 => out.extend(self.unit().to_le_bytes()),
                TensorType::F16 => out.extend(f32_to_f16(self.unit()).to_le_bytes()),
                TensorType::BF16 => out.extend(f32_to_bf16(self.unit()).to_le_bytes()),
                _ => {
                    // Any bytes are quants; scales and minima are numbers of this size.
                    let at = out.len();
                    out.extend((0..tensor_type.block_bytes()).map(|_| (self.bits() >> 32) as u8));
                    for &half in halves_of(tensor_type) {
                        let scale = f32_to_f16(self.unit() / 16.0).to_le_bytes();
                        out[at + half..][..2].copy_from_slice(&scale);
                    }
                    match tensor_type {
                        // A power of two from 2^-16 on.
                        TensorType::MXFP4 => out[at] = 112 + out[at] % 16,
                        // Four bits of d stand on top of each of four words.
                        TensorType::IQ1_M => {
                            let d = f32_to_f16(self.unit() / 16.0);
                            for (i, byte) in [49, 51, 53, 55].into_iter().enumerate() {
                                let quarter = (d >> (4 * i) & 15) as u8;
                                out[at + byte] = out[at + byte] & 15 | quarter << 4;
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
        out
    }
}

/// Where a block has the f16 of its scales and minima.
fn halves_of(tensor_type: TensorType) -> &'static [usize] {
    match tensor_type {
        TensorType::Q2_K => &[80, 82],
        TensorType::Q3_K => &[108],
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => &[0, 2],
        TensorType::Q6_K => &[208],
        TensorType::TQ1_0 => &[52],
        TensorType::TQ2_0 => &[64],
        TensorType::IQ1_M | TensorType::MXFP4 | TensorType::NVFP4 => &[],
        _ => &[0],
    }
}
