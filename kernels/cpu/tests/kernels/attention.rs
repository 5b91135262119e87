use proptest::prelude::*;
use vitriol_kernels_core::reference::{self, AttentionShape};
use vitriol_kernels_core::tolerance;
use vitriol_kernels_cpu::{AttentionRun, Cpu, Isa, KvPlace, KvShape, KvStore, PAGE_TOKENS};

use crate::random::Random;
use crate::{cpus, first_difference};

/// One sequence: queries, keys and values of every position, and where its pages lie.
struct Sequence {
    shape: AttentionShape,
    n: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    pages: Vec<u32>,
}

const SMOL: AttentionShape = AttentionShape {
    n_heads: 9,
    n_kv_heads: 3,
    head_dim: 64,
};

impl Sequence {
    fn new(shape: AttentionShape, n: usize, pages: Vec<u32>, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let AttentionShape {
            n_heads,
            n_kv_heads,
            head_dim,
        } = shape;
        // Scores spread over several units, as in a model.
        let q = random
            .units(n * n_heads * head_dim)
            .iter()
            .map(|v| v * 4.0)
            .collect();
        let k = random.units(n * n_kv_heads * head_dim);
        let v = random.units(n * n_kv_heads * head_dim);
        assert!(pages.len() >= n.div_ceil(PAGE_TOKENS));
        Self {
            shape,
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

    fn row(&self) -> usize {
        self.shape.n_heads * self.shape.head_dim
    }

    fn scale(&self) -> f32 {
        1.0 / (self.shape.head_dim as f32).sqrt()
    }

    fn store(&self, pages: usize) -> KvStore {
        let mut kv = KvStore::new(KvShape {
            n_layers: 2,
            n_kv_heads: self.shape.n_kv_heads,
            head_dim: self.shape.head_dim,
            pages,
        })
        .unwrap();
        kv.commit(pages).unwrap();
        kv
    }

    fn write(&self, cpu: &Cpu, kv: &mut KvStore, first: usize, n: usize) {
        let row = self.shape.n_kv_heads * self.shape.head_dim;
        let places: Vec<KvPlace> = (first..first + n)
            .map(|position| KvPlace {
                page: self.pages[position / PAGE_TOKENS],
                row: (position % PAGE_TOKENS) as u32,
            })
            .collect();
        let part = first * row..(first + n) * row;
        cpu.kv_write(kv, 1, &self.k[part.clone()], &self.v[part], &places);
    }

    /// Prefill in chunks of the given sizes, keys written chunk by chunk as an engine does.
    fn run(&self, cpu: &Cpu, kv: &mut KvStore, sizes: impl IntoIterator<Item = usize>) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.n * self.row()];
        let mut first = 0;
        for n in sizes {
            self.write(cpu, kv, first, n);
            let part = first * self.row()..(first + n) * self.row();
            let run = AttentionRun {
                first: 0,
                n,
                position: first as u32,
                pages: &self.pages,
            };
            cpu.attention(
                kv,
                1,
                &self.q[part.clone()],
                self.shape.n_heads,
                &[run],
                self.scale(),
                &mut out[part],
            );
            first += n;
        }
        assert_eq!(first, self.n);
        out
    }

    fn run_alone(&self, cpu: &Cpu) -> Vec<f32> {
        let pages = 1 + self.pages.iter().max().copied().unwrap_or(0) as usize;
        self.run(cpu, &mut self.store(pages), [self.n])
    }

    fn check_against_reference(&self, out: &[f32], first: usize, what: &str) {
        let q = &self.q[first * self.row()..];
        let exact = reference::attention(self.shape, q, &self.k, &self.v, first, self.scale());
        for (i, (&value, exact)) in out[first * self.row()..].iter().zip(exact).enumerate() {
            let error = (f64::from(value) - exact).abs();
            assert!(
                error <= tolerance::ATTENTION_RELATIVE,
                "{what} at {i}: {value} is not {exact}"
            );
        }
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
    let shapes = [
        (4, 2, 16),
        (4, 4, 32),
        (8, 1, 80),
        (2, 1, 256),
        (5, 1, 128),
        (14, 2, 48),
        (3, 3, 24),
        (2, 2, 6),
        (16, 2, 100),
    ];
    for cpu in cpus(&[1, 2]) {
        for (n_heads, n_kv_heads, head_dim) in shapes {
            let shape = AttentionShape {
                n_heads,
                n_kv_heads,
                head_dim,
            };
            let sequence = Sequence::in_order(shape, 270, 1);
            let out = sequence.run_alone(&cpu);
            sequence.check_against_reference(&out, 240, &format!("{cpu:?} {shape:?}"));
            let mut kv = sequence.store(5);
            let solo = sequence.run(&cpu, &mut kv, batches(270, 1));
            assert_eq!(first_difference(&out, &solo), None, "{cpu:?} {shape:?}");
        }
    }
}

#[test]
fn bits_do_not_depend_on_chunking_page_order_or_threads() {
    let n = 777;
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_present()) {
        let in_order = Sequence::in_order(SMOL, n, 2);
        let whole = in_order.run_alone(&Cpu::new(1, Some(isa)).unwrap());
        let scattered = vec![19, 3, 0, 11, 7, 20, 1, 2, 18, 9, 13, 5, 4];
        let scattered = Sequence::new(SMOL, n, scattered, 2);
        for threads in [1, 2, 4] {
            let cpu = Cpu::new(threads, Some(isa)).unwrap();
            for batch in [1, 2, 7, 64, 100, 256, 400, n] {
                let mut kv = scattered.store(21);
                let out = scattered.run(&cpu, &mut kv, batches(n, batch));
                assert_eq!(
                    first_difference(&whole, &out),
                    None,
                    "{cpu:?} batch {batch}"
                );
            }
        }
    }
}

#[test]
fn deep_single_queries_are_split_over_threads_without_changing_bits() {
    let shape = AttentionShape {
        n_heads: 6,
        n_kv_heads: 2,
        head_dim: 32,
    };
    let sequence = Sequence::in_order(shape, 3103, 8);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_present()) {
        let mut results = Vec::new();
        for threads in [1, 2, 3] {
            let cpu = Cpu::new(threads, Some(isa)).unwrap();
            results.push(sequence.run(&cpu, &mut sequence.store(49), [2100, 1000, 1, 1, 1]));
        }
        let last = 3102 * sequence.row();
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
        let lengths = [300usize, 1, 65, 130, 17];
        let sequences: Vec<Sequence> = lengths
            .iter()
            .enumerate()
            .map(|(i, &n)| {
                // Interleaved pages: sequence i has pages i, i + 5, i + 10, …
                let pages = (0..n.div_ceil(PAGE_TOKENS))
                    .map(|p| (i + 5 * p) as u32)
                    .collect();
                Sequence::new(SMOL, n, pages, 100 + i as u64)
            })
            .collect();
        let mut kv = sequences[0].store(25);
        for sequence in &sequences {
            sequence.write(&cpu, &mut kv, 0, sequence.n);
        }
        // Each brings its last few queries.
        let mut q = Vec::new();
        let mut runs = Vec::new();
        let mut first = 0;
        for sequence in &sequences {
            let n = sequence.n.min(13);
            q.extend(&sequence.q[(sequence.n - n) * sequence.row()..]);
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
        cpu.attention(
            &kv,
            1,
            &q,
            SMOL.n_heads,
            &runs,
            sequences[0].scale(),
            &mut out,
        );
        for (sequence, run) in sequences.iter().zip(&runs) {
            let row = sequence.row();
            let together = &out[run.first * row..][..run.n * row];
            let alone = sequence.run_alone(&cpu);
            let alone = &alone[(sequence.n - run.n) * row..];
            assert_eq!(
                first_difference(alone, together),
                None,
                "{cpu:?} of {}",
                sequence.n
            );
        }
    }
}

#[test]
fn what_lies_in_a_page_beyond_the_last_key_has_no_influence() {
    for cpu in cpus(&[1]) {
        let sequence = Sequence::in_order(SMOL, 70, 4);
        let clean = sequence.run_alone(&cpu);
        let mut kv = sequence.store(2);
        // The worst leftovers there are, in every row.
        let mut leftovers = Sequence::in_order(SMOL, 128, 5);
        for (i, value) in leftovers.k.iter_mut().chain(&mut leftovers.v).enumerate() {
            *value = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX][i % 4];
        }
        leftovers.write(&cpu, &mut kv, 0, 128);
        let out = sequence.run(&cpu, &mut kv, batches(70, 9));
        assert_eq!(first_difference(&clean, &out), None, "{cpu:?}");
    }
}

#[test]
fn zeroed_and_copied_pages_read_as_such() {
    for cpu in cpus(&[1]) {
        let sequence = Sequence::in_order(SMOL, 64, 4);
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
            cpu.attention(kv, 1, &sequence.q, 9, &[run], sequence.scale(), &mut out);
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

#[test]
fn fused_instruction_sets_agree_bit_for_bit() {
    if !Isa::Avx512.is_present() {
        println!("this processor lacks avx512: agreement with avx2 is NOT checked by this run");
        return;
    }
    let sequence = Sequence::in_order(SMOL, 600, 6);
    let [a, b] =
        [Isa::Avx2, Isa::Avx512].map(|isa| sequence.run_alone(&Cpu::new(1, Some(isa)).unwrap()));
    assert_eq!(first_difference(&a, &b), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_chunking_gives_the_same_bits(
        kv_heads in 1usize..4,
        per_kv in 1usize..9,
        head_dim in 1usize..40,
        sizes in prop::collection::vec(1usize..150, 1..6),
        seed: u64,
    ) {
        let n: usize = sizes.iter().sum();
        let shape =
            AttentionShape { n_heads: kv_heads * per_kv, n_kv_heads: kv_heads, head_dim };
        let sequence = Sequence::in_order(shape, n, seed);
        for cpu in cpus(&[1, 2]) {
            let whole = sequence.run_alone(&cpu);
            let mut kv = sequence.store(n.div_ceil(PAGE_TOKENS));
            let parts = sequence.run(&cpu, &mut kv, sizes.clone());
            prop_assert_eq!(first_difference(&whole, &parts), None);
        }
    }
}
