use proptest::prelude::*;
use vitriol_kernels_core::kv::{Rotation, kv_round_trip};
use vitriol_kernels_core::reference::{self, AttentionShape};
use vitriol_kernels_core::tolerance;
use vitriol_kernels_cpu::{
    AttentionOptions, AttentionRun, Cpu, Isa, KvCodec, KvPlace, KvShape, KvStore, PAGE_TOKENS,
};

use crate::random::Random;
use crate::{check_agreement, cpus, first_difference};

/// What a layer does besides plain attention, and how it stores its keys and values.
#[derive(Clone, Debug)]
struct Layer {
    keys: KvCodec,
    values: KvCodec,
    window: Option<u32>,
    softcap: Option<f32>,
    sinks: Option<Vec<f32>>,
}

const PLAIN: Layer = Layer {
    keys: KvCodec::F32,
    values: KvCodec::F32,
    window: None,
    softcap: None,
    sinks: None,
};

impl Layer {
    fn of(codec: KvCodec) -> Self {
        Self {
            keys: codec,
            values: codec,
            ..PLAIN
        }
    }
}

/// One sequence: queries, keys and values of every position, and where its pages lie.
struct Sequence {
    shape: AttentionShape,
    layer: Layer,
    n: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    pages: Vec<u32>,
}

const SMOL: AttentionShape = heads(9, 3, 64);

const fn heads(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape {
        n_heads,
        n_kv_heads,
        key_dim: head_dim,
        value_dim: head_dim,
    }
}

/// A page of nowhere: what a window has passed.
const GONE: u32 = u32::MAX;

impl Sequence {
    fn new(shape: AttentionShape, n: usize, pages: Vec<u32>, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let AttentionShape {
            n_heads,
            n_kv_heads,
            key_dim,
            value_dim,
        } = shape;
        // Scores spread over several units, as in a model.
        let q = random
            .units(n * n_heads * key_dim)
            .iter()
            .map(|v| v * 4.0)
            .collect();
        let k = random.units(n * n_kv_heads * key_dim);
        let v = random.units(n * n_kv_heads * value_dim);
        assert!(pages.len() >= n.div_ceil(PAGE_TOKENS));
        Self {
            shape,
            layer: PLAIN,
            n,
            q,
            k,
            v,
            pages,
        }
    }

    fn in_order(shape: AttentionShape, n: usize, seed: u64) -> Self {
        Self::new(
            shape,
            n,
            (0..n.div_ceil(PAGE_TOKENS) as u32).collect(),
            seed,
        )
    }

    fn with(self, layer: Layer) -> Self {
        Self { layer, ..self }
    }

    /// Elements of a token's queries, of its output.
    fn rows(&self) -> (usize, usize) {
        let AttentionShape {
            n_heads,
            key_dim,
            value_dim,
            ..
        } = self.shape;
        (n_heads * key_dim, n_heads * value_dim)
    }

    fn options(&self) -> AttentionOptions<'_> {
        AttentionOptions {
            scale: 1.0 / (self.shape.key_dim as f32).sqrt(),
            window: self.layer.window,
            softcap: self.layer.softcap,
            sinks: self.layer.sinks.as_deref(),
        }
    }

    fn store(&self, pages: usize) -> KvStore {
        let mut kv = KvStore::new(KvShape {
            n_layers: 2,
            n_kv_heads: self.shape.n_kv_heads,
            key_dim: self.shape.key_dim,
            value_dim: self.shape.value_dim,
            key_codec: self.layer.keys,
            value_codec: self.layer.values,
            pages,
        })
        .unwrap();
        kv.commit(pages).unwrap();
        kv
    }

    fn write(&self, cpu: &Cpu, kv: &mut KvStore, first: usize, n: usize) {
        let (k_row, v_row) = (
            self.shape.n_kv_heads * self.shape.key_dim,
            self.shape.n_kv_heads * self.shape.value_dim,
        );
        let places: Vec<KvPlace> = (first..first + n)
            .map(|position| KvPlace {
                page: self.pages[position / PAGE_TOKENS],
                row: (position % PAGE_TOKENS) as u32,
            })
            .collect();
        let k = &self.k[first * k_row..(first + n) * k_row];
        let v = &self.v[first * v_row..(first + n) * v_row];
        cpu.kv_write(kv, 1, k, v, &places);
    }

    /// Block table of a run from `first` on, pages that end before its window gone.
    fn pages_from(&self, first: usize) -> Vec<u32> {
        let mut pages = self.pages.clone();
        if let Some(window) = self.layer.window {
            let passed = (first + 1).saturating_sub(window as usize) / PAGE_TOKENS;
            pages[..passed].fill(GONE);
        }
        pages
    }

    fn attend(&self, cpu: &Cpu, kv: &KvStore, first: usize, n: usize) -> Vec<f32> {
        let (q_row, out_row) = self.rows();
        let run = AttentionRun {
            first: 0,
            n,
            position: first as u32,
            pages: &self.pages_from(first),
        };
        let q = &self.q[first * q_row..(first + n) * q_row];
        let mut out = vec![f32::NAN; n * out_row];
        let n_heads = self.shape.n_heads;
        cpu.attention(kv, 1, q, n_heads, &[run], self.options(), &mut out);
        out
    }

    /// Prefill in chunks of the given sizes, keys written chunk by chunk as an engine does.
    fn run(&self, cpu: &Cpu, kv: &mut KvStore, sizes: impl IntoIterator<Item = usize>) -> Vec<f32> {
        let mut out = Vec::new();
        let mut first = 0;
        for n in sizes {
            self.write(cpu, kv, first, n);
            out.extend(self.attend(cpu, kv, first, n));
            first += n;
        }
        assert_eq!(first, self.n);
        out
    }

    fn run_alone(&self, cpu: &Cpu) -> Vec<f32> {
        let pages = 1 + self.pages.iter().max().copied().unwrap_or(0) as usize;
        self.run(cpu, &mut self.store(pages), [self.n])
    }

    /// Against exact attention over what the pages hold.
    fn check_against_reference(&self, out: &[f32], first: usize, what: &str) {
        let (q_row, out_row) = self.rows();
        let Layer { keys, values, .. } = self.layer;
        let decoded = |x: &[f32], codec: KvCodec, dim: usize, rotation: Rotation| -> Vec<f32> {
            x.chunks(dim)
                .flat_map(|head| kv_round_trip(codec, rotation, head))
                .collect()
        };
        let (key_dim, value_dim) = (self.shape.key_dim, self.shape.value_dim);
        let k = decoded(&self.k, keys, key_dim, keys.key_rotation(key_dim));
        let v = decoded(&self.v, values, value_dim, values.value_rotation(value_dim));
        let q = &self.q[first * q_row..];
        let exact = reference::attention(self.shape, q, &k, &v, first, self.options());
        let mut worst = 0f64;
        for (i, (&value, exact)) in out[first * out_row..].iter().zip(exact).enumerate() {
            let error = (f64::from(value) - exact).abs();
            worst = worst.max(error);
            assert!(
                error <= tolerance::ATTENTION_RELATIVE,
                "{what} at {i}: {value} is not {exact}"
            );
        }
        println!("{what}: {worst:.1e}");
    }
}

fn batches(n: usize, batch: usize) -> impl Iterator<Item = usize> {
    (0..n).step_by(batch).map(move |first| batch.min(n - first))
}

#[test]
fn every_depth_is_near_the_reference() {
    for cpu in cpus(&[1, 2]) {
        for n in [1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 700] {
            let sequence = Sequence::in_order(SMOL, n, n as u64);
            let out = sequence.run_alone(&cpu);
            sequence.check_against_reference(&out, n.saturating_sub(20), &format!("{cpu:?} n {n}"));
        }
    }
}

#[test]
fn every_head_shape_is_near_the_reference() {
    let mla = AttentionShape {
        key_dim: 576,
        value_dim: 512,
        ..heads(4, 1, 0)
    };
    let narrow_values = AttentionShape {
        value_dim: 24,
        ..heads(4, 2, 40)
    };
    let shapes = [
        heads(4, 2, 16),
        heads(4, 4, 32),
        heads(8, 1, 80),
        heads(2, 1, 256),
        heads(5, 1, 128),
        heads(14, 2, 48),
        heads(3, 3, 24),
        heads(2, 2, 6),
        heads(16, 2, 100),
        heads(8, 8, 96),
        mla,
        narrow_values,
    ];
    for cpu in cpus(&[2]) {
        for shape in shapes {
            for codec in KvCodec::ALL {
                let sequence = Sequence::in_order(shape, 270, 1).with(Layer::of(codec));
                let out = sequence.run_alone(&cpu);
                let what = format!("{cpu:?} {codec} {shape:?}");
                sequence.check_against_reference(&out, 265, &what);
                let mut kv = sequence.store(5);
                let solo = sequence.run(&cpu, &mut kv, batches(270, 1));
                assert_eq!(first_difference(&out, &solo), None, "{what}");
            }
        }
    }
}

#[test]
fn windows_caps_and_sinks_are_near_the_reference() {
    let sinks = Some((0..9).map(|head| head as f32 - 4.0).collect::<Vec<_>>());
    for cpu in cpus(&[2]) {
        for n in [1usize, 64, 257, 520] {
            for window in [1, 16, 64, 65, 200, 256, 257, 4096] {
                for codec in [KvCodec::F32, KvCodec::Q8_0] {
                    let layer = Layer {
                        window: Some(window),
                        softcap: (window % 2 == 0).then_some(5.0),
                        sinks: sinks.clone().filter(|_| window > 64),
                        ..Layer::of(codec)
                    };
                    let sequence = Sequence::in_order(SMOL, n, 3).with(layer);
                    let out = sequence.run_alone(&cpu);
                    let what = format!("{cpu:?} {codec} n {n} window {window}");
                    sequence.check_against_reference(&out, n.saturating_sub(5), &what);
                }
            }
        }
    }
}

#[test]
fn pages_that_a_window_has_passed_may_hold_anything() {
    for cpu in cpus(&[1]) {
        for codec in KvCodec::ALL {
            let layer = Layer {
                window: Some(70),
                ..Layer::of(codec)
            };
            let sequence = Sequence::in_order(SMOL, 400, 5).with(layer);
            let whole = sequence.run_alone(&cpu);
            // The whole prompt at once keeps all pages; token by token, `pages_from` has holes and the
            // page that was passed is somebody else's, full of numbers that are none.
            let mut kv = sequence.store(12);
            let mut out = Vec::new();
            let mut foreign = Sequence::in_order(SMOL, 400, 6).with(sequence.layer.clone());
            foreign.k.fill(f32::NAN);
            foreign.v.fill(f32::INFINITY);
            for first in 0..400 {
                sequence.write(&cpu, &mut kv, first, 1);
                let passed = (first + 1).saturating_sub(70) / PAGE_TOKENS * PAGE_TOKENS;
                if first % PAGE_TOKENS == 0 && passed > 0 {
                    foreign.write(&cpu, &mut kv, 0, passed);
                }
                out.extend(sequence.attend(&cpu, &kv, first, 1));
            }
            assert_eq!(first_difference(&whole, &out), None, "{cpu:?} {codec}");
        }
    }
}

#[test]
fn sides_may_be_encoded_differently() {
    for cpu in cpus(&[2]) {
        for keys in KvCodec::ALL {
            for values in KvCodec::ALL {
                let layer = Layer {
                    keys,
                    values,
                    ..PLAIN
                };
                let sequence = Sequence::in_order(heads(6, 2, 128), 300, 2).with(layer);
                let out = sequence.run_alone(&cpu);
                let what = format!("{cpu:?} {keys} and {values}");
                sequence.check_against_reference(&out, 290, &what);
            }
        }
    }
}

#[test]
fn codecs_stay_as_near_to_f32_as_their_bits_allow() {
    let cpu = Cpu::new(1, None).unwrap();
    let exact = Sequence::in_order(SMOL, 600, 9).run_alone(&cpu);
    let distance = |codec| {
        let out = Sequence::in_order(SMOL, 600, 9)
            .with(Layer::of(codec))
            .run_alone(&cpu);
        let squares = |v: &[f32]| v.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        let difference: Vec<f32> = out.iter().zip(&exact).map(|(a, b)| a - b).collect();
        (squares(&difference) / squares(&exact)).sqrt()
    };
    let (f16, q8, q4) = (
        distance(KvCodec::F16),
        distance(KvCodec::Q8_0),
        distance(KvCodec::Q4_0),
    );
    println!("f16 {f16:.1e} q8_0 {q8:.1e} q4_0 {q4:.1e}");
    assert!(f16 > 0.0 && f16 < 1e-3, "{f16}");
    assert!(q8 > f16 && q8 < 1.5e-2, "{q8}");
    assert!(q4 > q8 && q4 < 0.25, "{q4}");
}

#[test]
fn bits_do_not_depend_on_chunking_page_order_or_threads() {
    let n = 580;
    let windowed = |codec| Layer {
        window: Some(300),
        sinks: Some(vec![0.5; 9]),
        ..Layer::of(codec)
    };
    let layers = KvCodec::ALL
        .into_iter()
        .flat_map(|codec| [Layer::of(codec), windowed(codec)]);
    for layer in layers {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_present()) {
            let in_order = Sequence::in_order(SMOL, n, 2).with(layer.clone());
            let whole = in_order.run_alone(&Cpu::new(1, Some(isa)).unwrap());
            let scattered = vec![19, 3, 0, 11, 7, 20, 1, 2, 18, 9, 13, 5, 4];
            let scattered = Sequence::new(SMOL, n, scattered, 2).with(layer.clone());
            for threads in [1, 3] {
                let cpu = Cpu::new(threads, Some(isa)).unwrap();
                for batch in [1, 7, 64, 256, 400, n] {
                    let mut kv = scattered.store(21);
                    let out = scattered.run(&cpu, &mut kv, batches(n, batch));
                    let difference = first_difference(&whole, &out);
                    assert_eq!(difference, None, "{cpu:?} {layer:?} batch {batch}");
                }
            }
        }
    }
}

#[test]
fn deep_single_queries_are_split_over_threads_without_changing_bits() {
    let shape = heads(6, 2, 32);
    let sequence = Sequence::in_order(shape, 3103, 8);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_present()) {
        let mut results = Vec::new();
        for threads in [1, 2, 3] {
            let cpu = Cpu::new(threads, Some(isa)).unwrap();
            results.push(sequence.run(&cpu, &mut sequence.store(49), [2100, 1000, 1, 1, 1]));
        }
        let last = 3102 * sequence.rows().1;
        sequence.check_against_reference(&results[0], 3102, "deep");
        for result in &results {
            assert_eq!(
                first_difference(&results[0][last..], &result[last..]),
                None,
                "{isa}"
            );
            assert_eq!(first_difference(&results[0], result), None, "{isa}");
        }
    }
}

#[test]
fn runs_of_one_batch_do_not_see_each_other() {
    for cpu in cpus(&[1, 2]) {
        for codec in KvCodec::ALL {
            let lengths = [300usize, 1, 65, 130, 17];
            let sequence = |(i, &n): (usize, &usize)| {
                // Interleaved pages: sequence i has pages i, i + 5, i + 10, …
                let pages = (0..n.div_ceil(PAGE_TOKENS)).map(|p| (i + 5 * p) as u32);
                Sequence::new(SMOL, n, pages.collect(), 100 + i as u64).with(Layer::of(codec))
            };
            let sequences: Vec<Sequence> = lengths.iter().enumerate().map(sequence).collect();
            let mut kv = sequences[0].store(25);
            for sequence in &sequences {
                sequence.write(&cpu, &mut kv, 0, sequence.n);
            }
            // Each brings its last few queries.
            let mut q = Vec::new();
            let mut runs = Vec::new();
            let mut first = 0;
            let row = sequences[0].rows().0;
            for sequence in &sequences {
                let n = sequence.n.min(13);
                q.extend(&sequence.q[(sequence.n - n) * row..]);
                let position = (sequence.n - n) as u32;
                runs.push(AttentionRun {
                    first,
                    n,
                    position,
                    pages: &sequence.pages,
                });
                first += n;
            }
            let mut out = vec![f32::NAN; q.len()];
            let options = sequences[0].options();
            cpu.attention(&kv, 1, &q, SMOL.n_heads, &runs, options, &mut out);
            for (sequence, run) in sequences.iter().zip(&runs) {
                let together = &out[run.first * row..][..run.n * row];
                let alone = sequence.run_alone(&cpu);
                let alone = &alone[(sequence.n - run.n) * row..];
                let difference = first_difference(alone, together);
                assert_eq!(difference, None, "{cpu:?} {codec} of {}", sequence.n);
            }
        }
    }
}

#[test]
fn what_lies_in_a_page_beyond_the_last_key_has_no_influence() {
    for cpu in cpus(&[1]) {
        for codec in KvCodec::ALL {
            let sequence = Sequence::in_order(SMOL, 70, 4).with(Layer::of(codec));
            let clean = sequence.run_alone(&cpu);
            let mut kv = sequence.store(2);
            // The worst leftovers there are, in every row.
            let mut leftovers = Sequence::in_order(SMOL, 128, 5).with(Layer::of(codec));
            for (i, value) in leftovers.k.iter_mut().chain(&mut leftovers.v).enumerate() {
                *value = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX][i % 4];
            }
            leftovers.write(&cpu, &mut kv, 0, 128);
            let out = sequence.run(&cpu, &mut kv, batches(70, 9));
            assert_eq!(first_difference(&clean, &out), None, "{cpu:?} {codec}");
        }
    }
}

#[test]
fn zeroed_and_copied_pages_read_as_such() {
    for cpu in cpus(&[1]) {
        for codec in [KvCodec::F32, KvCodec::Q4_0] {
            let sequence = Sequence::in_order(SMOL, 64, 4).with(Layer::of(codec));
            let mut kv = sequence.store(2);
            let expected = sequence.run(&cpu, &mut kv, [64]);
            let on_page = |kv: &KvStore, page: u32| {
                let mut out = vec![f32::NAN; expected.len()];
                let run = AttentionRun {
                    first: 0,
                    n: 64,
                    position: 0,
                    pages: &[page],
                };
                cpu.attention(kv, 1, &sequence.q, 9, &[run], sequence.options(), &mut out);
                out
            };
            assert!(
                on_page(&kv, 1).iter().all(|&v| v == 0.0),
                "fresh pages are zero"
            );
            kv.copy_page(0, 1);
            assert_eq!(first_difference(&expected, &on_page(&kv, 1)), None);
            kv.zero_page(0);
            assert!(on_page(&kv, 0).iter().all(|&v| v == 0.0));
            kv.decommit(1).unwrap();
            kv.commit(2).unwrap();
        }
    }
}

#[test]
#[should_panic(expected = "KV page 4294967295")]
fn a_page_inside_the_window_must_be_there() {
    let cpu = Cpu::new(1, None).unwrap();
    let layer = Layer {
        window: Some(100),
        ..PLAIN
    };
    let mut sequence = Sequence::in_order(SMOL, 200, 1).with(layer);
    let mut kv = sequence.store(4);
    sequence.write(&cpu, &mut kv, 0, 200);
    // The last query's window begins at key 100: page 1 holds some of it.
    sequence.pages[1] = GONE;
    sequence.attend(&cpu, &kv, 199, 1);
}

#[test]
fn instruction_sets_agree_bit_for_bit() {
    for codec in KvCodec::ALL {
        let layer = Layer {
            softcap: Some(30.0),
            ..Layer::of(codec)
        };
        let sequence = Sequence::in_order(SMOL, 600, 6).with(layer);
        check_agreement(&codec.to_string(), |cpu| sequence.run_alone(cpu));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_chunking_gives_the_same_bits(
        kv_heads in 1usize..4,
        per_kv in 1usize..9,
        head_dim in 1usize..40,
        sizes in prop::collection::vec(1usize..150, 1..6),
        codecs in (0usize..4, 0usize..4),
        window in prop::option::of(1u32..400),
        has_cap: bool,
        has_sinks: bool,
        seed: u64,
    ) {
        let n: usize = sizes.iter().sum();
        let shape = heads(kv_heads * per_kv, kv_heads, head_dim);
        let layer = Layer {
            keys: KvCodec::ALL[codecs.0],
            values: KvCodec::ALL[codecs.1],
            window,
            softcap: has_cap.then_some(3.0),
            sinks: has_sinks.then(|| vec![1.0; shape.n_heads]),
        };
        let sequence = Sequence::in_order(shape, n, seed).with(layer);
        for cpu in cpus(&[1, 2]) {
            let whole = sequence.run_alone(&cpu);
            sequence.check_against_reference(&whole, n.saturating_sub(3), "");
            let mut kv = sequence.store(n.div_ceil(PAGE_TOKENS));
            let parts = sequence.run(&cpu, &mut kv, sizes.clone());
            prop_assert_eq!(first_difference(&whole, &parts), None);
        }
    }
}
