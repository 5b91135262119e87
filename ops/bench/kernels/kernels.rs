//! Each kernel by itself: `cargo bench -p vitriol-bench-kernels [-- FILTER]`.
//!
//! Rates to compare with are measured in the same run: `machine/read` is what memory of the size of
//! `matmul/…` at few tokens gives, `machine/int8` what the multipliers give. A matmul at 1 or 8 tokens goes
//! through as many matrices as fill that memory, so that none is found in a near cache; its rate is
//! bytes of weights. At 512 tokens one matrix is used, and an element is a multiply-accumulate, as in
//! attention (two for each key and dimension: the score and the sum of values).
//!
//! Threads: two, or as many as there are. Instruction set: the best.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use vitriol_kernels_core::TensorType;
use vitriol_kernels_cpu::{
    AttentionOptions, AttentionRun, Cpu, KvCodec, KvPlace, KvShape, KvStore, PAGE_TOKENS,
    PanelMatrix, ProbeMemory,
};

/// Bytes of a matrix that are sound in every type: whatever of them is a scale or a weight in f16 or f32
/// is a normal number below 2.
fn weights(tensor_type: TensorType, rows: usize, cols: usize) -> Vec<u8> {
    let bytes = tensor_type.row_bytes(cols).map_or(0, |row| row * rows);
    let byte = |at: usize| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3] & 0x1f | 0x20;
    (0..bytes).map(byte).collect()
}

/// Numbers from −1 to 1 that repeat after a prime.
fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|at| (at % 251) as f32 / 125.0 - 1.0).collect()
}

/// More than any cache near a core.
const MEMORY_BYTES: usize = 64 << 20;

const TYPES: [TensorType; 8] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::Q8_0,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q4_K,
    TensorType::Q6_K,
];

/// (model, rows, columns) of its largest layer matrices. Rows of K types are whole blocks of 256: those of
/// neither model are, so that theirs are widened.
const SHAPES: [(&str, usize, usize); 2] = [("smollm2", 1536, 576), ("gemma3", 2048, 640)];

fn cpu() -> Cpu {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(2));
    Cpu::new(threads, None).expect("the detected instruction set is present")
}

fn machine(c: &mut Criterion) {
    let cpu = cpu();
    let memory = ProbeMemory::new(MEMORY_BYTES).expect("memory for the probe");
    let mut group = c.benchmark_group("machine");
    group.throughput(Throughput::Bytes(memory.bytes() as u64));
    group.bench_function("read", |b| b.iter(|| cpu.read_bandwidth(&memory)));
    group.finish();
    // Its time says nothing, its result does: criterion is told the time that one billion take.
    if cpu.int8_peak().is_none() {
        return;
    }
    let macs: u32 = 1_000_000_000;
    let mut group = c.benchmark_group("machine");
    group.sample_size(10);
    group.throughput(Throughput::Elements(macs.into()));
    group.bench_function("int8", |b| {
        b.iter_custom(|rounds| {
            let rate = cpu.int8_peak().expect("it was there before");
            std::time::Duration::from_secs_f64(f64::from(macs) / rate) * rounds as u32
        });
    });
    group.finish();
}

fn matmul(c: &mut Criterion) {
    let cpu = cpu();
    for (model, rows, cols) in SHAPES {
        for tensor_type in TYPES {
            let cols = cols.next_multiple_of(tensor_type.block_len());
            let weights = weights(tensor_type, rows, cols);
            let pack = || PanelMatrix::pack(tensor_type, rows, cols, &weights);
            let first = pack().expect("the shape is whole blocks");
            let count = MEMORY_BYTES.div_ceil(first.bytes());
            let matrices: Vec<PanelMatrix> = (1..count)
                .map(|_| pack().expect("as the first"))
                .chain([first])
                .collect();
            let mut group = c.benchmark_group(format!("matmul/{model}"));
            group.sample_size(10);
            for n in [1, 8, 512] {
                let x = numbers(n * cols);
                let mut out = vec![0.0; n * rows];
                let used = if n == 512 { 1 } else { matrices.len() };
                group.throughput(match n {
                    512 => Throughput::Elements((n * rows * cols) as u64),
                    _ => Throughput::Bytes((used * matrices[0].bytes()) as u64),
                });
                let id = BenchmarkId::new(tensor_type.name(), n);
                group.bench_function(id, |b| {
                    b.iter(|| {
                        for matrix in &matrices[..used] {
                            cpu.matmul(matrix, &x, n, &mut out);
                        }
                    });
                });
                black_box(&out);
            }
            group.finish();
        }
    }
}

/// Heads of SmolLM2-135M and Gemma-3-270M: (model, query heads, KV heads, elements of a head).
const HEADS: [(&str, usize, usize, usize); 2] = [("smollm2", 9, 3, 64), ("gemma3", 4, 1, 256)];
const DEPTH: usize = 8192;

fn attention(c: &mut Criterion) {
    let cpu = cpu();
    let pages: Vec<u32> = (0..DEPTH.div_ceil(PAGE_TOKENS) as u32).collect();
    for (model, heads, kv_heads, dim) in HEADS {
        for codec in KvCodec::ALL {
            let kv = filled(&cpu, codec, kv_heads, dim, pages.len());
            let options = AttentionOptions {
                scale: 1.0 / (dim as f32).sqrt(),
                window: None,
                softcap: None,
                sinks: None,
            };
            let mut group = c.benchmark_group(format!("attention/{model}"));
            group.sample_size(10);
            for n in [1, 512] {
                let q = vec![0.1; n * heads * dim];
                let mut out = vec![0.0; q.len()];
                let run = [AttentionRun {
                    first: 0,
                    n,
                    position: (DEPTH - n) as u32,
                    pages: &pages,
                }];
                let keys: usize = (DEPTH - n + 1..=DEPTH).sum();
                group.throughput(match n {
                    1 => Throughput::Bytes((pages.len() * kv.bytes_per_page()) as u64),
                    _ => Throughput::Elements((2 * keys * heads * dim) as u64),
                });
                group.bench_function(BenchmarkId::new(codec.name(), n), |b| {
                    b.iter(|| cpu.attention(&kv, 0, &q, heads, &run, options, &mut out));
                });
                black_box(&out);
            }
            group.finish();
        }
    }
}

/// KV of one layer whose every page holds tokens.
fn filled(cpu: &Cpu, codec: KvCodec, kv_heads: usize, dim: usize, pages: usize) -> KvStore {
    let shape = KvShape {
        n_layers: 1,
        n_kv_heads: kv_heads,
        key_dim: dim,
        value_dim: dim,
        key_codec: codec,
        value_codec: codec,
        pages,
    };
    let mut kv = KvStore::new(shape).expect("address space for the store");
    kv.commit(pages).expect("memory for the store");
    let places: Vec<KvPlace> = (0..(pages * PAGE_TOKENS) as u32)
        .map(|at| KvPlace {
            page: at / PAGE_TOKENS as u32,
            row: at % PAGE_TOKENS as u32,
        })
        .collect();
    let rows = numbers(places.len() * kv_heads * dim);
    cpu.kv_write(&mut kv, 0, &rows, &rows, &places);
    kv
}

fn rms_norm(c: &mut Criterion) {
    let cpu = cpu();
    let mut group = c.benchmark_group("rms_norm");
    for (model, _, d) in SHAPES {
        for n in [1, 512] {
            let (x, w) = (vec![0.5; n * d], vec![1.0; d]);
            let mut out = vec![0.0; n * d];
            group.throughput(Throughput::Bytes((8 * n * d) as u64));
            group.bench_function(BenchmarkId::new(model, n), |b| {
                b.iter(|| cpu.rms_norm(&x, &w, 1e-5, n, d, &mut out));
            });
            black_box(&out);
        }
    }
    group.finish();
}

criterion_group!(kernels, machine, matmul, attention, rms_norm);
criterion_main!(kernels);
