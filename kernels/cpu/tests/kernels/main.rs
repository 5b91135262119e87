//! Every op on every instruction set this machine has, against the f64 reference and, bit for bit,
//! against itself in other batches, orders and thread counts.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed unwrap fails the test"
)]

mod attention;
mod elementwise;
mod kv_store;
mod machine;
mod matmul;
mod random;

use vitriol_kernels_cpu::{Cpu, Isa};

/// One CPU per instruction set and thread count.
fn cpus(threads: &[usize]) -> Vec<Cpu> {
    let present = Isa::ALL.into_iter().filter(|isa| isa.is_present());
    present
        .flat_map(|isa| {
            threads
                .iter()
                .map(move |&t| Cpu::new(t, Some(isa)).unwrap())
        })
        .collect()
}

/// The instruction sets that multiply and add alike, and so agree bit for bit; those this machine lacks are
/// named.
fn families() -> [Vec<Cpu>; 2] {
    [Isa::Scalar, Isa::Avx2].map(|family| {
        let of_family = Isa::ALL.into_iter().filter(|isa| isa.family() == family);
        let (present, absent): (Vec<Isa>, Vec<Isa>) = of_family.partition(|isa| isa.is_present());
        for isa in absent {
            println!("this processor lacks {isa}: agreement with it is NOT checked by this run");
        }
        let cpu = |isa| Cpu::new(1, Some(isa)).unwrap();
        present.into_iter().map(cpu).collect()
    })
}

/// Checks that every instruction set of a family computes the same bits.
fn check_agreement(what: &str, compute: impl Fn(&Cpu) -> Vec<f32>) {
    for family in families() {
        let mut results = family.iter().map(|cpu| (cpu, compute(cpu)));
        let Some((_, first)) = results.next() else {
            continue;
        };
        for (cpu, result) in results {
            assert_eq!(first_difference(&first, &result), None, "{cpu:?} {what}");
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Where two results differ first, if they do.
fn first_difference(a: &[f32], b: &[f32]) -> Option<(usize, f32, f32)> {
    assert_eq!(a.len(), b.len());
    let differ = a
        .iter()
        .zip(b)
        .position(|(a, b)| a.to_bits() != b.to_bits());
    differ.map(|at| (at, a[at], b[at]))
}

/// Says by name which kernels this machine cannot check.
#[test]
fn instruction_sets_that_stay_unchecked_here() {
    for isa in Isa::ALL {
        if !isa.is_present() {
            println!("this processor lacks {isa}: its kernels are NOT checked by this run");
        }
    }
    assert!(Isa::Scalar.is_present());
}
