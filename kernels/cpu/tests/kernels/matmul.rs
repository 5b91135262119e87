use proptest::prelude::*;
use vitriol_kernels_core::half::f16_to_f32;
use vitriol_kernels_core::{TensorType, dequantise_row, reference, tolerance};
use vitriol_kernels_cpu::{Cpu, ExpertProduct, Gate, Isa, PackError, PanelMatrix, TokenRows};

use crate::random::Random;
use crate::{bits, check_agreement, cpus, first_difference};

/// One of each layout of panels, and both ends of the levels that codebooks have.
const TYPES: [TensorType; 20] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q8_0,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::IQ1_M,
    TensorType::IQ3_XXS,
    TensorType::IQ4_NL,
    TensorType::IQ4_XS,
    TensorType::TQ1_0,
    TensorType::MXFP4,
    TensorType::NVFP4,
];

/// Every type that weights have.
fn types_of_weights() -> impl Iterator<Item = TensorType> {
    let all = TensorType::ALL.iter().copied();
    all.filter(|tensor_type| tensor_type.is_dequantisable())
}

/// Columns, rounded up to whole blocks.
fn whole_blocks(tensor_type: TensorType, cols: usize) -> usize {
    cols.next_multiple_of(tensor_type.block_len())
}

struct Case {
    packed: PanelMatrix,
    dequantised: Vec<f32>,
    x: Vec<f32>,
    rows: usize,
    cols: usize,
}

impl Case {
    fn new(tensor_type: TensorType, rows: usize, cols: usize, n: usize, seed: u64) -> Self {
        let cols = whole_blocks(tensor_type, cols);
        let mut random = Random::new(seed);
        let bytes = random.weights(tensor_type, rows, cols);
        let row_bytes = tensor_type.row_bytes(cols).unwrap();
        let mut dequantised = vec![0.0; rows * cols];
        for (row, out) in bytes.chunks(row_bytes).zip(dequantised.chunks_mut(cols)) {
            dequantise_row(tensor_type, row, out).unwrap();
        }
        let packed = PanelMatrix::pack(tensor_type, rows, cols, &bytes).unwrap();
        Self {
            packed,
            dequantised,
            x: random.units(n * cols),
            rows,
            cols,
        }
    }

    fn run(&self, cpu: &Cpu, n: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; n * self.rows];
        cpu.matmul(&self.packed, &self.x[..n * self.cols], n, &mut out);
        out
    }

    /// The first `n` tokens as the kernels multiply them.
    fn multiplied(&self, n: usize) -> Vec<f32> {
        let x = &self.x[..n * self.cols];
        match self.packed.is_quantised() {
            true => reference::round_tokens(x),
            false => x.to_vec(),
        }
    }

    /// The same tokens in batches of the given sizes.
    fn run_in_batches(&self, cpu: &Cpu, sizes: impl IntoIterator<Item = usize>) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.x.len() / self.cols * self.rows];
        let mut first = 0;
        for n in sizes {
            let x = &self.x[first * self.cols..][..n * self.cols];
            cpu.matmul(
                &self.packed,
                x,
                n,
                &mut out[first * self.rows..][..n * self.rows],
            );
            first += n;
        }
        out
    }

    fn check_against_reference(&self, out: &[f32], n: usize, what: &str) {
        let x = self.multiplied(n);
        let expected = reference::matmul(&self.dequantised, self.rows, self.cols, &x, n);
        for (i, (&value, &exact)) in out.iter().zip(&expected).enumerate() {
            let (t, r) = (i / self.rows, i % self.rows);
            let w = &self.dequantised[r * self.cols..][..self.cols];
            let x = &x[t * self.cols..][..self.cols];
            let magnitude = |w: f32, x: f32| (f64::from(w) * f64::from(x)).abs();
            let magnitudes: f64 = match self.packed.is_quantised() {
                false => w.iter().zip(x).map(|(&w, &x)| magnitude(w, x)).sum(),
                // Byte times scale and minimum are each at most twice the largest weight.
                true => {
                    let largest = w.iter().fold(0f32, |largest, w| largest.max(w.abs()));
                    4.0 * x.iter().map(|&x| magnitude(largest, x)).sum::<f64>()
                }
            };
            let bound = tolerance::dot_bound(self.cols, magnitudes);
            let error = (f64::from(value) - exact).abs();
            assert!(
                error <= bound,
                "{what} token {t} row {r}: {value} is not {exact}"
            );
        }
    }
}

#[test]
fn every_type_and_batch_size_is_near_the_reference() {
    for cpu in cpus(&[1, 2]) {
        for (seed, tensor_type) in TYPES.into_iter().enumerate() {
            for (rows, cols) in [(1, 32), (17, 64), (35, 224), (64, 576)] {
                let case = Case::new(tensor_type, rows, cols, 37, seed as u64);
                for n in [1, 2, 3, 4, 5, 6, 7, 12, 13, 24, 37] {
                    let what = format!("{cpu:?} {tensor_type} ({rows}, {cols}) n {n}");
                    case.check_against_reference(&case.run(&cpu, n)[..], n, &what);
                }
            }
        }
    }
}

#[test]
fn float_types_take_any_number_of_columns() {
    for cpu in cpus(&[1]) {
        for tensor_type in [TensorType::F32, TensorType::F16, TensorType::BF16] {
            for cols in [1, 15, 17, 193, 385, 401] {
                let case = Case::new(tensor_type, 19, cols, 14, cols as u64);
                for n in [1, 3, 14] {
                    let what = format!("{cpu:?} {tensor_type} cols {cols} n {n}");
                    case.check_against_reference(&case.run(&cpu, n), n, &what);
                }
                let solo = case.run_in_batches(&cpu, [1; 14]);
                assert_eq!(
                    first_difference(&solo, &case.run(&cpu, 14)),
                    None,
                    "cols {cols}"
                );
            }
        }
    }
}

/// A row as the kernels that run everywhere decode it.
fn decode_row(w: &PanelMatrix, row: usize, out: &mut [f32]) {
    let cpu = Cpu::new(1, Some(Isa::Scalar)).unwrap();
    cpu.embed(w, &[row as u32], out);
}

/// Multiply-add as the kernels do it: fused where they fuse.
fn multiply_add(cpu: &Cpu, a: f32, b: f32, c: f32) -> f32 {
    match cpu.isa() {
        Isa::Scalar | Isa::Sse41 => a * b + c,
        _ => a.mul_add(b, c),
    }
}

#[test]
fn a_chain_of_plain_weights_is_one_fma_per_column() {
    // The contract itself, in scalar code.
    for cpu in cpus(&[1]) {
        for tensor_type in [TensorType::F32, TensorType::F16, TensorType::BF16] {
            let case = Case::new(tensor_type, 18, 608, 9, 11);
            for n in [1, 9] {
                let out = case.run(&cpu, n);
                for (i, &value) in out.iter().enumerate() {
                    let (t, r) = (i / case.rows, i % case.rows);
                    let w = &case.dequantised[r * case.cols..][..case.cols];
                    let x = &case.x[t * case.cols..];
                    let chain = w.iter().zip(x);
                    let chain = chain.fold(0f32, |acc, (&w, &x)| multiply_add(&cpu, w, x, acc));
                    let what = format!("{cpu:?} {tensor_type} n {n} at {i}");
                    assert_eq!(value.to_bits(), chain.to_bits(), "{what}");
                }
            }
        }
    }
}

#[test]
fn a_chain_of_quantised_weights_is_a_few_fmas_per_block() {
    // The contract itself, in scalar code, for a format without minima and one with them.
    let (rows, cols, n) = (18, 608, 9);
    for cpu in cpus(&[1]) {
        for tensor_type in [TensorType::Q8_0, TensorType::Q4_1] {
            let mut random = Random::new(13);
            let stored = random.weights(tensor_type, rows, cols);
            let packed = PanelMatrix::pack(tensor_type, rows, cols, &stored).unwrap();
            let x = random.units(n * cols);
            let mut out = vec![f32::NAN; n * rows];
            cpu.matmul(&packed, &x, n, &mut out);
            let row_bytes = tensor_type.row_bytes(cols).unwrap();
            for (i, &value) in out.iter().enumerate() {
                let w = &stored[i % rows * row_bytes..][..row_bytes];
                let x = &x[i / rows * cols..][..cols];
                let mut acc = 0f32;
                let blocks = w.chunks_exact(tensor_type.block_bytes());
                for (w, x) in blocks.zip(x.chunks_exact(32)) {
                    let half = |at: usize| f16_to_f32(u16::from_le_bytes([w[at], w[at + 1]]));
                    let low = x.iter().fold(f32::MAX, |low, &x| low.min(x));
                    let high = x.iter().fold(f32::MIN, |high, &x| high.max(x));
                    let (h, middle) = (0.5 * high - 0.5 * low, 0.5 * high + 0.5 * low);
                    let byte = |x: &f32| ((x - middle) * (127.0 / h)).round_ties_even() as i32;
                    let q: Vec<i32> = x.iter().map(byte).collect();
                    let dx = h / 127.0;
                    let weights: Vec<i32> = match tensor_type {
                        TensorType::Q8_0 => w[2..].iter().map(|&q| i32::from(q as i8)).collect(),
                        _ => {
                            let low = w[4..].iter().map(|q| i32::from(q & 15));
                            low.chain(w[4..].iter().map(|q| i32::from(q >> 4)))
                                .collect()
                        }
                    };
                    let sum: i32 = weights.iter().zip(&q).map(|(w, q)| w * q).sum();
                    acc = multiply_add(&cpu, half(0) * dx, sum as f32, acc);
                    let mut of_weights = half(0) * weights.iter().sum::<i32>() as f32;
                    if tensor_type == TensorType::Q4_1 {
                        let tokens = dx * q.iter().sum::<i32>() as f32;
                        acc = multiply_add(&cpu, half(2), tokens, acc);
                        of_weights = multiply_add(&cpu, half(2), 32.0, of_weights);
                    }
                    acc = multiply_add(&cpu, of_weights, middle, acc);
                }
                assert_eq!(
                    value.to_bits(),
                    acc.to_bits(),
                    "{cpu:?} {tensor_type} at {i}"
                );
            }
        }
    }
}

#[test]
fn a_token_that_is_no_number_is_not_hidden() {
    for cpu in cpus(&[1]) {
        let mut case = Case::new(TensorType::Q4_1, 16, 96, 3, 17);
        case.x[96 + 40] = f32::NAN;
        case.x[192 + 40] = f32::INFINITY;
        let out = case.run(&cpu, 3);
        assert!(out[..16].iter().all(|v| v.is_finite()), "{cpu:?}");
        assert!(out[16..].iter().all(|v| !v.is_finite()), "{cpu:?} {out:?}");
    }
}

/// Blocks that are quantised side by side do not see each other, however odd: of zeros of both signs, one
/// value, the least and the largest there are, and no numbers.
#[test]
fn odd_tokens_keep_their_bits_in_any_company() {
    let odd = [
        [0.0, -0.0],
        [-3.25, -3.25],
        [1e-40, -1e-42],
        [f32::MAX, f32::MIN],
        [f32::MAX, 0.0],
        [1e-30, 2e-30],
        [-0.0, 5.0],
        [f32::NAN, 1.0],
        [f32::INFINITY, 1.0],
        [f32::NEG_INFINITY, f32::INFINITY],
    ];
    for cpu in cpus(&[1]) {
        for turn in 0..odd.len() {
            let mut case = Case::new(TensorType::Q8_0, 16, 160, 14, 23);
            for (token, x) in case.x.chunks_mut(160).enumerate().step_by(1 + turn % 3) {
                let values = odd[(turn + token) % odd.len()];
                let at = 32 * (token % 5);
                for (i, x) in x[at..at + 32].iter_mut().enumerate() {
                    *x = values[usize::from(i % 7 == 3)];
                }
            }
            let together = case.run(&cpu, 14);
            let alone = case.run_in_batches(&cpu, [1; 14]);
            for (token, (a, b)) in together.chunks(16).zip(alone.chunks(16)).enumerate() {
                // Of what is no number the bits say nothing.
                let same =
                    |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                let what = format!("{cpu:?} turn {turn} token {token}: {a:?} {b:?}");
                assert!(a.iter().zip(b).all(same), "{what}");
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_batch_or_threads() {
    for tensor_type in TYPES {
        let case = Case::new(tensor_type, 83, 416, 53, 5);
        let all = cpus(&[1, 2, 4]);
        for cpus in all.chunks(3) {
            let whole = case.run(&cpus[0], 53);
            for cpu in cpus {
                for batch in [1, 2, 3, 4, 5, 6, 7, 11, 12, 16, 31, 53] {
                    let sizes = (0..53).step_by(batch).map(|first| batch.min(53 - first));
                    let out = case.run_in_batches(cpu, sizes);
                    let what = format!("{cpu:?} {tensor_type} in batches of {batch}");
                    assert_eq!(first_difference(&whole, &out), None, "{what}");
                }
            }
        }
    }
}

#[test]
fn wide_rows_that_are_taken_apart_in_parts_keep_their_bits() {
    for tensor_type in TYPES {
        let case = Case::new(tensor_type, 19, 1312, 30, 7);
        for cpu in cpus(&[1]) {
            let whole = case.run(&cpu, 30);
            let one_by_one = case.run_in_batches(&cpu, [1; 30]);
            let what = format!("{cpu:?} {tensor_type}");
            assert_eq!(first_difference(&whole, &one_by_one), None, "{what}");
            case.check_against_reference(&whole, 30, &what);
        }
    }
}

#[test]
fn instruction_sets_agree_bit_for_bit() {
    for tensor_type in TYPES {
        let case = Case::new(tensor_type, 77, 544, 29, 3);
        for n in [1, 2, 3, 4, 29] {
            check_agreement(&format!("{tensor_type} n {n}"), |cpu| case.run(cpu, n));
        }
    }
}

#[test]
fn products_of_one_dispatch_equal_single_ones() {
    for cpu in cpus(&[1, 3]) {
        let a = Case::new(TensorType::Q4_1, 48, 288, 40, 1);
        let b = Case::new(TensorType::Q8_0, 16, 288, 40, 2);
        let c = Case::new(TensorType::F32, 131, 288, 40, 3);
        for n in [1, 4, 40] {
            let x = &a.x[..n * 288];
            let mut many = [vec![0.0; n * 48], vec![0.0; n * 16], vec![0.0; n * 131]];
            let [out_a, out_b, out_c] = &mut many;
            let mut products = [
                (&a.packed, &mut out_a[..]),
                (&b.packed, &mut out_b[..]),
                (&c.packed, &mut out_c[..]),
            ];
            cpu.matmul_many(&mut products, &TokenRows::Stored(x), n);
            for (case, out) in [&a, &b, &c].into_iter().zip(&many) {
                let mut alone = vec![0.0; n * case.rows];
                cpu.matmul(&case.packed, x, n, &mut alone);
                assert_eq!(first_difference(&alone, out), None, "{cpu:?} n {n}");
            }
        }
    }
}

/// Rows that are made where they are wanted have the bits of rows made before, for every form in which
/// kernels want tokens and whatever part of a tile they fill.
#[test]
fn rows_made_for_a_product_equal_those_made_before() {
    for tensor_type in [TensorType::F32, TensorType::Q8_0, TensorType::Q4_1] {
        let case = Case::new(tensor_type, 35, 352, 31, 29);
        let up = Case::new(tensor_type, 1, 352, 31, 30).x;
        let w: Vec<f32> = (0..352).map(|i| 0.5 + (i % 7) as f32).collect();
        for cpu in cpus(&[1, 3]) {
            for n in [1, 2, 4, 5, 6, 11, 12, 13, 31] {
                let (gate, up) = (&case.x[..n * 352], &up[..n * 352]);
                let mut made = [(); 4].map(|()| vec![0.0; n * 352]);
                let [normed, silu, gelu, clamped] = &mut made;
                cpu.rms_norm(gate, &w, 1e-5, n, 352, normed);
                cpu.silu_mul(gate, up, silu);
                cpu.gelu_mul(gate, up, gelu);
                cpu.swiglu_clamped(gate, up, 1.702, 7.0, clamped);
                let gated = |by| TokenRows::Gated { gate, up, by };
                let (alpha, limit) = (1.702, 7.0);
                let sources = [
                    TokenRows::Normed {
                        x: gate,
                        w: &w,
                        eps: 1e-5,
                    },
                    gated(Gate::Silu),
                    gated(Gate::GeluTanh),
                    gated(Gate::SwigluClamped { alpha, limit }),
                ];
                for (source, made) in sources.iter().zip(&made) {
                    let (mut before, mut now) = (vec![0.0; n * 35], vec![0.0; n * 35]);
                    cpu.matmul(&case.packed, made, n, &mut before);
                    cpu.matmul_of(&case.packed, source, n, &mut now);
                    let what = format!("{cpu:?} {tensor_type} n {n} {source:?}");
                    assert_eq!(first_difference(&before, &now), None, "{what:.200}");
                }
            }
        }
    }
}

#[test]
fn rows_decode_to_the_values_of_the_file() {
    for tensor_type in TYPES {
        let case = Case::new(tensor_type, 37, 96, 1, 9);
        for cpu in cpus(&[1]) {
            for row in 0..37u32 {
                let mut out = vec![f32::NAN; case.cols];
                cpu.embed(&case.packed, &[row], &mut out);
                let expected = &case.dequantised[row as usize * case.cols..][..case.cols];
                // −0, a zero times a negative scale, is as good as 0.
                assert_eq!(out, expected, "{cpu:?} {tensor_type} row {row}");
            }
        }
    }
}

#[test]
fn every_type_gives_the_values_of_the_file() {
    let mut random = Random::new(11);
    for tensor_type in types_of_weights() {
        let (rows, cols) = (37, 512);
        let row_bytes = tensor_type.row_bytes(cols).unwrap();
        // Any bytes are weights; those whose scale is no number are left out of the comparison.
        let stored: Vec<u8> = (0..rows * row_bytes)
            .map(|_| (random.bits() >> 40) as u8)
            .collect();
        let packed = PanelMatrix::pack(tensor_type, rows, cols, &stored).unwrap();
        assert_eq!(packed.tensor_type(), tensor_type);
        let (mut ours, mut expected) = (vec![f32::NAN; cols], vec![f32::NAN; cols]);
        for row in 0..rows {
            decode_row(&packed, row, &mut ours);
            dequantise_row(
                tensor_type,
                &stored[row * row_bytes..][..row_bytes],
                &mut expected,
            )
            .unwrap();
            for (a, b) in ours.iter().zip(&expected) {
                let same = a == b || (a.is_nan() && b.is_nan());
                assert!(same, "{tensor_type} row {row}: {a} is not {b}");
            }
        }
    }
}

#[test]
fn panels_take_about_the_bytes_of_the_file() {
    let (rows, cols) = (48, 4096);
    for tensor_type in types_of_weights() {
        let stored = Random::new(12).weights(tensor_type, rows, cols);
        let packed = PanelMatrix::pack(tensor_type, rows, cols, &stored).unwrap();
        let bits_of = |bytes: usize| (8 * bytes) as f64 / (rows * cols) as f64;
        let (bits, of_file) = (bits_of(packed.bytes()), bits_of(stored.len()));
        let most = match tensor_type {
            TensorType::TQ1_0 | TensorType::TQ2_0 | TensorType::Q1_0 | TensorType::Q2_0 => 2.5,
            TensorType::IQ1_S | TensorType::IQ1_M => 4.6,
            TensorType::IQ2_XXS | TensorType::IQ2_XS | TensorType::IQ2_S => 4.6,
            TensorType::IQ3_XXS | TensorType::IQ3_S => 4.6,
            TensorType::NVFP4 => 5.0,
            _ => 1.04 * of_file,
        };
        assert!(
            bits <= most,
            "{tensor_type}: {bits} bits a weight, {of_file} in the file"
        );
    }
}

/// E8M0 exponents whose products are no normal f32 have the values of the file all the same, and cost
/// bytes only where they matter.
#[test]
fn extreme_scales_of_mxfp4_keep_their_values() {
    let (rows, cols) = (20, 64);
    let row_bytes = TensorType::MXFP4.row_bytes(cols).unwrap();
    for (exponent, quants, quantised) in [
        (2, 0x21, true),
        (252, 0xf7, true),
        (0, 0x80, true),
        (0, 0x21, false),
        (1, 0x21, false),
        (253, 0x21, false),
        (255, 0xf7, false),
    ] {
        let mut stored = vec![0x21; rows * row_bytes];
        for scale in stored.iter_mut().step_by(17) {
            *scale = 127;
        }
        // In the last block of the last row.
        let last = stored.len() - 17;
        stored[last] = exponent;
        stored[last + 1..].fill(quants);
        let packed = PanelMatrix::pack(TensorType::MXFP4, rows, cols, &stored).unwrap();
        assert_eq!(packed.is_quantised(), quantised, "{exponent}");
        for (row, stored) in stored.chunks_exact(row_bytes).enumerate() {
            let (mut ours, mut expected) = (vec![f32::NAN; cols], vec![f32::NAN; cols]);
            decode_row(&packed, row, &mut ours);
            dequantise_row(TensorType::MXFP4, stored, &mut expected).unwrap();
            assert_eq!(ours, expected, "{exponent}");
        }
    }
}

#[test]
fn experts_in_one_dispatch_equal_each_alone() {
    for (seed, tensor_type) in TYPES.into_iter().enumerate() {
        // Tokens of each expert: none, few (decode), many (prefill), more than a tile.
        let counts = [3, 0, 1, 40, 6, 13, 1];
        let mut cases: Vec<Case> = (0..14)
            .map(|i| {
                let (rows, cols) = if i % 2 == 0 { (35, 96) } else { (64, 224) };
                Case::new(
                    tensor_type,
                    rows,
                    cols,
                    counts[i / 2],
                    (seed * 100 + i) as u64,
                )
            })
            .collect();
        // The up matrix beside a gate of one expert: the same tokens.
        cases[7] = Case::new(tensor_type, 18, 96, 40, 5);
        cases[7].x = cases[6].x.clone();
        // Two experts alike in all but their tokens.
        cases[9] = Case::new(tensor_type, 35, 96, 6, 77);
        for cpu in cpus(&[1, 2, 3]) {
            let mut outs: Vec<Vec<f32>> = cases
                .iter()
                .map(|case| vec![f32::NAN; case.x.len() / case.cols * case.rows])
                .collect();
            let shared = cases[6].x.clone();
            let mut products: Vec<ExpertProduct<'_>> = cases
                .iter()
                .zip(&mut outs)
                .enumerate()
                .map(|(i, (case, out))| ExpertProduct {
                    w: &case.packed,
                    x: TokenRows::Stored(if i == 6 || i == 7 { &shared } else { &case.x }),
                    out,
                })
                .collect();
            cpu.matmul_each(&mut products);
            for (case, out) in cases.iter().zip(&outs) {
                let n = case.x.len() / case.cols;
                let alone = case.run_in_batches(&cpu, std::iter::repeat_n(1, n));
                assert_eq!(
                    first_difference(&alone, out),
                    None,
                    "{cpu:?} {tensor_type} n {n}"
                );
            }
        }
    }
}

#[test]
fn large_matrices_get_extents() {
    let case = Case::new(TensorType::F32, 4100, 1056, 1, 4);
    assert_eq!(case.packed.bytes(), 4112 * 1056 * 4);
    let mut out = vec![0.0; 1056];
    decode_row(&case.packed, 4099, &mut out);
    assert_eq!(bits(&out), bits(&case.dequantised[4099 * 1056..]));
}

#[test]
fn what_cannot_be_packed_is_named() {
    let error = PanelMatrix::pack(TensorType::I32, 16, 2, &[0; 128]).unwrap_err();
    assert!(
        matches!(error, PackError::Unsupported(TensorType::I32)),
        "{error}"
    );
    let error = PanelMatrix::pack(TensorType::Q8_0, 16, 33, &[0; 544]).unwrap_err();
    assert!(
        matches!(error, PackError::Shape { cols: 33, .. }),
        "{error}"
    );
    let error = PanelMatrix::pack(TensorType::Q8_0, 16, 32, &[0; 543]).unwrap_err();
    assert!(
        matches!(
            error,
            PackError::Length {
                needed: 544,
                given: 543,
                ..
            }
        ),
        "{error}"
    );
    assert!(PanelMatrix::pack(TensorType::F32, usize::MAX, 1 << 40, &[]).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_shape_and_split_gives_the_same_bits(
        type_index in 0..TYPES.len(),
        rows in 1usize..70,
        blocks in 1usize..20,
        sizes in prop::collection::vec(1usize..20, 1..5),
        seed: u64,
    ) {
        let n = sizes.iter().sum();
        let case = Case::new(TYPES[type_index], rows, blocks * 32, n, seed);
        for cpu in cpus(&[1, 2]) {
            let whole = case.run(&cpu, n);
            let parts = case.run_in_batches(&cpu, sizes.clone());
            prop_assert_eq!(first_difference(&whole, &parts), None);
        }
    }
}
