//! Rates of the kernels on this machine, beside what its memory and multipliers can give.
//!
//! `cargo run --release -p vitriol-kernels-cpu --example rates [isa [part]]`, part being products,
//! attention or experts. Synthetic SmolLM2-135M:
//! 30 layers of q4_1 matrices in distinct memory and a q8_0 head. Each figure is the median of
//! interleaved samples with its range; fractions compare samples of one run only.
#![allow(clippy::print_stdout, reason = "a report for people")]

use std::hint::black_box;
use std::time::Instant;

use vitriol_kernels_core::TensorType;
use vitriol_kernels_cpu::{
    AttentionOptions, AttentionRun, Cpu, ExpertProduct, Isa, KvCodec, KvPlace, KvShape, KvStore,
    PanelMatrix,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const D_MODEL: usize = 576;
const D_KV: usize = 192;
const D_FF: usize = 1536;
const VOCAB: usize = 49_152;
const LAYERS: usize = 30;

struct Layer {
    q: PanelMatrix,
    k: PanelMatrix,
    v: PanelMatrix,
    o: PanelMatrix,
    gate: PanelMatrix,
    up: PanelMatrix,
    down: PanelMatrix,
}

/// Median, least and most.
struct Spread(f64, f64, f64);

fn spread(mut samples: Vec<f64>) -> Spread {
    samples.sort_by(f64::total_cmp);
    Spread(
        samples[samples.len() / 2],
        samples[0],
        samples[samples.len() - 1],
    )
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} [{:.1}-{:.1}]", self.0, self.1, self.2)
    }
}

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

/// Quants from a counter, every f16 scale and minimum the same small number.
fn matrix(tensor_type: TensorType, rows: usize, cols: usize) -> Outcome<PanelMatrix> {
    let block = tensor_type.block_bytes();
    let mut bytes = vec![0u8; rows * cols / tensor_type.block_len() * block];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = (i as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3];
    }
    for block in bytes.chunks_exact_mut(block) {
        block[..2].copy_from_slice(&0x2000u16.to_le_bytes());
        if tensor_type == TensorType::Q4_1 {
            block[2..4].copy_from_slice(&0xa000u16.to_le_bytes());
        }
    }
    Ok(PanelMatrix::pack(tensor_type, rows, cols, &bytes)?)
}

fn layer() -> Outcome<Layer> {
    let q4_1 = |rows, cols| matrix(TensorType::Q4_1, rows, cols);
    Ok(Layer {
        q: q4_1(D_MODEL, D_MODEL)?,
        k: q4_1(D_KV, D_MODEL)?,
        v: q4_1(D_KV, D_MODEL)?,
        o: q4_1(D_MODEL, D_MODEL)?,
        gate: q4_1(D_FF, D_MODEL)?,
        up: q4_1(D_FF, D_MODEL)?,
        down: q4_1(D_MODEL, D_FF)?,
    })
}

struct Activations {
    x: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
}

impl Activations {
    fn new(n: usize) -> Self {
        let x = (0..n * D_MODEL)
            .map(|i| (i % 17) as f32 / 8.0 - 1.0)
            .collect();
        Self {
            x,
            q: vec![0.0; n * D_MODEL],
            k: vec![0.0; n * D_KV],
            v: vec![0.0; n * D_KV],
            gate: vec![0.01; n * D_FF],
            up: vec![0.0; n * D_FF],
        }
    }
}

/// The seven products of a layer, as a forward pass dispatches them.
fn products(cpu: &Cpu, layer: &Layer, a: &mut Activations, n: usize) {
    cpu.matmul_many(
        &mut [
            (&layer.q, &mut a.q),
            (&layer.k, &mut a.k),
            (&layer.v, &mut a.v),
        ],
        &a.x,
        n,
    );
    cpu.matmul(&layer.o, &a.x, n, &mut a.q);
    cpu.matmul_many(
        &mut [(&layer.gate, &mut a.gate), (&layer.up, &mut a.up)],
        &a.x,
        n,
    );
    cpu.matmul(&layer.down, &a.gate, n, &mut a.q);
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "auto".to_owned());
    let part = arguments.next();
    let wants = |name: &str| part.as_deref().is_none_or(|part| part == name);
    let isa = Isa::parse(&name)?.unwrap_or_else(Isa::detect);
    let threads_max = std::thread::available_parallelism()?.get().min(2);
    for threads in 1..=threads_max {
        let cpu = Cpu::new(threads, Some(isa))?;
        println!("{cpu:?}");
        if wants("products") {
            products_of_a_model(&cpu)?;
        }
        if wants("attention") {
            for depth in [512, 4096, 8192] {
                attention(&cpu, depth)?;
            }
        }
        if wants("experts") {
            experts(&cpu)?;
        }
        dispatch(&cpu);
    }
    Ok(())
}

fn products_of_a_model(cpu: &Cpu) -> Outcome<()> {
    let layers: Vec<Layer> = (0..LAYERS).map(|_| layer()).collect::<Result<_, _>>()?;
    let head = matrix(TensorType::Q8_0, VOCAB, D_MODEL)?;
    prefill(cpu, &layers);
    for n in [1, 2, 4, 8, 16, 32] {
        decode(cpu, &layers, &head, n);
    }
    Ok(())
}

fn prefill(cpu: &Cpu, layers: &[Layer]) {
    let n = 512;
    let mut a = Activations::new(n);
    let weights = 2 * D_MODEL * D_MODEL + 2 * D_KV * D_MODEL + 3 * D_FF * D_MODEL;
    let used = 8;
    let flops = (2 * n * weights * used) as f64;
    let run = |a: &mut Activations| {
        for layer in &layers[..used] {
            products(cpu, layer, a, n);
        }
    };
    run(&mut a);
    let samples = (0..7)
        .map(|_| flops / seconds(|| run(&mut a)) / 1e9)
        .collect();
    println!("  prefill products, 512 tokens: {} GFLOPS", spread(samples));
}

fn decode(cpu: &Cpu, layers: &[Layer], head: &PanelMatrix, n: usize) {
    let mut a = Activations::new(n);
    let mut logits = vec![0.0; n * VOCAB];
    let layer_bytes = |l: &Layer| -> usize {
        [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down]
            .map(PanelMatrix::bytes)
            .iter()
            .sum()
    };
    let bytes = (layers.iter().map(layer_bytes).sum::<usize>() + head.bytes()) as f64;
    let mut run = || {
        for layer in layers {
            products(cpu, layer, &mut a, n);
        }
        cpu.matmul(head, &a.x, n, &mut logits);
    };
    run();
    let memory = vec![1u64; (bytes / 8.0) as usize];
    let (mut kernel, mut probe) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        probe.push(bytes / seconds(|| read_all(&memory, cpu.threads())) / 1e9);
        kernel.push(bytes / seconds(&mut run) / 1e9);
    }
    let (kernel, probe) = (spread(kernel), spread(probe));
    let percent = 100.0 * kernel.0 / probe.0;
    let rate = kernel.0 * 1e9 / bytes * n as f64;
    println!(
        "  decode products ×{n}: {rate:.0} tok/s, {kernel} GB/s, {percent:.0} % of the probe's {probe}"
    );
}

/// Reads every byte once, each thread a part.
fn read_all(memory: &[u64], threads: usize) {
    std::thread::scope(|scope| {
        for part in memory.chunks(memory.len().div_ceil(threads)) {
            scope.spawn(move || {
                let mut sums = [0u64; 16];
                for values in part.as_chunks::<16>().0 {
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = sum.wrapping_add(*value);
                    }
                }
                black_box(sums);
            });
        }
    });
}

const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const HEAD_DIM: usize = 64;
const KV_LAYERS: usize = 8;
const SCALE: AttentionOptions<'_> = AttentionOptions {
    scale: 0.125,
    window: None,
    softcap: None,
    sinks: None,
};

/// A cache of one codec, filled, and the ns that writing took per token and layer.
fn filled(cpu: &Cpu, codec: KvCodec, depth: usize) -> Outcome<(KvStore, Spread)> {
    let shape = KvShape {
        n_layers: KV_LAYERS,
        n_kv_heads: KV_HEADS,
        key_dim: HEAD_DIM,
        value_dim: HEAD_DIM,
        key_codec: codec,
        value_codec: codec,
        pages: depth.div_ceil(64),
    };
    let mut kv = KvStore::new(shape)?;
    kv.commit(shape.pages)?;
    let row: Vec<f32> = (0..depth * KV_HEADS * HEAD_DIM)
        .map(|i| (i % 13) as f32 / 6.0 - 1.0)
        .collect();
    let places: Vec<KvPlace> = (0..depth as u32)
        .map(|p| KvPlace {
            page: p / 64,
            row: p % 64,
        })
        .collect();
    let mut samples = Vec::new();
    for round in 0..3 {
        for layer in 0..KV_LAYERS {
            let time = seconds(|| cpu.kv_write(&mut kv, layer, &row, &row, &places));
            if round > 0 {
                samples.push(time * 1e9 / depth as f64);
            }
        }
    }
    Ok((kv, spread(samples)))
}

/// All codecs beside each other: samples interleaved, so that ratios hold on a busy host.
fn attention(cpu: &Cpu, depth: usize) -> Outcome<()> {
    let pages: Vec<u32> = (0..depth.div_ceil(64) as u32).collect();
    let stores = KvCodec::ALL
        .into_iter()
        .map(|codec| Ok((codec, filled(cpu, codec, depth)?)))
        .collect::<Outcome<Vec<_>>>()?;
    let q = vec![0.1f32; 512 * HEADS * HEAD_DIM];
    let mut out = vec![0.0; q.len()];
    let mut time = |kv: &KvStore, n: usize| {
        let len = n * HEADS * HEAD_DIM;
        let run = [AttentionRun {
            first: 0,
            n,
            position: (depth - n) as u32,
            pages: &pages,
        }];
        seconds(|| {
            for layer in 0..KV_LAYERS {
                cpu.attention(kv, layer, &q[..len], HEADS, &run, SCALE, &mut out[..len]);
            }
        })
    };
    let keys: usize = (depth - 512 + 1..=depth).sum();
    let flops = (4 * KV_LAYERS * HEADS * HEAD_DIM * keys) as f64;
    let largest = pages.len() * stores[0].1.0.bytes_per_page();
    let memory = vec![1u64; largest / 8];
    let mut probe = Vec::new();
    let mut samples = vec![(Vec::new(), Vec::new()); stores.len()];
    for round in 0..12 {
        let probed = largest as f64 / seconds(|| read_all(&memory, cpu.threads())) / 1e9;
        for ((_, (kv, _)), (decode, prefill)) in stores.iter().zip(&mut samples) {
            let decoded = time(kv, 1) * 1e6 / KV_LAYERS as f64;
            if round >= 3 {
                decode.push(decoded);
                if round % 3 == 0 {
                    prefill.push(flops / time(kv, 512) / 1e9);
                }
            }
        }
        if round >= 3 {
            probe.push(probed);
        }
    }
    println!("  attention at {depth}, probe {} GB/s", spread(probe));
    for ((codec, (kv, write)), (decode, prefill)) in stores.iter().zip(samples) {
        let bytes = (pages.len() * kv.bytes_per_page()) as f64;
        let decode = spread(decode);
        println!(
            "    {codec:>4}: 1 query {decode} µs a layer, {:.1} GB/s; 512 queries {} GFLOPS; \
             kv_write {write} ns a token and layer",
            bytes / KV_LAYERS as f64 / decode.0 / 1e3,
            spread(prefill),
        );
    }
    Ok(())
}

/// A token, and 64 tokens, through 4 of 32 experts: one dispatch against one for each expert.
fn experts(cpu: &Cpu) -> Outcome<()> {
    let (count, used) = (32, 4);
    let matrices = (0..count)
        .map(|_| matrix(TensorType::Q4_1, 512, D_MODEL))
        .collect::<Outcome<Vec<_>>>()?;
    for n in [1usize, 64] {
        let mut a = Activations::new(n * used);
        a.gate.resize(n * used * 512, 0.0);
        let groups: Vec<(usize, usize)> = match n {
            1 => (0..used).map(|slot| (slot * 7, 1)).collect(),
            _ => (0..count)
                .map(|expert| (expert, n * used / count))
                .collect(),
        };
        let grouped = |a: &mut Activations| {
            let mut out = &mut a.gate[..n * used * 512];
            let mut products = Vec::new();
            let mut first = 0;
            for &(expert, rows) in &groups {
                let (now, later) = out.split_at_mut(rows * 512);
                products.push(ExpertProduct {
                    w: &matrices[expert],
                    x: &a.x[first * D_MODEL..][..rows * D_MODEL],
                    out: now,
                });
                out = later;
                first += rows;
            }
            cpu.matmul_each(&mut products);
        };
        let single = |a: &mut Activations| {
            let mut first = 0;
            for &(expert, rows) in &groups {
                let x = &a.x[first * D_MODEL..][..rows * D_MODEL];
                let out = &mut a.gate[first * 512..][..rows * 512];
                cpu.matmul(&matrices[expert], x, rows, out);
                first += rows;
            }
        };
        let (mut together, mut apart) = (Vec::new(), Vec::new());
        for _ in 0..41 {
            together.push(seconds(|| grouped(&mut a)) * 1e6);
            apart.push(seconds(|| single(&mut a)) * 1e6);
        }
        println!(
            "  {n} tokens through {used} of {count} experts: {} µs, one by one {}",
            spread(together),
            spread(apart)
        );
    }
    Ok(())
}

fn dispatch(cpu: &Cpu) {
    let (mut a, x) = (vec![0.0f32; 40_000], vec![0.0f32; 40_000]);
    let rounds = 2000;
    let one = seconds(|| (0..rounds).for_each(|_| cpu.add_assign(&mut a[..100], &x[..100])));
    let all = seconds(|| (0..rounds).for_each(|_| cpu.add_assign(&mut a, &x)));
    println!(
        "  add_assign of 40000 (one dispatch): {:.2} µs, of 100 (none): {:.2} µs",
        all * 1e6 / f64::from(rounds),
        one * 1e6 / f64::from(rounds)
    );
}
